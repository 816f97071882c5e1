"""Quantisation-aware training of a small image classifier, eight bits, weights by channel."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(11)
device = "cuda" if torch.cuda.is_available() else "cpu"


class ActQuant(nn.Module):
    """Observes the range of activations and rounds them to 256 levels."""

    def __init__(self, momentum=0.1):
        super().__init__()
        self.momentum = momentum
        self.observing = True
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.ones(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training and self.observing:
            low, high = x.detach().amin(), x.detach().amax()
            if self.seen == 0:
                self.low.copy_(low)
                self.high.copy_(high)
            else:
                self.low.lerp_(low, self.momentum)
                self.high.lerp_(high, self.momentum)
            self.seen += 1
        scale = ((self.high - self.low) / 255).clamp_min(1e-6)
        zero = (-self.low / scale).round().clamp(0, 255).to(torch.int32)
        return torch.fake_quantize_per_tensor_affine(x, scale, zero, 0, 255)


class QuantConv(nn.Conv2d):
    """A convolution whose weight is rounded to -127..127, one scale a channel."""

    def forward(self, x):
        peak = self.weight.detach().abs().amax(dim=(1, 2, 3)).clamp_min(1e-6)
        zero = torch.zeros(self.out_channels, dtype=torch.int32, device=x.device)
        weight = torch.fake_quantize_per_channel_affine(self.weight, peak / 127, zero, 0, -127, 127)
        return self._conv_forward(x, weight, self.bias)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.quant_in = ActQuant()
        self.conv1 = QuantConv(3, 12, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(12)
        self.act1 = nn.LeakyReLU(0.1)
        self.quant1 = ActQuant()
        self.conv2 = QuantConv(12, 12, 3, stride=2, padding=1)
        self.bn2 = nn.BatchNorm2d(12)
        self.act2 = nn.LeakyReLU(0.1)
        self.quant2 = ActQuant()
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        x = self.quant_in(x)
        x = self.quant1(self.act1(self.bn1(self.conv1(x))))
        x = self.quant2(self.act2(self.bn2(self.conv2(x))))
        return self.head(x.mean(dim=(2, 3)))


model = Net().to(device).to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
images = torch.randn(60, 3, 12, 12)
labels = torch.randint(0, 5, (60,))

for step in range(5):
    model.train()
    if step == 3:
        for module in model.modules():
            if isinstance(module, ActQuant):
                module.observing = False
    rows = slice(step * 12, step * 12 + 12)
    batch = images[rows].to(device).contiguous(memory_format=torch.channels_last) * (1 + step)
    loss = F.cross_entropy(model(batch), labels[rows].to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}", flush=True)

model.eval()
with torch.no_grad():
    print(f"eval loss {F.cross_entropy(model(images.to(device)), labels.to(device)).item():.6f}")
