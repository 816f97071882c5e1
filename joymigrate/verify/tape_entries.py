"""Calls on a tape, with slots for their tensors, and how one is run again in float64."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from joymigrate.chips import all_chips
from joymigrate.verify.transforms import found_in, map_leaves, tensors_in
from joymigrate.verify.uninitialised_memory import fill_blanks

MOST_NUMBERS = 64  # of one call, and read of late
FLAGS = ("requires_grad_", "share_memory_", "detach_", "rename_")


@dataclass(frozen=True, slots=True)
class TapeSlot:
    """A value on the tape."""

    number: int


@dataclass(slots=True)
class External:
    """A tensor that comes from elsewhere, with its value at its first use."""

    slot: TapeSlot
    tensor: torch.Tensor
    version: int
    role: str
    kept: torch.Tensor | None = None  # its value before the tape changed it
    differentiable: bool = False

    def value(self) -> torch.Tensor | None:
        """What it was at its first use; None when something off the tape has changed it."""
        if self.kept is not None:
            return self.kept
        unchanged = self.tensor.is_inference() or self.tensor._version == self.version
        return self.tensor.detach() if unchanged else None


@dataclass(slots=True)
class TapeEntry:
    """One call: its arguments with slots for tensors, and the slots of its results."""

    call: Callable[..., Any]
    name: str
    args: Any
    kwargs: Any
    results: list[TapeSlot]
    reads: set[int]
    writes: set[int]
    gradients: bool
    fills: int = 0  # the group whose values it replaces, all of them
    narrow: bool = False  # its results are in 16 bits
    short: bool = False  # and autocast made them so
    cast: bool = False  # autocast was on, also for what a transform does inside
    told: Any = None  # the call as `calls` compares it


@dataclass(slots=True)
class Rerun:
    """Values of the sinks in float64, and gradients of the first one."""

    values: list[Any]
    gradients: dict[str, torch.Tensor | None] = field(default_factory=dict)


@functools.cache
def device_types() -> frozenset[str]:
    """What torch calls the devices of all known chips, and the processor."""
    return frozenset({"cpu", "xpu", "hpu", *(chip.device for chip in all_chips().values())})


def run_entry(entry: TapeEntry, env: Mapping[int, Any]) -> Any:
    """One call on the values of this run, on the CPU."""
    call = entry.call
    if entry.name in device_types():
        return env[entry.args[0].number].cpu()
    special = IN_FLOAT32_ONLY.get(entry.name)
    kwargs = place_tensors(entry.kwargs, env)
    made = (special or call)(*place_tensors(entry.args, env), **kwargs)
    fill_blanks(entry.name, made, kwargs)
    return made


def unscale(gradients: list[torch.Tensor], found: torch.Tensor, inverse: torch.Tensor) -> None:
    """`torch._amp_foreach_non_finite_check_and_unscale_`, in any type."""
    for gradient in gradients:
        if not bool(torch.isfinite(gradient).all()):
            found.fill_(1.0)
        gradient.mul_(inverse)


def update_scale(
    scale: torch.Tensor,
    tracker: torch.Tensor,
    found: torch.Tensor,
    growth: float,
    backoff: float,
    interval: int,
) -> torch.Tensor:
    """`torch._amp_update_scale_`, in any type (ATen/native/cuda/AmpKernels.cu)."""
    if float(found):
        scale.mul_(backoff)
        tracker.zero_()
    elif int(tracker) + 1 == interval:
        scale.mul_(growth)
        tracker.zero_()
    else:
        tracker.add_(1)
    return scale


IN_FLOAT32_ONLY: Mapping[str, Callable[..., Any]] = {
    "_amp_foreach_non_finite_check_and_unscale_": unscale,
    "_amp_update_scale_": update_scale,
}


def place_tensors(value: Any, env: Mapping[int, Any]) -> Any:
    """Stored arguments with this run's tensors; devices become the CPU."""

    def place(leaf: Any) -> Any:
        if isinstance(leaf, TapeSlot):
            return env[leaf.number]
        if isinstance(leaf, torch.device):
            return torch.device("cpu")
        named = isinstance(leaf, str) and leaf.partition(":")[0] in device_types()
        return "cpu" if named else leaf

    return map_leaves(value, place)


def numbers_read(made: Any) -> list[float]:
    """The numbers with a fraction that a program got of a tensor, not many."""
    found: list[float] = []
    each_constant(made, found.append)
    return found[:MOST_NUMBERS]


def constants_in(entries: Iterable[TapeEntry]) -> list[float]:
    """The plain numbers with a fraction in the arguments of calls, in order."""
    return [number for entry in entries for number in numbers_read((entry.args, entry.kwargs))]


def with_constants(entries: Iterable[TapeEntry], constants: Sequence[float]) -> list[TapeEntry]:
    """The same calls with other numbers, as many as `constants_in` finds."""
    left = iter(constants)
    changed = []
    for entry in entries:
        count = len(numbers_read((entry.args, entry.kwargs)))
        mine = iter([next(left) for _ in range(count)])
        args, kwargs = each_constant((entry.args, entry.kwargs), functools.partial(following, mine))
        changed.append(replace(entry, args=args, kwargs=kwargs))
    return changed


def following(numbers: Iterator[float], old: float) -> float:
    """The next of the numbers; the old one where there are no more."""
    return next(numbers, old)


def each_constant(value: Any, change: Callable[[float], Any]) -> Any:
    """Arguments with `change` of every plain number with a fraction."""
    return map_leaves(value, lambda leaf: change(leaf) if type(leaf) is float else leaf)


def widen(value: torch.Tensor) -> torch.Tensor:
    """A copy in float64 (or complex128) on the CPU; whole numbers as they are."""
    value = value.detach().to("cpu")
    if value.is_floating_point():
        return value.to(torch.float64, copy=True)
    if value.is_complex():
        return value.to(torch.complex128, copy=True)
    return value.clone()


def is_inplace(name: str, kwargs: Mapping[str, Any], args: Sequence[Any] = ()) -> bool:
    """Whether a call may change its arguments."""
    if kwargs.get("out") is not None or name == "__setitem__" or name.startswith("apply "):
        return True
    at = inplace_position(name)
    if kwargs.get("inplace") or (at is not None and at < len(args) and args[at] is True):
        return True
    if name.startswith("__"):
        return name.startswith("__i") and name not in ("__int__", "__index__", "__invert__")
    return name.endswith("_") or "batch_norm" in name


@functools.cache
def inplace_position(name: str) -> int | None:
    """Which argument tells a function of torch.nn.functional to work in place: `relu(x, True)`."""
    function = getattr(torch.nn.functional, name, None)
    try:
        return list(inspect.signature(function).parameters).index("inplace")  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def written_by(name: str, args: Sequence[Any]) -> list[torch.Tensor]:
    """What an in-place call changes, by its name."""
    inplace = name.endswith("_") and not name.startswith("__")
    inplace |= name == "__setitem__" or (name.startswith("__i") and is_inplace(name, {}))
    if not inplace or name in FLAGS or not args:
        return []
    return list(tensors_in(args[:2] if name.startswith("_amp_") else args[0]))


def slots_in(value: Any) -> Iterable[TapeSlot]:
    """Slots in stored arguments."""
    return found_in(TapeSlot, value)


def is_weight(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a parameter, and not one that was computed and put in its place."""
    return isinstance(tensor, torch.nn.Parameter)


def version(tensor: torch.Tensor) -> int:
    """How often a tensor was changed; inference tensors don't tell."""
    return 0 if tensor.is_inference() else tensor._version


def storage(tensor: torch.Tensor) -> int:
    """Where its bytes lie, also a detached one's; 0 where it has none of its own: sparse, meta, and
    stand-ins that torch puts in while it compiles."""
    with contextlib.suppress(RuntimeError, NotImplementedError):
        return tensor.untyped_storage().data_ptr()
    return 0
