"""Makefiles: variables that are exported, and the recipes, read as shell text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from joymigrate.model import Finding, Tier
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.readers import _commands, _environment, _options, shell
from joymigrate.rewrite.readers._migration_map import Sites, worth_reading
from joymigrate.rewrite.source import SourceText

PATTERNS = ("Makefile", "makefile", "GNUmakefile", "*.mk", "Makefile.*", "justfile", "Justfile")
VARIABLE = re.compile(
    r"[ \t]*(?P<export>export[ \t]+)?(?P<name>[A-Za-z_]\w*)[ \t]*(?P<sign>[:?+]?:?=)(?P<value>.*)"
)


def read(source: SourceText, context: Context) -> Iterator[Finding]:
    """Findings of one file. make's own functions and conditions are not evaluated."""
    sites = Sites.of(source, context)
    if not worth_reading(sites):
        return
    text = source.text
    at = 0
    while at < len(text):
        end = logical_end(text, at)
        line = text[at:end]
        if line.startswith(("\t", "    ")):
            recipe(sites, at, end)
        elif not line.lstrip().startswith("#"):
            variable(sites, at, end)
        at = end + 1
    yield from sites.ordered()


def logical_end(text: str, at: int) -> int:
    """Where a line with its continuations ends."""
    while True:
        end = text.find("\n", at)
        if end < 0:
            return len(text)
        if not text[at:end].rstrip("\r").endswith("\\"):
            return end
        at = end + 1


def recipe(sites: Sites, start: int, end: int) -> None:
    """One line of a recipe, without make's prefixes `@`, `-` and `+`."""
    text = sites.source.text
    while start < end and text[start] in " \t@-+":
        start += 1
    if text[start : start + 1] == "#":
        return
    floor, doubt = sites.floor, sites.doubt
    sites.floor, sites.doubt = Tier.UNSAFE, "make expands the line before the shell sees it"
    shell.script(sites, start, end)
    sites.floor, sites.doubt = floor, doubt


def variable(sites: Sites, start: int, end: int) -> None:
    """`export NAME = value` and `NAME := value`."""
    match = VARIABLE.match(sites.source.text, start, end)
    if match is None:
        return
    first, last = match.span("name")
    known = sites.moves.variable(match["name"])
    if known is None:
        _environment.deals_with(sites, match["name"])
        value = _commands.read(sites.source.text, *match.span("value"))
        _environment.uses(sites, value.expansions)
        kind = sites.moves.sink(match["name"])
        for command in value.commands if kind else ():
            floor, doubt = sites.floor, sites.doubt
            sites.floor, sites.doubt = Tier.UNSAFE, "what make hands it to is not known"
            for word in command.words:
                _options.value(
                    sites, word, 0, kind, key=match["name"], rule=_options.flow_rule(kind)
                )
            sites.floor, sites.doubt = floor, doubt
        return
    rule, advice = known
    to = None if sites.moves.agnostic or advice.to == match["name"] else advice.to
    reason = advice.note or "only what make exports reaches the program"
    sites.add(rule, first, last, to, tier=Tier.UNSAFE, reason=reason)
