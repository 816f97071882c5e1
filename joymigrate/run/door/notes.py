"""What a door saw in one process, and what it left behind."""

from __future__ import annotations

import atexit
import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from joymigrate import attach
from joymigrate.files import replace_file
from joymigrate.run.door.frames import line_of_program
from joymigrate.run.door.settings import DoorSettings

MOST_LINES = 200


class Notes:
    """Counts by what and line: words that reached torch, calls without a stand-in, arithmetic that
    is another than asked."""

    def __init__(self) -> None:
        self.words: Counter[tuple[str, str]] = Counter()
        self.refused: dict[tuple[str, str], str] = {}
        self.other: Counter[str] = Counter()

    def word(self, what: str) -> None:
        """The origin's word reached torch in `what`."""
        self.words[what, line_of_program()] += 1

    word._dynamo_marked_constant = True  # type: ignore[attr-defined]  # compiled code goes on

    def refuse(self, what: str, reason: str) -> RuntimeError:
        """The error for a call that nothing stands in for; its line is kept."""
        self.refused[what, line_of_program()] = reason
        return RuntimeError(f"{what} has no stand-in here: {reason}")

    def differs(self, how: str) -> None:
        """Something was computed in another way than asked."""
        self.other[how] += 1

    def document(self) -> dict[str, Any]:
        """As JSON keeps it."""
        most = self.words.most_common(MOST_LINES)
        return {
            "words": [{"what": w, "line": at, "calls": n} for (w, at), n in most],
            "refused": [
                {"what": what, "line": at, "reason": why}
                for (what, at), why in self.refused.items()
            ],
            "other": dict(self.other),
        }

    def keep_at_exit(self, settings: DoorSettings) -> None:
        """Leave them in the folder of the settings when the process ends."""
        if not settings.notes:
            return
        path = Path(settings.notes) / f"door-{os.getpid()}.json"

        def leave() -> None:
            if path.parent.is_dir():  # else the run that asked is over
                replace_file(path, json.dumps(self.document()).encode())

        atexit.register(leave)
        attach.before_termination(leave)


notes = Notes()


class StandIn:
    """An object that the program gets in place of a card's own. What it lacks is our fault, and is
    said so: no program is blamed for it."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__}.{name} has no stand-in here")


def read_notes(folder: Path) -> dict[str, Any]:
    """What all processes left, added up."""
    return add(json.loads(path.read_bytes()) for path in sorted(folder.glob("door-*.json")))


def add(documents: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Several processes' notes as one."""
    words: Counter[tuple[str, str]] = Counter()
    refused: dict[tuple[str, str], dict[str, str]] = {}
    other: Counter[str] = Counter()
    for one in documents:
        for row in one["words"]:
            words[row["what"], row["line"]] += row["calls"]
        refused |= {(row["what"], row["line"]): row for row in one["refused"]}
        other.update(one["other"])
    return {
        "words": [{"what": w, "line": at, "calls": n} for (w, at), n in words.most_common()],
        "refused": list(refused.values()),
        "other": dict(other),
    }
