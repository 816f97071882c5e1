"""The guard: what a patch may not do, by name, before anything of it is run.

It compares facts of the files before and after. What it lets pass is judged by running it: a patch
that computes other values passes here and fails there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from joymigrate.agent.patches.facts import CodeFact, Facts, of_origin, read_facts
from joymigrate.chips import read_yaml, rules_root
from joymigrate.language import Text

OUTSIDE = "only {files} may change"
REMOVED = "what the program did before is gone: {name}"
NUMBER = "a number that was there is gone: {name}"
TABLE = "a value that was worked out is written down: {name}"
ADDED = "{why}: {name}"
EQUAL = "no code differs: nothing was done"
BROKEN = "it is no Python: {error}"


@dataclass(frozen=True, slots=True)
class PatchRefusal:
    """Why a patch is not taken: its name, the file, what was seen."""

    name: str
    path: str
    why: str


@dataclass(frozen=True, slots=True)
class PatchScope:
    """What may change: files, and the functions of each that are to be mended."""

    files: Mapping[str, Collection[str]]


def judge_text(
    before: Mapping[str, bytes], after: Mapping[str, bytes | None], scope: PatchScope
) -> list[PatchRefusal]:
    """Every reason to refuse; `after` has the changed files alone, None for one that is gone."""
    files = ", ".join(scope.files) or "nothing"
    found: list[PatchRefusal] = []
    same = True
    for path, data in sorted(after.items()):
        if path not in scope.files or data is None or path not in before:
            found.append(PatchRefusal("outside-files", path, Text(OUTSIDE, files=files)))
            same = False
            continue
        try:
            old = read_facts(before[path].decode("utf-8"), scope.files[path])
            new = read_facts(data.decode("utf-8"), scope.files[path])
        except (SyntaxError, ValueError) as error:
            found.append(PatchRefusal("broken-code", path, Text(BROKEN, error=error)))
            same = False
            continue
        same = same and old.shape == new.shape
        found += [PatchRefusal(name, path, why) for name, why in compare(old, new)]
    if same:
        found.append(PatchRefusal("no-diff", "", Text(EQUAL)))
    return found


def compare(old: Facts, new: Facts) -> Iterator[tuple[str, str]]:
    """What the facts of one file say against its patch."""
    added, lost = new.all - old.all, old.elsewhere - new.all
    yield from find_added(added, new.comments - old.comments)
    for fact in lost:
        if fact.kind == "call" and not of_origin(fact.name):
            yield "removed-work", Text(REMOVED, name=f"{fact.name}()")
        if fact.kind == "number":
            yield "changed-number", Text(NUMBER, name=fact.name)
    gone = old.all - new.all
    for fact in added:
        if fact.kind == "table":
            yield "hard-coded", Text(TABLE, name="a table of numbers")
        if fact.kind == "fixed" and gone[CodeFact("worked out", fact.name)]:
            yield "hard-coded", Text(TABLE, name=fact.name)


def find_added(added: Counter[CodeFact], comments: Counter[str]) -> Iterator[tuple[str, str]]:
    """What was added that no patch may add."""
    kinds = {"handler": "swallowed-error", "host": "moved-to-host", "leave": "skipped-work",
             "decided": "skipped-work", "patched": "patches-torch"}  # fmt: skip
    table = refusals()
    texts = [fact.name for fact in added if fact.kind == "text"]
    for fact in added:
        if fact.kind in kinds:
            name = kinds[fact.kind]
            yield name, Text(ADDED, why=Text(table[name]["why"]), name=fact.name or fact.kind)
        if fact.kind not in ("name", "call"):
            continue
        for name, row in table.items():
            if any(is_named(fact.name, one) for one in row.get("adds", ())):
                if name == "detects-judge" and "environ" in fact.name and names_launcher(texts):
                    continue
                yield name, Text(ADDED, why=Text(row["why"]), name=fact.name)
    said = [*texts, *comments, *(fact.name for fact in added if fact.kind in ("name", "call"))]
    for name, row in table.items():
        for word in row.get("words", ()):
            hit = next((one for one in said if word in one), None)
            if hit is not None:
                yield name, Text(ADDED, why=Text(row["why"]), name=hit)


def is_named(name: str, listed: str) -> bool:
    """Whether a dotted name is a listed one, lies below it, or ends with one that begins with a
    dot."""
    if listed.startswith("."):
        return name.endswith(listed)
    return name == listed or name.startswith(f"{listed}.") or name.endswith(f".{listed}")


def names_launcher(texts: Sequence[str]) -> bool:
    """Whether the only texts beside are variables that launchers set."""
    known = set(settings()["variables"])
    return bool(texts) and any(one in known for one in texts)


def refusals() -> Mapping[str, Any]:
    """The table of what may not be added."""
    found: Mapping[str, Any] = settings()["refusals"]
    return found


@cache
def settings() -> Mapping[str, Any]:
    """`rules/common/agent.yaml`."""
    found: Mapping[str, Any] = read_yaml(rules_root() / "common" / "agent.yaml")
    return found
