"""What of an earlier journey still holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.journey import original
from joymigrate.journey.gates import Gates, find_violation
from joymigrate.journey.model import (
    SCHEMA,
    Journey,
    StepOutcome,
    StepStatus,
    outcomes_from,
    to_json,
)
from joymigrate.journey.plan import PlannedStep
from joymigrate.journey.steps.baseline import find_original_changes
from joymigrate.journey.tree import find_changes, snapshot
from joymigrate.ledger import Ledger, sha256

FILE = "journey.json"
ENDED = (StepStatus.DONE, StepStatus.STOPPED)


def reusable_outcomes(
    journey: Journey, steps: list[PlannedStep], gates: Gates, ledger: Ledger
) -> Journey:
    """The outcomes that still hold: asked for the same, the same files, the same evidence. Behind
    an edit that is the baseline alone, where the original did not change with it.

    A step that is taken again is so with all that rest on it. A step that a gate held counts as
    done where the gate lets it pass now.
    """
    raw = load(journey)
    now = snapshot(journey.request.project)
    if raw is None:
        return replace(journey, files=now)
    outputs = frozenset(raw["outputs"])
    files, step = raw["files"], raw["rewrite_step"]
    theirs = find_changes(files, now, outputs)
    ours = adopt_rewrite(journey, ledger, files, now, theirs)
    kept = holding(journey, raw, steps, gates)
    if ours:  # the rewrite ended and its journey did not hear of it: it tells its figures again
        step, kept = ours, [one for one in kept if one.name in ("scan", "baseline")]
    elif theirs:
        changed = find_original_changes(journey.request, journey.folder, outputs)
        kept = [one for one in kept if one.name == "baseline" and changed == []]
    left = tuple(raw.get("left", ()))
    return replace(
        journey, outcomes=tuple(kept), files=now, outputs=outputs, rewrite_step=step, left=left
    )


def load(journey: Journey) -> Mapping[str, Any] | None:
    """The earlier journey, None where there is none that can be gone on with."""
    try:
        raw = json.loads((journey.folder / FILE).read_text(encoding="utf-8"))
        known = raw["schema"] == SCHEMA and raw["project"] == str(journey.request.project)
        known = known and raw["grade"] == journey.grade and {"files", "outputs"} <= raw.keys()
        outcomes_from(raw)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return raw if known else None


def holding(
    journey: Journey, raw: Mapping[str, Any], steps: list[PlannedStep], gates: Gates
) -> list[StepOutcome]:
    """The outcomes that need not be taken again."""
    found = {outcome.name: outcome for outcome in outcomes_from(raw)}
    kept: dict[str, StepOutcome] = {}
    left_out = {planned.name for planned in steps if planned.skip}
    for planned in steps:
        outcome = found.get(planned.name)
        if outcome is None or outcome.status not in ENDED:
            continue
        if dict(outcome.asked) != planned.request_document(journey.request):
            continue
        if not kept.keys() | left_out >= set(planned.after) or not intact(journey, outcome):
            continue
        if find_violation(outcome.name, outcome.figures, outcome.verdict, gates):
            continue
        figures = {key: value for key, value in outcome.figures.items() if key != "held"}
        kept[outcome.name] = replace(outcome, status=StepStatus.DONE, held="", figures=figures)
    return list(kept.values())


def intact(journey: Journey, outcome: StepOutcome) -> bool:
    """Whether the evidence is there as the step left it."""
    for name in outcome.evidence:
        try:
            data = (journey.folder / name).read_bytes()
        except OSError:
            return False
        if outcome.hashes.get(name) != sha256(data):
            return False
    return True


def adopt_rewrite(
    journey: Journey,
    ledger: Ledger,
    files: Mapping[str, str],
    now: Mapping[str, str],
    theirs: list[str],
) -> str | None:
    """The rewrite that explains every change: the journey was cut short right behind it."""
    project = journey.request.project
    steps = original.rewrites(ledger, project)
    if not steps or not theirs:
        return None
    prefix = "" if project == ledger.root else f"{project.relative_to(ledger.root).as_posix()}/"
    made = {e.path.removeprefix(prefix): e for e in original.entries(ledger, steps[-1])}
    for path in theirs:
        entry = made.get(path)
        if entry is None or (entry.before, entry.after) != (files.get(path), now.get(path)):
            return None
    return steps[0].id


def same_target(journey: Journey, ledger: Ledger) -> None:
    """A project that was rewritten for another chip, or in another style, has to go back first."""
    request = journey.request
    for step in original.rewrites(ledger, request.project):
        style = step.details.get("style", request.style)
        if (step.chip, style) != (request.chip, request.style):
            raise JoyError(
                f"step {step.id} rewrote this project for {step.chip}, style {style}; "
                f"this journey goes to {request.chip}, style {request.style}",
                where=str(request.project),
                help=f"joymigrate rollback {step.id}, then migrate again",
            )


def document(journey: Journey) -> dict[str, Any]:
    """The journey as its file holds it."""
    kept = {"files": dict(journey.files), "outputs": sorted(journey.outputs)}
    return {**to_json(journey), **kept}
