"""The nouns of a journey, and its form on disk (`joymigrate.journey/1`)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from joymigrate.evidence import GRADES
from joymigrate.journey.tree import total
from joymigrate.language import restore_texts, with_texts

SCHEMA = "joymigrate.journey/1"
DECISIONS = {"pass": "passes", "fail": "stops", "inconclusive": "not decided"}


class StepStatus(str, Enum):
    """How a step ended. `stopped`: a gate held the journey there."""

    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"
    SKIPPED = "skipped"
    PENDING = "pending"


@dataclass(frozen=True, slots=True)
class Origin:
    """A program before somebody ported it by hand: `folder` holds it, `name` is what the user
    calls it, `tree` one hash of its files. `in_memory`: it is the project itself, and the chip's
    side is rewritten as it loads."""

    folder: Path
    name: str
    tree: str
    in_memory: bool = False


@dataclass(frozen=True, slots=True)
class JourneyRequest:
    """What the user asked for.

    `entry` is the program that trains, as words; `serve` a folder of weights to try serving.
    `steps` bounds what is recorded, in optimiser steps from 0; with `once` the original is run once
    to record it, and not two times more by rounding. `baseline` is a recording from
    elsewhere, `devices` how many the simulated machine has, `baseline_entry` how the original is
    started here where that differs, and `train` a longer run for the losses than that of `entry`.
    `pair` compares what was ported already with its original, which is `origin` where the ledger
    knows of none; nothing is rewritten then.
    """

    project: Path
    entry: tuple[str, ...]
    chip: str
    style: str = "agnostic"
    steps: str = "0-2"
    once: bool = False
    serve: Path | None = None
    map: Path | None = None
    unsafe: bool = False
    allow_dirty: bool = False
    baseline: Path | None = None
    baseline_entry: tuple[str, ...] = ()
    train: tuple[str, ...] = ()
    devices: int | None = None
    rounds: int = 5
    yes: bool = False
    pair: bool = False
    origin: Origin | None = None

    @property
    def subject(self) -> str:
        """What the journey's verdicts are about: the script of its entry, else the folder."""
        scripts = [Path(word).stem for word in self.entry if word.endswith(".py")]
        return scripts[0] if scripts else self.project.name

    @property
    def in_memory(self) -> bool:
        """Whether the chip's side is rewritten as it loads."""
        return self.origin is not None and self.origin.in_memory


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What one step found. `figures` are its numbers by name; `evidence` its files, below the
    journey's folder, with their SHA-256 in `hashes`; `commands` what was run, for a repetition by
    hand; `help` what to do next; `held` the sentence of the gate that stopped the journey; `asked`
    what the step was asked for, to tell whether it still holds."""

    name: str
    status: StepStatus
    summary: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    evidence: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    verdict: str | None = None  # pass, fail, inconclusive
    help: str = ""
    seconds: float = 0.0
    held: str = ""
    hashes: Mapping[str, str] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Journey:
    """A project's way so far.

    `files` are its files with their hashes after the last step that ended, without `outputs`,
    which the program itself writes.
    """

    request: JourneyRequest
    folder: Path
    grade: str  # rehearsed, measured
    outcomes: tuple[StepOutcome, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    outputs: frozenset[str] = frozenset()
    rewrite_step: str | None = None  # the ledger's id of the rewrite, for the way back
    left: tuple[str, ...] = ()  # what the program's last run left in the project

    @property
    def tree(self) -> str:
        """One hash for all files."""
        return total(self.files)

    @property
    def verdict(self) -> str:
        """`pass` when every step ended well; `fail` when one did not; else `inconclusive`: also
        where no program ran on the chip."""
        found = {outcome.status for outcome in self.outcomes}
        if found & {StepStatus.FAILED, StepStatus.STOPPED}:
            return "fail"
        if StepStatus.PENDING in found or not found:
            return "inconclusive"
        ran = self.outcome("rehearse")
        if ran is not None and ran.status is StepStatus.SKIPPED:
            return "inconclusive"
        if any(outcome.verdict == "inconclusive" for outcome in self.outcomes):
            return "inconclusive"
        return "pass"

    @property
    def decision(self) -> str:
        """The verdict in words: `passes`, `stops` or `not decided`."""
        return DECISIONS[self.verdict]

    @property
    def stop(self) -> Mapping[str, Any]:
        """What the journey ended with: whose it is, how that is known, what to do next."""
        ended = next(
            (one for one in self.outcomes if one.status in (StepStatus.FAILED, StepStatus.STOPPED)),
            None,
        )
        if ended is None:
            return {"whose": None, "how_known": "", "next": ""}
        found = ended.figures.get("stop")
        if found:
            return {key: found[key] for key in ("whose", "how_known", "next")}
        return {"whose": None, "how_known": ended.held or ended.summary, "next": ended.help}

    @property
    def grades(self) -> dict[str, int]:
        """How many statements about the chip the steps made, by grade."""
        said = [one.figures.get("grades") or {} for one in self.outcomes]
        return {grade: sum(counts.get(grade, 0) for counts in said) for grade in GRADES}

    def outcome(self, name: str) -> StepOutcome | None:
        """What a step found, None while it did not run."""
        return next((one for one in self.outcomes if one.name == name), None)


def to_json(journey: Journey) -> dict[str, Any]:
    """The journey as a mapping, with what its sentences are made of."""
    request = journey.request
    found = {
        "schema": SCHEMA,
        "verdict": journey.verdict,
        "decision": journey.decision,
        **journey.stop,
        "grade": journey.grade,
        "grades": journey.grades,
        "rehearsal": journey.grade == "rehearsed",
        "chip": request.chip,
        "project": str(request.project),
        "entry": list(request.entry),
        "command": command(request),
        "style": request.style,
        "steps": request.steps,
        "once": request.once,
        "serve": str(request.serve) if request.serve else None,
        "map": str(request.map) if request.map else None,
        "baseline": str(request.baseline) if request.baseline else None,
        "baseline_entry": list(request.baseline_entry),
        "train": list(request.train),
        "devices": request.devices,
        "origin": request.origin.name if request.origin else None,
        "unsafe": request.unsafe,
        "tree": journey.tree,
        "rewrite_step": journey.rewrite_step,
        "left": list(journey.left),
        "journey": [
            {
                "name": one.name,
                "status": one.status.value,
                "summary": one.held or one.summary,
                "found": one.summary,
                "held": one.held,
                "figures": dict(one.figures),
                "evidence": list(one.evidence),
                "sha256": dict(one.hashes),
                "commands": list(one.commands),
                "verdict": one.verdict,
                "help": one.help,
                "seconds": round(one.seconds, 2),
                "asked": dict(one.asked),
            }
            for one in journey.outcomes
        ],
    }
    return with_texts(found)


def command(request: JourneyRequest) -> str:
    """What a user writes to go on with the journey."""
    verb = "pair" if request.pair else "migrate"
    words = ["joymigrate", verb, "."]
    return shlex.join([*words, "--entry", shlex.join(request.entry)] if request.entry else words)


def outcomes_from(raw: Mapping[str, Any]) -> tuple[StepOutcome, ...]:
    """The outcomes of a journey on disk."""
    return tuple(
        StepOutcome(
            name=one["name"],
            status=StepStatus(one["status"]),
            summary=one["found"],
            held=one["held"],
            figures=one["figures"],
            evidence=tuple(one["evidence"]),
            commands=tuple(one["commands"]),
            verdict=one["verdict"],
            help=one["help"],
            seconds=one["seconds"],
            hashes=one["sha256"],
            asked=one["asked"],
        )
        for one in restore_texts(raw["journey"], raw.get("texts", {}))
    )
