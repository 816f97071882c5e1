"""Which device, dtype and memory an engine has, by what was asked for."""

from __future__ import annotations

import os
from typing import Any

import torch

from joymigrate.device import CPU, Device, open_device
from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.memory import named_dtype

CPU_SHARE = 0.3  # of the free memory, for keys and values
CPU_MOST = 4 << 30
CARD_SHARE = 0.9  # of the card, for weights, activations, keys and values


def device_of(name: str) -> Device:
    """The opened device for `cpu`, `cuda`, or a chip's device type, with or without an index."""
    from joymigrate.chips import all_chips, origin

    kind = name.partition(":")[0]
    if kind == CPU:
        return Device(CPU)
    chips = [chip for chip in all_chips().values() if chip.device == kind or chip.name == kind]
    chip: Any = origin() if kind == origin().device else (chips[0] if chips else None)
    if chip is None:
        raise JoyError(f"there is no device '{name}'", help="cpu, cuda, or a chip's device type")
    device = open_device(chip, required=True)
    index = name.partition(":")[2]
    device.use(int(index) if index.isdigit() else 0)
    return device


def card_of(device: Device, name: str) -> torch.device:
    """The torch device of the wanted card."""
    index = name.partition(":")[2]
    return device.at(int(index) if index.isdigit() else None)


def dtype_of(wanted: str, raw: dict[str, Any], device: Device) -> torch.dtype:
    """The dtype to compute in; `auto` is the model's own (float32 where it does not say)."""
    if wanted == "auto":
        wanted = named_dtype(raw)
        if wanted == "float16" and device.is_cpu:
            wanted = "bfloat16"  # float16 products are emulated on most CPUs
    found = getattr(torch, wanted.removeprefix("torch."), None)
    if found not in (torch.float32, torch.bfloat16, torch.float16):
        raise JoyError(f"the model's dtype '{wanted}' is not served", help="--dtype bfloat16")
    return found  # type: ignore[no-any-return]


def free_memory(device: Device) -> int:
    """Bytes for keys and values."""
    if device.is_cpu:
        return min(CPU_MOST, int(CPU_SHARE * available_memory()))
    memory = device.memory()
    if memory.total is None:
        return CPU_MOST
    used = memory.reserved or memory.allocated or 0
    return max(0, int(CARD_SHARE * memory.total) - used)


def available_memory() -> int:
    """Free memory of the machine, in bytes."""
    try:
        import psutil

        return int(psutil.virtual_memory().available)
    except ImportError:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
