"""The limits that stop a journey: `[tool.joymigrate.gates]`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from joymigrate.blame.text import sentence
from joymigrate.evidence import GRADES, count_weaker
from joymigrate.language import Text
from joymigrate.schema import document, read, setting

VERDICTS = ("pass", "inconclusive", "off")
GIB = 2**30


@document("gates", "The limits that stop `joymigrate migrate`: `[tool.joymigrate.gates]`.")
@dataclass(frozen=True, slots=True)
class Gates:
    """Every limit with its default. Percentages are 0 to 100; None sets no limit.

    `verify` and `loss` name the worst verdict that goes on: `pass`, `inconclusive`, or `off`.
    """

    UNDER = ("tool", "joymigrate", "gates")

    automatic: float | None = setting(
        None, "least share of sites that were rewritten, per cent, 0 to 100", least=0, most=100
    )
    by_hand: int | None = setting(None, "most sites that are left to people", least=0)
    baseline: bool = setting(
        True, "the program must not fail before the migration by its own fault"
    )
    rehearse: bool = setting(True, "the program must end with exit code 0")
    reached: float | None = setting(
        None,
        "least share of the rewritten statements that the program runs, per cent, 0 to 100",
        least=0,
        most=100,
    )
    fallbacks: int | None = setting(None, "most operators that run on the CPU", least=0)
    refusals: int | Literal["off"] = setting(
        0, "most calls that the chip refuses by what is recorded, or off", least=0
    )
    memory_gib: float | None = setting(None, "most memory of one device", least=0)
    coverage: float | None = setting(
        None, "least share of calls that the chip runs, per cent, 0 to 100", least=0, most=100
    )
    grade: str | None = setting(
        None, "least grade of what coverage says about operators", choices=GRADES
    )
    verify: str = setting("inconclusive", "the worst verdict that goes on", choices=VERDICTS)
    verified: float | None = setting(
        None,
        "least share of the recorded program that is compared, per cent, 0 to 100",
        least=0,
        most=100,
    )
    loss: str = setting("inconclusive", "the worst verdict that goes on", choices=VERDICTS)
    serve: bool = setting(True, "the served model must answer")


def read_gates(raw: Mapping[str, Any], where: str = "[tool.joymigrate.gates]") -> Gates:
    """The gates of a configuration; an unknown name or a wrong value raises `JoyError`."""
    return read(Gates, raw, where)


# The gates that each step asks.
OF = {
    "scan": ("automatic", "by_hand"),
    "baseline": ("baseline",),
    "rehearse": ("rehearse", "refusals", "fallbacks", "memory_gib", "reached"),
    "coverage": ("coverage", "grade"),
    "verify": ("verify", "verified"),
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
    """The program fails before anything was changed; by stand-ins nobody needs to know why."""
    unknown = figures.get("stand_ins") and (figures.get("stop") or {}).get("whose") == "unknown"
    if figures.get("failure") != "broken" and not unknown:
        return None
    said = Text("the program fails before the migration: {said}", said=figures["said"])
    return figures.get("exit_code"), sentence(figures["stop"]) if figures.get("stop") else said


def rehearse(figures: Mapping[str, Any], verdict: str | None, limit: bool) -> Any:
    """The program did not reach its end."""
    code = figures.get("exit_code")
    if code in (None, 0):
        return None
    if figures.get("stop"):
        return code, sentence(figures["stop"])
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


def grade(figures: Mapping[str, Any], verdict: str | None, limit: str) -> Any:
    """Statements about the chip that are not known well enough."""
    counts = figures.get("grades")
    weaker = count_weaker(counts, limit) if counts else 0
    if not counts or not weaker:
        return None
    return weaker, Text(
        "{weaker} of {number} statements about operators are not {limit}",
        weaker=weaker, number=sum(counts.values()), limit=limit,
    )  # fmt: skip


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
    "reached": least(
        "reached_pct",
        "{found} % of the rewritten statements ran; the gate asks for {limit} %",
        ".1f",
    ),
    "coverage": least(
        "calls_pct", "{found} % of the calls run on the chip; the gate asks for {limit} %", ".1f"
    ),
    "grade": grade,
    "verify": judge_verdict,
    "verified": least(
        "verified_pct", "{found} % of the recorded program is compared; the gate asks for {limit} %"
    ),
    "loss": judge_verdict,
    "serve": serve,
}


def refuses(limit: str, verdict: str | None) -> bool:
    """Whether a verdict is worse than its gate allows."""
    if limit == "off" or verdict in (None, "pass"):
        return False
    return verdict == "fail" or limit == "pass"
