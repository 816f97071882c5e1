"""The limits that stop a journey: `[tool.joymigrate.gates]`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.language import Text

VERDICTS = ("pass", "inconclusive", "off")
PERCENT = ("automatic", "coverage")
WHOLE = ("by_hand", "fallbacks", "refusals")
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Gates:
    """Every limit with its default. Percentages are 0 to 100; None sets no limit.

    `verify` and `loss` name the worst verdict that goes on: `pass`, `inconclusive`, or `off`.
    """

    automatic: float | None = None  # least share of sites that were rewritten, per cent
    by_hand: int | None = None  # most sites that are left to people
    baseline: bool = True  # the program must not fail before the migration by its own fault
    rehearse: bool = True  # the program must end with exit code 0
    fallbacks: int | None = None  # most operators that run on the CPU
    refusals: int | str = 0  # most calls that the chip refuses by its documents or host code
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
    elif name == "refusals" and value == "off":
        return
    elif isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise JoyError(f"gate '{name}' is a number from 0 on, got {value!r}", where=where)
    elif name in PERCENT and value > 100:
        raise JoyError(f"gate '{name}' is in per cent, 0 to 100, got {value!r}", where=where)
    elif name in WHOLE and not float(value).is_integer():
        raise JoyError(f"gate '{name}' is a whole number, got {value!r}", where=where)


# The gates that each step asks.
OF = {
    "scan": ("automatic", "by_hand"),
    "baseline": ("baseline",),
    "rehearse": ("rehearse", "refusals", "fallbacks", "memory_gib"),
    "coverage": ("coverage",),
    "verify": ("verify",),
    "train": ("loss",),
    "serve": ("serve",),
}


@dataclass(frozen=True, slots=True)
class GateViolation:
    """A gate that holds a journey: what was found, what it allows, and both in a sentence."""

    gate: str
    found: Any
    limit: Any
    why: str


def find_violation(
    step: str, figures: Mapping[str, Any], verdict: str | None, gates: Gates
) -> GateViolation | None:
    """The first gate of a step that its figures don't satisfy. A figure that is not there holds
    nothing."""
    for gate in OF.get(step, ()):
        limit = getattr(gates, gate)
        if limit is None or limit is False or limit == "off":
            continue
        found = CHECKS[gate](figures, verdict, limit)
        if found is not None:
            return GateViolation(gate, found[0], limit, found[1])
    return None


Check = Callable[[Mapping[str, Any], "str | None", Any], "tuple[Any, str] | None"]


def least(figure: str, text: str, form: str = "g") -> Check:
    """A gate that asks for at least so much of a figure, which is shown in the format `form`."""

    def check(figures: Mapping[str, Any], verdict: str | None, limit: float) -> Any:
        found = figures.get(figure)
        if found is None or found >= limit:
            return None
        return found, Text(text, found=f"{found:{form}}", limit=f"{limit:g}")

    return check


def most(figure: str, text: str) -> Check:
    """A gate that allows at most so many of a figure."""

    def check(figures: Mapping[str, Any], verdict: str | None, limit: float) -> Any:
        found = figures.get(figure)
        if found is None or found <= limit:
            return None
        return found, Text(text, found=f"{found:g}", limit=f"{limit:g}")

    return check


def baseline(figures: Mapping[str, Any], verdict: str | None, limit: bool) -> Any:
    """The program fails before anything was changed."""
    if figures.get("failure") != "broken":
        return None
    said = Text("the program fails before the migration: {said}", said=figures["said"])
    return figures.get("exit_code"), said


def rehearse(figures: Mapping[str, Any], verdict: str | None, limit: bool) -> Any:
    """The program did not reach its end."""
    code = figures.get("exit_code")
    if code in (None, 0):
        return None
    where = "the simulated chip" if figures.get("rehearsal") else "the chip"
    return code, Text("the program ended with exit code {code} on {where}", code=code, where=where)


def memory_gib(figures: Mapping[str, Any], verdict: str | None, limit: float) -> Any:
    """Too much memory of one device."""
    peak = figures.get("peak_bytes")
    if peak is None or peak <= limit * GIB:
        return None
    return round(peak / GIB, 4), Text(
        "{found} GiB on one device; the gate allows {limit}",
        found=f"{peak / GIB:.3g}",
        limit=f"{limit:g}",
    )


def judge_verdict(figures: Mapping[str, Any], verdict: str | None, limit: str) -> Any:
    """A verdict that is worse than the gate allows."""
    if not refuses(limit, verdict):
        return None
    asked = "pass" if limit == "pass" else "pass or inconclusive"
    return verdict, Text(
        "the verdict is {verdict}; the gate asks for {asked}", verdict=verdict, asked=asked
    )


def serve(figures: Mapping[str, Any], verdict: str | None, limit: bool) -> Any:
    """The model did not answer."""
    return (False, "the served model gave no answer") if verdict == "fail" else None


CHECKS: dict[str, Check] = {
    "automatic": least(
        "automatic_pct", "{found} % of the sites are automatic; the gate asks for {limit} %"
    ),
    "by_hand": most("not_automatic", "sites left to people: {found}; the gate allows {limit}"),
    "baseline": baseline,
    "rehearse": rehearse,
    "fallbacks": most("fallbacks", "operators on the CPU: {found}; the gate allows {limit}"),
    "refusals": most("refusals", "refused calls: {found}; the gate allows {limit}"),
    "memory_gib": memory_gib,
    "coverage": least(
        "calls_pct", "{found} % of the calls run on the chip; the gate asks for {limit} %", ".1f"
    ),
    "verify": judge_verdict,
    "loss": judge_verdict,
    "serve": serve,
}


def refuses(limit: str, verdict: str | None) -> bool:
    """Whether a verdict is worse than its gate allows."""
    if limit == "off" or verdict in (None, "pass"):
        return False
    return verdict == "fail" or limit == "pass"
