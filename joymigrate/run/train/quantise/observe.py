"""What the linears of a layer get: the range of every input channel, and some rows to try with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from joymigrate.run.train.quantise.groups import LinearGroup
from joymigrate.run.train.quantise.skeleton import run_layer

ROWS = 512  # kept of all samples together, evenly spread


@dataclass(slots=True, eq=False)
class InputStatistics:
    """Of one group's input, K channels: least, most, mean magnitude, and rows [T, K]."""

    low: Tensor
    high: Tensor
    total: Tensor
    count: int
    rows: list[Tensor]

    @property
    def largest(self) -> Tensor:
        """The largest magnitude of every channel."""
        return torch.maximum(self.low.abs(), self.high.abs())

    @property
    def mean(self) -> Tensor:
        """The mean magnitude of every channel."""
        return self.total / max(1, self.count)

    def span(self) -> tuple[Tensor, Tensor]:
        """Least and most with headroom for what calibration did not see: of K channels and T rows
        about K / T of the numbers of a new row lie outside of what was seen."""
        room = 1 + min(1.0, len(self.low) / max(1, self.count))
        return self.low * room, self.high * room

    @property
    def kept(self) -> Tensor:
        """The rows to try with."""
        return torch.cat(self.rows)


def observe(
    layer: nn.Module,
    groups: list[LinearGroup],
    states: list[Tensor],
    calls: Iterable[dict[str, Any]],
) -> tuple[list[InputStatistics], list[Tensor]]:
    """Run every sample through a layer; the inputs of each group, and the states behind it."""
    found: dict[int, InputStatistics] = {}
    quota = max(1, -(-ROWS // len(states)))
    hooks = [
        layer.get_submodule(group.linears[0]).register_forward_pre_hook(noting(found, i, quota))
        for i, group in enumerate(groups)
    ]
    try:
        after = [run_layer(layer, h, call) for h, call in zip(states, calls, strict=True)]
    finally:
        for hook in hooks:
            hook.remove()
    return [found[i] for i in range(len(groups))], after


def noting(found: dict[int, InputStatistics], i: int, quota: int) -> Callable[..., None]:
    """A hook that adds an input to what is known of group i."""

    def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        x = args[0].reshape(-1, args[0].shape[-1]).float()
        places = torch.linspace(0, len(x) - 1, min(quota, len(x))).round().long()
        low, high, total = x.amin(0), x.amax(0), x.abs().sum(0)
        rows = x[places.to(x.device)].clone()
        known = found.get(i)
        if known is None:
            found[i] = InputStatistics(low, high, total, len(x), [rows])
            return
        known.low = torch.minimum(known.low, low)
        known.high = torch.maximum(known.high, high)
        known.total += total
        known.count += len(x)
        known.rows.append(rows)

    return hook
