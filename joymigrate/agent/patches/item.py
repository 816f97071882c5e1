"""What a journey left open, as a task for a program from outside."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.agent.patches.facts import function_at
from joymigrate.agent.patches.guard import Refusal, refusals
from joymigrate.files import replace_file
from joymigrate.rewrite.module import HELPER

SCHEMA = "joymigrate.agent-task/1"
FRAME = re.compile(r"(?:^|\s)([\w./-]+\.py):(\d+)\b")
# Files that judge, or are generated: never part of a task.
JUDGING = re.compile(rf"(?:^|/)(?:tests?/|test_|conftest\.py|{HELPER}\.py|setup\.py|sitecustomize)")
AROUND = 12  # lines of code on each side
MOST_LOG = 6_000  # bytes of what the program printed
JUDGES = (
    "only the files below may change, and nothing that judges",
    "the code does what it did: no name of the list of refusals",
    "a rewrite of the patched tree has nothing left to write",
    "on this host it computes bit for bit what it did before",
    "the rehearsal on the simulated chip gets further, with no less work on the chip",
    "where it runs to its end, its values pass against the baseline of the original",
)


@dataclass(frozen=True, slots=True)
class OpenItem:
    """A stop of the rehearsal: its line, what was said there, whose it is, what may change.

    `files` has for each file the function that is to be mended; None: nothing of it may go.
    """

    number: int
    place: str
    message: str
    whose: str
    next: str
    files: Mapping[str, str | None]

    @property
    def path(self) -> str:
        """The file of the stop."""
        return self.place.rpartition(":")[0]


def find_item(
    journey: Mapping[str, Any], project: Path, extra: Sequence[str], number: int
) -> OpenItem | None:
    """The stop that a journey ended with, where it lies in the program's own code."""
    step = next((one for one in journey["journey"] if one["name"] == "rehearse"), None)
    stop = step["figures"].get("stop") if step else None
    path, _, line = str(stop["line"]).rpartition(":") if stop else ("", "", "")
    if not stop or not path or not (project / path).is_file():
        return None
    named = [path, *extra]
    named += [file for frame in stop["frames"] for file, _ in FRAME.findall(frame)]
    files: dict[str, str | None] = {}
    for name in dict.fromkeys(named):
        inside = (project / name).resolve()
        if inside.is_relative_to(project) and inside.is_file() and not JUDGING.search(name):
            files[name] = None
    text = (project / path).read_text(encoding="utf-8", errors="replace")
    files[path] = function_at(text, int(line))
    return OpenItem(number, stop["line"], stop["message"], stop["whose"], stop["next"], files)


def write_task(
    folder: Path, item: OpenItem, entry: Sequence[str], tree: Path, log: Path,
    before: Sequence[Sequence[Refusal]],
) -> Path:  # fmt: skip
    """The task as text for whoever solves it, and as JSON beside it; returns where the text is."""
    document = {
        "schema": SCHEMA,
        "place": item.place,
        "message": item.message,
        "whose": item.whose,
        "next": item.next,
        "files": {name: function or "" for name, function in item.files.items()},
        "entry": list(entry),
        "judges": list(JUDGES),
        "refused": [
            [{"name": r.name, "path": r.path, "why": r.why} for r in one] for one in before
        ],
    }
    replace_file(folder / "task.json", json.dumps(document, indent=1).encode("utf-8"))
    lines = [
        f"# {item.place}: {item.message}",
        "",
        "The program ran on the simulated chip and stopped here. Change the code in this folder so "
        "that it gets further and computes what it did before. Leave the change in the files; no "
        "diff has to be written.",
        "",
        f"- whose: {item.whose}",
        f"- what to do: {item.next}",
        f"- the program: `{shlex.join(entry)}`",
        "- names: `joymigrate explain NAME`",
        "",
        "## The code",
        "",
        "```python",
        *show_code(tree, item.place),
        "```",
        "",
        "## What the chip said",
        "",
        "```text",
        *read_end(log),
        "```",
        "",
        "## What may change",
        "",
        *(f"- `{name}`{f': the function `{inside}`' if inside else ', where nothing may go'}"
          for name, inside in item.files.items()),
        "",
        "## How it is judged",
        "",
        *(f"{number}. {one}" for number, one in enumerate(JUDGES, 1)),
        "",
        "Refused by name:",
        *(f"- {name}: {row['why']}" for name, row in refusals().items()),
    ]  # fmt: skip
    for number, found in enumerate(before, 1):
        lines += ["", f"## Round {number} was refused", ""]
        lines += [f"- {one.name}: {one.path}: {one.why}" for one in found]
    path = folder / "TASK.md"
    replace_file(path, ("\n".join(lines) + "\n").encode("utf-8", "replace"))
    return path


def show_code(tree: Path, place: str) -> list[str]:
    """The lines around a place, with their numbers."""
    path, _, line = place.rpartition(":")
    rows = (tree / path).read_text(encoding="utf-8", errors="replace").splitlines()
    first = max(int(line) - 1 - AROUND, 0)
    shown = rows[first : int(line) + AROUND]
    return [
        f"{number:4} {text}".replace("```", "'''") for number, text in enumerate(shown, first + 1)
    ]


def read_end(log: Path) -> list[str]:
    """The last lines that a program printed."""
    try:
        text = log.read_bytes()[-MOST_LOG:].decode("utf-8", "replace")
    except OSError:
        return []
    return [line.replace("```", "'''") for line in text.splitlines()[-40:]]
