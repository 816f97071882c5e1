"""One file of a change, as manifest and journal keep it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a change. Hashes and modes are None where the file is not there.

    `folders` are those that had to be made for it, `prunes` those that go with it where nothing
    else is in them; outermost first, relative to the root.
    """

    path: str
    before: str | None
    after: str | None
    before_mode: int | None
    after_mode: int | None
    folders: tuple[str, ...] = ()
    prunes: tuple[str, ...] = ()


def as_json(entry: Entry) -> dict[str, Any]:
    """The entry as a mapping; modes as octal text."""
    return {
        "path": entry.path,
        "before": entry.before,
        "after": entry.after,
        "before_mode": None if entry.before_mode is None else f"{entry.before_mode:04o}",
        "after_mode": None if entry.after_mode is None else f"{entry.after_mode:04o}",
        "folders": list(entry.folders),
        "prunes": list(entry.prunes),
    }


def from_json(raw: Mapping[str, Any]) -> Entry:
    """The other direction of `as_json`."""
    return Entry(
        path=raw["path"],
        before=raw["before"],
        after=raw["after"],
        before_mode=bits(raw["before_mode"]),
        after_mode=bits(raw["after_mode"]),
        folders=tuple(raw["folders"]),
        prunes=tuple(raw["prunes"]),
    )


def bits(text: str | None) -> int | None:
    """Permission bits from octal text."""
    return None if text is None else int(text, 8)


def read_manifest(home: Path, step_id: str) -> list[Entry] | None:
    """The files that a step changed; None when it changed none."""
    try:
        raw = json.loads((home / "steps" / step_id / MANIFEST).read_bytes())
    except FileNotFoundError:
        return None
    return [from_json(item) for item in raw["entries"]]


def dump(document: Any) -> bytes:
    """JSON as the ledger's files hold it."""
    return encode(json.dumps(document, ensure_ascii=False, indent=1))


def encode(text: str) -> bytes:
    """UTF-8 with a line feed. File names that are no UTF-8 become `\\udcXX`, which JSON reads."""
    return text.encode("utf-8", "backslashreplace") + b"\n"
