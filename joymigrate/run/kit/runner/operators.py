"""One operator on the chip, forward and backward, against float64 on the CPU."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .references import REFERENCES
from .tensors import arguments, named_arguments, restride

FALLBACK = "fall back to run on the CPU"


def find(dotted: str) -> Callable[..., Any]:
    """The function of a dotted name: `torch.nn.functional.gelu`."""
    parts = dotted.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            value = getattr(value, part)
        found: Callable[..., Any] = value
        return found
    raise AttributeError(dotted)


def run_case(case: dict[str, Any], masters: dict[str, Tensor], device: str) -> dict[str, Any]:
    """What the chip does with a case: outcome, errors in units of the dtype's precision, layout.

    `unchecked` says why results were not held against float64.
    """
    on_cpu, kwargs = arguments(case, masters), named_arguments(case, masters)
    try:
        function = find(case["call"])
    except AttributeError as error:
        return {"outcome": "refused", "message": f"no such function: {error}"}
    expected, expected_gradients, unchecked = reference(case, on_cpu, kwargs)
    with listen() as said:
        try:
            on_chip = [move(value, device) for value in on_cpu]
            named = {name: move(value, device) for name, value in kwargs.items()}
            wanted = [v for v in flat(on_chip) if expected_gradients and v.is_floating_point()]
            for tensor in wanted:
                tensor.requires_grad_(True)
            results = outputs(function(*on_chip, **named), case)
            held = [result.detach().cpu() for result in results]
            gradients = backward(results, wanted)
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            return {"outcome": "refused", "message": str(error)}
    found = form(results, said)
    if unchecked:
        return {**found, "unchecked": unchecked}
    found["error"] = worst(held, expected, case["dtype"])
    if expected_gradients or gradients:
        found["gradient_error"] = worst(gradients, expected_gradients, case["dtype"])
    return found


def form(results: list[Tensor], said: list[str]) -> dict[str, Any]:
    """Outcome, types, shapes and strides of a call that came back."""
    fell_back = any(FALLBACK in text for text in said)
    return {
        "outcome": "fallback" if fell_back else "accepted",
        "dtypes": [str(one.dtype).removeprefix("torch.") for one in results],
        "shapes": [list(one.shape) for one in results],
        "strides": [list(one.stride()) for one in results],
    }


@contextmanager
def listen() -> Iterator[list[str]]:
    """All that is warned and printed to stderr meanwhile; filled when it ends."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught, standard_error() as printed:
        warnings.simplefilter("always")
        yield said
    said += [*printed, *(str(one.message) for one in caught)]


@contextmanager
def standard_error() -> Iterator[list[str]]:
    """What C++ code prints to stderr meanwhile: the vendor's package warns there, once per
    operator of a process."""
    found: list[str] = []
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield found
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            text = file.read().decode(errors="replace")
            found.append(text)
            sys.stderr.write(text)


def move(value: Any, device: str) -> Any:
    """A tensor on the device with its strides; lists item by item; the device itself."""
    if isinstance(value, Tensor):
        return restride(value, list(value.stride()), device)
    if isinstance(value, torch.device):
        return torch.device(device)
    return [move(item, device) for item in value] if isinstance(value, list) else value


def flat(values: list[Any]) -> list[Tensor]:
    """The tensors among values and their lists."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list):
            found += flat(value)
    return found


def outputs(result: Any, case: dict[str, Any]) -> list[Tensor]:
    """The tensors of a result that are compared."""
    several = list(result) if isinstance(result, (tuple, list)) else [result]
    tensors = [one for one in several if isinstance(one, Tensor)]
    return tensors[: case.get("results") or len(tensors)]


def backward(results: list[Tensor], wanted: list[Tensor]) -> list[Tensor]:
    """Gradients of the sum of the first result, weighted by 1, 2, 3 …"""
    if not wanted or not results or not results[0].requires_grad:
        return []
    first = results[0]
    weight = torch.arange(1, first.numel() + 1, dtype=torch.float32).reshape(first.shape)
    weight = (weight / max(1, first.numel())).to(first.dtype).to(first.device)
    first.backward(weight)  # type: ignore[no-untyped-call]
    return [one.grad.detach().cpu() for one in wanted if one.grad is not None]


def reference(
    case: dict[str, Any], on_cpu: list[Any], kwargs: dict[str, Any]
) -> tuple[list[Tensor], list[Tensor], str]:
    """The same in float64 on the CPU, from inputs that were rounded to the case's dtype: results,
    gradients (none where the CPU knows none), and why there is nothing to compare with."""
    if not case.get("numbers", True):
        return [], [], "random, or memory without numbers"
    wide = [widen(value) for value in on_cpu]
    wanted = [v for v in flat(wide) if case["grad"] and v.is_floating_point()]
    for tensor in wanted:
        tensor.requires_grad_(True)
    try:
        function = REFERENCES.get(case.get("reference") or "") or find(case["call"])
        named = {name: widen(value) for name, value in kwargs.items()}
        results = outputs(function(*wide, **named), case)
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        return [], [], f"the CPU has no float64 of it: {str(error).splitlines()[0][:120]}"
    held = [one.detach() for one in results]
    try:
        return held, backward(results, wanted), ""
    except (RuntimeError, NotImplementedError):
        return held, [], ""


def widen(value: Any) -> Any:
    """Floating point as float64, dtypes too."""
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else value
    if isinstance(value, Tensor):
        copy = value.detach().clone()
        return copy.double() if copy.is_floating_point() else copy
    return [widen(item) for item in value] if isinstance(value, list) else value


def worst(found: list[Tensor], expected: list[Tensor], dtype: str) -> float:
    """The largest error in units of the dtype's precision at the largest value: `finfo(dtype).eps *
    max(|x|)`. 0 or 1e9 for whole numbers; 1e9 where counts, shapes, NaN or infinities differ."""
    largest = 0.0
    if len(found) != len(expected):
        return 1e9
    for mine, wanted in zip(found, expected, strict=True):
        if mine.shape != wanted.shape:
            return 1e9
        if not mine.is_floating_point():
            largest = max(largest, 0.0 if torch.equal(mine, wanted.to(mine.dtype)) else 1e9)
            continue
        precise = mine.double()
        finite = torch.isfinite(wanted)
        if not torch.equal(torch.isfinite(precise), finite):
            return 1e9
        if not bool(finite.any()):
            continue
        kind = getattr(torch, dtype)
        eps = torch.finfo(kind if kind.is_floating_point else mine.dtype).eps
        scale = max(float(wanted[finite].abs().max()), torch.finfo(torch.float16).tiny)
        error = float((precise[finite] - wanted[finite]).abs().max())
        largest = max(largest, error / (eps * scale))
    return round(largest, 3)
