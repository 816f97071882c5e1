"""pip's requirements and constraints files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from joymigrate.language import Text
from joymigrate.model import Finding, Tier
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.readers._moves import Sites
from joymigrate.rewrite.readers._packages import (
    RULE,
    Change,
    index_change,
    index_reason,
    package_advice,
)
from joymigrate.rewrite.source import Source

PATTERNS = (
    *("requirements*.txt", "*requirements.txt", "*-requirements.in", "requirements*.in"),
    *("requirements/*.txt", "*/requirements/*.txt", "constraints*.txt", "*constraints.txt"),
    *("requirements*.pip", "requirements_*", "requirements-*"),
)
OPTION = re.compile(
    r"(?:--(?:index-url|extra-index-url|find-links)(?:\s*=\s*|\s+)|-[if]\s*)(?P<url>\S+)"
)
# What stands behind a requirement on the same line: options and a comment.
TAIL = re.compile(r"\s+(?:--[\w-]+.*|#.*)|\s*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Line:
    """One logical line: its place, and the place of the requirement in it."""

    start: int
    end: int  # of the logical line, without its line ending
    text: str


def read(source: Source, context: Context) -> Iterator[Finding]:
    """Findings of one requirements file, line by line."""
    sites = Sites.of(source, context)
    lines = list(logical_lines(source))
    named = {name_of(line.text) for line in lines}
    for line in lines:
        if line.text.startswith("-"):
            option(sites, line)
            continue
        requirement(sites, line, named)
    yield from sites.ordered()


def logical_lines(source: Source) -> Iterator[Line]:
    """Lines with their continuations joined; comments and empty lines left out."""
    at = 0
    pattern = re.compile(r"(?:[^\r\n\\]|\\(?:\r\n|.)|\\$)*", re.DOTALL)
    while at <= len(source.text):
        match = pattern.match(source.text, at)
        end = match.end() if match else at
        raw = source.text[at:end]
        stripped = raw.lstrip()
        if stripped and not stripped.startswith("#"):
            start = at + len(raw) - len(stripped)
            tail = TAIL.search(stripped)
            body = stripped[: tail.start()] if tail else stripped
            yield Line(start, end, stripped if stripped.startswith("-") else body.rstrip("\\ \t"))
        at = end + (2 if source.text.startswith("\r\n", end) else 1)


def name_of(requirement: str) -> str:
    """The distribution that a line names, as indexes compare names."""
    match = re.match(r"[A-Za-z0-9][\w.-]*", requirement)
    return re.sub(r"[-_.]+", "-", match.group()).lower() if match else ""


def option(sites: Sites, line: Line) -> None:
    """`--extra-index-url …/whl/cu121`."""
    match = OPTION.match(line.text)
    found = index_change(match["url"], sites.context) if match else None
    if match is None or found is None:
        return
    first, last, after = found
    at = line.start + match.start("url")
    reason = index_reason(sites.context)
    sites.add(RULE, at + first, at + last, after, tier=Tier.UNSAFE, reason=reason)


def requirement(sites: Sites, line: Line, named: set[str]) -> None:
    """One requirement: replaced, given a companion on a line of its own, or reported."""
    change = package_advice(line.text, sites.context)
    if change is None:
        return
    start, end = line.start, line.start + len(line.text)
    hashed = "--hash" in sites.source.text[end : line.end]
    if change.after is None or hashed or "\\" in line.text:
        reason = Text.join("; ", ("its hash pins the file" if hashed else "", change.reason))
        sites.add(RULE, start, end, reason=reason)
        return
    also = [each for each in change.also if name_of(each) not in named]
    if change.after == line.text and not also:
        return
    write(sites, line, change, change.after, also)


def write(sites: Sites, line: Line, change: Change, after: str, also: list[str]) -> None:
    """The edits of one requirement: the text itself, and new lines behind its line."""
    source = sites.source
    start, end = line.start, line.start + len(line.text)
    edits = [(start, end, after)] if after != line.text else []
    if also:
        column = start - source.starts[source.position(start)[0] - 1]
        indent = source.text[start - column : start]
        added = "".join(f"{source.newline}{indent}{each}" for each in also)
        edits.append((line.end, line.end, added))
    sites.add(
        RULE,
        start,
        end,
        "\n".join([after, *also]),
        tier=change.tier,
        reason=change.reason,
        edits=edits,
    )
