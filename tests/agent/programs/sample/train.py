"""Trains a small classifier on made-up data; one line asks the card for its generation."""

import argparse
import json

import torch
import torch.nn as nn
import torch.nn.functional as F
from kernels import mish


def compute_dtype():
    """bfloat16 where the card has it."""
    major, minor = torch.cuda.get_device_capability()
    return torch.bfloat16 if major >= 8 else torch.float32


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(16, width)
        self.norm = nn.LayerNorm(width)
        self.drop = nn.Dropout(0.1)
        self.last = nn.Linear(width, 4)

    def forward(self, x):
        hidden = mish(self.norm(self.first(x)))
        return self.last(self.drop(hidden))


def batches(steps, device):
    draw = torch.Generator().manual_seed(7)
    weight = torch.randn(16, 4, generator=draw)
    for _ in range(steps):
        x = torch.randn(32, 16, generator=draw)
        yield x.to(device), (x @ weight).argmax(1).to(device)


def evaluate(model, device, dtype):
    total = correct = 0
    model.eval()
    with torch.no_grad():
        for x, y in batches(2, device):
            found = model(x).argmax(1)
            correct += (found == y).sum().item()
            total += y.numel()
    return correct / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--least", type=float, default=0.2)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = Net(32).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    dtype = compute_dtype()
    for step, (x, y) in enumerate(batches(args.steps, device)):
        with torch.autocast("cuda", dtype=dtype):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"step {step} loss: {loss.item():.5f}")
    accuracy = evaluate(model, device, dtype)
    if accuracy < args.least:
        raise SystemExit(f"accuracy {accuracy} is below {args.least}")
    print(json.dumps({"accuracy": accuracy}))


if __name__ == "__main__":
    main()
