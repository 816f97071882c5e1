"""Runs the codemods of fused operators on files that hold a place for one."""

from __future__ import annotations

from collections.abc import Iterator

from joymigrate.model import Finding
from joymigrate.rewrite import fusions
from joymigrate.rewrite.fusions import expressions
from joymigrate.rewrite.module import Module


def find(module: Module) -> Iterator[Finding]:
    """Findings of every fusion that the chip has; libcst is loaded for statements alone."""
    if "torch" not in module.source.text:
        return
    rules = [rule for rule in fusions.FORMS if fusions.places(module, rule)]
    for rule in rules:
        if rule in expressions.RULES:
            yield from expressions.find(module, rule)
    if set(rules) <= set(expressions.RULES):
        return
    from joymigrate.rewrite import codemod  # which loads all of libcst
    from joymigrate.rewrite.fusions.codemods import CODEMODS

    for kind in CODEMODS:
        if kind.RULE in rules:
            yield from codemod.findings(kind, module)
