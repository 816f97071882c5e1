"""A verdict as a document that a decision can be made by."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from joymigrate.language import tell
from joymigrate.report.blocks import (
    Amount,
    Badge,
    Block,
    BlockDocument,
    Cell,
    Chapter,
    Code,
    Listing,
    Paragraph,
    Picture,
    PictureRow,
    StackedBar,
    TableBlock,
    TileRow,
    facts,
)
from joymigrate.report.html.page import BarPart, Tile
from joymigrate.report.html.plots import Curve, PlotLimit, PlotMark, PlotStyle, lines
from joymigrate.report.verdict_kinds import parts_of
from joymigrate.report.verdict_words import (
    MEANING,
    STATUS_TONES,
    TONES,
    code_line,
    compared_records,
    counts,
    covers_program,
    figure,
    headline,
    part_of,
    place,
    remarks,
    worst,
)

SHOWN = 200
MOST_CURVES = 4  # steps drawn over depth
SIMULATED = "Rehearsal: the chip was simulated. This verdict does not stand for a real one."


def describe(document: Mapping[str, Any], *, when: str = "") -> BlockDocument:
    """The whole of it. `when` is the time to print, given by the caller."""
    chapters = [summary(document)]
    if document.get("first_divergence"):
        chapters.append(divergence(document["first_divergence"]))
    chapters += growth(document)
    chapters += [chapter for part in parts_of(document) for chapter in part.chapters()]
    chapters += [*stages(document), *records(document), *environment(document)]
    name = (document.get("subject") or {}).get("name") or ""
    chip = (document.get("target") or {}).get("chip")
    known = (str(name), tell("target {chip}", chip=chip) if chip else "", when)
    return BlockDocument(
        title=tell("Verdict: {headline}", headline=headline(document)),
        subtitle=" · ".join(filter(None, known)) or MEANING[document["verdict"]],
        chapters=chapters,
        footer="joymigrate verify",
    )


def summary(document: Mapping[str, Any]) -> Chapter:
    """The outcome in words and in figures."""
    outcome = document["verdict"]
    coverage = document["coverage"]
    pair = coverage["compared"], coverage["recorded"]
    compared, recorded = compared_records(document) if covers_program(document) else pair
    share = compared / recorded if recorded else 0.0
    found = counts(document)
    failed = sum(n for status, n in found.items() if STATUS_TONES[status] == "report")
    warned = found.get("WARN", 0)
    tiles = [
        Tile(outcome.upper(), "verdict", MEANING[outcome], TONES[outcome]),
        Tile(
            f"{100 * share:.1f} %",
            "compared",
            part_of(compared, recorded),
            "safe" if share >= coverage.get("limit", 0) else "unsafe",
        ),
        Tile(f"{failed:,}", "failed records", "", "report" if failed else "safe"),
        Tile(f"{warned:,}", "warnings", "", "unsafe" if warned else "safe"),
    ]
    blocks: list[Block] = [TileRow(tiles)]
    if document.get("rehearsal"):
        blocks.append(Paragraph(SIMULATED, Badge("rehearsal", "unsafe")))
    if document.get("reason"):
        blocks.append(Paragraph(document["reason"]))
    if len(found) > 1:
        blocks.append(StackedBar([BarPart(n, one, STATUS_TONES[one]) for one, n in found.items()]))
    return Chapter("summary", "Summary", blocks)


def divergence(first: Mapping[str, Any]) -> Chapter:
    """Where the two sides part first, and the suspected cause."""
    rows: list[tuple[str, Cell]] = [
        ("where", Code(place(first))),
        ("measured", f"{tell(first['metric'])} {figure(first['value'])}"),
        ("limit", figure(first["limit"])),
    ]
    rows += [(key, first[key]) for key in ("stage", "cause", "evidence") if first.get(key)]
    if code_line(first):
        rows.append(("line", Code(code_line(first))))
    return Chapter("divergence", "First divergence", [facts(rows)])


def growth(document: Mapping[str, Any]) -> Iterator[Chapter]:
    """Error over depth and over steps, side by side."""
    found = document.get("growth") or {}
    pictures = [*depth_plots(document, found.get("depth") or ()), *step_plots(document, found)]
    if pictures:
        yield Chapter("growth", "Growth of the error", [PictureRow(pictures)])


def depth_plots(
    document: Mapping[str, Any], points: Sequence[Mapping[str, Any]]
) -> Iterator[Picture]:
    """Relative error over the order of modules, one curve per step."""
    if not points:
        return
    steps = list(dict.fromkeys(point.get("step") for point in points))
    shown = steps if len(steps) <= MOST_CURVES else [*steps[: MOST_CURVES - 1], steps[-1]]
    curves = [
        Curve(
            "all modules" if step is None else tell("step {number}", number=step),
            [(p["order"], real(p["error"])) for p in points if p.get("step") == step],
        )
        for step in shown
    ]
    first = document.get("first_divergence") or {}
    mark = next(
        (
            PlotMark(p["order"], real(p["error"]), str(p["module"]))
            for p in points
            if p["module"] == first.get("module") and first.get("module")
        ),
        None,
    )
    caption = "Error over depth: slow growth is rounding, a jump is a fault."
    axes = "modules in the order of execution", "relative error"
    picture = lines(curves, caption, *axes, style=PlotStyle(log=True), mark=mark)
    yield Picture(picture, caption)


def step_plots(document: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[Picture]:
    """The two losses, and how far they are apart."""
    points = [p for p in found.get("steps") or () if isinstance(p.get("loss"), list | tuple)]
    if not points:
        return
    sides = [[(p["step"], real(p["loss"][side])) for p in points] for side in (0, 1)]
    curves = [Curve("baseline", sides[0]), Curve("target", sides[1])]
    caption = "Loss of both sides over steps."
    yield Picture(lines(curves, caption, "step", "loss"), caption)
    apart = [
        (x, abs(b - a) / max(abs(a), 1e-12))
        for (x, a), (_, b) in zip(sides[0], sides[1], strict=True)
    ]
    curve = document.get("curve") or {}
    limit = curve.get("limit_pass")
    mark = None
    outside = curve.get("first_outside")
    if outside is not None:
        mark = next(
            (
                PlotMark(x, y, tell("step {number}", number=f"{x:g}"))
                for x, y in apart
                if x == outside
            ),
            None,
        )
    picture = lines(
        [Curve("difference", apart)],
        "Error over steps.",
        "step",
        "relative difference of the loss",
        style=PlotStyle(log=True),
        limits=[PlotLimit("limit of the mean", limit)] if limit else [],
        mark=mark,
    )
    yield Picture(picture, "Error over steps.")


def real(value: Any) -> float:
    """A number of the document; texts such as "nan" and nothing as NaN."""
    return float(value) if isinstance(value, int | float) else math.nan


def stages(document: Mapping[str, Any]) -> Iterator[Chapter]:
    """One row per stage."""
    found = document.get("stages", ())
    if not found:
        return
    rows = [
        [
            stage["stage"],
            stage["title"],
            Badge(stage["verdict"], TONES[stage["verdict"]]),
            part_of(stage["compared"], stage["recorded"]) if stage["recorded"] else "–",
            remarks(stage),
        ]
        for stage in found
    ]
    table = TableBlock(["", "what", "verdict", "compared", "why"], rows)
    yield Chapter("stages", "Stages", [table], len(rows))


def records(document: Mapping[str, Any]) -> Iterator[Chapter]:
    """The worst records, and what was not compared."""
    rows = [
        [
            Badge(record["status"], STATUS_TONES[record["status"]]),
            Code(place(record)),
            record["metric"],
            amount(record["value"]),
            amount(record["limit"]),
            record.get("reason") or consequence(record),
        ]
        for record in worst(document, SHOWN)
    ]
    if rows:
        total = len(document["records"])
        cut = tell("The worst {shown} of {total}.", shown=len(rows), total=f"{total:,}")
        table = TableBlock(["status", "where", "metric", "value", "limit", "why"], rows)
        blocks: list[Block] = [Paragraph(cut), table] if total > SHOWN else [table]
        yield Chapter("records", "Records, the worst first", blocks, total)
    missing = document["coverage"].get("uncompared") or ()
    if missing:
        listing = Listing([Code(str(name)) for name in missing[:SHOWN]])
        yield Chapter("uncompared", "Not compared", [listing], len(missing))


def consequence(record: Mapping[str, Any]) -> str:
    """Which module's failure a record follows from, where it follows from one."""
    module = record.get("consequence_of")
    return tell("follows from {module}", module=module) if module else ""


def amount(value: Any) -> Amount:
    """A number of the document in four digits; what is no number sorts first."""
    found = real(value)
    return Amount(figure(value), -1.0 if math.isnan(found) else found)


def environment(document: Mapping[str, Any]) -> Iterator[Chapter]:
    """What is known about both sides."""
    rows = side_rows(document.get("baseline") or {}, document.get("target") or {})
    if rows:
        table = TableBlock(["", "baseline", "target"], rows)
        yield Chapter("environment", "Environment", [table])


def side_rows(baseline: Mapping[str, Any], target: Mapping[str, Any]) -> list[list[str]]:
    """The two sides key by key, nested ones by their dotted path."""
    flat = [dict(flatten(side)) for side in (baseline, target)]
    keys = dict.fromkeys([*flat[0], *flat[1]])
    return [[key, *(figure(side.get(key)) for side in flat)] for key in keys]


def flatten(side: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings; lists as text."""
    for key, value in side.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{before}{key}.")
        elif isinstance(value, list | tuple):
            yield f"{before}{key}", ", ".join(map(str, value))
        else:
            yield f"{before}{key}", value
