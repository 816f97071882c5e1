"""The one door to `torch.<device>` for joymigrate's own run-time packages.

A chip says what its device is called and which package brings it (`chip.yaml`); this file turns
that into calls. torch is imported when a device is opened, not before. A device that cannot be
opened is an error when the user asked for it, and a CPU with a reason when they did not.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from joymigrate.errors import JoyError
from joymigrate.extras import how_to_get

if TYPE_CHECKING:
    import torch

CPU = "cpu"
CPU_BACKEND = "gloo"
REST_S = 0.1


class DeviceNames(Protocol):
    """What a device needs to know of a `joymigrate.chips.Chip`."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def package(self) -> str | None: ...
    @property
    def distribution(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one card: held by tensors, held by the allocator, the peak of the first, in all.

    None where the device does not tell.
    """

    allocated: int | None = None
    reserved: int | None = None
    peak: int | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """An opened device type; `chip` None is the CPU. `fallback` says why it is not the one wanted.

    Cards are numbered from 0; None is the current one. On the CPU everything that has no meaning
    there does nothing or returns None.
    """

    type: str
    chip: str | None = None
    backend: str = CPU_BACKEND
    fallback: str | None = None

    @property
    def module(self) -> Any:
        """`torch.<type>`, as the backend registered it."""
        import torch

        return torch.get_device_module(self.type)

    @property
    def is_cpu(self) -> bool:
        """Whether this is the CPU."""
        return self.type == CPU

    @property
    def rehearsal(self) -> bool:
        """Whether the device is simulated; its results never count as the chip's."""
        return not self.is_cpu and bool(os.environ.get("JOYMIGRATE_REHEARSE"))

    def at(self, index: int | None = None) -> torch.device:
        """The torch device of one card."""
        import torch

        if self.is_cpu:
            return torch.device(CPU)
        return torch.device(self.type, self.current() if index is None else index)

    def count(self) -> int:
        """Number of cards; 1 for the CPU."""
        return 1 if self.is_cpu else int(self.module.device_count())

    def current(self) -> int:
        """The current card of this process."""
        return 0 if self.is_cpu else int(self.module.current_device())

    def use(self, index: int) -> None:
        """Make one card the current one."""
        if not self.is_cpu:
            self.module.set_device(index)

    def name(self, index: int | None = None) -> str:
        """What the driver calls the card."""
        if self.is_cpu:
            return CPU
        return str(self.module.get_device_name(self.at(index)))

    def capability(self, index: int | None = None) -> tuple[int, int] | None:
        """(major, minor) where the vendor has such numbers, else None."""
        query = getattr(self.module, "get_device_capability", None)
        found = query(self.at(index)) if query is not None and not self.is_cpu else None
        return (int(found[0]), int(found[1])) if found else None

    def seed_all(self, seed: int) -> None:
        """Seed the CPU's generator and that of every card."""
        import torch

        torch.manual_seed(seed)
        if not self.is_cpu:
            self.module.manual_seed_all(seed)

    def synchronise(self, index: int | None = None) -> None:
        """Wait until everything queued on the card is done."""
        if not self.is_cpu:
            self.module.synchronize(self.at(index))

    def memory(self, index: int | None = None) -> Memory:
        """What the allocator and the card say."""
        if self.is_cpu:
            return Memory()
        card = self.at(index)
        return Memory(
            allocated=self.ask("memory_allocated", card),
            reserved=self.ask("memory_reserved", card),
            peak=self.ask("max_memory_allocated", card),
            total=self.total_memory(card),
        )

    def ask(self, name: str, card: torch.device) -> int | None:
        """One memory statistic, None where the module has no such function."""
        query = getattr(self.module, name, None)
        return None if query is None else int(query(card))

    def total_memory(self, card: torch.device) -> int | None:
        """The card's memory in bytes."""
        query = getattr(self.module, "get_device_properties", None)
        total = getattr(query(card), "total_memory", None) if query is not None else None
        return None if total is None else int(total)

    def reset_peak(self, index: int | None = None) -> None:
        """Start measuring the peak anew."""
        if not self.is_cpu:
            self.module.reset_peak_memory_stats(self.at(index))

    def empty_cache(self) -> None:
        """Give unused memory back to the card."""
        if not self.is_cpu:
            self.module.empty_cache()

    def autocast(self, dtype: torch.dtype | None, *, enabled: bool = True) -> Any:
        """A context where operators take `dtype` when that is safe; None: as the tensors are."""
        import torch

        if dtype is None or not enabled:
            return contextlib.nullcontext()
        return torch.autocast(self.type, dtype=dtype)


def say(message: str) -> None:
    """Write a note to standard error."""
    print(f"note: {message}", file=sys.stderr)


def open_device(
    chip: DeviceNames | None, *, required: bool = False, tell: Callable[[str], None] = say
) -> Device:
    """The device of `chip`, or the CPU for None.

    A device that can't be opened raises `JoyError` when it is `required`; else the CPU takes its
    place, `tell` gets the one line that says so, and `fallback` keeps the reason.
    """
    if chip is None or chip.device == CPU:
        return Device(CPU)
    reason = why_not(chip)
    if reason is None:
        return Device(chip.device, chip.name, chip.backend)
    if required:
        raise JoyError(
            f"no {chip.title} here: {reason}",
            help=f"joymigrate doctor --to {chip.name} says what is missing; --device cpu runs "
            "without it",
        )
    tell(f"no {chip.title} here ({reason}); running on the CPU instead")
    return Device(CPU, fallback=reason)


def why_not(chip: DeviceNames) -> str | None:
    """Why the device of `chip` cannot be used in this process; None when it can."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return f"torch is not installed ({how_to_get('torch')})"

    if chip.package is not None:
        if sys.modules.get(chip.package, sys) is None:  # hidden: see chips.hide_driverless
            return f"{chip.package} is installed, but its driver does not load"
        try:
            importlib.import_module(chip.package)
        except ModuleNotFoundError as error:
            if error.name != chip.package:
                return f"{chip.package} needs {error.name}"
            remedy = how_to_get(chip.distribution or chip.package)
            return f"{chip.package} is not installed ({remedy})"
        except Exception as error:  # a vendor's package may raise anything without its driver
            return f"{chip.package} does not load: {first_line(error)}"
    try:
        module = torch.get_device_module(chip.device)
        if not module.is_available():
            return f"torch.{chip.device}.is_available() is false"
        if module.device_count() == 0:
            return f"torch.{chip.device} counts no card"
    except (RuntimeError, AttributeError) as error:
        return f"torch has no device '{chip.device}': {first_line(error)}"
    return None


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its type where it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def leave_group() -> None:
    """Leave torch's process group, if there is one, at the end of a program.

    After a collective a thread of gloo may still hold a tensor that Python knows, and needs Python
    to free it. Whoever keeps the group (a DDP model in a global variable does) keeps the thread,
    and a thread that asks for Python while that ends takes the process down with it: "terminate
    called without an active exception". Here it gets its turn before.
    """
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
        time.sleep(REST_S)
