"""`doctor`: the diagnosis of this machine, or of one that was recorded elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joymigrate.cli._answers import Answer
from joymigrate.errors import JoyError
from joymigrate.evidence import count_grades, grade_line
from joymigrate.files import read_document, write_output

if TYPE_CHECKING:
    from joymigrate.chips import Chip
    from joymigrate.environment import Diagnosis

SCHEMA = "joymigrate.diagnosis/1"
ENVIRONMENT = "joymigrate.environment/1"
LOCK = "joymigrate.environment-lock/1"
CHECK = "joymigrate.lock-check/1"
MARKS = {"broken": "!!", "doubtful": "??"}


def run_diagnosis(chip: Chip, env: Path | None, record: bool, lock: Path | None) -> Answer:
    """Record, or diagnose a record. 1 when something is known to fail."""
    from joymigrate import environment
    from joymigrate.environment.lock import lock as locked

    document = read_environment(env, chip) if env else environment.record(chip)
    if record:
        return Answer(document, in_json(document))
    if lock is not None:
        if env is not None:
            raise JoyError("a lock is of this machine", help="leave --env out")
        write_output(lock, in_json(locked(document, chip)).encode())
    said = environment.diagnose(document, chip)
    return Answer(as_json(said), "\n".join([*lines(said, chip), ""]), code=bool(said.broken))


def in_json(document: Mapping[str, Any]) -> str:
    """A file that another machine reads."""
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def compare_lock(chip: Chip, path: Path) -> Answer:
    """Whether this machine is as it was locked; 1 with a line for each difference."""
    from joymigrate import environment
    from joymigrate.environment import lock

    locked = read_document(path, LOCK, "a lock", help="joymigrate doctor --lock FILE")
    if locked["chip"] != chip.name:
        raise JoyError(
            f"a lock of {locked['chip']}", where=str(path), help=f"--to {locked['chip']}"
        )
    found = lock.differences(locked, lock.lock(environment.record(chip), chip))
    document = {
        "schema": CHECK, "chip": chip.name, "lock": path.name, "recorded": locked["recorded"],
        "differences": found,
    }  # fmt: skip
    same = f"as it was locked ({locked['recorded']}): {len(locked['packages'])} packages"
    return Answer(document, "".join(f"{line}\n" for line in found or [same]), code=bool(found))


def read_environment(path: Path, chip: Chip) -> Mapping[str, Any]:
    """A recorded environment, or what a text of any tools' answers tells of one. JoyError for a
    file that tells nothing."""
    from joymigrate.environment.messages import read_message

    help = "joymigrate doctor --record -o FILE, or the text of pip list, env, an error"
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise JoyError(f"cannot read: {error.strerror}", where=str(path), help=help) from None
    if text.lstrip().startswith("{"):
        return read_document(path, ENVIRONMENT, "a recorded environment", help=help)
    found = read_message(text, chip)
    if found is None:
        raise JoyError("nothing in it tells of a machine", where=str(path), help=help)
    return found


def as_json(said: Diagnosis) -> dict[str, Any]:
    """The document `diagnosis/1`."""
    return {
        "schema": SCHEMA,
        "chip": said.chip,
        "broken": said.broken,
        "next": said.next.cause if said.next else None,
        "findings": [{**asdict(one), "grade": "documented"} for one in said.findings],
        "grades": count_grades("documented" for _ in said.findings),
        "not_looked_at": list(said.missing),
    }


def lines(said: Diagnosis, chip: Chip) -> list[str]:
    """All findings, the next fix, and what nobody looked at."""
    text = [f"{chip.title}: does it fit together?"]
    for one in said.findings:
        text.append(f"  {MARKS[one.severity]}  {one.cause}: {one.what}")
        text.append(f"      {one.evidence}")
        if one.source:
            text.append(f"      source: {one.source}")
    if not said.findings:
        text.append("  ok  nothing that is known stands in the way")
    if said.next:
        text += ["", f"Next: {said.next.fix}"]
    if said.missing:
        text += ["", f"Not looked at: {', '.join(said.missing)}."]
    text += ["", grade_line(count_grades("documented" for _ in said.findings))]
    return text
