"""Why a run of a journey stopped: what the journey knows of it, handed to the judge of stops."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

from joymigrate.blame.end_files import read_chain
from joymigrate.blame.exceptions import Raised
from joymigrate.blame.judge import asks_for_origin, judge
from joymigrate.blame.program import Program
from joymigrate.blame.stop import FrameOwner, OriginSite, Stop, StopEvidence
from joymigrate.blame.vendor import load
from joymigrate.chips import origin
from joymigrate.journey import places
from joymigrate.journey.context import CompletedCommand, StepContext
from joymigrate.journey.sites import device_names, sites
from joymigrate.journey.tree import SKIPPED
from joymigrate.launching import NOT_STARTED
from joymigrate.run.rehearse.stop_judge import list_versions

# What our own commands say of the program that they ran.
ENDED = re.compile(r"^error: the program ended with exit code (\d+)", re.MULTILINE)
OURS = re.compile(r"^(?:rehearsal|record|verify|error|  at|  help): ?.*$|^\s*$")


class FailureReason(str, Enum):
    """How the unchanged program failed. `unclear`: nothing that is known tells."""

    BROKEN = "broken"
    NEEDS_GPU = "needs a GPU"
    UNCLEAR = "unclear"


def explain(
    at: StepContext,
    done: CompletedCommand,
    *,
    on_chip: bool,
    refusals: Sequence[Mapping[str, Any]] = (),
    folder: Path | None = None,
    made: Sequence[str] = (),
) -> Stop:
    """Why a command's program stopped; `folder` is where it ran, unless in the project. `made`:
    lines that were seen to hand torch the origin's word."""
    known = evidence(at, done, on_chip=on_chip, refusals=refusals, folder=folder)
    return judge(replace(known, made=made))


def reason(at: StepContext, done: CompletedCommand, stop: Stop) -> FailureReason:
    """How the unchanged program failed on this machine. With a GPU in it, it is never for want of
    one."""
    if not at.gpu_here and asks_for_origin(evidence(at, done, on_chip=False)):
        return FailureReason.NEEDS_GPU
    if stop.whose in (FrameOwner.PROGRAM, FrameOwner.ENVIRONMENT) or at.gpu_here:
        return FailureReason.BROKEN
    return FailureReason.UNCLEAR


def evidence(
    at: StepContext,
    done: CompletedCommand,
    *,
    on_chip: bool,
    refusals: Sequence[Mapping[str, Any]] = (),
    folder: Path | None = None,
) -> StopEvidence:
    """All that the journey knows of a program that stopped."""
    text = done.text()
    code = ENDED.search(text)
    said = [line for line in text.splitlines() if not OURS.match(line)]
    place = (folder or at.request.project).resolve()
    hooked = NOT_STARTED not in text  # else what was run is another program than was asked for
    return StopEvidence(
        Program(place, tuple(SKIPPED)),
        read_chain(done.notes, text) if hooked else (),
        int(code[1]) if code else done.code,
        (said[-1].strip() if said else first_words(text)) if hooked else NOT_STARTED,
        on_chip,
        before=before(at) if on_chip else None,
        written=lines_of_ours(at) if on_chip else {},
        left=tuple(left_sites(at)) if on_chip else (),
        names=tuple(device_names(at, origin().device)) if on_chip else (),
        refusals=refusals,
        versions=list_versions(),
        own=modules_in(place),
        vendor=load(at.request.chip),
    )


def modules_in(folder: Path) -> frozenset[str]:
    """The modules and packages that lie in a folder itself."""
    found = {path.stem for path in folder.glob("*.py")}
    return frozenset(found | {path.parent.name for path in folder.glob("*/*.py")})


def first_words(text: str) -> str:
    """What a command of ours said that never started the program."""
    return text.partition("\n")[0].removeprefix("error: ")


def before(at: StepContext) -> tuple[Raised, ...] | None:
    """What the unchanged program ended with here: nothing where it ended well, None where it did
    not run by itself."""
    baseline = at.before.get("baseline")
    if baseline is None or baseline.figures.get("of") == "given":
        return None
    if baseline.figures.get("of") == "original" and baseline.figures.get("exit_code") == 0:
        return ()
    stop = baseline.figures.get("stop")
    if not stop or baseline.figures.get("failure") == FailureReason.NEEDS_GPU.value:
        return None
    kind, _, message = str(stop["message"]).partition(": ")
    return (Raised(kind, message),)


def lines_of_ours(at: StepContext) -> dict[str, frozenset[int]]:
    """The lines that the rewrites of this project wrote, by file."""
    found: dict[str, set[int]] = defaultdict(set)
    for place in places.of_project(at.request.project).statements:
        found[place.path].update(range(place.first, place.last + 1))
    return {path: frozenset(lines) for path, lines in found.items()}


def left_sites(at: StepContext) -> list[OriginSite]:
    """The sites that the rewriting left."""
    return [
        OriginSite(
            f"{one['path']}:{one['line']}", one["before"], one["rule"],
            one["reason"] or one["message"],
        )
        for one in sites(at)
    ]  # fmt: skip
