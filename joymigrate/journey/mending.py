"""Rehearse, locate, mend, rehearse: tries on a copy of the project what would cure a stop.

Tried are edits that the scan offers and the rewriting left for a look, and values of configuration
that name the origin's device: those in the line that raised first, then the values, then the rest.
A mend that changes the stop is kept and the next one is looked for, a bounded number of rounds.
Every round lies on disk, and one that was made before is not made again.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from joymigrate.blame.stop import FrameOwner
from joymigrate.chips import get, origin
from joymigrate.files import replace_file
from joymigrate.journey import original
from joymigrate.journey.context import StepContext
from joymigrate.journey.run_failure import explain
from joymigrate.journey.sites import sites
from joymigrate.journey.tree import differing, snapshot, total
from joymigrate.language import Text
from joymigrate.ledger import Ledger
from joymigrate.model import Patch
from joymigrate.rewrite.apply import apply
from joymigrate.rewrite.diff import write_unified

FOLDER = "rounds"
PATCH = "rounds/mend.patch"
SCHEMA = "joymigrate.round/1"
MENDED = (FrameOwner.REWRITE.value, FrameOwner.PACKAGE.value)  # whose stops may have a mend
VALUE = 1  # how near a value of configuration is to any stop
CURES = "tried on a copy: {mend}: the program runs to its end"
MOVES = "tried on a copy: {mend}: cures this, and stops at {line}: {message}"
LEAVES = "tried on a copy: {mend}: cures nothing"


Rehearse = Callable[[str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Mend:
    """One edit of a site: rule, place, and the text before and after. A value of configuration is
    replaced as it stands, a known remedy `everywhere` in the program; the rest is written by the
    rewriting itself."""

    rule: str
    path: str
    line: int
    column: int
    before: str
    after: str
    value: bool = False
    everywhere: bool = False

    def __str__(self) -> str:
        return f"{self.path}:{self.line} `{self.before}` → `{self.after}` ({self.rule})"


@dataclass(frozen=True, slots=True)
class Round:
    """A mend that was tried: what stopped before and after it; None where the program then runs
    to its end."""

    mend: Mend
    before: Mapping[str, Any]
    after: Mapping[str, Any] | None

    @property
    def cured(self) -> bool:
        """Whether the stop is gone: another one may stand behind it."""
        if self.after is None:
            return True
        return any(self.after[key] != self.before[key] for key in ("line", "message"))


def try_mends(at: StepContext, stop: Mapping[str, Any], words: Rehearse) -> list[Round]:
    """Try mends on copies of the project, as long as they cure something; `words` gives the
    command that rehearses, its report at a place."""
    rounds: list[Round] = []
    tried: set[Mend] = set()
    tree = at.request.project
    while len(rounds) < at.request.rounds and stop["whose"] in MENDED:
        one = next((m for m in mends(at, stop) if m not in tried), None)
        if one is None:
            break
        tried.add(one)
        trial = at.path(f"{FOLDER}/{len(rounds) + 1}")
        made = try_mend(at, one, stop, tree, trial, words)
        rounds.append(made)
        if made.cured:
            tree = trial / "tree"
            if made.after is None:
                break
            stop = made.after
    return rounds


def mends(at: StepContext, stop: Mapping[str, Any]) -> Iterator[Mend]:
    """The edits that may cure a stop, the nearest to it first."""
    path, _, line = str(stop["line"]).rpartition(":")
    word = re.compile(rf"\b{origin().device}\b")

    def distance(one: Mapping[str, Any]) -> int | None:
        if one["path"] == path and str(one["line"]) == line:
            return 0
        named = bool(word.search(one["before"]))
        if named and not one["path"].endswith(".py"):
            return VALUE
        return 2 if named and one["path"] == path else 3 if named else None

    for one in sites(at):
        if one["before"] in stop["edits"] and one["path"].endswith(".py"):
            spot = (one["rule"], one["path"], one["line"], one["column"], one["before"])
            yield Mend(*spot, stop["edits"][one["before"]], everywhere=True)
            break
    if stop["whose"] != FrameOwner.REWRITE.value:
        return
    near = [(far, one) for one in sites(at) if (far := distance(one)) is not None]
    for far, one in sorted(near, key=lambda row: row[0]):
        spot = (one["rule"], one["path"], one["line"], one["column"], one["before"])
        if one["tier"] == "unsafe" and one["after"] is not None:
            yield Mend(*spot, one["after"])
        elif far == VALUE:
            name = get(at.request.chip).device
            yield Mend(*spot, word.sub(name, one["before"]), value=True)


def try_mend(
    at: StepContext,
    one: Mend,
    stop: Mapping[str, Any],
    tree: Path,
    trial: Path,
    words: Rehearse,
) -> Round:
    """One round: the mend on a copy of `tree`, and the rehearsal of it."""
    key = key_of(tree, words)
    known = read_round(trial, one, stop, key)
    if known is not None:
        return known
    shutil.rmtree(trial, ignore_errors=True)
    copy = trial / "tree"
    original.copy(tree, copy)
    (copy / ".joymigrate").mkdir()  # its own ledger, not the project's
    name = trial.relative_to(at.folder).as_posix()
    edit(at, one, copy, f"{name}/rewrite.json")
    report = str(trial / "rehearse.json")
    done = at.joymigrate(f"{name}/log.txt", *words(report), ok=range(256), cwd=copy)
    found = json.loads(Path(report).read_text(encoding="utf-8")) if Path(report).is_file() else {}
    refused = found.get("refusals", ())
    after = None
    if found.get("exit_code", done.code):
        after = explain(at, done, on_chip=True, refusals=refused, folder=copy).document()
    made = Round(one, stop, after)
    document = {"schema": SCHEMA, "key": key, "mend": asdict(one), "before": stop, "after": after}
    replace_file(trial / "round.json", json.dumps(document, indent=1).encode("utf-8"))
    return made


def edit(at: StepContext, one: Mend, copy: Path, log: str) -> None:
    """Make one mend in a copy of the project."""
    if one.everywhere:
        for name in {site["path"] for site in sites(at) if site["before"] == one.before}:
            path = copy / name
            text = re.sub(rf"\b{re.escape(one.before)}\b", one.after, path.read_text("utf-8"))
            path.write_text(text, encoding="utf-8")
        return
    if not one.value:
        request = at.request
        rewrite = ["rewrite", one.path, "--to", request.chip, "--style", request.style]
        rewrite += ["--unsafe", "--select", one.rule, "--allow-dirty", "--format", "json"]
        at.joymigrate(log, *rewrite, ok=(0, 1), cwd=copy)
        return
    path = copy / one.path
    rows = path.read_text(encoding="utf-8").splitlines(keepends=True)
    row, place = rows[one.line - 1], one.column - 1
    if row[place:].startswith(one.before):
        rows[one.line - 1] = row[:place] + one.after + row[place + len(one.before) :]
        path.write_text("".join(rows), encoding="utf-8")


def key_of(tree: Path, words: Rehearse) -> str:
    """What a round is made of: the files, and how they are rehearsed."""
    return f"{total(snapshot(tree))} {shlex.join(words(''))}"


def known_stop(at: StepContext, words: Rehearse) -> Mapping[str, Any] | None:
    """The stop of the project as it is, where an earlier call tried what cures it."""
    found = load_round(at.path(f"{FOLDER}/1"))
    before: Mapping[str, Any] | None = found.get("before")
    return before if found.get("key") == key_of(at.request.project, words) else None


def load_round(trial: Path) -> Mapping[str, Any]:
    """What a round left on disk; nothing where it can't be read."""
    try:
        found = json.loads((trial / "round.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_round(trial: Path, one: Mend, stop: Mapping[str, Any], key: str) -> Round | None:
    """The same round of an earlier call."""
    found = load_round(trial)
    if found.get("key") != key or found.get("mend") != asdict(one):
        return None
    if not (trial / "tree").is_dir():
        return None
    return Round(one, stop, found["after"])


def patches(at: StepContext, rounds: Sequence[Round], tree: Path) -> list[Patch]:
    """What the mends that cured something change in the project's own files."""
    project = at.request.project
    ours = {one.mend.path for one in rounds if one.cured}
    whole = {one.mend.before for one in rounds if one.cured and one.mend.everywhere}
    ours |= {site["path"] for site in sites(at) if site["before"] in whole}
    before, after = snapshot(project), snapshot(tree)
    ours |= {name for name in after.keys() - before.keys() if name.endswith(".py")}  # our helper
    found = []
    for name in sorted(ours & differing(before, after)):
        old = (project / name).read_bytes() if name in before else None
        found.append(Patch(project / name, old, (tree / name).read_bytes()))
    return found


def write_patch(at: StepContext, rounds: Sequence[Round], tree: Path) -> list[Patch]:
    """Write the mends as one patch for reading and for `git apply`."""
    made = patches(at, rounds, tree)
    project = at.request.project
    text = b"".join(
        write_unified(one.path.relative_to(project).as_posix(), one.before, one.after or b"")
        for one in made
    )
    replace_file(at.path(PATCH), text)
    return made


def take(at: StepContext, rounds: Sequence[Round], made: Sequence[Patch]) -> str | None:
    """Take the mends into the work tree as one step of the ledger; its id."""
    done = apply(
        made,
        Ledger.of(at.request.project),
        command="joymigrate migrate . --yes",
        chip=at.request.chip,
        details={"style": at.request.style, "edits": sum(one.cured for one in rounds)},
        allow_dirty=True,
    )
    return done.step.id if done.step else None


def lines(rounds: Sequence[Round], step: str | None, place: str, command: str) -> list[Text]:
    """What was tried, what it cured, and the command that takes it."""
    told = []
    for one in rounds:
        form = CURES if one.after is None else MOVES if one.cured else LEAVES
        after = one.after or {"line": "", "message": ""}
        told.append(
            Text(form, mend=str(one.mend), line=after["line"] or "?", message=after["message"])
        )
    if not any(one.cured for one in rounds):
        return told
    if step:
        return [*told, Text("taken into the work tree: step {step}", step=step)]
    text = "take it: {command} --yes (patch: {place})"
    return [*told, Text(text, command=command, place=place)]


def last_tree(at: StepContext, rounds: Sequence[Round]) -> Path | None:
    """The copy with all the mends that cured something."""
    numbers = [number for number, one in enumerate(rounds, 1) if one.cured]
    return at.path(f"{FOLDER}/{numbers[-1]}/tree") if numbers else None
