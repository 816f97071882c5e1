"""Which operators the program uses, and whether the chip has them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joymigrate.journey.context import StepContext, StepFailed
from joymigrate.journey.model import JourneyRequest, StepOutcome, StepStatus
from joymigrate.language import Text
from joymigrate.profile.record import summary

TRACE = "coverage/trace.jsonl.gz"
PART = "coverage/part.jsonl.gz"  # what was recorded before the program ended badly
LACKING = ("cpu_fallback", "missing", "unknown")

WHOLE = (
    "{calls} % of the calls run on the chip; it lacks {lacking} of {operators} "
    "operator{operators_s}"
)
IN_PART = (
    "{calls} % of the calls run on the chip; it lacks {lacking} of {operators} "
    "operator{operators_s}; recorded in part, it ended with exit code {code}"
)


def words(request: JourneyRequest, trace: str) -> list[str]:
    """The command that records operators."""
    return ["profile", "record", "-o", trace, "--", *request.entry]


def asking(request: JourneyRequest, trace: str, form: str, path: str) -> list[str]:
    """The command that asks the chip's list."""
    return ["profile", "coverage", trace, "--to", request.chip, "--format", form, "-o", path]


def run(at: StepContext) -> StepOutcome:
    """Ask the chip's list for the operators that were recorded."""
    trace = at.path(TRACE)
    code, where = record_trace(at)
    if not summary(trace).operators:
        told = Text("no operator was recorded: what was compiled as a whole leaves none")
        return StepOutcome(
            "coverage", StepStatus.DONE, told, {"operators": 0}, (TRACE,), verdict="inconclusive"
        )
    for form, name in (("json", "coverage.json"), ("html", "coverage.html")):
        result = str(at.path(f"coverage/{name}"))
        at.joymigrate(f"coverage/log-{form}.txt", *asking(at.request, str(trace), form, result))
    found = at.load("coverage/coverage.json")
    calls = 100 * float(found["share"]["calls"])
    lacking = [op for op in found["ops"] if op["status"] in LACKING]
    figures = {
        "operators": len(found["ops"]),
        "lacking": [
            {key: op.get(key) for key in ("op", "overload", "status", "calls", "where")}
            for op in lacking
        ],
        "share": dict(found["share"]),
        "calls_pct": calls,
        "version": found["version"],
        "grades": dict(found["grades"]),
        "recorded_on": where,
    }
    return StepOutcome(
        "coverage",
        StepStatus.DONE,
        Text(
            IN_PART if code else WHOLE,
            calls=f"{calls:.1f}",
            lacking=len(lacking),
            operators=len(found["ops"]),
            code=code,
        ),
        figures,
        ("coverage/coverage.json", "coverage/coverage.html", TRACE),
        verdict="inconclusive" if code else "pass",
        help=Text.join("\n", map(lack, lacking)),
    )


def lack(op: Mapping[str, Any]) -> Text:
    """One operator that the chip lacks."""
    where = str(op.get("where") or "")
    return Text("{op} ({status}) {where}", op=op["op"], status=op["status"], where=where)


def record_trace(at: StepContext) -> tuple[int, str]:
    """The exit code of the program that was recorded, and where: with the rehearsal; where it ended
    badly there, here, if it gets further."""
    run = at.before["rehearse"].figures
    there = "the chip" if at.chip_here else "the simulated chip"
    trace, part = at.path(TRACE), at.path(PART)
    if run.get("recorded"):
        return 0, there
    ask = words(at.request, str(trace))
    done = at.joymigrate("coverage/record-log.txt", *ask, ok=range(256))
    of_first_rank(trace)
    if trace.is_file() and (done.code == 0 or not part.is_file()):
        return done.code, "this machine"
    if part.is_file():
        part.replace(trace)
        return int(run["exit_code"]), there
    what = Text("nothing was recorded (exit code {code})", code=done.code)
    raise StepFailed(what, done.tail())


def remove_traces(at: StepContext) -> None:
    """Remove what was recorded before."""
    at.path(TRACE).parent.mkdir(parents=True, exist_ok=True)
    for name in (TRACE, PART):
        at.path(name).unlink(missing_ok=True)


def set_aside(at: StepContext) -> None:
    """Keep what was recorded of a program that ended badly."""
    of_first_rank(at.path(TRACE))
    if at.path(TRACE).is_file():
        at.path(TRACE).replace(at.path(PART))


def of_first_rank(trace: Path) -> None:
    """A program of several processes writes a trace for each; all run the same operators, so that
    of the first one stands for them."""
    name, _, ending = trace.name.partition(".")
    first = trace.with_name(f"{name}.rank-0.{ending}")
    if first.is_file():
        first.replace(trace)
    for other in trace.parent.glob(f"{name}.rank-*.{ending}"):
        other.unlink()
