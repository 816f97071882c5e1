"""What a journey left open, as a task for a program from outside."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.agent.patches.facts import functions_behind
from joymigrate.agent.patches.guard import PatchRefusal, refusals
from joymigrate.files import replace_file
from joymigrate.rewrite.module import HELPER

FRAME = re.compile(r"(?:^|\s)([\w./-]+\.py):(\d+)\b")
# Files that judge, or are generated: never part of a task.
JUDGING = re.compile(rf"(?:^|/)(?:tests?/|test_|conftest\.py|{HELPER}\.py|setup\.py|sitecustomize)")
REFUSED = "compute the same by calls that {kernel} takes"
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
    """What the rehearsal ended with: its line, what was said there, whose it is, what may change.

    `files` has for each file the functions that are to be mended: of others nothing may go.
    """

    number: int
    place: str
    message: str
    whose: str
    next: str
    files: Mapping[str, tuple[str, ...]]

    @property
    def path(self) -> str:
        """The file of the stop."""
        return self.place.rpartition(":")[0]


def find_item(
    journey: Mapping[str, Any], project: Path, extra: Sequence[str], number: int
) -> OpenItem | None:
    """The stop or the refused call that a journey ended with, in the program's own code."""
    step = next((one for one in journey["journey"] if one["name"] == "rehearse"), None)
    stop = find_stop(step, project) if step else {}
    path, _, line = str(stop.get("line", "")).rpartition(":")
    if not path or not (project / path).is_file():
        return None
    named = [path, *extra]
    named += [file for frame in stop["frames"] for file, _ in FRAME.findall(frame)]
    files: dict[str, tuple[str, ...]] = {}
    for name in dict.fromkeys(named):
        inside = (project / name).resolve()
        if inside.is_relative_to(project) and inside.is_file() and not JUDGING.search(name):
            files[name] = ()
    text = (project / path).read_text(encoding="utf-8", errors="replace")
    files[path] = functions_behind(text, int(line))
    return OpenItem(number, stop["line"], stop["message"], stop["whose"], stop["next"], files)


def find_stop(step: Mapping[str, Any], project: Path) -> Mapping[str, Any]:
    """Where a rehearsal ended; where a gate held a program that ran to its end, the first call that
    the chip would refuse, as a stop. Empty for neither."""
    figures = step["figures"]
    refused = figures.get("refused") if step["held"] else ()
    if figures.get("stop") or not refused:
        return figures.get("stop") or {}
    place = str(refused[0]["where"]).removeprefix(f"{project}/")
    todo = REFUSED.format(kernel=refused[0]["kernel"])
    return {"line": place, "message": refused[0]["message"], "whose": "program", "next": todo,
            "frames": ()}  # fmt: skip


def write_task(
    folder: Path, item: OpenItem, entry: Sequence[str], tree: Path, log: Path,
    before: Sequence[Sequence[PatchRefusal]],
) -> Path:  # fmt: skip
    """Write the task as text for whoever solves it; returns where that is."""
    lines = [
        f"# {item.place}: {item.message}",
        "",
        "The program ran on the simulated chip and stopped here, or this call was refused. Change "
        "the code in this folder so that it gets further and computes what it did before. Leave "
        "the change in the files; no diff has to be written.",
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
        *(f"- `{name}`{name_functions(inside)}" for name, inside in item.files.items()),
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


def name_functions(inside: Sequence[str]) -> str:
    """What of a file is to be mended."""
    if not inside:
        return ", where nothing may go"
    named = ", ".join(f"`{one}`" for one in inside if one)
    return f": its functions {named}" if named else ""


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
