"""Steps every recommendation model on the CPU and on the chip with the same rows; prints the losses."""

from __future__ import annotations

import json
import sys

import torch
from torch import nn

from joymigrate.run.train import recommendation
from joymigrate.run.train.family_step import looked_up, rows_shape
from joymigrate.run.train.recommendation.inputs import RowInputs


def moved(x: RowInputs, device: str) -> RowInputs:
    events = tuple(tuple(part.to(device) for part in one) for one in x.events)
    codes = tuple((one.to(device), candidate.to(device)) for one, candidate in x.codes)
    return RowInputs(
        x.fields_BFD.to(device), x.numbers_BG.to(device), x.linear_B.to(device), events, codes=codes
    )


def losses(name: str, device: str, steps: int) -> list[float]:
    torch.manual_seed(0)
    kept = recommendation.find(name)
    sizes = {**kept.SIZES, **({"dropout": 0.0} if "dropout" in kept.SIZES else {})}
    model: nn.Module = kept.MODEL(rows_shape(), **sizes).to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    found = []
    for _ in range(steps):
        loss = model(moved(looked_up(), device)).square().mean()
        loss = loss + getattr(model, "extra_loss", 0.0)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append(float(loss.detach()))
    return found


def main() -> None:
    import torch_npu  # noqa: F401

    found = {}
    for name in recommendation.names():
        found[name] = [losses(name, device, int(sys.argv[1])) for device in ("cpu", "npu:0")]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
