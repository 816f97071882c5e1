"""Writes fused calls in the place of one expression: `call if check else expression`."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from joymigrate.model import Finding
from joymigrate.rewrite import fusions
from joymigrate.rewrite.fusions.chip_calls import Fusion
from joymigrate.rewrite.module import Module
from joymigrate.rewrite.text_changes import Span, tell_changes

RULES = ("JM232", "JM233")  # all of their places are expressions
CALLED = re.compile(r"(\w+|[\])\"'])[ \t]*\Z")


def find(module: Module, rule: str) -> Iterator[Finding]:
    """Findings of one of `RULES`."""
    found = fusions.places(module, rule)
    after = write(module.source.text, found)
    source = replace(module.source, text=after, _starts=[], _byte_starts=[])
    again = fusions.places(Module.parse(source, module.context, module.project), rule)
    stable = not again or write(after, again) == after
    reasons = {span: fusion.reason for span, fusion in found.items()}
    yield from tell_changes(module, rule, after, reasons, stable=stable)


def write(text: str, found: Mapping[Span, Fusion]) -> str:
    """A text with fused calls at some places, those inside of others first."""
    done: list[tuple[int, int, int]] = []  # start, end, and by how much it grew
    for (start, end), fusion in sorted(found.items(), key=lambda each: (-each[0][0], each[0][1])):
        last = end + sum(more for first, behind, more in done if start <= first and behind <= end)
        new = f"{fusion.call} if {' and '.join(fusion.checks)} else {text[start:last]}"
        new = new if is_grouped(text, start, last) else f"({new})"
        done.append((start, end, len(new) - (last - start)))
        text = text[:start] + new + text[last:]
    return text


def is_grouped(text: str, start: int, end: int) -> bool:
    """Whether an expression has brackets of its own, not those of a call."""
    before, behind = text[:start].rstrip(), text[end : end + 200].lstrip()
    if not before.endswith("(") or not behind.startswith(")"):
        return False
    called = CALLED.search(before[-100:-1])
    return called is None or keyword.iskeyword(called[1])
