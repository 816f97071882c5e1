"""Which chip a torch device type belongs to, and back."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from joymigrate.chips import Chip, all_chips, get, origin
from joymigrate.run.kernels.operator import CPU

if TYPE_CHECKING:
    import torch


@functools.cache
def of_device(device: str) -> str:
    """The chip whose device type this is: the origin where several share it, `cpu` for the CPU.

    A device type that no chip claims stands for itself.
    """
    if device == CPU:
        return CPU
    if device == origin().device:
        return origin().name
    for chip in all_chips().values():
        if chip.device == device:
            return chip.name
    return device


def resolve(chip: str | Chip | None, device: str | torch.device | None) -> tuple[str, str]:
    """(chip name, device type) of what the caller named."""
    if chip is None:
        named = CPU if device is None else str(getattr(device, "type", device)).split(":")[0]
        return of_device(named), named
    if chip == CPU:
        return CPU, CPU
    found = get(chip) if isinstance(chip, str) else chip
    return found.name, found.device
