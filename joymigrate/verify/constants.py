"""Plain numbers in a program's calls that were made of numbers it read from tensors.

`min(1.0, 1.0 / total)` with a `total` that was read carries the free run's rounding, and no tape
sees how it was made. Where the same calls run on both sides, the target's gets the baseline's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

DIGITS = 12  # a number with fewer was written by somebody, one with more was computed
ROOM = 10.0  # times as far apart as the numbers that were read
MOST = 0.05  # relative: farther apart is another formula


def given_constants(
    mine: Sequence[float],
    theirs: Sequence[float],
    read: Sequence[float],
    read_there: Sequence[float],
    changing: Collection[int] = (),
) -> list[float]:
    """The constants of the target's calls (`mine`), with the baseline's where only what both sides
    have read can tell them apart, or where the baseline has another in every step or run (times, at
    the positions in `changing`); empty where none is."""
    count = min(len(read), len(read_there))
    if len(mine) != len(theirs) or not (count or changing):
        return []
    pairs = zip(read[len(read) - count :], read_there[len(read_there) - count :], strict=True)
    drift = max((apart(a, b) for a, b in pairs), default=0.0)
    most = min(ROOM * drift, MOST)
    given = [
        b
        if a != b
        and has_many_digits(a)
        and has_many_digits(b)
        and (apart(a, b) <= most or place in changing)
        else a
        for place, (a, b) in enumerate(zip(mine, theirs, strict=True))
    ]
    return given if given != list(mine) else []


def apart(one: float, two: float) -> float:
    """The relative distance; infinite where either is not finite."""
    gap = abs(one - two) / max(abs(two), 1e-30)
    return gap if gap < float("inf") else float("inf")


def has_many_digits(number: float) -> bool:
    """Whether a number has more digits than people write."""
    digits = repr(abs(number)).partition("e")[0].replace(".", "").strip("0")
    return len(digits) >= DIGITS
