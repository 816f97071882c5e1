"""Records the calls of torch that the program's own code makes, as `calls` compares them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from joymigrate.verify.source_lines import where
from joymigrate.verify.tape_entries import device_types

MOST_CALLS = 400  # of one module's call, or behind one value
MOST_ITEMS = 8  # of a list that is an argument
# Where values lie, and what is read of them: nothing is computed, and each machine has its own.
MOVES = frozenset(
    [
        "to",
        "cpu",
        "contiguous",
        "clone",
        "detach",
        "requires_grad_",
        "type_as",
        "item",
        "tolist",
        "numpy",
        "size",
        "dim",
        "numel",
        "stride",
        "data_ptr",
        "is_floating_point",
        "element_size",
        "get_device",
        "is_contiguous",
        "alias",
        "lift_fresh",
        "pin_memory",
        "retain_grad",
        "register_hook",
        "is_complex",
        "storage_offset",
        "untyped_storage",
        "__len__",
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "__repr__",
        "__format__",
        "__hash__",
        "__iter__",
        "__get__",
        "__set__",
        "__delete__",
        "device",
        "backward",
    ]
)
MADE = ("tensor", "as_tensor")  # numbers become tensors: a type shows in what is made of them
NARROW = (torch.float16, torch.bfloat16)


class CallTrace(TorchFunctionMode):
    """Notes calls under what `place` says; None: they are not the program's."""

    def __init__(self, place: Callable[[], str | None]) -> None:
        super().__init__()
        self.place = place
        self.calls: dict[str, list[list[Any]]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        place = self.place()
        name = str(getattr(func, "__name__", func))
        if place is not None:
            calls = self.calls.setdefault(place, [])
            call = describe_call(name, func, args, kwargs) if len(calls) < MOST_CALLS else None
            if call is not None:
                calls.append(call)
        return func(*args, **kwargs)


def describe_call(name: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`[name, arguments, line]` of one call; None for one that computes nothing."""
    if name in MADE:
        return None
    moves = name in MOVES or name in device_types() or "record_function" in name
    if moves and not any(isinstance(v, torch.dtype) for v in (*args, *kwargs.values())):
        return None
    return [name, describe_arguments(func, args, kwargs), where()]


@functools.cache
def names_of(func: Any) -> Sequence[str]:
    """The names of a function's arguments by position; none for what has no signature."""
    if getattr(func, "__module__", "") != "torch.nn.functional":
        return ()
    try:
        return tuple(inspect.signature(func).parameters)
    except (TypeError, ValueError):
        return ()


def describe_arguments(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name, or by position where a function tells no names."""
    names = names_of(func) if callable(func) else ()
    found = {names[n] if n < len(names) else str(n): describe_value(a) for n, a in enumerate(args)}
    found |= {key: describe_value(value) for key, value in kwargs.items()}
    types = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.dtype)]
    if types:
        found["dtype"] = describe_value(types[0])
    return {key: value for key, value in found.items() if value != "device"}


def describe_value(value: Any) -> Any:
    """One argument, as JSON."""
    if isinstance(value, torch.Tensor):
        return f"{kind_of(value.dtype)}{list(value.shape)}"
    if isinstance(value, torch.dtype):  # where one side computes in float64
        single = value in (torch.float32, torch.float64)
        return "float" if single else str(value).removeprefix("torch.")
    if isinstance(value, bool | int | str | type(None)):
        return "device" if isinstance(value, str) and is_device(value) else value
    if isinstance(value, float):
        return float(value)
    if isinstance(value, list | tuple):
        return [describe_value(v) for v in value[:MOST_ITEMS]]
    if isinstance(value, torch.device):
        return "device"
    return type(value).__name__


def is_device(text: str) -> bool:
    """Whether a text names a device."""
    return text.partition(":")[0] in device_types()


def kind_of(dtype: torch.dtype) -> str:
    """What counts of a type where one side computes in float64."""
    if dtype in NARROW:
        return str(dtype).removeprefix("torch.")
    if dtype.is_complex:
        return "complex"
    if dtype.is_floating_point:
        return "float"
    return "bool" if dtype == torch.bool else "int"
