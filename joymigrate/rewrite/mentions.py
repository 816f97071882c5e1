"""Mentions of the origin that are no sites: comments, docstrings, messages, names. They stay.

They are listed on request, so that a reader of the rewritten tree finds every mention explained.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator

from joymigrate.model import Finding, KeptMention
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.source import SourceText


def find_kept(
    source: SourceText, context: Context, findings: list[Finding]
) -> Iterator[KeptMention]:
    """Every mention of the origin's device or backend outside the findings, with its kind."""
    words = re.compile(
        rf"[\w.]*(?:{re.escape(context.origin.device)}|{re.escape(context.origin.backend)})[\w.]*",
        re.I,
    )
    if context.origin.device == context.chip.device or not words.search(source.text):
        return
    covered = [((f.line, f.column), (f.end_line, f.end_column)) for f in findings if f.cell is None]
    in_cells = {f.file_line for f in findings if f.cell is not None}
    places = kinds(source) if source.path.endswith((".py", ".pyi")) else []
    for match in words.finditer(source.text):
        line, column = source.position(match.start())
        if line in in_cells or any(start <= (line, column) < end for start, end in covered):
            continue
        kind = next((k for first, last, k in places if first <= match.start() < last), None)
        kind = kind or ("text" if places else kind_of_line(source, line, column))
        yield KeptMention(source.path, line, column, match.group(), kind)


def kind_of_line(source: SourceText, line: int, column: int) -> str:
    """`comment` behind a comment sign of the file's own kind, else `text`."""
    suffix = source.path.rpartition(".")[2]
    if suffix in ("json", "ipynb"):
        return "text"
    sign = "//" if suffix in ("cu", "cuh", "cpp", "cc", "cxx", "h", "hpp", "jsonc") else "#"
    head = source.line_text(line)[: column - 1]
    return "comment" if re.search(rf"(?:^|\s){re.escape(sign)}", head) else "text"


def kinds(source: SourceText) -> list[tuple[int, int, str]]:
    """Spans of a Python file by kind: comment, docstring, string, name."""
    spans = []
    statement_start = True
    try:
        for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
            start = source.starts[token.start[0] - 1] + token.start[1]
            end = source.starts[token.end[0] - 1] + token.end[1]
            if token.type == tokenize.COMMENT:
                spans.append((start, end, "comment"))
            elif token.type == tokenize.STRING or "STRING" in tokenize.tok_name[token.type]:
                spans.append((start, end, "docstring" if statement_start else "string"))
            elif token.type == tokenize.NAME:
                spans.append((start, end, "name"))
            if token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
                statement_start = True
            elif token.type not in (tokenize.NL, tokenize.COMMENT, tokenize.ENCODING):
                statement_start = False
    except (tokenize.TokenError, SyntaxError, IndexError):
        return spans
    return spans
