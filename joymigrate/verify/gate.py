"""Verdicts into the ledger: one step per stage, with what is needed to go back to before it.

`train` and `serve` ask the ledger for them. A verdict from the rehearsal is marked as such and
never opens the gate of a real chip; one from the CPU is about the CPU.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.device import CPU, Device
from joymigrate.evidence import Grade
from joymigrate.language import with_texts
from joymigrate.ledger import FileHash, Ledger, Step, Subject
from joymigrate.ledger.subject import file_sha256
from joymigrate.verify.model import Outcome, Verdict, verdict_json

KIND = "verify"
ARTEFACT = "verdict.json"


@dataclass(frozen=True, slots=True)
class TargetOrigin:
    """What the target of a verdict was made of, so that one can go back to before it.

    `bundle` is the bundle's id (the sha256 of its manifest), `configuration` files whose hashes
    are kept, `checkpoint` a path that is named and never touched. `patch` is the id of the step
    that changed the code; None: the ledger's latest change that holds.
    """

    patch: str | None = None
    configuration: tuple[Path, ...] = ()
    bundle: str | None = None
    checkpoint: str | None = None
    inputs: tuple[Path, ...] = ()


NOTHING = TargetOrigin()


def record(
    verdict: Verdict,
    subject: Subject,
    *,
    chip: str,
    grade: Grade,
    where: Path | None = None,
    command: str = "",
    origin: TargetOrigin = NOTHING,
    document: Mapping[str, Any] | None = None,
) -> list[Step]:
    """Record every judged stage of `verdict`; returns the steps, in the order of stages.

    `chip` is a chip's name, or "cpu"; `where` a folder of the project (default: the current one);
    `document` the JSON to keep beside the step that decided (default: the verdict's own).
    """
    ledger = Ledger.of(Path.cwd() if where is None else where)
    latest = ledger.latest()
    patch = origin.patch or (latest.id if latest else None)
    details = details_of(origin, patch, ledger.root)
    if verdict.covered:
        left = [dict(item) for item in verdict.uncovered]
        details |= {"covered": dict(verdict.covered), "uncovered": left}
    judged = [stage for stage in verdict.stages if stage.verdict is not Outcome.SKIPPED]
    kept = json.dumps(with_texts(document or verdict_json(verdict)), ensure_ascii=False, indent=1)
    steps = []
    for stage in judged:
        decided = stage.stage == verdict.stage or len(judged) == 1
        step = Step(
            kind=KIND,
            command=command,
            chip=chip,
            subject=subject,
            inputs=tuple(hash_file(path, ledger.root) for path in origin.inputs),
            verdict=stage.verdict.value,
            stage=stage.stage,
            grade=grade.value,
            judges=patch,
            details={**details, "reason": stage.reason, "compared": stage.compared},
        )
        artefacts = {ARTEFACT: kept.encode("utf-8", "backslashreplace")} if decided else None
        steps.append(ledger.record(step, artefacts))
    return steps


def grade_of(device: Device) -> Grade:
    """`rehearsed` where the device is simulated, else `measured`."""
    return Grade.REHEARSED if device.rehearsal else Grade.MEASURED


def chip_of(device: Device) -> str:
    """The name that verdicts of this device stand under: its chip's, or "cpu"."""
    return device.chip or (CPU if device.is_cpu else device.type)


def details_of(origin: TargetOrigin, patch: str | None, root: Path) -> dict[str, Any]:
    """What only a verdict's step knows; without what is not known."""
    files = [hash_file(path, root) for path in origin.configuration]
    found = {
        "patch": patch,
        "configuration": [{"path": f.path, "sha256": f.sha256} for f in files] or None,
        "bundle": origin.bundle,
        "checkpoint": origin.checkpoint,
    }
    return {key: value for key, value in found.items() if value is not None}


def hash_file(path: Path, root: Path) -> FileHash:
    """A file by path (relative to the project where it lies in it) and content."""
    full = path.resolve()
    name = full.relative_to(root).as_posix() if full.is_relative_to(root) else full.as_posix()
    return FileHash(name, file_sha256(full) if full.is_file() else None)
