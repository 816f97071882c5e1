"""Quantisation-aware training with learned steps, four bits; running statistics are calibrated first."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(109)
device = "cuda" if torch.cuda.is_available() else "cpu"
CLASSES = 6


class Rounded(torch.autograd.Function):
    """x in whole steps between two limits; the step gets a gradient too."""

    @staticmethod
    def forward(ctx, x, step, low, high, share):
        ctx.save_for_backward(x, step)
        ctx.limits = low, high, share
        return (x / step).round().clamp(low, high) * step

    @staticmethod
    def backward(ctx, grad):
        x, step = ctx.saved_tensors
        low, high, share = ctx.limits
        ratio = x / step
        below, above = (ratio < low), (ratio > high)
        inside = ~(below | above)
        to_step = torch.where(inside, ratio.round() - ratio, torch.where(below, low, high).to(x.dtype))
        return grad * inside, (grad * to_step).sum().reshape(step.shape) * share, None, None, None


class Quant(nn.Module):
    def __init__(self, bits, signed, start):
        super().__init__()
        self.low = -2 ** (bits - 1) if signed else 0
        self.high = 2 ** (bits - 1) - 1 if signed else 2 ** bits - 1
        self.step = nn.Parameter(torch.tensor(start))

    def forward(self, x):
        share = 1 / math.sqrt(x.numel() * self.high)
        return Rounded.apply(x, self.step, self.low, self.high, share)


class QConv(nn.Module):
    def __init__(self, wide_in, wide_out, stride, signed):
        super().__init__()
        self.conv = nn.Conv2d(wide_in, wide_out, 3, stride=stride, padding=1, bias=False)
        peak = self.conv.weight.detach().abs().max().item()
        self.quant_x = Quant(4, signed, 0.3)
        self.quant_w = Quant(4, True, peak / 7.6)

    def forward(self, x):
        return F.conv2d(self.quant_x(x), self.quant_w(self.conv.weight), stride=self.conv.stride, padding=1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = QConv(3, 12, 1, True), nn.BatchNorm2d(12)
        self.conv2, self.norm2 = QConv(12, 16, 2, False), nn.BatchNorm2d(16)
        self.conv3, self.norm3 = QConv(16, 16, 2, False), nn.BatchNorm2d(16)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x):
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        x = F.relu(self.norm3(self.conv3(x)))
        return self.head(x.mean(dim=(2, 3)))


def calibrate(model, batches):
    """Running statistics of the norms over a few batches, then the loss there in evaluation."""
    model.train()
    with torch.no_grad():
        for batch in batches:
            model(batch)
        model.eval()
        result = torch.stack([model(batch).float().std() for batch in batches]).mean()
    model.train()
    return result.item()


model = Net().to(device)
steps = [p for name, p in model.named_parameters() if name.endswith(".step")]
others = [p for name, p in model.named_parameters() if not name.endswith(".step")]
optimizer = torch.optim.SGD([{"params": others, "lr": 0.05}, {"params": steps, "lr": 0.5}], momentum=0.9)
labels = torch.randint(0, CLASSES, (60,))
images = torch.randn(60, 3, 12, 12) * (0.5 + labels[:, None, None, None] / CLASSES)

print(f"calibrated {calibrate(model, [images[:10].to(device), images[10:20].to(device)]):.6f}")
for step in range(4):
    rows = slice(20 + step * 10, 30 + step * 10)
    loss = F.cross_entropy(model(images[rows].to(device)), labels[rows].to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f} step of conv2 {model.conv2.quant_x.step.item():.6f}", flush=True)
