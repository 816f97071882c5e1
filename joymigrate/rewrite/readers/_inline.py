"""Python inside shell text: `python -c '…'` and heredocs that feed an interpreter."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace

from joymigrate.language import Text
from joymigrate.model import Edit, Finding, Tier
from joymigrate.rewrite.readers._migration_map import Sites, worse
from joymigrate.rewrite.readers._words import EXPANDED, Command
from joymigrate.rewrite.source import SourceText, Unreadable

INTERPRETER = re.compile(r"(?:.*/)?python[\d.]*")
REASON = "Python code inside a shell script"


def python_code(sites: Sites, command: Command) -> None:
    """The code that a command hands to Python; edited on request only."""
    words = command.words
    if not any(INTERPRETER.fullmatch(each.value) for each in words):
        return
    mention = re.compile(rf"(?<![A-Za-z0-9_]){re.escape(sites.context.origin.device)}(?![a-z])")
    for before, word in itertools.pairwise(words):
        if before.value != "-c" or not mention.search(word.value):
            continue
        span = word.span(0, len(word.value))
        if span is None or EXPANDED in word.value:
            sites.add(
                "JM900",
                word.start,
                word.end,
                reason=Text("{what}, with parts of the shell's", what=REASON),
            )
        else:
            code(sites, *span)
    for each in command.heredocs:
        match = mention.search(sites.source.text, each.start, each.end)
        if match is None:
            continue
        if each.expansions:
            sites.add(
                "JM900",
                *match.span(),
                reason=Text("{what}, with parts of the shell's", what=REASON),
            )
        else:
            code(sites, each.start, each.end)


def code(sites: Sites, start: int, end: int) -> None:
    """Findings of the Python text `start:end`; a text that does not parse is reported."""
    from joymigrate.rewrite import python  # which loads libcst

    text = sites.source.text[start:end]
    inner = SourceText(sites.source.path, text.encode("utf-8", "surrogatepass"), text)
    try:
        found = python.findings(inner, sites.context)
    except Unreadable as error:
        sites.add(
            "JM900",
            start,
            end,
            reason=Text("{what} that does not parse: {reason}", what=REASON, reason=error.reason),
        )
        return
    quote = sites.source.text[start - 1 : start]
    unsafe_signs = {"'": "'", '"': '"$`\\'}.get(quote, "")
    for finding in place_findings(sites, found, inner, start):
        if any(sign in edit.text.decode() for edit in finding.edits for sign in unsafe_signs):
            reason = Text(
                "{what}, inside {quote} quotes that the new text would end",
                what=REASON,
                quote=quote,
            )
            finding = finding.leave(reason)
        sites.take(finding)


def place_findings(
    sites: Sites, found: list[Finding], inner: SourceText, start: int
) -> Iterator[Finding]:
    """Findings of the inner text as findings of the file."""
    one_line = "\n" not in inner.text.strip()
    for finding in found:
        first = inner.starts[finding.line - 1] + finding.column - 1 + start
        last = inner.starts[finding.end_line - 1] + finding.end_column - 1 + start
        line, column = sites.source.position(first)
        end_line, end_column = sites.source.position(last)
        edits = tuple(shift_edit(sites, inner, edit, start) for edit in finding.edits)
        if one_line and finding.rule == "JM001" and finding.after:
            edits = (sites.source.edit(start, start, f"{finding.after.strip()}; "),)
        report = finding.tier is Tier.REPORT or sites.floor is Tier.REPORT
        yield replace(
            finding,
            tier=Tier.REPORT if report else worse(finding.tier, Tier.UNSAFE),
            line=line,
            column=column,
            end_line=end_line,
            end_column=end_column,
            after=None if report else finding.after,
            edits=() if report else edits,
            reason=finding.reason or REASON,
        )


def shift_edit(sites: Sites, inner: SourceText, edit: Edit, start: int) -> Edit:
    """An edit of the inner text as an edit of the file."""

    def place(at: int) -> int:
        return start + len(inner.data[:at].decode("utf-8", "surrogatepass"))

    return sites.source.edit(place(edit.start), place(edit.end), edit.text.decode())
