"""Imports point one way through the house; a row never imports its neighbours."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import joymigrate

ROOT = Path(joymigrate.__file__).parent

# Lowest row first. A module may import rows below its own, and its own package.
ROWS: list[list[str]] = [
    ["errors", "model", "attach", "files", "settings", "extras", "modes"],
    ["config", "chips", "ledger", "evidence", "device", "seeded"],
    [
        "rewrite",
        "profile",
        "verify",
        "run.kernels",
        "run.formats",
        "run.monitor",
        "run.memory",
        "run.fill",
    ],
    ["run.rehearse", "run.quantise", "run.engine", "run.train", "run.recsys", "run.cluster"],
    ["run.gateway", "run.image"],
    ["report"],
    ["journey"],
    ["cli"],
]
ROW_OF = {part: number for number, row in enumerate(ROWS) for part in row}


def part_of(module: str) -> str | None:
    """The row entry that `joymigrate.<...>` belongs to."""
    names = module.split(".")[1:]
    for length in (2, 1):
        if ".".join(names[:length]) in ROW_OF:
            return ".".join(names[:length])
    return None


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.startswith("joymigrate.")}


MODULES = sorted(p for p in ROOT.rglob("*.py") if "_rules" not in p.parts)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_imports_point_downwards(path: Path) -> None:
    module = ".".join(["joymigrate", *path.relative_to(ROOT).with_suffix("").parts])
    mine = part_of(module)
    if mine is None:
        return
    for imported in imports_of(path):
        other = part_of(imported)
        if other is None or other == mine or other == "errors":
            continue
        assert ROW_OF[other] < ROW_OF[mine], f"{module} imports {imported}: {mine} may not"


def test_every_package_has_a_row() -> None:
    parts = {
        part_of(".".join(["joymigrate", *p.relative_to(ROOT).with_suffix("").parts]))
        for p in MODULES
    }
    known = {None, *ROW_OF}
    assert parts <= known
    folders = {p.relative_to(ROOT).parts[0] for p in MODULES if len(p.relative_to(ROOT).parts) > 1}
    assert folders <= {row.split(".")[0] for row in ROW_OF}
