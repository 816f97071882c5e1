"""A convolutional classifier with batch norm, a data loader with workers and SGD."""

import os

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(int(os.environ.get("THREADS", "1")))
DTYPE = getattr(torch, os.environ.get("DTYPE", "float32"))


class Images(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(7)
        self.images = torch.rand(32, 3, 12, 12, generator=g)
        self.labels = torch.randint(0, 5, (32,), generator=g)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = (self.images[i] - 0.5) / 0.25
        return image, self.labels[i]


class Stem(nn.Sequential):
    def __init__(self, width):
        super().__init__(
            nn.Conv2d(3, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width, eps=1e-5, momentum=0.1),
            nn.ReLU(inplace=True),
        )


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += x
        return self.relu(y)


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.stem = Stem(width)
        self.block1 = Residual(width)
        self.pool = nn.MaxPool2d(2)
        self.block2 = Residual(width)
        self.norm = nn.LayerNorm([width, 6, 6])
        self.drop = nn.Dropout2d(0.2)
        self.fc = nn.Linear(width * 36, 5)

    def forward(self, x):
        x = self.pool(self.block1(self.stem(x)))
        x = self.drop(self.norm(self.block2(x)))
        return self.fc(x.flatten(1))


def build():
    net = Net()
    return net.to(DTYPE)


def main():
    loader = DataLoader(Images(), batch_size=8, shuffle=False, num_workers=1)
    net = build()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    for images, labels in loader:
        optimiser.zero_grad(set_to_none=True)
        loss = criterion(net(images.to(DTYPE)).float(), labels)
        loss.backward()
        optimiser.step()
        print(loss.item())


if __name__ == "__main__":
    main()
