"""Which call of torch in a wrong module is wrong on its own inputs, and what is kept of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.overrides import resolve_name

from joymigrate.verify import layout
from joymigrate.verify.isolated_pass import exactly, keep_generators
from joymigrate.verify.measure import relative_error
from joymigrate.verify.tape_entries import widen
from joymigrate.verify.transforms import tensors_in

EXPLAINED = 0.1  # of the error is left on contiguous copies: the strides are misread
RATIO = 10.0  # error on the device by that of the same call on the CPU
FLOOR = 2.0**-22
MOST_BYTES = 256 << 20
MOST_CALLS = 200


def first_wrong(calls: Sequence[Any]) -> dict[str, Any] | None:
    """The first call whose result on the device is far worse than the CPU's in the same type, with
    its tensors; None where every call agrees with float64: the module computes another formula."""
    for call in calls[:MOST_CALLS]:
        name = resolve_name(call.func)
        if not name or (name.startswith("torch.Tensor.__") and not call.args):
            continue
        try:
            with keep_generators(), exactly():
                found = judge_call(call, name)
        except Exception:  # not every call runs by itself, or in float64
            continue
        if found is not None:
            return found
    return None


def judge_call(call: Any, name: str) -> dict[str, Any] | None:
    """One call: what is kept of it when it is wrong."""
    tensors: dict[str, torch.Tensor] = {}
    args, kwargs = write_arguments(call.args, tensors), write_arguments(call.kwargs, tensors)
    if args is None or kwargs is None or not tensors:
        return None
    if sum(t.numel() * t.element_size() for t in tensors.values()) > MOST_BYTES:
        return None
    host = {key: value.detach().to("cpu").contiguous().clone() for key, value in tensors.items()}
    golden = outcome(call.func, args, kwargs, {k: widen(v) for k, v in host.items()})
    plain = outcome(call.func, args, kwargs, {k: v.clone() for k, v in host.items()})
    mine = outcome(call.func, args, kwargs, {k: layout.copy_as(v) for k, v in tensors.items()})
    if golden is None or mine is None or plain is None or not golden.is_floating_point():
        return None
    error, own = relative_error(mine, golden), relative_error(plain, golden)
    if not error > RATIO * max(own, FLOOR):
        return None
    dense = {k: v.detach().clone(memory_format=torch.contiguous_format) for k, v in tensors.items()}
    again = outcome(call.func, args, kwargs, dense)
    better = again is not None and relative_error(again, golden) < EXPLAINED * error
    strides = [str(tuple(t.stride())) for t in tensors.values() if not layout.is_plain(t)]
    return {
        "strides": ", ".join(strides) if better else "",
        "name": name,
        "args": args,
        "kwargs": kwargs,
        "error": min(error, 1e300),
        "cpu_error": min(own, 1e300),
        "device": str(next(iter(tensors.values())).device),
        "dtypes": {k: str(v.dtype).removeprefix("torch.") for k, v in host.items()},
        "tensors": {**host, "target": mine.detach().to("cpu").contiguous(), "golden": golden},
    }


def outcome(func: Any, args: Any, kwargs: Any, tensors: Mapping[str, Any]) -> torch.Tensor | None:
    """The first tensor that a call returns."""
    with torch.no_grad():
        made = func(*read(args, tensors), **read(kwargs, tensors))
    return next(iter(tensors_in(made)), None)


def write_arguments(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Arguments as JSON, with names for tensors; None inside of `{"value": …}` is the value None.
    Returns None for what can't be written."""
    if isinstance(value, torch.Tensor):
        name = next((k for k, t in tensors.items() if t is value), f"x{len(tensors)}")
        tensors[name] = value
        return {"tensor": name}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, list | tuple):
        members = [write_arguments(member, tensors) for member in value]
        return None if None in members else {"list": members}
    if isinstance(value, dict):
        named = {key: write_arguments(member, tensors) for key, member in value.items()}
        return None if None in named.values() else {"dict": named}
    return None


def read(value: Any, tensors: Mapping[str, Any]) -> Any:
    """The way back."""
    ((kind, held),) = value.items()
    if kind == "tensor":
        return tensors[held]
    if kind == "dtype":
        return getattr(torch, held)
    if kind == "device":
        return torch.device(held)
    if kind == "list":
        return tuple(read(member, tensors) for member in held)
    if kind == "dict":
        return {key: read(member, tensors) for key, member in held.items()}
    return held
