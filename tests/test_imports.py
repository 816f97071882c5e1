"""Imports point one way through the house; a row never imports its neighbours.

Every import counts: at the top of a file, inside a function, and for types only. A module that no
row names fails, so that a new one has to say where it stands.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache

import pytest

from tests.sources import parse, sources, statements

# Lowest row first. A part may import the rows below its own, and itself. The longest name that
# fits a module decides: `run.train.formats` stands below `run.train`.
ROWS: list[list[str]] = [
    ["errors", "model"],
    ["schema", "data"],
    ["attach", "files", "extras", "modes", "language", "stats", "processors", "orphans"],
    ["settings", "seeded", "evidence"],
    ["config", "chips", "ledger", "device", "run.serve.web", "run.serve.evidence"],
    ["launching"],
    [
        "blame",
        "rewrite",
        "profile",
        "verify",
        "run.kernels",
        "environment",
        "run.rehearse.fill",
        "run.rehearse.memory",
        "run.serve.monitor",
        "run.serve.kserve",
        "run.train.formats",
        "run.tensorflow",
        "run.beam",
    ],
    [
        "run.door",
        "run.rehearse",
        "run.kit",
        "run.checkpoint",
        "run.serve.engine",
        "run.cluster",
        "lookup",
    ],
    ["run.train"],
    ["run.serve.gateway", "run.serve.ranking", "run.render", "run.bundle"],
    ["run.serve.generative"],
    ["report"],
    ["journey", "api", "codemods"],
    ["agent"],
    ["cli"],
    ["__main__"],
]
ROW_OF = {part: number for number, row in enumerate(ROWS) for part in row}

# Files that hold nothing but the name of a package: they stand in no row.
BARE = {"joymigrate", "joymigrate.run", "joymigrate.run.serve"}

# What still points upwards. The list only gets shorter: a pair that is gone fails.
UPWARDS: set[tuple[str, str]] = set()

# Modules that import each other in a ring, over imports inside functions or for types. The list
# only gets shorter: a ring that is not here fails, and so does one that is gone.
RINGS: list[set[str]] = [
    {
        "joymigrate.rewrite.guards",
        "joymigrate.rewrite.module",
    },
]


def part_of(module: str) -> str | None:
    """The part of a row that `joymigrate.<...>` belongs to; None where no row names it."""
    names = module.split(".")[1:]
    for length in range(len(names), 0, -1):
        if ".".join(names[:length]) in ROW_OF:
            return ".".join(names[:length])
    return None


def imports_of(tree: ast.Module, package: str) -> set[str]:
    """Every module or name of joymigrate that a file imports anywhere, `from . import` included."""
    names: set[str] = set()
    for node in statements(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base]).rstrip(".")
            names |= {f"{base}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] == "joymigrate"}


def refusals(module: str, imported: Iterable[str]) -> list[str]:
    """Why a module may not import what it imports, a sentence each."""
    mine = part_of(module)
    if mine is None:
        return [] if module in BARE else [f"{module} stands in no row of tests/test_imports.py"]
    refused = []
    for name in sorted(imported):
        other = part_of(name)
        if other is None:
            if name.rpartition(".")[0] not in BARE and name not in BARE:
                refused.append(f"{module} imports {name}, which stands in no row")
        elif other != mine and ROW_OF[other] >= ROW_OF[mine] and (module, name) not in UPWARDS:
            refused.append(f"{module} imports {name}: {mine} may not import {other}")
    return refused


def name_of(path: str) -> str:
    parts = ["joymigrate", *path.removesuffix(".py").split("/")]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sources()}


@cache
def house() -> dict[str, frozenset[str]]:
    """Every module of joymigrate, with what it imports."""
    modules = {}
    for module, path in MODULES.items():
        package = module if path.endswith("__init__.py") else module.rpartition(".")[0]
        modules[module] = frozenset(imports_of(parse(path), package))
    return modules


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_downwards(module: str) -> None:
    assert refusals(module, house()[module]) == []


def test_a_new_module_without_a_row_is_refused() -> None:
    tree = ast.parse("from joymigrate.cli import _main")
    refused = refusals("joymigrate.helpers", imports_of(tree, "joymigrate"))
    assert refused == ["joymigrate.helpers stands in no row of tests/test_imports.py"]


@pytest.mark.parametrize(
    "line",
    [
        "from joymigrate.cli import _main",
        "def late():\n    from joymigrate.cli import _main",
        "if TYPE_CHECKING:\n    from joymigrate.cli._main import app",
        "import joymigrate.report.text",
        "from joymigrate import report",
        "from .. import report",
    ],
)
def test_a_low_module_may_not_import_a_high_one(line: str) -> None:
    imported = imports_of(ast.parse(line), "joymigrate.verify")
    assert len(refusals("joymigrate.verify.new", imported)) == 1


def test_what_points_upwards_still_does() -> None:
    gone = {pair for pair in UPWARDS if pair[1] not in house().get(pair[0], ())}
    assert gone == set(), "take them out of UPWARDS"


def rings(modules: dict[str, frozenset[str]]) -> list[set[str]]:
    """The strongly connected sets of more than one module (Tarjan 1972), largest first."""
    edges: dict[str, set[str]] = {}
    for module, imported in modules.items():
        targets = set()
        for name in imported:
            target = name if name in modules else name.rpartition(".")[0]
            # A package's front that hands out its own modules is no ring by itself.
            if target in modules and target != module and not module.startswith(f"{target}."):
                targets.add(target)
        edges[module] = targets
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    result: list[set[str]] = []

    def visit(module: str) -> None:
        order[module] = low[module] = len(order)
        stack.append(module)
        for target in sorted(edges[module]):
            if target not in order:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], order[target])
        if low[module] == order[module]:
            ring = set()
            while not ring or module not in ring:
                ring.add(stack.pop())
            if len(ring) > 1:
                result.append(ring)

    for module in sorted(modules):
        if module not in order:
            visit(module)
    return sorted(result, key=lambda ring: (-len(ring), sorted(ring)))


def test_rings_of_imports_only_get_fewer() -> None:
    now = rings(house())
    known = [frozenset(ring) for ring in RINGS]
    new = [sorted(ring) for ring in now if frozenset(ring) not in known]
    gone = [sorted(ring) for ring in known if set(ring) not in now]
    assert new == [], "import rings that were not there before"
    assert gone == [], "rings that are gone: take them out of RINGS"


def test_a_ring_is_seen_through_an_import_inside_a_function() -> None:
    modules = {
        "joymigrate.a": frozenset({"joymigrate.b.make"}),
        "joymigrate.b": frozenset({"joymigrate.a"}),
        "joymigrate.c": frozenset({"joymigrate.a"}),
    }
    assert rings(modules) == [{"joymigrate.a", "joymigrate.b"}]
