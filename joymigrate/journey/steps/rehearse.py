"""Run the program on the chip; where there is none, on the simulated one."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from joymigrate.blame.program import Program
from joymigrate.blame.stop import FrameOwner, Stop
from joymigrate.blame.text import MOST_UNREAD, lines
from joymigrate.chips import get, origin
from joymigrate.journey import mending, places
from joymigrate.journey.context import DRAWN, CompletedCommand, StepContext
from joymigrate.journey.model import JourneyRequest, StepOutcome, StepStatus, command
from joymigrate.journey.run_failure import explain
from joymigrate.journey.sites import device_names, sites_at
from joymigrate.journey.steps import coverage
from joymigrate.language import Text
from joymigrate.run.rehearse import reach
from joymigrate.run.rehearse.memory import summary as memory

LOG = "rehearse/log.txt"
MEMORY = "rehearse/memory.json"
MEMORY_FOLDER = "rehearse/memory"  # what each process noted
REACH_FOLDER = "rehearse/reached"
UNREAD = "rehearse/unread.json"  # with the origin's words translated as they reach torch
UNREAD_LOG = "rehearse/unread-log.txt"
MOST = 3  # places that one help names
TRANSLATED = "  the words were translated there as torch took them; it was not tried without"
REWRITTEN = "no_cuda"  # its remedy is the rewrite, which left the line to people
BACKEND = "nccl"


def words(request: JourneyRequest, chip_here: bool, path: str) -> list[str]:
    """The command that runs the program there."""
    if chip_here:
        return ["run", "--to", request.chip, "--", *request.entry]
    first = ["rehearse", "--to", request.chip, *devices(request), *in_memory(request)]
    first += ["--format", "json", "-o", path]
    return [*first, "--", *request.entry]


def devices(request: JourneyRequest) -> list[str]:
    """How many devices the simulated machine has."""
    return ["--devices", str(request.devices)] if request.devices else []


def in_memory(request: JourneyRequest) -> list[str]:
    """What rewrites an unchanged program as it loads."""
    return ["--migrate"] if request.in_memory else []


def recording(request: JourneyRequest, trace: str) -> JourneyRequest:
    """The request with the program under the recorder of operators: one run does for both."""
    record = (sys.executable, "-m", "joymigrate", *coverage.words(request, trace))
    return replace(request, entry=record)


def take_run(
    at: StepContext, noted: places.ChangedPlaces, request: JourneyRequest
) -> CompletedCommand:
    """One run on the chip, which notes its memory and which of the changed places it reached."""
    chip, folder, reached = get(request.chip), at.path(MEMORY_FOLDER), at.path(REACH_FOLDER)
    memory.ask(folder, chip.package or "torch", chip.module.removeprefix("torch."))
    reach.ask(reached, noted.lines(request.project))
    draws = at.path(DRAWN)  # equal on both sides
    draws.parent.mkdir(parents=True, exist_ok=True)
    draws.write_text("", encoding="utf-8")
    ask = words(request, at.chip_here, str(at.path("rehearse/rehearse.json")))
    return at.joymigrate(LOG, *ask, ok=range(256), draws=draws, memory=folder, reach=reached)


def run(at: StepContext, *, mends: bool = True) -> StepOutcome:
    """What breaks, what falls back, how much memory; `mends` tries on copies what would cure a
    stop, and takes it where the user said so."""
    if mends and at.request.yes and (known := mending.known_stop(at, rehearsing(at))):
        cure = try_cure(at, known)
        if cure.step:
            return run_mended(at, cure)
    noted, trace = places.of_project(at.request.project), at.path(coverage.TRACE)
    coverage.remove_traces(at)
    done = take_run(at, noted, at.request if at.request.pair else recording(at.request, str(trace)))
    if done.code and not at.request.pair:  # what stopped it is told without the recorder
        coverage.set_aside(at)
        done = take_run(at, noted, at.request)
    coverage.of_first_rank(trace)
    ran = noted.figures(reach.read_reached(at.path(REACH_FOLDER)))
    ran["recorded"] = trace.is_file()
    held = memory.collect(at.path(MEMORY_FOLDER), rehearsal=not at.chip_here)
    at.path(MEMORY).write_text(json.dumps(held), encoding="utf-8")
    if at.chip_here:
        return on_the_chip(at, done, held, ran)
    found = at.load("rehearse/rehearse.json")
    peak = max(found["peak_memory_bytes"].values(), default=0)
    fallbacks, code = found["fallbacks"], found["exit_code"]
    traps = [trap(at, one) for one in found["traps"]]
    refused = found.get("refusals", [])
    stop = explain(at, done, on_chip=True, refusals=refused) if code else None
    cure = try_cure(at, stop.document()) if stop and mends else Cure()
    if cure.made:
        stop = explain(at, done, on_chip=True, refusals=refused, made=cure.made)
    if cure.step:
        return run_mended(at, cure)
    log = os.path.relpath(done.log, at.request.project)
    figures = {
        "rehearsal": True,
        "exit_code": code,
        "fallbacks": len(fallbacks),
        "fallback_ops": [one["op"] for one in fallbacks],
        "refusals": sum(row["calls"] for row in found.get("refusals", ())),
        "refused": found.get("refusals", []),
        "arguments_judged": found.get("arguments_judged"),
        "traps": len(traps),
        "found_traps": traps,
        "peak_bytes": peak,
        "grades": dict(found["grades"]),
        "only_seen_while_running": found.get("only_seen_while_running", []),
        "checked_by": found["checked_by"],
        "package": found["package"],
        "stop": stop.document() if stop else None,
        "patch": cure.patch,
        **ran,
    }
    evidence = [coverage.TRACE] if ran["recorded"] else []
    ended = "ran to its end" if code == 0 else Text("ended with exit code {code}", code=code)
    number = len(fallbacks)
    fell = Text("{number} operator{number_s}", number=number)
    return StepOutcome(
        "rehearse",
        StepStatus.DONE,
        Text(
            "{ended} on a simulated {soc}; {fell} fell back to the CPU, peak {peak}",
            ended=ended,
            soc=found["soc"],
            fell=fell,
            peak=f"{peak / 2**20:.1f} MiB" if 10 * peak >= 2**20 else f"{peak / 2**10:.1f} KiB",
        ),
        figures,
        (*evidence, "rehearse/rehearse.json", MEMORY, LOG),
        verdict="pass" if code == 0 else "fail",
        help=advice(traps, found, stop, log, cure, at.request.project),
    )


@dataclass(frozen=True, slots=True)
class Cure:
    """What was tried on copies against a stop, in words; `step` took it into the work tree.
    `made`: lines that only while they run hand torch the origin's word."""

    told: tuple[Text, ...] = ()
    step: str | None = None
    made: tuple[str, ...] = ()
    patch: str = ""  # that lets the program run to its end, and was not taken


def run_mended(at: StepContext, cure: Cure) -> StepOutcome:
    """What was taken is in the work tree: the mended program is the one to tell of."""
    again = run(at, mends=False)
    return replace(again, help=Text.join("\n", (*cure.told, again.help)))


def rehearsing(at: StepContext) -> mending.Rehearse:
    """The command of a round, by the place of its report."""
    return lambda place: words(at.request, at.chip_here, place)


def try_cure(at: StepContext, stop: Mapping[str, Any]) -> Cure:
    """Try what may cure a stop on copies of the project; with `--yes` what cured it is taken."""
    rounds = mending.try_mends(at, stop, rehearsing(at))
    tree = mending.last_tree(at, rounds)
    step = None
    if tree is not None:
        made = mending.write_patch(at, rounds, tree)
        if at.request.yes:
            step = mending.take(at, rounds, made)
            at.mended = step is not None
    place = os.path.relpath(at.path(mending.PATCH), at.request.project)
    told = mending.lines(rounds, step, place, command(at.request))
    rewritten = stop["whose"] == FrameOwner.REWRITE.value
    if tree is None and rewritten and not at.request.in_memory:
        net = translate_while_running(at)
        return Cure((*told, *net.told), step, net.made)
    cured = tree is not None and rounds[-1].after is None
    return Cure(tuple(told), step, patch=place if cured else "")


def translate_while_running(at: StepContext) -> Cure:
    """Which lines hand torch the origin's word only while they run, and how the program ends where
    that is translated there."""
    place = at.path(UNREAD)
    ask = ["rehearse", "--to", at.request.chip, *devices(at.request), "--migrate", "-o", str(place)]
    done = at.joymigrate(UNREAD_LOG, *ask, "--", *at.request.entry, ok=range(256))
    found = json.loads(place.read_text(encoding="utf-8")) if place.is_file() else {}
    rows = found.get("only_seen_while_running")
    if not rows:
        return Cure()
    told = seen_while_running(at.request.project, rows)
    how = "  translated there, the program runs to its end: joymigrate run -- {command}"
    end = Text(how, command=shlex.join(at.request.entry))
    if done.code:
        stop = explain(at, done, on_chip=True, refusals=found.get("refusals", ())).document()
        how = "  translated there, it stops at {line}: {message}"
        end = Text(how, line=stop["line"] or "?", message=stop["message"])
    return Cure((told, end), made=tuple(unread_places(at.request.project, rows)))


def seen_while_running(project: Path, rows: Iterable[Mapping[str, Any]]) -> Text:
    """Which lines of the program handed torch the origin's word."""
    places = unread_places(project, rows)[:MOST_UNREAD]
    return Text("only seen while running: {places}", places=Text.join(", ", places))


def unread_places(project: Path, rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The lines of such notes, `train.py:7`, in the order of the files."""
    name = Program(project).name
    where = {(name(file), int(line)) for file, _, line in (r["line"].rpartition(":") for r in rows)}
    return [f"{file}:{line}" for file, line in sorted(where)]


def trap(at: StepContext, one: Mapping[str, Any]) -> dict[str, Any]:
    """A trap with its place in the project, and what the scan knew about that line."""
    where = str(one.get("where") or "")
    path, _, line = where.rpartition(":")
    rules: list[Mapping[str, Any]] = []
    if path and line.isdigit():
        file = Path(path)
        if file.is_relative_to(at.request.project):
            path = file.relative_to(at.request.project).as_posix()
            where = f"{path}:{line}"
            rules = sites_at(at, path, int(line))
    return {
        "trap": one.get("trap"),
        "where": where,
        "message": one.get("message") or one.get("trap"),
        "remedy": trap_help(at, one, rules),
        "rules": [rule["rule"] for rule in rules],
        "count": one.get("count", 1),
    }


def trap_help(at: StepContext, one: Mapping[str, Any], rules: list[Mapping[str, Any]]) -> str:
    """What to do about a trap: its own remedy, and what the scan said about this very line.

    A device's name that a rewritten line still asks for came from elsewhere.
    """
    known = [] if one.get("trap") == REWRITTEN else [one.get("remedy") or ""]
    known += [remedy(at, rule) for rule in rules]
    if not rules and one.get("trap") == REWRITTEN:
        known.append(elsewhere(at))
    if not rules and one.get("trap") == BACKEND:
        known += [
            Text("its name comes from {places}", places=p)
            for p in list(device_names(at, BACKEND))[:1]
        ]
    return sentences(known, "; ")


def elsewhere(at: StepContext) -> str:
    """Where a device's name comes from that no line of the program names."""
    places = list(device_names(at, origin().device))
    text = "; ".join(places[:MOST]) or "a configuration file, the command line or a checkpoint"
    return Text("the line takes its device's name from elsewhere: {places}", places=text)


def remedy(at: StepContext, finding: Mapping[str, Any]) -> str:
    """What the scan says about a site that it left, and the rule about what to do."""
    from joymigrate.rewrite.rules import load

    rule = load(get(at.request.chip), origin()).get(finding["rule"])
    first = Text(
        "{code}, {rule}: {message}",
        code=f"`{finding['before']}`",
        rule=finding["rule"],
        message=finding["message"],
    )
    return sentences((first, finding["reason"], rule.why if rule else ""), ". ")


def sentences(parts: Iterable[str | None], mark: str) -> Text:
    """Texts one behind the other, with `mark` after those that bring no full stop."""
    found = [part for part in parts if part]
    if len(found) == 1:
        return Text.of(found[0])
    last = len(found) - 1
    ends = ["" if n == last else " " if p.endswith(".") else mark for n, p in enumerate(found)]
    template = "".join(f"{{p{number}}}{end}" for number, end in enumerate(ends))
    return Text(template, **{f"p{number}": part for number, part in enumerate(found)})


def advice(
    traps: list[dict[str, Any]],
    found: Mapping[str, Any],
    stop: Stop | None,
    log: str,
    cure: Cure | None = None,
    project: Path = Path(),
) -> str:
    """Why the program stopped and what cures it, the traps with their remedies, the lines that only
    passed translated, the operators that fell back."""
    told: list[str] = [*lines(stop.document(), log)] if stop else []
    told += cure.told if cure else ()
    for one in traps:
        if stop is not None and one["where"] == stop.line:
            continue  # the stop itself, which was said
        told.append(Text("{where}: {said}", where=one["where"] or "?", said=one["message"]))
        if one["remedy"]:
            told.append(Text("  help: {remedy}", remedy=one["remedy"]))
    if stop is None:
        if rows := found.get("only_seen_while_running"):
            told += [seen_while_running(project, rows), Text(TRANSLATED)]
        for one in found["fallbacks"]:
            where = Text.join(", ", one.get("where") or ())
            told.append(
                Text(
                    "{op} runs on the CPU, {calls} call{calls_s} ({where})",
                    op=one["op"],
                    calls=one["calls"],
                    where=where,
                )
            )
    return Text.join("\n", told)


def on_the_chip(
    at: StepContext, done: CompletedCommand, held: Mapping[str, Any], ran: Mapping[str, Any]
) -> StepOutcome:
    """The program itself, on the chip of this machine."""
    stop = explain(at, done, on_chip=True) if done.code else None
    log = os.path.relpath(done.log, at.request.project)
    peaks = [peak for one in held["processes"] for peak in one["peak_bytes"].values()]
    return StepOutcome(
        "rehearse",
        StepStatus.DONE,
        Text("the program ended with exit code {code} on the chip", code=done.code),
        {
            "rehearsal": False,
            "exit_code": done.code,
            "stop": stop.document() if stop else None,
            **({"peak_bytes": max(peaks)} if peaks else {}),
            **ran,
        },
        (*([coverage.TRACE] if ran["recorded"] else []), MEMORY, LOG),
        verdict="pass" if done.code == 0 else "fail",
        help=Text.join("\n", lines(stop.document(), log)) if stop else "",
    )
