"""Reservations as a jobs file says them, and the windows of one that repeats."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from joymigrate.errors import JoyError
from joymigrate.schema import setting

MOST_TIMES = 366  # windows of one reservation: a year of days


@dataclass(frozen=True, slots=True)
class ReservationItem:
    """One item of `reservations`: whole nodes for a queue or for nobody, from the start on."""

    name: str = setting(help="the reservation's name", words=True)
    nodes: tuple[str, ...] = setting(help="whole nodes", single=True, words=True)
    minutes: float = setting(help="how long a window is", above=0, most=1e9)
    start_minutes: float = setting(0.0, "when the first one begins", least=0, most=1e9)
    queue: str = setting("", "whose jobs may use the nodes (default: nobody's)", words=True)
    every_minutes: float | None = setting(None, "from one beginning to the next", above=0, most=1e9)
    times: int = setting(1, "how many windows", least=1, most=MOST_TIMES)

    def __post_init__(self) -> None:
        if not self.nodes:
            raise JoyError(f"reservation {self.name} names no node", where="nodes")
        if (self.every_minutes is None) != (self.times == 1):
            raise JoyError(
                f"reservation {self.name}: `every_minutes` and `times` go together",
                where="times",
                help="every_minutes: 1440 with times: 7, or neither",
            )
        if self.every_minutes is not None and self.every_minutes < self.minutes:
            raise JoyError(
                f"reservation {self.name}: a window of {self.minutes:g} minutes begins before the "
                "last one is over",
                where="every_minutes",
            )

    @property
    def windows(self) -> list[tuple[str, float, float]]:
        """Name, begin and end of each window, in seconds from the start."""
        begins = [
            (self.start_minutes + number * (self.every_minutes or 0.0)) * 60
            for number in range(self.times)
        ]
        names = names_of(self.name, len(begins))
        return [
            (name, begin, begin + self.minutes * 60)
            for name, begin in zip(names, begins, strict=True)
        ]


def names_of(name: str, windows: int) -> list[str]:
    """The names of a reservation's windows: its own, or NAME#1 and on."""
    return [name] if windows == 1 else [f"{name}#{number + 1}" for number in range(windows)]


def of_name(name: str, known: Iterable[str]) -> list[str]:
    """The windows of a reservation: one of this name, or all NAME#1 and on."""
    windows = re.compile(rf"{re.escape(name)}(#\d+)?")
    return [one for one in known if name and windows.fullmatch(one)]


def summary(names: Sequence[str], shown: int = 3) -> str:
    """Some windows by name, and how many there are beside them."""
    text = " and ".join(names[:shown])
    return f"{text} and {len(names) - shown} more" if len(names) > shown else text
