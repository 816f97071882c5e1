"""Opens the device and the process groups of a run, on every chip in the same way.

transformers knows the collective backends of some devices only, so the group is always opened here
and before any model is built. Beside the accelerator's backend there is gloo for tensors on the
CPU, and checkpoints get a gloo group of their own: collectives of a background save must not
interleave with those of training.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from joymigrate.chips import all_chips, get, hide_driverless
from joymigrate.device import CPU, Device, open_device, why_not
from joymigrate.errors import JoyError
from joymigrate.run.train.layout import AXES, Layout

T = TypeVar("T")
TIMEOUT = timedelta(minutes=30)  # a rank may build a token cache while the others wait


def in_group() -> bool:
    """Whether a launcher started this process as one of several."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))


def rank() -> int:
    """This process's number."""
    return int(os.environ["RANK"]) if in_group() else 0


def choose(name: str, tell: Callable[[str], None]) -> Device:
    """The device called `name`: cpu, cuda, a chip's name, or `auto` for the first that works."""
    hide_driverless()
    if name == CPU:
        return open_device(None)
    chips = list(all_chips().values())
    if name == "auto":
        for chip in sorted(chips, key=lambda c: (not c.origin, not c.default)):
            if why_not(chip) is None:
                return open_device(chip, required=True)
        return open_device(None)
    by_device = [chip for chip in chips if chip.device == name and chip.origin]
    return open_device(by_device[0] if by_device else get(name), required=True, tell=tell)


def open_group(device: Device) -> None:
    """Bind this process to its card, and open the default group when there are several."""
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    # Imported later (DDP does it), the defaults of its functions keep the group to the very end.
    importlib.import_module("torch.distributed.nn.functional")

    local = int(os.environ.get("LOCAL_RANK", "0"))
    if not device.is_cpu:
        if local >= device.count():
            raise JoyError(
                f"process {local} has no card: the machine counts {device.count()}",
                help="start as many processes as there are cards (--nproc)",
            )
        device.use(local)
    if not in_group() or dist.is_initialized():
        return
    backend = device.backend if device.is_cpu else f"{device.type}:{device.backend},cpu:gloo"
    # A restarted worker finds the store of the attempt before: without a prefix of its own it reads
    # addresses of processes that are gone (torch 2.13 shares the agent's store among attempts).
    store, number, count = next(rendezvous("env://", timeout=TIMEOUT))
    attempt = PrefixStore(f"attempt{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    dist.init_process_group(backend, store=attempt, rank=number, world_size=count, timeout=TIMEOUT)


def checkpoint_group() -> Any:
    """A gloo group of all ranks, for checkpoints alone; None for one process."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return None
    return dist.new_group(backend="gloo", timeout=TIMEOUT)


def share(find: Callable[[], T]) -> T:
    """What the first rank finds, on all ranks; what it raises too."""
    import torch.distributed as dist

    if not in_group():
        return find()
    told: list[Any] = [None]
    if rank() == 0:
        try:
            told = [find()]
        except JoyError as error:
            told = [error]
    dist.broadcast_object_list(told, src=0)
    if isinstance(told[0], JoyError):
        raise told[0]
    found: T = told[0]
    return found


def barrier() -> None:
    """Wait for all ranks, if there are several. On the CPU, so that no card is needed."""
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        dist.all_reduce(torch.zeros(1))


def mesh_of(device: Device, layout: Layout) -> Any:
    """The ranks as a grid with the axes of `layout`; None for one process."""
    from torch.distributed.device_mesh import init_device_mesh

    if layout.world == 1:
        return None
    axes = [axis for axis in AXES if axis != "cp" or layout.cp > 1]
    names = tuple("dp_replicate" if axis == "dp" else axis for axis in axes)
    sizes = tuple(getattr(layout, axis) for axis in axes)
    return init_device_mesh(device.type, sizes, mesh_dim_names=names)
