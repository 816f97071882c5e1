"""Where tables lie: whole on one process, cut by rows, or cut by columns; with the reason for each.

    plan = make_plan(tables, world=8, memory_bytes=60 << 30, access={"user": 81920})
    print(plan)

Costs are those of a step: ids looked up times bytes of a row. Nothing is measured here: frequencies
are what the caller measured (`access`: ids a step), and without them every table counts the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from joymigrate.errors import JoyError
from joymigrate.run.train.tables.row_optimiser import WHOLE_ROW

KINDS = ("table", "row", "column")
HOT = 1.5  # of a process's fair share of the traffic: beyond it a table is cut
NARROWEST = 32  # columns a part keeps at least: narrower rows waste a memory access


@dataclass(frozen=True, slots=True)
class TableNeed:
    """What the planner knows of a table. `row_bytes` with the optimiser's state."""

    name: str
    rows: int
    columns: int
    row_bytes: int
    dynamic: bool = False
    optimiser: str = "sgd"
    cached: bool = False  # the device holds a cache, whatever the number of rows
    access: float = 1.0  # ids a step, repeated ones once


@dataclass(frozen=True, slots=True)
class TablePart:
    """A part of a table on one process; `first_row` means nothing where ids are hashed."""

    table: str
    rank: int
    first_row: int
    rows: int
    first_column: int
    columns: int


@dataclass(frozen=True, slots=True)
class Placement:
    """One table's way, its parts in order, and why."""

    table: str
    kind: str
    parts: tuple[TablePart, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class ShardingPlan:
    """All tables' placements; printing it gives a line each, then each process's share."""

    placements: tuple[Placement, ...]
    world: int
    bytes_by_rank: tuple[int, ...]
    load_by_rank: tuple[float, ...]

    def __str__(self) -> str:
        lines = [
            f"{item.table}: by {item.kind} on {ranks_text(item.parts)}: {item.reason}"
            for item in self.placements
        ]
        total = sum(self.load_by_rank) or 1.0
        for rank, (size, load) in enumerate(
            zip(self.bytes_by_rank, self.load_by_rank, strict=True)
        ):
            lines.append(f"process {rank}: {size / 2**20:.1f} MiB, {load / total:.0%} of traffic")
        return "\n".join(lines)


def ranks_text(parts: Sequence[TablePart]) -> str:
    """`process 1`, or `processes 0-3`."""
    ranks = [part.rank for part in parts]
    return f"process {ranks[0]}" if len(ranks) == 1 else f"processes {min(ranks)}-{max(ranks)}"


def make_plan(
    tables: Sequence[TableNeed],
    world: int,
    memory_bytes: int | None = None,
    fixed: Mapping[str, str] | None = None,
) -> ShardingPlan:
    """Place every table. `memory_bytes` of one device for rows; `fixed` asks for kinds by table.

    Raises `JoyError` where the rows don't fit, or a kind is asked for that a table can't have.
    """
    fixed = dict(fixed or {})
    check_fixed(fixed, tables)
    total = sum(load_of(item) for item in tables)
    sizes, loads = [0] * world, [0.0] * world
    kinds = {
        item.name: choose_kind(item, world, memory_bytes, total, fixed.get(item.name))
        for item in tables
    }
    made: dict[str, Placement] = {}
    # Tables that are cut load every process alike; whole ones fill what is left, the largest first.
    order = sorted(tables, key=lambda item: (kinds[item.name][0] == "table", -load_of(item)))
    for item in order:
        kind, reason = kinds[item.name]
        rank = 0
        if kind == "table":
            rank = least_loaded(item, sizes, loads, memory_bytes)
            if world > 1:
                reason += f"; process {rank} had the least traffic with room"
        parts = cut(item, kind, world, rank)
        for part in parts:
            sizes[part.rank] += (
                bytes_of(item) * part.rows * part.columns // (item.rows * item.columns)
            )
            loads[part.rank] += load_of(item) / len(parts)
        made[item.name] = Placement(item.name, kind, parts, reason)
    plan = ShardingPlan(
        tuple(made[item.name] for item in tables), world, tuple(sizes), tuple(loads)
    )
    if memory_bytes is not None and max(sizes, default=0) > memory_bytes:
        raise JoyError(
            f"the rows need {max(sizes) / 2**20:.0f} MiB on one process, and there are "
            f"{memory_bytes / 2**20:.0f}",
            help="give the largest tables cache_rows, or take more processes",
        )
    return plan


def check_fixed(fixed: Mapping[str, str], tables: Sequence[TableNeed]) -> None:
    """Refuse unknown tables and kinds."""
    names = {item.name for item in tables}
    for name, kind in fixed.items():
        if name not in names or kind not in KINDS:
            raise JoyError(
                f"there is no way '{kind}' for table '{name}'",
                help=f"tables: {', '.join(sorted(names))}; ways: {', '.join(KINDS)}",
            )


def load_of(item: TableNeed) -> float:
    """Bytes a step."""
    return item.access * item.row_bytes


def bytes_of(item: TableNeed) -> int:
    """Bytes of all rows on devices; a cache is part of every process's own memory already."""
    return 0 if item.cached else item.rows * item.row_bytes


def choose_kind(
    item: TableNeed, world: int, memory: int | None, total: float, fixed: str | None
) -> tuple[str, str]:
    """The way of one table, and why."""
    whole_row = item.optimiser in WHOLE_ROW
    if fixed is not None:
        if fixed == "column" and whole_row:
            raise JoyError(
                f"{item.optimiser} needs whole rows, and columns would be on several processes",
                where=f"table '{item.name}'",
                help="take another way, or adagrad, adam or sgd",
            )
        if fixed == "column" and item.columns < world:
            raise JoyError(
                f"{item.columns} columns can't be cut for {world} processes",
                where=f"table '{item.name}'",
                help="take rows",
            )
        return fixed, "asked for"
    if world == 1:
        return "table", "there is one process"
    if item.dynamic:
        return "row", "ids have no bound, so rows are spread by a hash of the id"
    size = bytes_of(item)
    if memory is not None and size > memory:
        return "row", f"{size / 2**20:.0f} MiB don't fit one device ({memory / 2**20:.0f} MiB)"
    share = load_of(item) / total if total else 0.0
    if share > HOT / world:
        hot = f"it has {share:.0%} of the traffic, a fair share is {1 / world:.0%}"
        if item.rows < world * 64 and not whole_row and item.columns >= world * NARROWEST:
            return "column", f"{hot}, and {item.rows} rows are too few to spread"
        return "row", hot
    return "table", f"{share:.0%} of the traffic, {size / 2**20:.1f} MiB"


def least_loaded(
    item: TableNeed, sizes: Sequence[int], loads: Sequence[float], memory: int | None
) -> int:
    """The process with the least traffic that has room; without room the emptiest."""
    size = bytes_of(item)
    fits = [r for r in range(len(sizes)) if memory is None or sizes[r] + size <= memory]
    if fits:
        return min(fits, key=lambda r: (loads[r], sizes[r], r))
    return min(range(len(sizes)), key=lambda r: (sizes[r], r))


def cut(item: TableNeed, kind: str, world: int, rank: int) -> tuple[TablePart, ...]:
    """The parts of a table."""
    whole = TablePart(item.name, rank, 0, item.rows, 0, item.columns)
    if kind == "table":
        return (whole,)
    if kind == "column":
        return tuple(
            replace(whole, rank=r, first_column=a, columns=b - a)
            for r, (a, b) in enumerate(spans(item.columns, world))
        )
    return tuple(
        replace(whole, rank=r, first_row=a, rows=b - a)
        for r, (a, b) in enumerate(spans(item.rows, world))
    )


def spans(count: int, parts: int) -> list[tuple[int, int]]:
    """`count` in nearly equal spans."""
    edges = [count * n // parts for n in range(parts + 1)]
    return list(pairwise(edges))
