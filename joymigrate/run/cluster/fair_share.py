"""Fair share with decay: how many card-hours a user had of a queue, where old ones count less.

What was used counts half after one half-life, a quarter after two (the decay of Slurm's multifactor
priority, `PriorityDecayHalfLife`). Nothing here has a clock: times are seconds, passed in.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, expm1, log

FIRST_H = 1.0  # a run counts with its first hour at once, so that a burst is shared out too
Past = dict[str, tuple[float, float]]  # queue and user → card-hours, and at what second


def key_of(queue: str, user: str) -> str:
    """Under which name a user's hours of a queue are kept."""
    return f"{queue}\t{user}"


def decay(hours: float, seconds: float, half_life_h: float) -> float:
    """What hours count after `seconds`."""
    return hours * exp(-log(2) * max(seconds, 0.0) / 3600 / half_life_h)


def card_hours(cards: float, began: float, ended: float, half_life_h: float) -> float:
    """What a run of `cards` counts at its end: the integral of the decay over its length."""
    length_h = max(ended - began, 0.0) / 3600
    return -cards * half_life_h / log(2) * expm1(-log(2) * length_h / half_life_h)


def add(past: Past, key: str, cards: float, began: float, ended: float, half_life_h: float) -> None:
    """Count a run that is over."""
    before, at = past.get(key, (0.0, ended))
    hours = decay(before, ended - at, half_life_h)
    past[key] = (hours + card_hours(cards, began, ended, half_life_h), ended)


def total(
    past: Past, key: str, runs: Iterable[tuple[float, float]], now: float, half_life_h: float
) -> float:
    """Card-hours that count at `now`; `runs` are cards and start of what runs."""
    before, at = past.get(key, (0.0, now))
    hours = decay(before, now - at, half_life_h)
    return hours + sum(
        card_hours(cards, began, now, half_life_h) + cards * FIRST_H for cards, began in runs
    )
