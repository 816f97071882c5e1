"""What the numbers of a difference say by themselves, where both sides make the same calls.

A cause is a fact: other settings, other draws, values that are not finite. Without one there is
none, and the evidence says what is seen: a factor that fits a kernel's error is no cause of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joymigrate.language import Text
from joymigrate.verify.model import Cause

REDUCED = "reduced precision"
ROUNDED = {"bfloat16 rounding": 2.0**-8, "float16 rounding": 2.0**-11, "TF32 or HF32": 2.0**-10}


def of_operator(facts: Mapping[str, Any]) -> Cause:
    """An operator that is wrong by itself, on the operands that it had."""
    if facts.get("strides"):
        words = Text(
            "{name} is wrong on operands of strides {strides} (error {error}), and right on "
            "contiguous copies of them",
            name=facts["name"],
            strides=facts["strides"],
            error=f"{facts['error']:.2g}",
        )
        return Cause("a kernel that misreads strides", words, "experiment")
    if facts.get("precision"):
        words = Text(
            "{name} is off by {error} here: in float64 on operands rounded as {kind} it makes the "
            "same",
            name=facts["name"],
            error=f"{facts['error']:.2g}",
            kind=facts["precision"],
        )
        return Cause(REDUCED, words, "experiment")
    words = Text(
        "{name} is wrong by itself: error {error}, on the CPU {own}",
        name=facts["name"],
        error=f"{facts['error']:.2g}",
        own=f"{facts['cpu_error']:.2g}",
    )
    return Cause("a wrong operator", words, "experiment")


def suspect(
    signature: Mapping[str, Any],
    error: float,
    *,
    draws: tuple[Any, Any] = (None, None),
    settings: Mapping[str, tuple[Any, Any]] | None = None,
) -> tuple[str | None, str]:
    """(cause, evidence) of a wrong result.

    `signature` is what `measure.signature` found, `draws` what both sides drew at random in this
    module, `settings` the module's settings that differ (baseline, target).
    """
    if draws[0] != draws[1]:
        return "dropout", Text(
            "draws at random: baseline {golden}, target {target}",
            golden=brief(draws[0]),
            target=brief(draws[1]),
        )
    changed = ", ".join(f"{k}: {a} → {b}" for k, (a, b) in (settings or {}).items())
    if "shapes" in signature:
        return "shape", Text(
            "shapes {golden} → {target}",
            golden=signature["shapes"][1],
            target=signature["shapes"][0],
        )
    target, golden = signature.get("nonfinite", [0, 0])
    if target != golden:
        return "overflow", Text(
            "{target} values are not finite, {golden} in the baseline", target=target, golden=golden
        )
    if changed:
        return "other settings", changed
    if error >= 1e-2:
        return None, Text("relative error {error}, of no known kind", error=f"{error:.2g}")
    near = min(ROUNDED, key=lambda name: abs(ROUNDED[name] / 3 - error))
    words = Text("relative error {error}", error=f"{error:.1e}")
    if 0.05 < error / ROUNDED[near] < 3:
        words = Text("relative error {error}, as of {near}", error=f"{error:.1e}", near=near)
    return None, words


def brief(draws: Any) -> str:
    """What was drawn, in short."""
    if not draws:
        return "nothing"
    return ", ".join(f"{what}{f' p={p}' if p is not None else ''}" for what, p in draws[:3])
