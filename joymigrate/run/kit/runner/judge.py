"""Holds what the chip did against what was predicted. Python's own library only."""

from __future__ import annotations

import re
from typing import Any

# An error is judged against the predicted one (the simulated chip's arithmetic): a chip's own order
# of sums may cost a few units more, a wrong formula costs thousands. Units are those of
# operators.worst: the dtype's precision at the largest value. Sums are kept in float32, so that
# results of half types are rounded a few times: 64 units of bfloat16 would be half of the value.
FREE_UNITS, FACTOR = 64.0, 8.0
FREE_OF_HALVES = {"float16": 16.0, "bfloat16": 8.0}
LOSS_TOLERANCE = 2e-2  # relative; ten steps of float32 on another machine's arithmetic
MEMORY_SHARE = 0.97  # a card with less than this share of the predicted memory has less


def deviations(case: dict[str, Any], said: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """How the chip deviates from the prediction `said`: names, empty where it does not."""
    was, now = said.get("outcome"), found.get("outcome")
    if now == "skipped" or was is None:
        return []
    if was != now:
        return [{"accepted": f"accepted instead of {was}"}.get(str(now), str(now))]
    if now != "accepted" and now != "fallback":
        return []
    judge = JUDGES.get(case["section"])
    return judge(said, found, str(case.get("dtype", ""))) if judge else []


def free_units(dtype: str) -> float:
    """Units of error that count for nothing in a dtype."""
    return FREE_OF_HALVES.get(dtype, FREE_UNITS)


def attribute(rows: list[dict[str, Any]]) -> None:
    """Programs that fail with the words of an operator that deviates by itself, and kernels of ours
    that call a vendor's function that deviates in their dtype: `because` names the operator's
    cases, and the row is no finding of its own."""
    operators = [r for r in rows if r["deviations"] and r["section"] in ("operator", "vendor")]
    for row in rows:
        row.pop("because", None)
        if not row["deviations"] or row in operators:
            continue
        named = set(re.findall(r"\b\w+::(\w+)", str(row.get("message", ""))))
        because = [one["id"] for one in operators if one["op"].rpartition(".")[2] in named]
        if row["section"] == "kernel":
            because += [
                one["id"] for one in operators
                if (one["op"].rpartition(".")[2], one["dtype"]) == (row["op"], row["dtype"])
            ]  # fmt: skip
        if because:
            row["because"] = because


def of_operator(said: dict[str, Any], found: dict[str, Any], dtype: str) -> list[str]:
    """Result, gradient, dtype, shape and layout of an operator."""
    names = []
    for key, name in (("error", "result"), ("gradient_error", "gradient")):
        limit = max(free_units(dtype), FACTOR * float(said.get(key) or 0.0))
        if key in found and float(found[key]) > limit:
            names.append(name)
        if (key in said) != (key in found):
            names.append(f"no {name}" if key in said else f"unexpected {name}")
    for key, name in (("dtypes", "dtype"), ("shapes", "shape"), ("strides", "layout")):
        if said.get(key) != found.get(key):
            names.append(name)
    return ["shape"] if "shape" in names else names


def of_memory(said: dict[str, Any], found: dict[str, Any], dtype: str) -> list[str]:
    """Less memory on the card; more taken than asked for."""
    names = []
    if found["total_bytes"] < MEMORY_SHARE * said["total_bytes"]:
        names.append("less memory")
    if found["allocated_bytes"] > 1.1 * said["allocated_bytes"]:
        names.append("larger allocation")
    return names


def of_training(said: dict[str, Any], found: dict[str, Any], dtype: str) -> list[str]:
    """Losses of the small training run."""
    for mine, wanted in zip(found["losses"], said["losses"], strict=True):
        if not abs(mine - wanted) <= LOSS_TOLERANCE * max(1.0, abs(wanted)):
            return ["losses"]
    return []


def of_serving(said: dict[str, Any], found: dict[str, Any], dtype: str) -> list[str]:
    """Tokens of the small serving run."""
    return [] if found["tokens"] == said["tokens"] else ["tokens"]


# What a row of these sections holds where the call was accepted, and its prediction as well.
FIGURES = {
    "memory": ("total_bytes", "allocated_bytes"),
    "training": ("losses",),
    "serving": ("tokens",),
}
JUDGES = {
    "operator": of_operator,
    "vendor": of_operator,
    "kernel": of_operator,
    "memory": of_memory,
    "training": of_training,
    "serving": of_serving,
}
