"""Which call of torch in a wrong module is wrong on its own inputs, and what is kept of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name

from joymigrate.verify import layout
from joymigrate.verify.isolated_pass import exactly, keep_generators
from joymigrate.verify.measure import relative_error
from joymigrate.verify.rest_evidence import LoneCall
from joymigrate.verify.tape_entries import widen
from joymigrate.verify.transforms import exchange, tensors_in

EXPLAINED = 0.1  # of the error is left where an experiment has removed its cause
# Explicit bits of the mantissas that devices shorten the operands of products to.
MANTISSAS = {"bfloat16": 7, "float16 or TF32": 10, "HF32": 11}
RATIO = 10.0  # error on the device by that of the same call on the CPU
FLOOR = 2.0**-22
MOST_CALLS = 200


class WrongCallSearch(TorchFunctionMode):
    """Looks for the first call that is far worse on the device than on the CPU in the same type, on
    its own operands, while `active` says so; `found` holds it with its tensors. None where every
    call agrees with float64: another formula is computed."""

    def __init__(self, active: Callable[[], bool] = lambda: True) -> None:
        super().__init__()
        self.active = active
        self.found: dict[str, Any] | None = None
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.found is None and self.count < MOST_CALLS and self.active():
            self.count += 1
            self.found = look_at(func, args, kwargs)
        return func(*args, **kwargs)


def look_at(func: Any, args: Any, kwargs: Any) -> dict[str, Any] | None:
    """What is kept of one call when it is wrong."""
    name = resolve_name(func)
    if not name or (name.startswith("torch.Tensor.__") and not args):
        return None
    try:
        with keep_generators(), exactly():
            return judge_call(func, name, args, kwargs)
    except Exception:  # not every call runs by itself, or in float64
        return None


def judge_call(func: Any, name: str, args: Any, kwargs: Any) -> dict[str, Any] | None:
    """The same, of a call that can be written down."""
    given = {id(t): t for t in tensors_in((args, kwargs))}
    lone = LoneCall.of(name, args, kwargs)
    if lone is None or not given:
        return None
    golden = outcome(func, args, kwargs, {k: widen(t) for k, t in given.items()})
    host = {k: t.detach().to("cpu").contiguous().clone() for k, t in given.items()}
    plain = outcome(func, args, kwargs, host)
    mine = outcome(func, args, kwargs, {k: layout.copy_as(t) for k, t in given.items()})
    if golden is None or mine is None or plain is None or not golden.is_floating_point():
        return None
    error, own = relative_error(mine, golden), relative_error(plain, golden)
    if not error > RATIO * max(own, FLOOR):
        return None
    contiguous = torch.contiguous_format
    dense = {k: t.detach().clone(memory_format=contiguous) for k, t in given.items()}
    again = outcome(func, args, kwargs, dense)
    better = again is not None and relative_error(again, golden) < EXPLAINED * error
    strides = [str(tuple(t.stride())) for t in given.values() if not layout.is_plain(t)]
    operator = {
        "strides": ", ".join(strides) if better else "",
        "name": name,
        "error": min(error, 1e300),
        "cpu_error": min(own, 1e300),
    }
    if not better:
        operator["precision"] = find_precision(func, args, kwargs, mine, EXPLAINED * error)
    device = str(next(iter(given.values())).device)
    return {**operator, "case": lone.case(operator, golden, device)}


def find_precision(func: Any, args: Any, kwargs: Any, mine: torch.Tensor, most: float) -> str:
    """The type to whose mantissa the device rounds a call's operands: the same call in float64 on
    operands so rounded is no more than `most` (relative) from what the device made. Else empty."""
    given = {id(t): t for t in tensors_in((args, kwargs))}
    rounded = {key: t for key, t in given.items() if t.dtype is torch.float32}
    for kind, bits in MANTISSAS.items() if rounded else ():
        operands = {key: widen(t) for key, t in given.items()}
        operands |= {key: shorten(t, bits) for key, t in rounded.items()}
        try:
            made = outcome(func, args, kwargs, operands)
        except Exception:  # that the call is wrong is known without it
            return ""
        if made is not None and relative_error(mine, made) < most:
            return kind
    return ""


def shorten(tensor: torch.Tensor, bits: int) -> torch.Tensor:
    """Float64 on the CPU, rounded to so many explicit bits of mantissa."""
    fraction, exponent = torch.frexp(tensor.detach().to("cpu", torch.float64))
    return torch.ldexp(torch.round(fraction * 2.0 ** (bits + 1)) / 2.0 ** (bits + 1), exponent)


def outcome(func: Any, args: Any, kwargs: Any, others: Mapping[int, Any]) -> torch.Tensor | None:
    """The first tensor that a call returns, on others of its operands."""
    with torch.no_grad():
        made = func(*exchange(args, others), **exchange(kwargs, others))
    return next(iter(tensors_in(made)), None)
