"""Tests of a CUDA project: one trains, with an operator that the chip lacks; one wants float64."""

import torch

from model import Scorer, mean_of

device = "cuda" if torch.cuda.is_available() else "cpu"


def test_training_lowers_the_loss():
    torch.manual_seed(0)
    model = Scorer().to(device)
    ids = torch.arange(12, device=device)
    offsets = torch.tensor([0, 4, 8], device=device)
    goal = torch.tensor([1.0, -1.0, 0.5], device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(5):
        loss = (model(ids, offsets) - goal).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < losses[0]


def test_the_mean_has_double_precision():
    assert mean_of(torch.ones(3, device=device)).dtype == torch.float64
