"""One entry of the ledger, and its form on disk (`joymigrate.step/1`)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from joymigrate.errors import JoyError

SCHEMA = "joymigrate.step/1"


def sha256(data: bytes) -> str:
    """The hexadecimal SHA-256 of `data`, as every hash in the ledger."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class Subject:
    """What a step is about: a model, a program, a job. `sha256` None where it has no one hash."""

    name: str
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class FileHash:
    """A file, POSIX and relative to the project root. `sha256` None: the file is not there."""

    path: str
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Step:
    """One thing joymigrate did. `id` and `time` are set when the ledger records it.

    `judges` is the id of the step whose change a verdict is about. `details` carries what only
    one kind of step knows: bundle and checkpoint ids, counts.
    """

    kind: str
    command: str = ""
    chip: str | None = None
    subject: Subject | None = None
    inputs: tuple[FileHash, ...] = ()
    outputs: tuple[FileHash, ...] = ()
    verdict: str | None = None  # pass, fail, inconclusive
    stage: str | None = None
    grade: str | None = None  # documented, rehearsed, measured: see joymigrate.evidence
    undoes: str | None = None
    judges: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    time: str = ""  # UTC, ISO 8601


def to_json(step: Step) -> dict[str, Any]:
    """The step as the mapping that one line of `ledger.jsonl` holds."""
    return {
        "schema": SCHEMA,
        "id": step.id,
        "kind": step.kind,
        "time": step.time,
        "command": step.command,
        "chip": step.chip,
        "subject": {"name": step.subject.name, "sha256": step.subject.sha256}
        if step.subject
        else None,
        "inputs": [{"path": file.path, "sha256": file.sha256} for file in step.inputs],
        "outputs": [{"path": file.path, "sha256": file.sha256} for file in step.outputs],
        "verdict": step.verdict,
        "stage": step.stage,
        "grade": step.grade,
        "undoes": step.undoes,
        "judges": step.judges,
        "details": dict(step.details),
    }


def from_json(raw: Mapping[str, Any], where: str) -> Step:
    """The step of one ledger line; `where` names the line for the error message."""
    if raw.get("schema") != SCHEMA:
        raise JoyError(
            f"a ledger entry of schema {raw.get('schema')!r}; this joymigrate reads {SCHEMA}",
            where=where,
            help="use the joymigrate that wrote it, or a newer one",
        )
    try:
        subject = raw.get("subject")
        return Step(
            kind=str(raw["kind"]),
            command=str(raw.get("command") or ""),
            chip=raw.get("chip"),
            subject=Subject(subject["name"], subject.get("sha256")) if subject else None,
            inputs=hashes(raw.get("inputs")),
            outputs=hashes(raw.get("outputs")),
            verdict=raw.get("verdict"),
            stage=raw.get("stage"),
            grade=raw.get("grade"),
            undoes=raw.get("undoes"),
            judges=raw.get("judges"),
            details=raw.get("details") or {},
            id=str(raw["id"]),
            time=str(raw.get("time") or ""),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise JoyError(
            f"not a ledger entry: {type(error).__name__} {error}",
            where=where,
            help="restore the line from a backup, or remove it",
        ) from None


def hashes(raw: Any) -> tuple[FileHash, ...]:
    """The `inputs` or `outputs` of a ledger line."""
    return tuple(FileHash(item["path"], item.get("sha256")) for item in raw or ())
