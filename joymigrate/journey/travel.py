"""Goes the way: step after step, each held by its gates, each in the ledger, resumable."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.journey.gates import Gates
from joymigrate.journey.model import (
    SCHEMA,
    Journey,
    Outcome,
    Request,
    Status,
    outcomes_from,
    to_json,
)
from joymigrate.journey.plan import NAMES, Planned, plan
from joymigrate.journey.travelling import StepFailed, Travelling
from joymigrate.journey.tree import tree_hash
from joymigrate.ledger import FileHash, Ledger, Step, Subject, sha256
from joymigrate.ledger.disk import replace_durably

FILE = "journey.json"
Tell = Callable[[str, Planned, Outcome | None], None]


def travel(
    request: Request,
    gates: Gates,
    *,
    until: str | None = None,
    fresh: bool = False,
    chip_here: bool = False,
    tell: Tell = lambda event, planned, outcome: None,
) -> Journey:
    """Take every step of the plan up to `until`, going on where an earlier journey stood.

    `tell(event, planned, outcome)` hears `begin`, `end`, `kept` and `skip`. A step that fails, or
    that a gate holds, ends the journey; what came before stays done.
    """
    if until is not None and until not in NAMES:
        raise JoyError(
            f"there is no step '{until}'.{did_you_mean(until, NAMES)}",
            help=f"the steps: {', '.join(NAMES)}",
        )
    ledger = Ledger.of(request.project)
    folder = ledger.home / "journey"
    journey = Journey(request, folder, "measured" if chip_here else "rehearsed")
    if not fresh:
        journey = resumed(journey)
    folder.mkdir(parents=True, exist_ok=True)
    for planned in plan(request):
        done = journey.outcome(planned.name)
        if done is not None and done.status is Status.DONE:
            tell("kept", planned, done)
        elif planned.skip:
            outcome = Outcome(planned.name, Status.SKIPPED, planned.skip)
            journey = with_outcome(journey, outcome)
            tell("skip", planned, outcome)
        else:
            tell("begin", planned, None)
            journey, outcome = taken(journey, planned, gates, chip_here)
            save(journey)
            if outcome.status is not Status.SKIPPED:
                record(ledger, journey, outcome)
            tell("end", planned, outcome)
            if outcome.status in (Status.FAILED, Status.STOPPED):
                break
        if planned.name == until:
            break
    journey = with_pending(journey)
    save(journey)
    return journey


def taken(
    journey: Journey, planned: Planned, gates: Gates, chip_here: bool
) -> tuple[Journey, Outcome]:
    """Take one step."""
    at = Travelling(
        journey.request, gates, journey.folder, chip_here, rewrite_step=journey.rewrite_step
    )
    began = time.monotonic()
    try:
        outcome = planned.run(at)
    except StepFailed as failure:
        outcome = Outcome(
            planned.name, Status.FAILED, failure.what, verdict="fail", help=failure.tail
        )
    outcome = replace(
        outcome, seconds=time.monotonic() - began, commands=tuple(shortened(journey, at.ran))
    )
    journey = with_outcome(journey, outcome)
    tree = tree_hash(journey.request.project)
    return replace(journey, tree=tree, rewrite_step=at.rewrite_step), outcome


def shortened(journey: Journey, commands: list[str]) -> list[str]:
    """Commands with the journey's folder relative to the project, where they are run."""
    folder = str(journey.folder)
    shown = os.path.relpath(folder, journey.request.project)
    return [command.replace(folder, shown) for command in commands]


def with_outcome(journey: Journey, outcome: Outcome) -> Journey:
    """The journey with one step's outcome, in the order of the plan."""
    others = [one for one in journey.outcomes if one.name != outcome.name]
    ordered = sorted([*others, outcome], key=lambda one: NAMES.index(one.name))
    return replace(journey, outcomes=tuple(ordered))


def with_pending(journey: Journey) -> Journey:
    """The journey with every step that was not reached."""
    for name in NAMES:
        if journey.outcome(name) is None:
            journey = with_outcome(journey, Outcome(name, Status.PENDING, "not reached"))
    return journey


def resumed(journey: Journey) -> Journey:
    """The outcomes of an earlier journey that still hold: same request, same files, same results.

    A step whose evidence is gone or was changed is taken again, and all after it.
    """
    path = journey.folder / FILE
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return journey
    wanted = to_json(journey)
    same = ("chip", "entry", "style", "steps", "serve", "map", "unsafe", "grade", "project")
    if raw.get("schema") != SCHEMA or any(raw.get(key) != wanted[key] for key in same):
        return journey
    if raw.get("tree") != tree_hash(journey.request.project):
        return journey
    kept: list[Outcome] = []
    for outcome in outcomes_from(raw):
        if outcome.status is not Status.DONE:
            break
        if not all((journey.folder / name).is_file() for name in outcome.evidence):
            break
        kept.append(outcome)
    return replace(
        journey, outcomes=tuple(kept), tree=raw["tree"], rewrite_step=raw.get("rewrite_step")
    )


def save(journey: Journey) -> None:
    """Write `journey.json`, whole or not at all."""
    text = json.dumps(to_json(journey), indent=1, ensure_ascii=False)
    replace_durably(journey.folder / FILE, text.encode("utf-8"))


def record(ledger: Ledger, journey: Journey, outcome: Outcome) -> None:
    """Put one step into the ledger, with the hashes of its evidence."""
    request = journey.request
    ledger.record(
        Step(
            kind=f"migrate.{outcome.name}",
            command="; ".join(outcome.commands),
            chip=request.chip,
            subject=Subject(subject_name(request)),
            outputs=tuple(hashed(ledger.root, journey.folder / name) for name in outcome.evidence),
            judges=journey.rewrite_step,
            details={
                "status": outcome.status.value,
                "summary": outcome.summary,
                "result": outcome.verdict,
                "grade": journey.grade,
            },
        )
    )


def subject_name(request: Request) -> str:
    """What the journey's verdicts are about: the script of its entry, else the folder."""
    scripts = [Path(word).stem for word in request.entry if word.endswith(".py")]
    return scripts[0] if scripts else request.project.name


def hashed(root: Path, path: Path) -> FileHash:
    """A file below the ledger's root with its hash."""
    return FileHash(path.relative_to(root).as_posix(), sha256(path.read_bytes()))
