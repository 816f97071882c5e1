"""What `accelerator` may write: no vendor's word, and no torch that a project may not have."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePosixPath

from joymigrate.chips import relate
from joymigrate.language import Text
from joymigrate.model import Finding, Style
from joymigrate.rewrite.context import Context, Floor
from joymigrate.rewrite.discover import File
from joymigrate.rewrite.module import HELPER, Pending
from joymigrate.rewrite.portable.table import UNKNOWN, floors, version

REQUIREMENTS = re.compile(
    r"(requirements[\w./-]*\.txt|pyproject\.toml|setup\.(?:py|cfg)|env\w*\.ya?ml)$"
)
CODE = ("python", "notebook")  # kinds of files that need a torch
NEEDED = re.compile(
    r"(?<![\w-])(?:py)?torch\s*(?:\[[^\]\n]*\])?\s*(?:>=|~=|={1,3})\s*(\d+(?:\.\d+)*)"
)


def find_floors(files: Iterable[File]) -> dict[str, Floor]:
    """The oldest torch that each folder of a project says it supports, and where; `.` is the root.

    A folder with no Python in it or below speaks for the one above it.
    """
    files = list(files)
    code = (PurePosixPath(each.relative) for each in files if each.kind in CODE)
    coded = {PurePosixPath(), *(above for path in code for above in path.parents)}
    found: dict[str, list[Floor]] = {}
    for file in files:
        if not REQUIREMENTS.search(file.relative):
            continue
        text = Path(file.path).read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            named = NEEDED.search(line.split("#")[0])
            if named is not None:
                folder = next(at for at in PurePosixPath(file.relative).parents if at in coded)
                floor = Floor(named[1], f"{file.relative}:{number}")
                found.setdefault(folder.as_posix(), []).append(floor)
    return {folder: min(several, key=age) for folder, several in found.items()}


def age(floor: Floor) -> tuple[int, ...]:
    """A floor's version, to be compared."""
    return version(floor.version)


def floor_of(context: Context, path: str) -> Floor | None:
    """The oldest torch that must run a file: what the nearest folder above it says.

    The version of the chip's package that was asked for goes with torch's own.
    """
    above = (at.as_posix() for at in PurePosixPath(path).parents)
    near = next((context.floors[at] for at in above if at in context.floors), None)
    asked = Floor(context.version, "--chip-version") if context.version else None
    return min(filter(None, (asked, near)), key=age, default=None)


def judge_all(items: Iterable[Finding | Pending], context: Context) -> list[Finding | Pending]:
    """The findings of this style: an edit with a vendor's word, or of a torch that the project
    need not have, is only reported."""
    if context.style is not Style.ACCELERATOR:
        return list(items)
    words = vendor_words(context)
    return [
        replace(
            each,
            yes=judge(each.yes, words, floor_of(context, each.yes.path)),
            no=judge(each.no, words, floor_of(context, each.no.path)),
        )
        if isinstance(each, Pending)
        else judge(each, words, floor_of(context, each.path))
        for each in items
    ]


@cache
def patterns(words: frozenset[str]) -> re.Pattern[str]:
    """One expression for words that no edit of this style may hold."""
    either = "|".join(sorted(map(re.escape, words), key=len, reverse=True))
    return re.compile(
        rf"(?<![A-Za-z]){either}(?![A-Za-z])"
        if "|" not in either
        else rf"(?<![A-Za-z])(?:{either})(?![A-Za-z])"
    )


def vendor_words(context: Context) -> re.Pattern[str]:
    """The target's own words, and the generated helper's name."""
    chip, origin = context.chip, context.origin
    relation = relate(origin, chip)
    tables = (relation.variables, relation.tools)
    words = {advice.to for known in tables for name, advice in known.items() if advice.to != name}
    words |= {chip.device, chip.backend, chip.package, HELPER}
    return patterns(frozenset(w for w in words if w) - {origin.device, origin.backend})


def judge(finding: Finding, words: re.Pattern[str], floor: Floor | None) -> Finding:
    """One finding as this style allows it."""
    if not finding.edits:
        return finding
    text = "\n".join(edit.text.decode("utf-8", "replace") for edit in finding.edits)
    if finding.needs in ("package", "helper") or words.search(text):
        said = Text(
            "{unknown}; --style agnostic or direct: {after}",
            unknown=Text(UNKNOWN),
            after=finding.after or "",
        )
        return finding.leave(said if finding.after else UNKNOWN)
    named = [
        (since, name)
        for name, since in floors().items()
        if re.search(rf"\b{re.escape(name.removeprefix('torch.'))}\b", text)
    ]
    if floor is None or not named:
        return finding
    since, name = max(named, key=lambda each: version(each[0]))
    if version(since) <= version(floor.version)[: len(version(since))]:
        return finding
    reason = Text(
        "{name} needs torch {since}, and {place} allows {old}; raise it, or use --style agnostic",
        name=name, since=since, place=floor.place, old=floor.version,
    )  # fmt: skip
    return finding.leave(reason)
