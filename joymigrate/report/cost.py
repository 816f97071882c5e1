"""The least time of a recorded step on a chip, as a document and in blocks."""

from __future__ import annotations

from typing import Any

from joymigrate.profile.cost.bound import Cost, Scaling
from joymigrate.report.blocks import (
    Amount,
    BlockDocument,
    Cell,
    Chapter,
    Code,
    Listing,
    TableBlock,
    facts,
)
from joymigrate.report.fields import fields

SCHEMA = "joymigrate.cost/1"
MOST = 10


def document(cost: Cost, *, chip: str, trace: str) -> dict[str, Any]:
    """`joymigrate.cost/1`. Times in µs of one step, sizes in bytes."""
    work, peaks = cost.work, cost.peaks
    return {
        "schema": SCHEMA,
        "grade": "documented",
        "chip": chip,
        "trace": trace,
        "peaks": {
            **fields(peaks, "model=name tflops gb_s source note"),
            "links": [fields(one, "cards gb_s latency_us") for one in peaks.links],
        },
        "work": {
            **fields(work, "flops bytes weight_bytes collective_bytes=collectives launches"),
            "casts": fields(work, "calls=casts bytes=cast_bytes"),
            "copies": fields(work, "calls=copies bytes=copy_bytes"),
            **fields(work, "trains uncounted"),
        },
        "bound": fields(cost, "us=bound_us dominates compute_us weights_us collectives_us mfu"),
        "eager": {
            "us": cost.eager_us,
            "mfu": cost.compute_us / cost.eager_us if cost.eager_us else 0.0,
            "operators": [
                {"op": name, "us": us, "by": by} for name, us, by in cost.eager_by[: MOST * 3]
            ],
        },
        "measured": None
        if cost.measured_us is None
        else {"us": cost.measured_us, "mfu": cost.measured_mfu},
        "scaling": [row(one) for one in cost.scaling],
        "notes": list(cost.notes),
    }


def row(one: Scaling) -> dict[str, Any]:
    """One number of cards."""
    least, most = one.efficiency
    return {
        **fields(one, "cards algorithm exchange_us hidden_us shown_us"),
        "efficiency": {"least": least, "most": most},
    }


def milliseconds(us: float | None) -> str:
    """A time, or that nobody knows it."""
    return "unknown" if us is None else f"{us / 1000:.4g} ms"


def size(count: float) -> str:
    """Bytes in the unit that fits."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def describe(cost: Cost, *, chip: str, trace: str) -> BlockDocument:
    """The bound first, then what it is made of, operators, and several cards."""
    work, peaks = cost.work, cost.peaks
    by_type = ", ".join(f"{n / 1e12:.4g} {dtype}" for dtype, n in work.flops.items() if n)
    total = f"{sum(work.flops.values()) / 1e12:.4g}" + (f" ({by_type})" if by_type else "")
    eager = cost.compute_us / cost.eager_us if cost.eager_us else 0
    bound: list[tuple[str, Cell]] = [
        (f"{cost.dominates} dominates", f"at most {cost.mfu:.1%} of the peak (MFU)"),
        ("compute", milliseconds(cost.compute_us)),
        ("weights from memory", milliseconds(cost.weights_us)),
        *([("collectives", milliseconds(cost.collectives_us))] if work.collectives else []),
        ("one operator after the other",
         f"{milliseconds(cost.eager_us)}, {eager:.1%} of the peak"),
    ]  # fmt: skip
    if cost.measured_us is not None:
        times = cost.measured_us / cost.bound_us
        said = f"{cost.measured_mfu:.1%} of the peak, {times:.2f} times the bound"
        bound.append(("measured", f"{milliseconds(cost.measured_us)}, {said}"))
    counts: list[tuple[str, Cell]] = [
        ("TFLOP", total),
        (
            "bytes",
            f"{size(work.bytes)} as kernels of their own, {size(work.weight_bytes)} of weights",
        ),
        ("kernel launches", work.launches),
        ("casts", f"{work.casts} ({size(work.cast_bytes)})"),
        ("copies", f"{work.copies} ({size(work.copy_bytes)})"),
        *((kind, size(count)) for kind, count in work.collectives.items()),
    ]
    eager_rows = [(Code(name), Amount(milliseconds(us), us), by) for name, us, by in cost.eager_by]
    operators = TableBlock(("operator", "least time", "bound by"), eager_rows, first=MOST)
    chapters = [
        Chapter("bound", "Bound", [facts(bound)]),
        Chapter("work", "Work of a step", [facts(counts)]),
        Chapter("operators", "Operators, each at its own peak", [operators], len(eager_rows)),
    ]
    if cost.scaling:
        head = ("cards", "exchange", "all hidden", "nothing hidden", "efficiency", "algorithm")
        rows: list[tuple[Cell, ...]] = [
            (one.cards, *map(milliseconds, (one.exchange_us, one.hidden_us, one.shown_us)),
             f"{one.efficiency[0]:.0%} to {one.efficiency[1]:.0%}", one.algorithm)
            for one in cost.scaling
        ]  # fmt: skip
        chapters.append(Chapter("cards", "Data parallel", [TableBlock(head, rows, (1, 2, 3))]))
    limits: list[tuple[str, Cell]] = [
        *((f"TFLOP/s, {dtype}", figure) for dtype, figure in peaks.tflops.items()),
        ("memory, GB/s", peaks.gb_s if peaks.gb_s is not None else "–"),
        *((f"{one.cards} cards", f"{one.gb_s:g} GB/s, {one.latency_us:g} µs")
          for one in peaks.links),
        *([("note", peaks.note)] if peaks.note else []),
    ]  # fmt: skip
    chapters.append(Chapter("peaks", "Peaks", [facts(limits)], extra=True))
    if cost.notes:
        chapters.append(Chapter("notes", "Notes", [Listing(cost.notes)]))
    least = milliseconds(cost.bound_us)
    return BlockDocument(
        f"{trace} on {chip} {peaks.name}: a step takes at least {least}",
        f"documented: {peaks.source}; a bound, not a prediction",
        chapters,
        "joymigrate profile cost",
    )
