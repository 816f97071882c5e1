"""How fast a program took its steps, from what it prints and when.

A line that names a loss ends a step. The first such line ends the warm-up, so it starts the count
and is not part of it. Where the program prints its own rate (tokens/s), that is kept beside.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from joymigrate.journey.losses import NUMBER, losses, main, read

SCHEMA = "joymigrate.speed/1"
UNITS = {
    "tok": "tokens/s", "tokens": "tokens/s", "samples": "samples/s", "examples": "samples/s",
    "images": "images/s", "imgs": "images/s", "it": "steps/s", "iters": "steps/s",
    "iterations": "steps/s", "steps": "steps/s",
}  # fmt: skip
WORD = rf"(?<![a-z])({'|'.join(sorted(UNITS, key=len, reverse=True))})"
PER = r"(?:_per_|/| per )(?:second|sec|s)(?![a-z])"
RATES = (  # (pattern, group of the unit, group of the number), the surest form first
    (re.compile(rf"{WORD}{PER}['\"]?\s*[:=]\s*{NUMBER}", re.IGNORECASE), 1, 2),
    (re.compile(rf"{WORD}_per_s(?:ec)?\s+{NUMBER}", re.IGNORECASE), 1, 2),
    (re.compile(rf"{NUMBER}\s*{WORD}{PER}", re.IGNORECASE), 2, 1),
    (re.compile(rf"{WORD}{PER}\s+{NUMBER}", re.IGNORECASE), 1, 2),
)


def speed(lines: Sequence[tuple[float, str]]) -> dict[str, Any] | None:
    """`lines` are (seconds since the start, text). None where fewer than two losses are printed."""
    name = main(read(text for _, text in lines))  # one line of a step, where it prints several
    lines = [(at, text) for at, text in lines if name in read([text])]
    marks = [(at, *losses([text])[0]) for at, text in lines]
    if len({step for _, step, _ in marks}) < 2:  # losses without a step: count them
        marks = [(at, number, loss) for number, (at, _, loss) in enumerate(marks)]
    points = [
        {"step": step, "steps_per_s": round((step - before) / (at - since), 3)}
        for (since, before, _), (at, step, _) in pairwise(marks)
        if step > before and at > since
    ]
    if not points:
        return None
    return {
        "steps_per_s": round(median(one["steps_per_s"] for one in points), 3),
        "points": points,
        "printed": find_rate([text for _, text in lines]),
    }


def find_rate(lines: Sequence[str]) -> dict[str, Any] | None:
    """The rate that the program itself prints beside its losses, without the first one."""
    found = [(one, *loss[0]) for text in lines if (one := rate(text)) and (loss := losses([text]))]
    if len(found) < 2:
        return None
    unit = found[0][0][0]
    values = [value for (name, value), _, _ in found[1:] if name == unit]
    return {"unit": unit, "median": round(median(values), 3)} if values else None


def rate(text: str) -> tuple[str, float] | None:
    """(unit, value) of a rate that a line names."""
    for pattern, unit, number in RATES:
        found = pattern.search(text)
        if found:
            return UNITS[found.group(unit).lower()], float(found.group(number))
    return None
