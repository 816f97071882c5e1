"""What the numbers of a difference say by themselves; `experiments` tries the rest.

A cause is named when it explains at least 90 % of the error, or is a fact (other settings, other
draws). Else there is none, and the evidence says what is seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joymigrate.language import Text
from joymigrate.verify.falsifiability import most_left
from joymigrate.verify.model import Cause

NUMERICS = "numerics only"
REDUCED = "reduced precision"
MOST_RATIO = 10.0  # of the baseline's own error, for what may be called numerics
SHAPES = 3  # tries below: a factor, a constant, another order
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
    ratio: float | None = None,
) -> tuple[str | None, str]:
    """(cause, evidence) of a wrong result; `ratio`: its error by the baseline's own.

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
    return by_shape(signature, error, ratio)


def is_rounding(cause: str | None, error: float) -> bool:
    """Whether an error may be one shortened arithmetic, which every module shows."""
    return cause in (None, NUMERICS) and error < 1e-2


def by_shape(
    signature: Mapping[str, Any], error: float, ratio: float | None
) -> tuple[str | None, str]:
    """The cause by how the error is spread."""
    scale = float(signature.get("scale", 1.0))
    values = float(signature.get("values", 0.0))
    fitted = most_left(values, 1, SHAPES)  # one number is any other one times a factor
    zeros = signature.get("zeros", [0.0, 0.0])
    if zeros[0] - zeros[1] > 0.02 and zeros[0] < 0.999:
        share = Text(
            "{share} of the values are zero, {golden} in the baseline",
            share=f"{zeros[0]:.1%}",
            golden=f"{zeros[1]:.1%}",
        )
        return None, share
    if signature.get("after_scale", 1.0) < fitted and error > 1e-5:
        return "eps or scale", Text(
            "the result is the baseline's times {scale}", scale=f"{scale:.6g}"
        )
    if signature.get("sorted", 1.0) < min(0.05, fitted) and error > 1e-3:
        return "permutation", "the same values in another order"
    if signature.get("after_shift", 1.0) < fitted:
        return "eps or scale", "the result is shifted by a constant"
    # Any error below about 0.3 leaves the norm as it is.
    if abs(float(signature.get("norm_ratio", 1.0)) - 1) < 0.02 and error > 0.4:
        return None, "the norm agrees and the values do not: order, rotation, axis or mask"
    if error < 1e-2:
        near = min(ROUNDED, key=lambda name: abs(ROUNDED[name] / 3 - error))
        close = 0.05 < error / ROUNDED[near] < 3
        few = ratio is not None and ratio <= MOST_RATIO
        return NUMERICS if few else None, (
            Text("relative error {error}, as of {near}", error=f"{error:.1e}", near=near)
            if close
            else Text("relative error {error}", error=f"{error:.1e}")
        )
    return None, Text("relative error {error}, of no known kind", error=f"{error:.2g}")


def brief(draws: Any) -> str:
    """What was drawn, in short."""
    if not draws:
        return "nothing"
    return ", ".join(f"{what}{f' p={p}' if p is not None else ''}" for what, p in draws[:3])
