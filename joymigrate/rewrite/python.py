"""All findings of one Python file: parse, run every codemod, settle overlaps, add the import."""

from __future__ import annotations

import bisect
import symtable
import warnings
from collections.abc import Iterable
from dataclasses import replace

from joymigrate.model import Finding, Style, Tier
from joymigrate.rewrite import backend_import, groups, review_reasons
from joymigrate.rewrite.codemods import all_codemods
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.module import HELPER, Module, Pending, Project, parse
from joymigrate.rewrite.portable.judge import judge_all
from joymigrate.rewrite.source import SourceText

DEFAULT_HELPER_IMPORT = f"import {HELPER} as jm"


def findings(source: SourceText, context: Context, project: Project | None = None) -> list[Finding]:
    """Findings of one file by itself: what only another file could prove is reported.

    Raises `Unreadable` when the text is not Python.
    """
    return find_alone(Module.parse(source, context, project))


def find_alone(
    module: Module, helper_import: str = DEFAULT_HELPER_IMPORT, refused: str | None = None
) -> list[Finding]:
    """Findings of a module, without what only the values of other files could prove."""
    found = [item.no if isinstance(item, Pending) else item for item in raw(module)]
    return finish(module, found, helper_import, refused)


def raw(module: Module) -> list[Finding | Pending]:
    """What the codemods find, before overlaps are settled."""
    found = [item for find in all_codemods() for item in find(module)]
    if module.context.codemods:
        from joymigrate.rewrite import codemod  # which loads all of libcst

        for kind in module.context.codemods:
            found += codemod.findings(kind, module)
    return judge_all(found, module.context)


def finish(
    module: Module,
    found: Iterable[Finding],
    helper_import: str = DEFAULT_HELPER_IMPORT,
    refused: str | None = None,
) -> list[Finding]:
    """Sorted findings without duplicates or overlapping edits, with the import they need.

    `refused` says why the file can't import the helper: what needs it is reported.
    """
    if refused is not None:
        found = [each.leave(refused) if each.needs == "helper" else each for each in found]
    settled = groups.bind(module, settle(keep_uncovered(module, found)), review_reasons.find)
    added = backend_import.find(module, settled, helper_import)
    return [added, *settled] if added is not None else settled


def keep_uncovered(module: Module, found: Iterable[Finding]) -> Iterable[Finding]:
    """In the shim style, only what the vendor's shim does not reach; everything in the others."""
    if module.context.style is not Style.SHIM:
        return found
    covers = module.context.chip.shim.get("covers") or ()
    types = module.context.chip.shim.get("typed_tensors")  # by their names, not as texts
    return [
        each for each in found
        if (each.line, each.column) in module.unreached
        or not (each.rule in covers or (types and each.rule == "JM106" and is_name(each.before)))
    ]  # fmt: skip


def is_name(text: str) -> bool:
    """Whether code is a name, and no text in quotes."""
    return text.replace(".", "").isidentifier()


def settle(found: Iterable[Finding]) -> list[Finding]:
    """Drop repeated findings of a rule at one place; of two overlapping edits keep the first."""
    kept: list[Finding] = []
    seen: set[tuple[object, ...]] = set()
    taken: list[tuple[int, int]] = []
    for finding in sorted(found, key=order):
        place = (finding.rule, finding.line, finding.column, finding.cell)
        if place in seen:
            continue
        seen.add(place)
        # Insertions never clash, and what is taken stays apart and in order.
        spans = [(edit.start, edit.end) for edit in finding.edits if edit.start < edit.end]
        if any(clash(span, taken) for span in spans):
            finding = replace(
                finding,
                tier=Tier.REPORT,
                after=None,
                edits=(),
                needs=None,
                reason="another edit changes the same place",
            )
        else:
            for span in spans:
                bisect.insort(taken, span)
        kept.append(finding)
    return kept


def order(finding: Finding) -> tuple[object, ...]:
    """Position first; at one place the finding that can be fixed before the one that can't."""
    return (
        finding.cell or 0,
        finding.line,
        finding.column,
        finding.tier is Tier.REPORT,
        finding.rule,
    )


def clash(span: tuple[int, int], taken: list[tuple[int, int]]) -> bool:
    """Whether a span overlaps one of `taken`, which are in order and apart from each other."""
    at = bisect.bisect_left(taken, span)
    return (at > 0 and taken[at - 1][1] > span[0]) or (at < len(taken) and taken[at][0] < span[1])


def check(source: SourceText) -> None:
    """Raise `Unreadable` when a file without any site is not valid Python.

    Without a tree of Python objects this takes a fifth of the time; what is refused is parsed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            symtable.symtable(source.text, source.path, "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        parse(source)
