"""Inline ignores: `# joymigrate: ignore[JM101] reason`, for one statement or a whole file.

`//` works as well as `#`, so that shell, YAML, TOML, Dockerfiles and C++ are covered; JSON has no
comments (use a baseline or `exclude`). A comment behind code covers its own line; one on a line
of its own covers the statement below it. `ignore-file` covers the file. Without brackets every
rule is meant; inside them stand rule ids or their beginnings (`JM1`).
"""

from __future__ import annotations

import io
import json
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from joymigrate.model import Finding

MARK = re.compile(
    r"(?:#|//)\s*joymigrate:\s*(?P<what>ignore-file|ignore)(?![\w-])"
    r"\s*(?:\[(?P<rules>[^\]\r\n]*)\])?(?P<reason>[^\r\n]*)"
)
COMMENT_LINE = re.compile(r"\s*(?:#|//|$)")
LINE_END = re.compile(r"\r\n|\r|\n")  # not str.splitlines: a form feed ends no line
PYTHON = (".py", ".pyi")


@dataclass(frozen=True, slots=True)
class Ignore:
    """One ignore comment: where it stands, which rules it names (None: all), what it covers."""

    line: int
    rules: tuple[str, ...] | None
    reason: str
    text: str
    first: int  # first and last line that it covers; unused with `whole_file`
    last: int
    whole_file: bool = False
    cell: int | None = None  # in a notebook, as in Finding.cell

    def covers(self, finding: Finding) -> bool:
        """Whether this comment silences `finding` (of the same file)."""
        if self.rules is not None and not finding.rule.startswith(self.rules):
            return False
        if self.whole_file:
            return True
        if self.cell != finding.cell:
            return False
        return self.first <= finding.end_line and finding.line <= self.last


@dataclass(frozen=True, slots=True)
class IgnoreResult:
    """Findings that stay, findings that an ignore silenced, ignores that silenced nothing."""

    findings: tuple[Finding, ...]
    suppressed: tuple[Finding, ...]
    unused: tuple[Ignore, ...]


def parse(text: str, path: str = "sample.py") -> tuple[Ignore, ...]:
    """Every ignore comment of one file; `path` tells the kind of file by its name.

    In Python a mark inside a string is no ignore. A file that does not tokenise is read line by
    line. In a notebook the cells are read one by one.
    """
    if "joymigrate:" not in text:
        return ()
    if path.endswith(".ipynb"):
        return tuple(in_notebook(text))
    if path.endswith(PYTHON):
        return tuple(in_python(text))
    return tuple(in_lines(text))


def apply(
    findings: Iterable[Finding],
    ignores: tuple[Ignore, ...],
    active: Callable[[str], bool] = lambda rule: True,
) -> IgnoreResult:
    """Split the findings of one file by its ignores.

    `active` says whether a rule id (or a beginning of ids) is looked for at all: an ignore for a
    rule that was not selected is not called unused.
    """
    stay: list[Finding] = []
    suppressed: list[Finding] = []
    used: set[Ignore] = set()
    for finding in findings:
        hits = [ignore for ignore in ignores if ignore.covers(finding)]
        used.update(hits)
        (suppressed if hits else stay).append(finding)
    unused = tuple(
        ignore
        for ignore in ignores
        if ignore not in used and (ignore.rules is None or any(map(active, ignore.rules)))
    )
    return IgnoreResult(tuple(stay), tuple(suppressed), unused)


def in_lines(text: str) -> Iterator[Ignore]:
    """Ignores of a file whose grammar we don't parse: a comment sign on the line suffices."""
    lines = LINE_END.split(text)
    for number, line in enumerate(lines, 1):
        match = MARK.search(line)
        if match is None:
            continue
        if line[: match.start()].strip():
            yield ignore_of(match, number, (number, number))
        else:
            yield ignore_of(match, number, next_lines(lines, number))


def next_lines(lines: list[str], number: int) -> tuple[int, int]:
    """First and last line of the next code below line `number`, with its `\\` continuations."""
    first = number + 1
    while first <= len(lines) and COMMENT_LINE.match(lines[first - 1]):
        first += 1
    last = first
    while last < len(lines) and lines[last - 1].rstrip().endswith("\\"):
        last += 1
    return first, last


def in_python(text: str) -> Iterator[Ignore]:
    """Ignores among the comments of Python source."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text, newline="").readline))
    except (tokenize.TokenError, SyntaxError):
        yield from in_lines(text)
        return
    statements = list(logical_lines(tokens))
    lines = LINE_END.split(text)
    for token in tokens:
        if token.type != tokenize.COMMENT:
            continue
        match = MARK.search(token.string)
        if match is None:
            continue
        number = token.start[0]
        if token.line[: token.start[1]].strip():
            yield ignore_of(match, number, (number, number))
        elif any(first < number <= last for first, last in statements):
            yield ignore_of(match, number, next_lines(lines, number))
        else:
            below = (span for span in statements if span[0] > number)
            yield ignore_of(match, number, next(below, (number, number)))


def logical_lines(tokens: Iterable[tokenize.TokenInfo]) -> Iterator[tuple[int, int]]:
    """First and last physical line of every statement (of its header, for `if`, `def` …)."""
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT}
    first: int | None = None
    for token in tokens:
        if token.type == tokenize.NEWLINE and first is not None:
            yield first, token.start[0]
            first = None
        elif token.type not in silent and first is None:
            first = token.start[0]


def in_notebook(text: str) -> Iterator[Ignore]:
    """Ignores in the code cells of a notebook; a broken notebook has none."""
    try:
        cells = json.loads(text)["cells"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    for index, cell in enumerate(cells if isinstance(cells, list) else ()):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source", "")
        joined = "".join(map(str, source)) if isinstance(source, list) else str(source)
        if "joymigrate:" in joined:
            yield from (replace(found, cell=index) for found in in_python(joined))


def ignore_of(match: re.Match[str], number: int, span: tuple[int, int]) -> Ignore:
    """The `Ignore` that a mark on line `number` stands for."""
    named = match["rules"]
    rules = None if named is None else tuple(word.strip() for word in named.split(",") if word)
    return Ignore(
        line=number,
        rules=rules if rules is None else tuple(rule for rule in rules if rule),
        reason=match["reason"].strip(" \t:-"),
        text=match.group().strip(),
        first=span[0],
        last=span[1],
        whole_file=match["what"] == "ignore-file",
    )
