"""A small training program; `END` says how it ends, `KIND` what it is."""

import os
import signal
import sys

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
kind, end, steps = os.environ.get("KIND", "train"), os.environ.get("END", ""), 7
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
critic = nn.Linear(4, 1)
parts = () if kind in ("inference", "own") else (model, critic)
optimisers = [torch.optim.SGD(part.parameters(), 0.1) for part in parts]
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)

for step in range(steps):
    x = torch.rand(4, 8)
    if kind == "inference":
        with torch.no_grad():
            print(model(x).sum().item().hex())
    elif kind == "own":
        loss = model(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None
        print(loss.item().hex())
    elif kind == "gan":
        for part, optimiser in enumerate(optimisers):
            optimiser.zero_grad()
            loss = critic(model(x)).mean() * (1 - 2 * part)
            loss.backward()
            optimiser.step()
        print(loss.item().hex())
    else:
        optimisers[0].zero_grad()
        for _ in range(2):  # accumulated
            loss = model(x).square().mean()
            loss.backward()
        optimisers[0].step()
        print(loss.item().hex())
    sys.stdout.flush()
    if step == 2 and end == "exception":
        raise ValueError("on purpose")
    if step == 2 and end == "exit":
        sys.exit(5)
    if step == 2 and end == "terminated":
        os.kill(os.getpid(), signal.SIGTERM)
if "RANK" in os.environ:
    torch.distributed.destroy_process_group()
