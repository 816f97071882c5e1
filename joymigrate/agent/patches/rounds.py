"""Rounds: a program from outside works in a copy, judges look at its diff, the ledger keeps all.

What is taken is one step of the ledger and can be rolled back. Nothing of the copy counts but the
contents of the files that the task names; the judges run in a copy of their own.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import joymigrate
from joymigrate.agent.migration_state import read_object
from joymigrate.agent.patches.guard import PatchRefusal, PatchScope, judge_text
from joymigrate.agent.patches.item import JUDGES, OpenItem, find_item, write_task
from joymigrate.agent.patches.judges import Before, judge_run
from joymigrate.data import rules_root
from joymigrate.errors import JoyError
from joymigrate.journey import original
from joymigrate.journey.child import end, start
from joymigrate.journey.context import StepContext
from joymigrate.journey.gates import Gates
from joymigrate.journey.lock import hold_journey
from joymigrate.journey.model import Journey, to_json
from joymigrate.journey.steps.baseline import BUNDLE
from joymigrate.ledger import Ledger, Step, Subject
from joymigrate.model import Patch
from joymigrate.rewrite.apply import apply
from joymigrate.rewrite.diff import write_unified

FOLDER = "tasks"
MOST_ITEMS = 8
MOST_BYTES = 1_000_000  # of one file of a patch
SKIPPED = {"__pycache__", ".git", ".joymigrate", ".pytest_cache"}
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class AgentOrder:
    """What the person asked for: the command, how many rounds for an item, how long one may take,
    which files may change beside those of the stop."""

    command: str
    rounds: int = 3
    seconds: float = 900.0
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PatchRound:
    """One round: its number, why it was refused, and the ledger's step."""

    number: int
    refused: tuple[PatchRefusal, ...]
    step: str
    diff: bytes = field(default=b"", repr=False)

    @property
    def taken(self) -> bool:
        """Whether every judge agreed."""
        return not self.refused


def solve(
    journey: Journey, gates: Gates, asked: AgentOrder, number: int, tell: Tell
) -> list[PatchRound]:
    """Have the journey's stop mended; the rounds that were made, the last one taken or not.

    None are made where the journey left no stop in the program's own code. Raises `JoyError` where
    nothing could prove a patch: without a recording of the original on this host.
    """
    project = journey.request.project
    item = find_item(to_json(journey), project, asked.files, number)
    if item is None:
        return []
    before = read_before(journey, item)
    at = StepContext(journey.request, gates, journey.folder,
                     before={one.name: one for one in journey.outcomes})  # fmt: skip
    made: list[PatchRound] = []
    with hold_journey(journey.folder):
        while len(made) < asked.rounds and not (made and made[-1].taken):
            made.append(try_once(at, item, asked, before, made))
            one = made[-1]
            reasons = "; ".join(f"{r.name} ({r.path or item.path}: {r.why})" for r in one.refused)
            tell(
                f"round {one.number}: {f'refused: {reasons}' if reasons else f'taken, {one.step}'}"
            )
    return made


def carry_on(
    journey: Journey, gates: Gates, asked: AgentOrder, again: Callable[[], Journey], tell: Tell
) -> Journey:
    """Have one stop after the other mended, and the journey taken `again` behind each."""
    for number in range(1, MOST_ITEMS + 1):
        if journey.verdict != "fail":
            break
        made = solve(journey, gates, asked, number, tell)
        if not made or not made[-1].taken:
            break
        journey = again()
    return journey


def read_before(journey: Journey, item: OpenItem) -> Before:
    """What is known of the tree before any patch."""
    base = journey.outcome("baseline")
    figures = base.figures if base else {}
    recording = journey.request.baseline or journey.folder / BUNDLE
    if figures.get("of") != "original" or not figures.get("recorded") or not recording.is_dir():
        raise JoyError(
            "no patch can be proven here: the original was not recorded on this machine",
            where=str(journey.request.project),
            help="name a program that `joymigrate baseline -- COMMAND` runs to its end",
        )
    if not journey.request.style == "agnostic":
        raise JoyError(
            f"--agent needs a tree that runs on this host too, and style {journey.request.style} "
            "writes one for the chip",
            help="--style agnostic",
        )
    stop = {"line": item.place, "message": item.message}
    return Before(recording, read_object(journey.folder / "rehearse/rehearse.json"), stop)


def try_once(
    at: StepContext, item: OpenItem, asked: AgentOrder, before: Before, made: list[PatchRound]
) -> PatchRound:
    """One round: a copy, the command, its diff, the judges, the ledger."""
    number = len(made) + 1
    name = f"{FOLDER}/{item.number}/{number}"
    folder, project = at.path(name), at.request.project
    shutil.rmtree(folder, ignore_errors=True)
    tree, trial = folder / "tree", folder / "trial"
    original.copy(project, tree)
    log = at.path("rehearse/log.txt")
    task = write_task(folder, item, at.request.entry, tree, log, [one.refused for one in made])
    seal, first = seal_judges(at, before), read_files(tree)
    code = run_command(asked, tree, task, folder / "agent.txt")
    last = read_files(tree)
    after = {path: last.get(path) for path in first.keys() | last.keys()
             if path not in first or path not in last or first[path] != last[path]}  # fmt: skip
    unsealed = seal_judges(at, before)
    broken = sorted(
        path for path in seal.keys() | unsealed.keys() if seal.get(path) != unsealed.get(path)
    )
    refused = [
        PatchRefusal("touched-judge", path, "it was changed outside of the copy") for path in broken
    ]
    refused += judge_text(
        {k: v for k, v in first.items() if v is not None}, after, PatchScope(item.files)
    )
    kept = {path: data for path, data in after.items() if data is not None and path in item.files}
    diff = b"".join(
        write_unified(path, first.get(path), data) for path, data in sorted(kept.items())
    )
    if not refused:
        original.copy(project, trial)
        (trial / ".joymigrate").mkdir()
        for path, data in kept.items():
            (trial / path).write_bytes(data)
        refused = list(judge_run(at, trial, name, before))
    step = keep(at, item, asked, kept, diff, refused, code, number)
    return PatchRound(number, tuple(refused), step, diff)


def run_command(asked: AgentOrder, tree: Path, task: Path, log: Path) -> int:
    """Start the command in the copy, without a shell; the time limit ends it."""
    words = shlex.split(asked.command)
    if not words:
        raise JoyError("--agent names no command", help="--agent 'my-agent --task TASK.md'")
    variables = {**os.environ, "JOYMIGRATE_TASK": str(task), "PYTHONDONTWRITEBYTECODE": "1"}
    with open(log, "wb") as output:
        try:
            process = start(words, cwd=tree, env=variables, stdin=subprocess.DEVNULL,
                            stdout=output, stderr=subprocess.STDOUT)  # fmt: skip
        except OSError as error:
            raise JoyError(
                f"cannot start '{words[0]}': {error.strerror}", help="--agent 'COMMAND'"
            ) from None
        try:
            return process.wait(asked.seconds)
        except subprocess.TimeoutExpired:
            return 124
        finally:
            if process.poll() is None:
                end(process)


def read_files(tree: Path) -> dict[str, bytes | None]:
    """The contents of all files of a copy; None for a link, a device, or one that is too large."""
    found: dict[str, bytes | None] = {}
    for folder, folders, names in os.walk(tree):
        links = [one for one in folders if Path(folder, one).is_symlink()]
        folders[:] = sorted(set(folders) - SKIPPED - set(links))
        for name in [*names, *links]:
            path = Path(folder, name)
            inside = path.relative_to(tree).as_posix()
            plain = path.is_file() and not path.is_symlink()
            found[inside] = (
                path.read_bytes() if plain and path.stat().st_size < MOST_BYTES else None
            )
            if path.is_symlink():
                found[f"{inside} → {os.readlink(path)}"] = None
    return found


def seal_judges(at: StepContext, before: Before) -> dict[str, str]:
    """Marks of everything outside of the copy that judges: the project, its records, ourselves."""
    found: dict[str, str] = {}
    roots = [at.request.project, at.folder / "baseline", before.recording, rules_root(),
             Path(joymigrate.__file__).parent]  # fmt: skip
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(set(folders) - SKIPPED)
            for name in names:
                path = Path(folder, name)
                try:
                    status = path.lstat()
                except OSError:
                    continue
                found[str(path)] = f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"
    for path in (at.folder / "journey.json", Ledger.of(at.request.project).home / "ledger.jsonl"):
        found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    return found


def keep(
    at: StepContext,
    item: OpenItem,
    asked: AgentOrder,
    kept: Mapping[str, bytes],
    diff: bytes,
    refused: list[PatchRefusal],
    code: int,
    number: int,
) -> str:
    """Take the patch as a step of the ledger, or keep the round that was refused; the step's id."""
    request = at.request
    ledger = Ledger.of(request.project)
    details: dict[str, Any] = {
        "style": request.style,
        "author": asked.command,
        "item": f"{item.place}: {item.message}",
        "round": number,
        "exit_code": code,
        "judges": [] if refused else list(JUDGES),
        "refused": [asdict(one) for one in refused],
        "grade": "rehearsed",
    }
    artefacts = {"agent.diff": diff}
    line = f"joymigrate migrate . --agent {shlex.quote(asked.command)}"
    if refused:
        step = Step("patch", line, request.chip, Subject(item.place), verdict="fail",
                    grade="rehearsed", details=details)  # fmt: skip
        return ledger.record(step, artefacts).id
    patches = [
        Patch(request.project / path, (request.project / path).read_bytes(), data)
        for path, data in kept.items()
    ]
    done = apply(patches, ledger, command=line, chip=request.chip, details=details,
                 artefacts=artefacts, allow_dirty=True)  # fmt: skip
    return done.step.id if done.step else ""
