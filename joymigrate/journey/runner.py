"""Goes the way: step after step, each held by its gates, each in the ledger, resumable."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.files import replace_file
from joymigrate.journey import original
from joymigrate.journey.context import MADE, StepContext, StepFailed
from joymigrate.journey.gates import Gates, find_violation
from joymigrate.journey.lock import hold_journey
from joymigrate.journey.model import Journey, JourneyRequest, StepOutcome, StepStatus
from joymigrate.journey.plan import NAMES, PlannedStep, plan
from joymigrate.journey.resume import FILE, document, reusable_outcomes, same_target
from joymigrate.journey.running import mark_running
from joymigrate.journey.tree import find_written, snapshot
from joymigrate.ledger import FileHash, Ledger, Step, Subject, sha256
from joymigrate.ledger.place import make_home, unwritable
from joymigrate.ledger.stash import restore_stashed
from joymigrate.verify import made_files

HOME, PAIR = "journey", "pair"  # folders of journeys, and of ports that are compared
Tell = Callable[[str, PlannedStep, StepOutcome | None], None]


def run_journey(
    request: JourneyRequest,
    gates: Gates,
    *,
    until: str | None = None,
    fresh: bool = False,
    chip_here: bool = False,
    gpu_here: bool = False,
    tell: Tell = lambda event, planned, outcome: None,
) -> Journey:
    """Take every step of the plan up to `until`, going on where an earlier journey stood.

    `tell(event, planned, outcome)` hears `begin`, `end`, `kept` and `skip`. A step that fails, or
    that a gate holds, ends the journey; what came before stays done.
    """
    check_step_name(until)
    ledger = Ledger.of(request.project)
    folder = make_home(ledger.root) / (PAIR if request.pair else HOME)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from None
    with hold_journey(folder):
        ledger.recover()
        restore_stashed(ledger.root)
        refuse_dirty(ledger, request)
        journey = Journey(request, folder, "measured" if chip_here else "rehearsed")
        same_target(journey, ledger)
        steps = plan(request)
        if fresh:
            journey = replace(journey, files=snapshot(request.project))
        else:
            journey = reusable_outcomes(journey, steps, gates, ledger)
        here = LocalDevices(chip_here, gpu_here)
        return run_steps(journey, steps, gates, here, ledger, until, tell)


def check_step_name(until: str | None) -> None:
    """Refuse the name of a step that there is not."""
    if until is not None and until not in NAMES:
        raise JoyError(
            f"there is no step '{until}'.{did_you_mean(until, NAMES)}",
            help=f"the steps: {', '.join(NAMES)}",
        )


def run_steps(
    journey: Journey,
    steps: list[PlannedStep],
    gates: Gates,
    here: LocalDevices,
    ledger: Ledger,
    until: str | None,
    tell: Tell,
) -> Journey:
    """Take the steps that are left."""
    for planned in steps:
        done = journey.outcome(planned.name)
        if done is not None:
            tell("kept", planned, done)
        elif planned.skip:
            outcome = StepOutcome(planned.name, StepStatus.SKIPPED, planned.skip)
            journey = with_outcome(journey, outcome)
            tell("skip", planned, outcome)
        else:
            tell("begin", planned, None)
            with mark_running(journey.folder, planned.name, NAMES):
                journey, outcome = run_step(journey, planned, gates, here)
                save(journey)
            if outcome.status is not StepStatus.SKIPPED:
                record(ledger, journey, outcome)
            tell("end", planned, outcome)
            if outcome.status in (StepStatus.FAILED, StepStatus.STOPPED):
                break
        if planned.name == until:
            break
    journey = with_pending(journey)
    save(journey)
    return journey


@dataclass(frozen=True, slots=True)
class LocalDevices:
    """What is in this machine: the chip itself, a GPU of the origin."""

    chip: bool
    gpu: bool


def run_step(
    journey: Journey, planned: PlannedStep, gates: Gates, here: LocalDevices
) -> tuple[Journey, StepOutcome]:
    """Take one step, and hold it against its gates."""
    project = journey.request.project
    at = StepContext(
        journey.request,
        gates,
        journey.folder,
        here.chip,
        here.gpu,
        {one.name: one for one in journey.outcomes},
        rewrite_step=journey.rewrite_step,
    )
    before, began = snapshot(project), time.monotonic()
    try:
        outcome = planned.run(at)
    except StepFailed as failure:
        outcome = StepOutcome(
            planned.name, StepStatus.FAILED, failure.what, verdict="fail", help=failure.tail
        )
    outcome = replace(
        apply_gates(outcome, gates),
        seconds=time.monotonic() - began,
        commands=tuple(shorten_paths(journey, at.ran)),
        hashes={name: sha256((journey.folder / name).read_bytes()) for name in outcome.evidence},
        asked=planned.request_document(journey.request),
    )
    after = snapshot(project)
    if planned.name == "rewrite" or at.mended:
        journey = replace(journey, files=after)
    else:  # the user's own edits in the meantime must be seen by the next call
        wrote = find_written(before, after)
        files = {path: sum_ for path, sum_ in after.items() if path in wrote}
        journey = replace(journey, files={**before, **files}, outputs=journey.outputs | wrote)
    left = made_files.list_left(at.path(MADE), project)
    journey = with_outcome(journey, outcome)
    return replace(journey, rewrite_step=at.rewrite_step, left=left), outcome


def apply_gates(outcome: StepOutcome, gates: Gates) -> StepOutcome:
    """The outcome with what its gates say."""
    if outcome.status is not StepStatus.DONE:
        return outcome
    hold = find_violation(outcome.name, outcome.figures, outcome.verdict, gates)
    if hold is None:
        mute = outcome.verdict == "pass"
        return replace(outcome, help="") if mute else outcome
    figures = {"gate": hold.gate, "found": hold.found, "limit": hold.limit}
    return replace(
        outcome,
        status=StepStatus.STOPPED,
        held=hold.why,
        figures={**outcome.figures, "held": figures},
        verdict="fail" if outcome.verdict == "pass" else outcome.verdict,
    )


def refuse_dirty(ledger: Ledger, request: JourneyRequest) -> None:
    """Refuse uncommitted changes before anything runs, as the rewrite would after it."""
    from joymigrate.rewrite.apply import refuse_dirty as refuse

    if not request.allow_dirty and not original.rewrites(ledger, request.project):
        refuse(ledger)


def shorten_paths(journey: Journey, commands: list[str]) -> list[str]:
    """Commands with the journey's folder relative to the project, where they are run."""
    folder = str(journey.folder)
    shown = os.path.relpath(folder, journey.request.project)
    return [command.replace(folder, shown) for command in commands]


def with_outcome(journey: Journey, outcome: StepOutcome) -> Journey:
    """The journey with one step's outcome, in the order of the plan."""
    others = [one for one in journey.outcomes if one.name != outcome.name]
    ordered = sorted([*others, outcome], key=lambda one: NAMES.index(one.name))
    return replace(journey, outcomes=tuple(ordered))


def with_pending(journey: Journey) -> Journey:
    """The journey with every step that was not reached."""
    for name in NAMES:
        if journey.outcome(name) is None:
            journey = with_outcome(journey, StepOutcome(name, StepStatus.PENDING, "not reached"))
    return journey


def save(journey: Journey) -> None:
    """Write `journey.json`, whole or not at all."""
    text = json.dumps(document(journey), indent=1, ensure_ascii=False)
    replace_file(journey.folder / FILE, text.encode("utf-8"), durable=True)


def record(ledger: Ledger, journey: Journey, outcome: StepOutcome) -> None:
    """Put one step into the ledger, with the hashes of its evidence."""
    request = journey.request
    ledger.record(
        Step(
            kind=f"migrate.{outcome.name}",
            command="; ".join(outcome.commands),
            chip=request.chip,
            subject=Subject(request.subject),
            outputs=tuple(
                FileHash((journey.folder / name).relative_to(ledger.root).as_posix(), digest)
                for name, digest in outcome.hashes.items()
            ),
            judges=journey.rewrite_step,
            details={
                "status": outcome.status.value,
                "summary": outcome.summary,
                "result": outcome.verdict,
                "grade": journey.grade,
            },
        )
    )
