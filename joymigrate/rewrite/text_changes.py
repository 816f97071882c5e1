"""A text that was written anew → findings with the edits that lead to it."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from joymigrate.language import Text
from joymigrate.model import Finding, Tier
from joymigrate.rewrite.module import Module, wordlike

Span = tuple[int, int]  # offsets in the text
Change = tuple[int, int, str]  # start, end, what is written there


def tell_changes(
    module: Module,
    rule: str,
    after: str,
    reasons: Mapping[Span, str | None],
    *,
    stable: bool,
    together: bool = False,
) -> Iterator[Finding]:
    """Findings of a rule that makes `after` of a module's text.

    `reasons` are the places that it changed, each with what a person should know of it. What is not
    `stable`, so that a second run would change it again, is a report; with `together` all edits are
    one group.
    """
    found, beside = gather(hunks(module.source.text, after), list(reasons))
    group = f"{module.source.path}:{rule}" if together or beside else None
    for number, (span, edits) in enumerate(found):
        if not stable:
            reason = Text("a second run of this codemod would change it again")
            yield module.find(rule, span, tier=Tier.REPORT, reason=reason)
            continue
        edits = [*edits, *(beside if number == 0 else ())]
        one = module.find(rule, span, edits=edits, reason=reasons.get(span))
        yield replace(one, group=group)


def hunks(before: str, after: str) -> Iterator[Change]:
    """Edits that make one text of the other: changed lines, without the words they share."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, old))]
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag == "equal":
            continue
        # As many lines as before: each by itself, so that neighbours stay edits of their own.
        alike = j - i == m - k
        for a, b, c, d in (
            ((i + n, i + n + 1, k + n, k + n + 1) for n in range(j - i))
            if alike
            else ((i, j, k, m),)
        ):
            yield trim_change(before, starts[a], starts[b], "".join(new[c:d]))


def trim_change(before: str, start: int, end: int, text: str) -> Change:
    """A change without the whole words that both texts begin and end with."""
    gone = before[start:end]
    rest = before[start:]
    indent = rest[: len(rest) - len(rest.lstrip(" \t"))]
    if not gone and indent and text.startswith(indent):  # lines put before an indented one
        start += len(indent)
        return start, start, text[len(indent) :] + indent
    head = count_shared(gone, text)
    while head and wordlike(gone[head - 1]):
        head -= 1
    tail = count_shared(gone[head:][::-1], text[head:][::-1])
    while tail and wordlike(gone[-tail]):
        tail -= 1
    return start + head, end - tail, text[head : len(text) - tail]


def count_shared(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def gather(
    edits: Iterable[Change], spans: list[Span]
) -> tuple[list[tuple[Span, list[Change]]], list[Change]]:
    """Edits by the changed code that they are in, and those beside all of it.

    Changed code that one edit joins is one place: nothing of it is written without the rest.
    """
    found: list[tuple[Span, list[Change]]] = []
    beside: list[Change] = []
    for edit in edits:
        start, end, _ = edit
        inside = [(s, e) for s, e in spans if s <= end and start <= e]
        if not inside:
            beside.append(edit)
            continue
        start, end = min(start, *(s for s, _ in inside)), max(end, *(e for _, e in inside))
        joined = [edit]
        while found and found[-1][0][1] >= start:
            (first, last), earlier = found.pop()
            start, end, joined = min(start, first), max(end, last), earlier + joined
        found.append(((start, end), joined))
    if not found:
        return [((start, end), [(start, end, text)]) for start, end, text in beside], []
    return found, beside
