"""The comparison of two traces as a document and in blocks."""

from __future__ import annotations

from typing import Any

from joymigrate.profile.diff import HEIGHTS, OperatorPair, TraceDiff
from joymigrate.report.blocks import (
    Amount,
    Block,
    BlockDocument,
    Cell,
    Chapter,
    Listing,
    Paragraph,
    StackedBar,
    TableBlock,
    TileRow,
)
from joymigrate.report.fields import fields
from joymigrate.report.html.page import BarPart, Tile

SCHEMA = "joymigrate.profile-diff/1"
TITLES = {"operators": "Operators", "modules": "Modules", "phases": "Phases"}


def document(found: TraceDiff) -> dict[str, Any]:
    """`joymigrate.profile-diff/1`."""
    return {
        "schema": SCHEMA,
        "baseline": {"trace": found.baseline, "device": found.devices[0], "us": found.total_us[0]},
        "target": {"trace": found.target, "device": found.devices[1], "us": found.total_us[1]},
        **{height: [entry(pair) for pair in found.pairs[height]] for height in HEIGHTS},
        "notes": list(found.notes),
    }


def entry(pair: OperatorPair) -> dict[str, Any]:
    """One pair."""
    return {
        **fields(pair, "name where lost_us:3 ratio:4"),
        "calls": {"baseline": pair.calls[0], "target": pair.calls[1]},
        "us": {"baseline": round(pair.us[0], 3), "target": round(pair.us[1], 3)},
        "operators": {"baseline": list(pair.names[0]), "target": list(pair.names[1])},
    }


def times(pair: OperatorPair) -> str:
    """How many times as long."""
    if pair.ratio is None:
        return "new" if pair.calls[1] else ""
    return "gone" if not pair.calls[1] else f"{pair.ratio:.2f}x"


def describe(found: TraceDiff, most: int) -> BlockDocument:
    """All pairs of each kind; a terminal shows the first `most`."""
    a, b = found.devices
    figures = [
        Tile(f"{found.total_us[0] / 1000:.2f} ms", a, found.baseline),
        Tile(f"{found.total_us[1] / 1000:.2f} ms", b, found.target),
    ]
    summary: list[Block] = [TileRow(figures)]
    lost = [pair for pair in found.pairs["operators"] if pair.lost_us > 0][:8]
    if lost:
        tones = ("report", "unsafe", "safe", "plain")
        parts = [BarPart(p.lost_us, p.name, tones[i % len(tones)]) for i, p in enumerate(lost)]
        summary += [StackedBar(parts), Paragraph("Lost time per step, µs.")]
    summary += [Listing(found.notes)] if found.notes else []
    chapters = [Chapter("summary", "Summary", summary)]
    for height in HEIGHTS:
        rows: list[tuple[Cell, ...]] = [
            (
                pair.name,
                *(Amount(f"{us / 1000:.3f}", us) for us in (pair.lost_us, *pair.us)),
                times(pair),
                pair.calls[0],
                pair.calls[1],
                ", ".join(one for one in pair.names[1] or pair.names[0] if one != pair.name),
                pair.where or "",
            )
            for pair in found.pairs[height]
        ]
        head = ("name", "lost ms", f"{a} ms", f"{b} ms", "times", f"{a} calls", f"{b} calls")
        table = TableBlock((*head, "operators", "where"), rows, (4,), most)
        chapters.append(Chapter(height, TITLES[height], [table], len(rows)))
    return BlockDocument(
        title="Two traces compared",
        subtitle=f"{found.baseline} · {found.target}",
        chapters=chapters,
        footer="joymigrate profile diff",
    )
