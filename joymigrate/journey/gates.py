"""The limits that stop a journey: `[tool.joymigrate.gates]`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from joymigrate.errors import JoyError, did_you_mean

VERDICTS = ("pass", "inconclusive", "off")


@dataclass(frozen=True, slots=True)
class Gates:
    """Every limit with its default. Percentages are 0 to 100; None sets no limit.

    `verify` and `loss` name the worst verdict that goes on: `pass`, `inconclusive`, or `off`.
    """

    automatic: float | None = None  # least share of sites that were rewritten, per cent
    by_hand: int | None = None  # most sites that are left to people
    rehearse: bool = True  # the program must end with exit code 0
    fallbacks: int | None = None  # most operators that run on the CPU
    memory_gib: float | None = None  # most memory of one device
    coverage: float | None = None  # least share of calls that the chip runs, per cent
    verify: str = "inconclusive"
    loss: str = "inconclusive"
    serve: bool = True  # the served model must answer


def read_gates(raw: Mapping[str, Any], where: str = "[tool.joymigrate.gates]") -> Gates:
    """The gates of a configuration; an unknown name or a wrong value raises `JoyError`."""
    known = {one.name: one for one in fields(Gates)}
    for name, value in raw.items():
        if name not in known:
            raise JoyError(
                f"unknown gate '{name}'.{did_you_mean(name, known)}",
                where=where,
                help=f"known gates: {', '.join(known)}",
            )
        check(name, value, where)
    return Gates(**raw)


def check(name: str, value: Any, where: str) -> None:
    """One value of the type that its gate takes."""
    default = getattr(Gates(), name)
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise JoyError(f"gate '{name}' is true or false, got {value!r}", where=where)
    elif isinstance(default, str):
        if value not in VERDICTS:
            raise JoyError(
                f"gate '{name}' is one of {', '.join(VERDICTS)}, got {value!r}", where=where
            )
    elif isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise JoyError(f"gate '{name}' is a number from 0 on, got {value!r}", where=where)


def refuses(limit: str, verdict: str | None) -> bool:
    """Whether a verdict is worse than its gate allows."""
    if limit == "off" or verdict in (None, "pass"):
        return False
    return verdict == "fail" or limit == "pass"
