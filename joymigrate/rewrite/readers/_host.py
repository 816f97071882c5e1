"""C++ host code of CUDA extensions: headers, guards, streams, device tests and dispatch keys.

A file is one group: it is written when everything in it that names the old platform has a form on
the target, which the target's `host.yaml` lists. Else it stays, and the first name without a form
is told. Files with kernels are never touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from joymigrate.language import Text
from joymigrate.model import Finding, Style, Tier
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.source import SourceText

RULE = "JM207"
STRING = re.compile(
    r'R"(?P<mark>\w*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S
)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"](?P<name>[^>"\n]+)[>"]', re.M)
PLATFORM_HEADER = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*[<\"](?P<name>(?:cuda|cublas|cudnn|cub/|cute/|cutlass|nccl|"
    r"thrust/|cooperative_groups|ATen/cuda|c10/cuda|torch/csrc/cuda|nvToolsExt|nvtx|mma)[^>\"]*)[>\"]",
    re.M,
)
USING = re.compile(r"\busing\s+namespace\s+(?P<name>[\w:]+)\s*;")
KEY = re.compile(r"\bTORCH_LIBRARY_IMPL\s*\(\s*\w+\s*,\s*(?P<key>\w+)")
Span = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class Forms:
    """What a chip's `host.yaml` says, as expressions."""

    includes: Mapping[str, str]
    names: Mapping[str, str]
    words: Mapping[str, str]
    needs: Mapping[str, str]
    keys: Mapping[str, str]
    methods: Mapping[str, str]
    namespaces: tuple[str, ...]
    qualified: re.Pattern[str]
    plain: re.Pattern[str]
    method: re.Pattern[str]
    left: re.Pattern[str]
    aside: re.Pattern[str]

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Forms:
        """The forms of one file of data."""
        spaces = "|".join(map(re.escape, raw["namespaces"]))
        last = "|".join({re.escape(each.rpartition("::")[2]) for each in raw["namespaces"]})
        return cls(
            includes=raw["includes"],
            names=raw["names"],
            words=raw["words"],
            needs=raw["needs"],
            keys=raw["keys"],
            methods=raw["methods"],
            namespaces=tuple(raw["namespaces"]),
            qualified=re.compile(
                rf"(?<![\w:])(?:::)?(?:{spaces}|{last})::(?P<name>{any_of(raw['names'])})\b"
            ),
            plain=re.compile(rf"(?<!\w)(?P<name>{any_of(raw['words'])})\b"),
            method=re.compile(rf"(?:\.|->)\s*(?P<name>{any_of(raw['methods'])})(?=\s*\(\s*\))"),
            aside=re.compile(f"{raw['serves']}|{raw['kernels']}"),
            left=re.compile(re.sub(r"\s*\n?\s+(?=\|)", "", raw["left"].strip())),
        )


def any_of(names: Mapping[str, str]) -> str:
    """One expression for names, the longest first."""
    return "|".join(map(re.escape, sorted(names, key=len, reverse=True)))


_FORMS: dict[Path, Forms | None] = {}


def forms(context: Context) -> Forms | None:
    """The forms of the target, None where its folder has no such file."""
    folder = context.chip.folder
    if folder not in _FORMS:
        raw = context.chip.data("host.yaml")
        _FORMS[folder] = Forms.of(raw) if raw else None
    return _FORMS[folder]


def host(source: SourceText, text: str, context: Context) -> Iterator[Finding]:
    """The sites of one file; `text` is its text with comments blanked out."""
    known = forms(context)
    if known is None or source.path.endswith((".cu", ".cuh")) or known.aside.search(text):
        return
    code = STRING.sub(lambda m: '"' + re.sub(r"[^\n]", " ", m.group()[1:-1]) + '"', text)
    code = INCLUDE.sub(lambda m: " " * len(m.group()), code)
    edits = sorted([*find_includes(text, known), *inside(code, known)])
    rest = blank_spans(code, [(start, end) for start, end, _ in edits])
    missing = [*foreign_headers(text, known), *known.left.finditer(rest)]
    if not edits and not missing:
        return
    if missing:
        first = min(missing, key=lambda each: each.start())
        reason = Text(
            "`{name}` has no form on {chip}", name=first.group().strip(), chip=context.chip.name
        )
        yield report(source, context, first.start(), first.end(), reason)
        return
    if context.style is not Style.DIRECT:
        start, end, _ = edits[0]
        reason = Text(
            "C++ has one form for each platform; --style direct writes that of {chip}",
            chip=context.chip.name,
        )
        yield report(source, context, start, end, reason)
        return
    yield from write_findings(source, context, known, edits, text)


def report(source: SourceText, context: Context, start: int, end: int, reason: str) -> Finding:
    """A report that a file stays."""
    return source.finding(context.rules[RULE], start, end, reason=reason, tier=Tier.REPORT)


def write_findings(
    source: SourceText, context: Context, known: Forms, edits: list[Span], text: str
) -> Iterator[Finding]:
    """One finding per place, all of one group, with the headers that the new names need."""
    group = f"{source.path}:host"  # a file is written as a whole or not at all
    present = {known.includes.get(m["name"], m["name"]) for m in INCLUDE.finditer(text)}
    wanted = {known.needs[new] for _, _, new in edits if new in known.needs} - present
    last = max((m.end() for m in INCLUDE.finditer(text)), default=0)
    lines = [f"#include <{name}>" for name in sorted(wanted)]
    new_lines = source.newline.join(["", *lines] if last else [*lines, ""]) if lines else ""
    for number, (start, end, new) in enumerate(edits):
        spans = [source.edit(start, end, new)]
        if new_lines and not number:
            spans.append(source.edit(last, last, new_lines))
        found = source.finding(
            context.rules[RULE], start, end, after=new, edits=tuple(spans), tier=Tier.UNSAFE
        )
        yield replace(found, group=group)


def find_includes(text: str, known: Forms) -> Iterator[Span]:
    """Headers with a counterpart."""
    for match in INCLUDE.finditer(text):
        if match["name"] in known.includes:
            yield *match.span("name"), known.includes[match["name"]]


def foreign_headers(text: str, known: Forms) -> Iterator[re.Match[str]]:
    """Headers of the old platform without a counterpart."""
    for match in PLATFORM_HEADER.finditer(text):
        own = match.group().endswith('"') and "/" in match["name"]  # `"cuda/ops.h"` of the project
        if match["name"] not in known.includes and not (own and match["name"][0].islower()):
            yield match


def inside(code: str, known: Forms) -> Iterator[Span]:
    """Names, words, dispatch keys and methods with a counterpart, none within another."""
    taken: list[tuple[int, int]] = []
    using = {m["name"] for m in USING.finditer(code)}
    found: list[Span] = []
    for match in KEY.finditer(code):
        if match["key"] in known.keys:
            found.append((*match.span("key"), known.keys[match["key"]]))
    for match in USING.finditer(code):
        if match["name"].removeprefix("::") in known.namespaces:
            found.append((*match.span("name"), next(iter(known.names.values())).partition("::")[0]))
    for match in known.qualified.finditer(code):
        found.append((*match.span(), known.names[match["name"]]))
    for match in known.method.finditer(code):
        found.append((*match.span("name"), known.methods[match["name"]]))
    for match in known.plain.finditer(code):
        found.append((*match.span("name"), known.words[match["name"]]))
    if using & set(known.namespaces) or re.search(r"\busing\s+(?:at|c10)::\w+::\w+", code):
        for match in re.finditer(rf"(?<![\w:.>])(?P<name>{any_of(known.names)})\b", code):
            found.append((*match.span(), known.names[match["name"]]))
    for start, end, new in sorted(found, key=lambda each: (each[0], -each[1])):
        if not any(start < last and end > first for first, last in taken):
            taken.append((start, end))
            yield start, end, new


def blank_spans(text: str, spans: list[tuple[int, int]]) -> str:
    """`text` with these spans blanked out."""
    pieces, at = [], 0
    for start, end in sorted(spans):
        pieces += [text[at:start], " " * (end - start)]
        at = max(at, end)
    return "".join([*pieces, text[at:]])
