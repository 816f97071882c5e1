"""Where operators are replayed: a device, perhaps with simulated rounding noise or a fault."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from joymigrate.device import Device
from joymigrate.errors import JoyError


@dataclass(frozen=True, slots=True)
class ReplayTarget:
    """`noise`: every result of an inexact operator moves by up to so many units in the last place
    (a stand-in for another chip). `faults`: operator name → relative error of its results."""

    device: Device
    noise: float = 0.0
    faults: Mapping[str, float] = field(default_factory=dict)
    seed: int = 1

    @property
    def name(self) -> str:
        """The torch device's type."""
        return self.device.type

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """A context in which operators compute as this target does."""
        from joymigrate.verify.noise import Noise

        with Noise(self.noise, self.seed) if self.noise else contextlib.nullcontext():
            yield

    def faulty(self, op: str, value: Any) -> Any:
        """A result with the fault that was asked for, if one was for this operator."""
        import torch

        size = self.faults.get(op.split("::")[-1], self.faults.get(op))
        if size is None or not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        generator = torch.Generator().manual_seed(self.seed)
        draw = torch.rand(value.shape, generator=generator, dtype=torch.float64) * 2 - 1
        return (value.cpu().double() * (1 + size * draw)).to(value.dtype)


def read_faults(texts: list[str]) -> dict[str, float]:
    """`gelu=1e-2` as a mapping."""
    found = {}
    for text in texts:
        name, _, size = text.partition("=")
        try:
            found[name.strip()] = float(size)
        except ValueError:
            raise JoyError(
                f"--inject takes OPERATOR=SIZE, got '{text}'", help="--inject gelu=1e-2"
            ) from None
    return found
