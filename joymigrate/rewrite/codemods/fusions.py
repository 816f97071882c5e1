"""Runs the codemods of fused operators on files that could hold one."""

from __future__ import annotations

from collections.abc import Iterator

from joymigrate.model import Finding
from joymigrate.rewrite.module import Module

WORDS = ("rsqrt(", "rotate_half", "silu(", "softmax(")


def find(module: Module) -> Iterator[Finding]:
    """Findings of every fusion that the chip has; libcst is not loaded for any other file."""
    text = module.source.text
    if "torch" not in text or not any(word in text for word in WORDS):
        return
    if not (module.context.chip.data("fused.yaml") or {}).get("fused"):
        return
    from joymigrate.rewrite import codemod, fusions  # which load all of libcst

    for kind in fusions.CODEMODS:
        yield from codemod.findings(kind, module)
