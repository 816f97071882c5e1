"""Chooses an implementation for a call: explicit request > tuned cache > priority > reference."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.kernels import tuning_results
from joymigrate.run.kernels.interpreter import interpreter_reason
from joymigrate.run.kernels.operator import (
    CPU,
    REFERENCE,
    Call,
    Implementation,
    Operator,
    bind,
)


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """An implementation picked for an operator, and why. Calling it computes.

    `left` are the others, each with the reason why it is not this one.
    """

    op: str
    implementation: str
    reason: str
    function: Callable[..., Any]
    left: tuple[tuple[str, str], ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute with the chosen implementation."""
        return self.function(*args, **kwargs)


def select(
    operator: Operator, known: tuple[Implementation, ...], call: Call, request: str | None
) -> KernelChoice:
    """The choice for one call. An explicit request that cannot run raises `JoyError`."""
    if request is not None:
        asked = [(item, why_not(item, call)) for item in known if item.name == request]
        return explicit(operator, asked, call, request)
    # Not even looked at: that would import triton and switch its interpreter on.
    left = {i.name: "interpreted on a CPU, for checks only" for i in known if only_checked(i, call)}
    refused = [(item, why_not(item, call)) for item in known if not only_checked(item, call)]
    usable = [item for item, reason in refused if reason is None]
    left |= {item.name: reason for item, reason in refused if reason is not None}
    if not usable:
        raise JoyError(f"{operator.name} does not take {call.dtype} on {call.device}")
    winner, reason = best(operator, usable, call)
    for item in usable:
        lost = item.pays(call) if item.pays is not None else None
        left[item.name] = lost or f"{winner.name}: {reason}"
    left.pop(winner.name)
    return KernelChoice(
        operator.name, winner.name, reason, function(operator, winner), tuple(left.items())
    )


def best(
    operator: Operator, usable: list[Implementation], call: Call
) -> tuple[Implementation, str]:
    """The fastest by measurement, where there is one for this bucket; else by priority."""
    entry = tuning_results.lookup(operator.name, call)
    if entry is not None:
        for item in usable:
            if item.name == entry.implementation:
                return item, entry.reason()
    worth = [item for item in usable if item.pays is None or item.pays(call) is None]
    winner = max(worth or usable, key=lambda item: item.priority)
    if winner.name == REFERENCE:
        others = [item for item in usable if item is not winner]
        why = "no other implementation can run" if not others else "no other is known to be faster"
        return winner, f"{why}; not tuned for this shape"
    return winner, f"highest priority ({winner.priority}); not tuned for this shape"


def explicit(
    operator: Operator,
    refused: list[tuple[Implementation, str | None]],
    call: Call,
    request: str,
) -> KernelChoice:
    """The requested implementation, or `JoyError` with the reason why it can't run."""
    reasons = []
    for item, reason in refused:
        if reason is None:
            return KernelChoice(
                operator.name, request, "explicit request", function(operator, item)
            )
        reasons.append(reason)
    raise JoyError(
        f"{operator.name}: '{request}' was asked for and cannot run: {'; '.join(reasons)}",
        where=f"{call.device}, {call.dtype}, shape {call.shape}",
        help="ask for another one, or for none: joymigrate kernels list",
    )


def why_not(item: Implementation, call: Call) -> str | None:
    """Why this implementation cannot run this call; None when it can."""
    if item.chip is not None and item.chip != call.chip:
        return f"runs on {item.chip}"
    on_cpu = call.device == CPU
    if (
        "*" not in item.devices
        and call.device not in item.devices
        and not (item.interpreted and on_cpu)
    ):
        return f"runs on {', '.join(item.devices)}"
    if call.dtype not in item.dtypes:
        return f"does not take {call.dtype}"
    # The interpreter must be on before triton is imported for the first time.
    if item.interpreted and on_cpu and (reason := interpreter_reason(call.dtype)):
        return reason
    missing = missing_package(item.packages)
    if missing:
        return missing
    if call.grad and not item.backward:
        return "has no gradient"
    predicate = resolve(item.when) if isinstance(item.when, str) else item.when
    return predicate(call) if predicate is not None else None


def only_checked(item: Implementation, call: Call) -> bool:
    """Whether it runs here by interpretation: right, but thousands of times too slow to choose."""
    return item.interpreted and call.device == CPU


@functools.cache
def missing_package(packages: tuple[str, ...]) -> str | None:
    """The first of these packages that does not import, as a reason."""
    for name in packages:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name == name.partition(".")[0] or error.name == name:
                return f"{name} is not installed"
            return f"{name} needs {error.name}"
        except Exception as error:  # a vendor's package may raise anything without its driver
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            return f"{name} does not load: {first}"
    return None


@functools.cache
def resolve(target: str) -> Callable[..., Any]:
    """The function that `module:function` names."""
    module, _, name = target.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise JoyError(
            f"the kernel '{target}' cannot be loaded: {error}",
            help="the chip's kernels.yaml, or the operator's file, names it",
        ) from error
    return found


def function(operator: Operator, item: Implementation) -> Callable[..., Any]:
    """The callable of an implementation, with the signature of the operator's reference."""
    found = resolve(item.function) if isinstance(item.function, str) else item.function
    return bind(operator.reference, found)
