"""Trains, writes a checkpoint, loads it into a new model and goes on; evaluates the first model."""

import os
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.verify.kinds.machine import FAULT, start


def build():
    return nn.Sequential(
        nn.Linear(10, 24),
        nn.BatchNorm1d(24),
        nn.ReLU(),
        nn.Linear(24, 24),
        nn.Tanh(),
        nn.Linear(24, 3),
    )


def train(model, opt, x, y):
    for step in range(len(x)):
        loss = F.mse_loss(model(x[step]), y[step])
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"loss: {loss.item():.6f}")


def main():
    torch.manual_seed(4)
    x, y = torch.randn(12, 16, 10), torch.randn(12, 16, 3)
    path = Path(os.environ.get("KEPT", "."), f"resume-{os.getpid()}.pt")
    model = build()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    start()
    train(model, opt, x[:5], y[:5])
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, path)
    train(model, opt, x[5:7], y[5:7])
    kept = torch.load(path)
    path.unlink()
    again = build()
    if FAULT == "stale":
        kept["model"]["0.weight"] = kept["model"]["0.weight"] * 1.05
    again.load_state_dict(kept["model"])
    opt = torch.optim.AdamW(again.parameters(), lr=1e-2)
    if FAULT != "cold":
        opt.load_state_dict(kept["opt"])
    train(again, opt, x[7:], y[7:])
    again.eval()
    with torch.no_grad():
        print(f"mean {again(x[0]).mean().item():.6f}")


main()
