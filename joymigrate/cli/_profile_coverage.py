"""`profile coverage`: which operators of a recording the chip runs, and what the others cost."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from joymigrate.cli._answers import Answer, answers
from joymigrate.cli._common_options import TO
from joymigrate.cli._language import OPTION as LANG
from joymigrate.cli._language import speaker
from joymigrate.cli._output import complain, one_of, talk
from joymigrate.errors import JoyError
from joymigrate.evidence import GRADES, weaker_line

if TYPE_CHECKING:
    from joymigrate.profile.coverage import Coverage
    from joymigrate.profile.oplist import OpList
    from joymigrate.profile.table import Trace

SHARES = ("ops", "calls", "time")


@answers("coverage")
def command(
    traces: list[Path] = typer.Argument(
        ..., metavar="TRACE...", help="Recordings or traces; a folder stands for those in it."
    ),
    to: str | None = TO,
    version: str | None = typer.Option(
        None,
        "--chip-version",
        "--version",
        help="Version of the chip's torch package, such as 2.13.",
    ),
    ops: Path | None = typer.Option(
        None,
        "--ops",
        metavar="FILE",
        help="An operator list to use instead (docs/how-to/oplist.md).",
    ),
    wheel: Path | None = typer.Option(
        None, "--wheel", help="Read the list from this wheel of the chip's torch package."
    ),
    fail_under: float | None = typer.Option(
        None, "--fail-under", min=0, max=100, help="Exit 1 below this share, in percent."
    ),
    by: str = typer.Option("ops", "--by", help="The share of --fail-under: ops, calls or time."),
    captures: list[Path] = typer.Option(
        [], "--captures", metavar="FILE", help="Trace of the capture of graphs that TRACE replays."
    ),
    max_unattributed: float | None = typer.Option(
        None,
        "--max-unattributed",
        min=0,
        max=100,
        help="Exit 1 where more device time, in percent, belongs to no known operator.",
    ),
    require_phase: list[str] = typer.Option(
        [],
        "--require-phase",
        metavar="PHASE",
        help="Exit 1 where this phase was not seen: forward, backward, optimiser, eval, export, "
        "worker. May be given several times; PHASE=exact asks for exact types.",
    ),
    require_grade: str | None = typer.Option(
        None,
        "--require-grade",
        metavar="GRADE",
        help="documented, rehearsed or measured: weaker statements fail, or count as unknown "
        "for --fail-under.",
    ),
    skeleton: Path | None = typer.Option(
        None, "--skeleton", metavar="DIR", help="Start a registration for each missing operator."
    ),
    seal: Path | None = typer.Option(
        None,
        "--seal",
        metavar="FILE",
        help="Write what is predicted, hashed, before a chip is seen.",
    ),
    lang: str | None = LANG,
) -> Answer:
    """Judge every operator of TRACE: native, fused, composite, on the CPU, missing, unknown."""
    from joymigrate.profile.coverage import cover, distinct_calls
    from joymigrate.profile.readers import read_all, read_captures
    from joymigrate.report import coverage as documents
    from joymigrate.report import coverage_document, coverage_sarif

    one_of(by, SHARES, "--by")
    if require_grade is not None:
        one_of(require_grade, GRADES, "--require-grade")
    read = read_all(traces)
    oplist, followed = follow_trace(read, to, version, ops, wheel)
    coverage = cover(read, oplist, read_captures(traces, captures))
    if followed:
        coverage = replace(coverage, notes=(*coverage.notes, followed))
    if seal is not None:
        from joymigrate.run.kit import seal as sealing

        calls = distinct_calls(read, oplist)
        sealing.write(sealing.of_coverage(documents.document(coverage), calls), seal)
    say = speaker(lang)
    talk(f"{say('note')}: {say(note)}" for note in coverage.notes)
    if skeleton is not None:
        from joymigrate.profile.skeleton import write

        written = write(coverage.gaps(), oplist, skeleton)
        talk([f"skeleton: {path}" for path in written] or ["skeleton: nothing to start"])
    own = {
        "sarif": lambda: coverage_sarif.render(coverage, Path.cwd()),
        "junit": lambda: documents.junit_text(coverage),
        "trace": lambda: mark_recording(read, oplist),
    }
    below = unmet(coverage, max_unattributed, require_phase)
    below += share_below(coverage, fail_under, by, require_grade)
    complain(below)
    described = functools.partial(coverage_document.describe, coverage)
    return Answer(documents.document(coverage), described, bool(below), own, say.lang)


def share_below(
    coverage: Coverage, least: float | None, by: str, grade: str | None
) -> Iterator[str]:
    """The share of `--fail-under` where it is not met; the weak statements without a share."""
    if least is None:
        yield from filter(None, [weaker_line(coverage.grades(), grade)] if grade else ())
        return
    share = getattr(coverage.known_as(grade) if grade else coverage.share, by)
    if share is None:
        raise JoyError("these recordings have no times", help="--by ops or --by calls")
    if 100 * share < least:
        yield f"below --fail-under: {100 * share:.2f} % of {by} < {least:g} %"


def follow_trace(
    traces: list[Trace], to: str | None, version: str | None, ops: Path | None, wheel: Path | None
) -> tuple[OpList, str]:
    """The operator list that is asked for, else the one of the torch that was recorded."""
    from joymigrate.cli.oplist import choose_list
    from joymigrate.config import load
    from joymigrate.profile.oplist import entries

    named = version or ops or wheel or load(Path.cwd())["chip_version"]
    recorded = {str(t.environment.get("torch") or "").partition("+")[0] for t in traces} - {""}
    oplist = choose_list(to, version, ops, wheel)
    if named:
        return oplist, ""
    if len(recorded) != 1:
        of = (
            f"are of torch {', '.join(sorted(recorded))}" if recorded else "do not name their torch"
        )
        return oplist, f"the recordings {of}; judged by {oplist.version} (--chip-version chooses)"
    torch = recorded.pop()
    try:
        picked = entries.read(oplist.path).pick(torch)
    except JoyError:
        return oplist, f"no list for the recorded torch {torch}; judged by {oplist.version}"
    if picked == oplist.version:
        return oplist, ""
    return choose_list(to, torch, None, None), f"judged by {picked}, as torch {torch} was recorded"


def unmet(coverage: Coverage, most: float | None, phases: list[str]) -> list[str]:
    """The limits on what was looked at that are not met."""
    from joymigrate.errors import did_you_mean
    from joymigrate.profile.coverage import PHASE_NAMES

    lines = []
    total = sum(op.device_us for op in coverage.ops) + coverage.unattributed_us
    share = 100 * coverage.unattributed_us / total if total else 0.0
    if most is not None and share > most:
        lines.append(f"above --max-unattributed: {share:.2f} % of device time > {most:g} %")
    for wanted in phases:
        name, _, how = wanted.partition("=")
        if name not in PHASE_NAMES or how not in ("", "exact"):
            raise JoyError(
                f"no phase '{wanted}'.{did_you_mean(name, PHASE_NAMES)}",
                help=f"one of {', '.join(PHASE_NAMES[1:])}, with =exact behind it or not",
            )
        seen = coverage.phases.get(name)
        if seen is None or seen.seen == "not seen" or (how and not seen.exact):
            said = seen.seen if seen is not None else "not seen"
            lines.append(f"--require-phase {wanted}: {name} was {said}")
    return lines


def mark_recording(traces: list[Trace], oplist: OpList) -> str:
    """The recording with our marks on it, for Perfetto."""
    from joymigrate.report import chrome_trace

    if len(traces) != 1:
        raise JoyError("--format trace marks one recording", help="give one TRACE")
    return chrome_trace.render(traces[0], oplist)
