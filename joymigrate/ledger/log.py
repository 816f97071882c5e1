"""`ledger.jsonl`: one line per step, only ever appended to.

A process that dies while it appends leaves a torn last line. Readers skip it, the next writer
removes it. A damaged line anywhere else is an error: the file was edited.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.files import sync_folder
from joymigrate.ledger.entry import encode
from joymigrate.ledger.place import unwritable
from joymigrate.ledger.step import Step, from_json, to_json

NAME = "ledger.jsonl"


def read_log(home: Path) -> list[Step]:
    """All steps, oldest first; without a ledger an empty list."""
    path = home / NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise JoyError(
            f"cannot read the ledger: {error.strerror}",
            where=str(path),
            help="make it readable",
        ) from None
    steps = []
    lines = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            raw = json.loads(line)
        except ValueError:
            if number == len(lines):
                break  # torn: no newline follows it
            raise JoyError(
                "a damaged line in the ledger",
                where=f"{path}:{number}",
                help="restore the line from a backup, or remove it",
            ) from None
        steps.append(from_json(raw, f"{path}:{number}"))
    return steps


def append(home: Path, step: Step) -> None:
    """Append one step and make it durable. The caller holds the lock."""
    path = home / NAME
    line = encode(json.dumps(to_json(step), ensure_ascii=False))
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            mend_tail(handle)
            os.write(handle, line)
            os.fsync(handle)
        finally:
            os.close(handle)
        sync_folder(home)
    except OSError as error:
        raise unwritable(path, error) from None


def mend_tail(handle: int) -> None:
    """Cut a torn last line off; give a whole one that lacks it its newline."""
    os.lseek(handle, 0, os.SEEK_SET)
    data = os.read(handle, os.fstat(handle).st_size)
    if not data or data.endswith(b"\n"):
        return
    start = data.rfind(b"\n") + 1
    try:
        json.loads(data[start:])
    except ValueError:
        os.ftruncate(handle, start)
    else:
        os.write(handle, b"\n")
