"""What `accelerator` may write: no vendor's word, and no torch that a project may not have."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache

from joymigrate.chips import relate
from joymigrate.language import Text
from joymigrate.model import Finding, Style
from joymigrate.rewrite.context import Context, Floor
from joymigrate.rewrite.module import HELPER, Pending
from joymigrate.rewrite.portable.floors import floor_of
from joymigrate.rewrite.portable.table import UNKNOWN, floors, forms, version


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
    named += [
        (form.since, Text("a {name} in a `with` statement", name=name))
        for name, form in forms().items()
        if form.kind == "entered" and not text.strip() and f"{name}(" in (finding.before or "")
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
