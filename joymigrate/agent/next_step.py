"""The one next step of a migration: its place, the evidence, the command that judges it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from joymigrate.agent.migration_state import NOTHING, Standing
from joymigrate.journey.entries import EntryCandidate
from joymigrate.language import Language, Text
from joymigrate.report.pull_request import repeat_command

SCHEMA = "joymigrate.next/1"
MOST_BYTES = 2_000
MOST_ANSWER = 3_900  # bytes of what `migrate` answers: an agent's tool gives 4,000
CUTS = (240, 160, 100, 60, 30)  # characters of one text; less where the whole would be too long
TOLD = (2_400, 1_200, 600, 300)  # of what the deciding step says
PLACE = ".joymigrate/journey"
COUNTED = {  # parts of a verdict's `covered`
    "steps": "{compared} of {of} steps in full",
    "printed": "{compared} of {of} printed numbers compared",
    "run": "{compared} of {of} series of the whole run compared",
}
COMPARED = {
    "coverage": "{compared} of {recorded} values compared",
    "operators": "{compared} of {recorded} operator calls compared",
}
MOST_REASONS = 3
MOST_COVERS = 3  # a text of this many others' length


class MigrationState(str, Enum):
    """How far a migration is. `PASSED`: on the simulated chip or a real one, as `grade` says."""

    UNTOUCHED = "not started"
    REWRITTEN = "rewritten"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    EDITED = "edited"
    STOPPED = "stopped"
    UNDECIDED = "not decided"
    PASSED = "passed"


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to do next: where, what shows that, the file that holds it, the command that judges.
    `told` is all that the step which decides says: frames, what was tried, what to write instead.
    """

    state: MigrationState
    do: str
    place: str = ""
    evidence: str = ""
    file: str = ""
    judge: str = ""
    covers: str = ""
    told: str = ""


def decide(at: Standing, entries: Sequence[EntryCandidate]) -> NextStep:
    """The next step; `entries` are the programs that the project says how to start."""
    if at.interrupted:
        do = Text("end the change that was cut short: it is completed or taken back")
        return NextStep(MigrationState.INTERRUPTED, do, judge="joymigrate status")
    if at.running:
        do = Text("wait: the step {step} runs since {since}", **pick(at.running, "step", "since"))
        return NextStep(
            MigrationState.RUNNING, do, file=f"{PLACE}/running.json", judge="joymigrate next"
        )
    if not at.journey:
        return begin(at, entries)
    judge = repeat_command(at.journey)
    if at.changed:
        do = Text("judge anew: {count} file{count_s} changed behind it", count=len(at.changed))
        return NextStep(
            MigrationState.EDITED, do, at.changed[0], ", ".join(at.changed), judge=judge
        )
    for one in at.journey["journey"]:
        if one["status"] in ("failed", "stopped"):
            return replace(stop_of(one, judge), told=one["help"])
    idle = at.outcome("verify").get("figures", NOTHING).get("idle")
    if idle:
        verify = at.outcome("verify")
        do = Text("bring the program onto the chip: {said}", said=idle["said"])
        said, file = verify["summary"], evidence_of(verify)
        return NextStep(
            MigrationState.UNDECIDED, do, idle["line"], said, file, judge, told=verify["help"]
        )
    for one in at.journey["journey"]:
        if one["status"] == "pending" or one["verdict"] == "inconclusive":
            said = one["help"] or one["summary"]
            do = Text("decide the step {step}: {said}", step=one["name"], said=first_line(said))
            said, file = one["summary"], evidence_of(one)
            told = one["help"]
            return NextStep(MigrationState.UNDECIDED, do, "", said, file, judge, told=told)
    if at.journey["verdict"] != "pass":
        do = Text("run the program on the chip: no run of it was judged")
        return NextStep(MigrationState.UNDECIDED, do, judge=judge)
    return after_pass(at, judge)


def begin(at: Standing, entries: Sequence[EntryCandidate]) -> NextStep:
    """The first step: the whole journey of the program that the project starts."""
    state = MigrationState.REWRITTEN if at.rewritten else MigrationState.UNTOUCHED
    if not entries:
        do = Text("name the program that shows that the project works: --entry 'python …'")
        judge = "joymigrate migrate . --entry 'python PROGRAM.py'"
        return NextStep(state, do, evidence=Text("no file says how one is started"), judge=judge)
    first = entries[0]
    judge = f"joymigrate migrate . --entry {shlex.quote(first.command)}"
    do = Text("take the whole journey: nothing was run yet")
    found = Text("the program that {place} starts", place=first.source)
    return NextStep(state, do, first.source, found, judge=judge)


def stop_of(one: Mapping[str, Any], judge: str) -> NextStep:
    """The step that mends what stopped the journey."""
    figures = one["figures"]
    stop = figures.get("stop") or NOTHING
    file = evidence_of(one)
    if stop:
        said = Text("{message} (whose: {whose})", **pick(stop, "message", "whose"))
        if patch := figures.get("patch"):
            text = "take the patch that was tried on a copy: with it the program runs to its end"
            judge = f"{judge} --yes"
            return NextStep(MigrationState.STOPPED, Text(text), stop["line"], said, patch, judge)
        return NextStep(MigrationState.STOPPED, stop["next"], stop["line"], said, file, judge)
    apart = figures.get("first_divergence") or NOTHING
    if apart:
        place = apart.get("line") or apart.get("module") or ""
        if isinstance(place, Mapping):  # the chip's side is the tree as it stands
            place = place.get("target") or place.get("baseline") or ""
        told = {k: v for k, v in apart.items() if isinstance(v, str | int | float)}
        words = ", ".join((*judged_stages(figures), *(f"{k} {v}" for k, v in told.items())))
        do = Text("find why the values part there: {help}", help=first_line(one["help"]))
        return NextStep(MigrationState.STOPPED, do, str(place), words, file, judge)
    do = first_line(one["help"]) or one["summary"]
    return NextStep(MigrationState.STOPPED, do, "", one["held"] or one["summary"], file, judge)


def judged_stages(figures: Mapping[str, Any]) -> Iterator[Text]:
    """Which stages of a comparison passed, and which failed."""
    stages = figures.get("stages") or ()
    for verdict, text in (("fail", "failed: {names}"), ("pass", "passed: {names}")):
        names = [one["stage"] for one in stages if one["verdict"] == verdict]
        if names:
            yield Text(text, names=" ".join(names))


def after_pass(at: Standing, judge: str) -> NextStep:
    """What is left when the journey passed: places that did not run, sites by hand, a real chip."""
    run = at.outcome("rehearse").get("figures", NOTHING)
    verify = at.outcome("verify").get("figures", NOTHING)
    covers = covered_by(run, verify)
    missed = run.get("not_run") or ()
    if missed:
        do = Text("run the program so that it reaches the rewritten places that did not run")
        named = ", ".join(place_of(one) for one in missed)
        return NextStep(
            MigrationState.PASSED,
            do,
            place_of(missed[0]),
            named,
            f"{PLACE}/journey.json",
            judge,
            covers,
        )
    sites = at.outcome("rewrite").get("figures", NOTHING).get("sites") or ()
    if sites:
        first = sites[0]
        do = Text("decide the first of {count} site{count_s} left to people", count=len(sites))
        said = Text("{rule}: {message}", rule=first["rule"], message=first["message"])
        return NextStep(MigrationState.PASSED, do, f"{first['path']}:{first['line']}", said,
                        f"{PLACE}/rewrite/left.json", judge, covers)  # fmt: skip
    if at.journey["grade"] == "measured":
        do = Text("write the page for the reviewer")
        return NextStep(
            MigrationState.PASSED, do, judge="joymigrate report --pull-request", covers=covers
        )
    do = Text("take the same journey on a machine with the chip: nothing was measured")
    return NextStep(MigrationState.PASSED, do, judge=judge, covers=covers)


def covered_by(run: Mapping[str, Any], verify: Mapping[str, Any]) -> Text:
    """What a pass looked at: places that ran, what was compared of what there is, and what was not
    with the reasons."""
    reached = format_share(run.get("reached_pct"))
    parts = [Text("{reached} % of the rewritten places ran", reached=reached)]
    for key, text in COMPARED.items():
        if key in verify:
            parts.append(Text(text, **pick(verify[key] or NOTHING, "compared", "recorded")))
    counts = verify.get("covered") or NOTHING
    for part, text in COUNTED.items():
        found = counts.get(part) or NOTHING
        if found.get("of"):
            parts.append(Text(text, **pick(found, "compared", "of")))
    told = [*dict.fromkeys(one["reason"] for one in verify.get("uncovered") or ())]
    skipped: dict[str, list[str]] = {}
    for one in verify.get("stages") or ():
        if one["verdict"] == "skipped":
            skipped.setdefault(one.get("reason") or "?", []).append(one["stage"])
    for reason, names in skipped.items():
        parts.append(Text("skipped: {names} ({reason})", names=", ".join(names), reason=reason))
    parts += [Text("not compared: {reason}", reason=reason) for reason in told[:MOST_REASONS]]
    if told[MOST_REASONS:]:
        more = len(told) - MOST_REASONS
        parts.append(Text("{count} more reason{count_s} in verify/verdict.json", count=more))
    return Text.join("; ", parts)


def format_share(share: Any) -> str:
    """A share with one decimal; `?` where there is none."""
    return f"{share:.1f}" if isinstance(share, int | float) else "?"


def place_of(one: Any) -> str:
    """A place as `file:line`."""
    if isinstance(one, Mapping):
        return f"{one.get('path', '')}:{one.get('line', '')}"
    return str(one)


def evidence_of(one: Mapping[str, Any]) -> str:
    """The file that holds what a step found."""
    found = one["evidence"]
    return f"{PLACE}/{found[-1]}" if found else f"{PLACE}/journey.json"


def pick(found: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Some fields for a sentence; `?` where one is not there."""
    return {key: found.get(key, "?") for key in keys}


def first_line(text: str) -> Text:
    """The first line of an advice."""
    return Text.of(text.strip().partition("\n")[0].strip())


def document(at: Standing, step: NextStep, most: int = MOST_BYTES) -> dict[str, Any]:
    """The next step as plain data of at most `most` bytes: long texts are cut. What the steps found
    and all that the deciding one says are in it where there is room."""
    for length in CUTS:
        found = as_json(at, step, length)
        if measure(found) < MOST_BYTES:
            break
    for length in CUTS if most > MOST_BYTES else ():
        found["found"] = {one["name"]: cut(one["summary"], length) for one in list_ended(at)}
        if measure(found | {"told": cut(step.told, TOLD[-2])}) <= most:
            break
    for length in TOLD:
        whole = found | {"told": cut(step.told, length)}
        if step.told and measure(whole) <= most:
            return whole
    return found


def measure(found: Mapping[str, Any]) -> int:
    """The bytes of a document as it is printed."""
    return len(json.dumps(found, ensure_ascii=False, indent=2).encode())


def list_ended(at: Standing) -> Iterator[Mapping[str, Any]]:
    """The steps of the journey that found something."""
    steps = at.journey.get("journey", ())
    return (one for one in steps if one["status"] not in ("pending", "skipped"))


def as_json(at: Standing, step: NextStep, most: int) -> dict[str, Any]:
    """The document with every text cut to `most` characters;"""
    latest = at.steps[-1] if at.steps else None
    done = {one["name"]: one["status"] for one in at.journey.get("journey", ())}
    return {
        "schema": SCHEMA,
        "project": cut(str(at.root), most),
        "chip": at.journey.get("chip"),
        "state": step.state.value,
        "grade": at.journey.get("grade") if was_run(at) else None,
        "verdict": at.journey.get("verdict"),
        "ledger": {
            "steps": len(at.steps),
            "latest": latest.id if latest else None,
            "rollback": at.rewritten.id if at.rewritten else None,
        },
        "journey": done,
        "step": {
            "do": cut(step.do, most),
            "place": cut(step.place, most),
            "evidence": cut(step.evidence, most),
            "file": step.file,
            "judge": cut(step.judge, 2 * most),
        },
        "covers": cut(step.covers, MOST_COVERS * most),
    }


def was_run(at: Standing) -> bool:
    """Whether the program was run on the chip, or on the simulated one."""
    return at.outcome("rehearse").get("status") in ("done", "failed", "stopped")


def cut(text: str, most: int) -> str:
    """A text of at most `most` characters."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def text_lines(at: Standing, step: NextStep, say: Language) -> Iterator[str]:
    """The next step for a terminal."""
    rows = [
        ("state", say(step.state.value)),
        ("next", say(step.do)),
        ("place", step.place),
        ("evidence", say(step.evidence)),
        ("file", step.file),
        ("judge", step.judge),
        ("covers", say(step.covers)),
    ]
    for key, told in rows:
        if told:
            yield f"{say(key)}{say.traits.marks['colon']}{told}"
