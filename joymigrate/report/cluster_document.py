"""What a simulation says: figures per policy, use over time per queue and kind, nodes × cards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from joymigrate.report.blocks import (
    Block,
    BlockDocument,
    Chapter,
    Picture,
    PictureRow,
    TableBlock,
    TileRow,
)
from joymigrate.report.html.page import Html, Tile, escape
from joymigrate.report.html.plots import Curve, PlotStyle, StackLayer, lines, stack_areas
from joymigrate.run.cluster.simulate import Simulation
from joymigrate.run.cluster.timeline import ClusterTimeline, TimelineView

WIDTH = 960  # of the picture of nodes
# Colours that differ in lightness too, and read on light and dark ground.
COLORS = (
    "#3b7dd8", "#d98a2b", "#2f9e77", "#b4559c", "#8a6d3b", "#5f6bc4", "#c0504d", "#6b9e2f",
    "#2b9bb0", "#98567c",
)  # fmt: skip
CELL = 9  # pixels of one card in the picture
COLUMNS = 4  # columns of nodes in the picture
REASONS = 50
FIRST = 20  # of them on a terminal


def describe(
    results: Sequence[Mapping[str, Any]], runs: Sequence[Simulation], nodes: str, trace: str
) -> BlockDocument:
    """All policies; the pictures stand on pages alone."""
    chapters = [Chapter("summary", "Summary", summary(results))]
    for run in runs:
        line = run.timeline
        pictures = PictureRow(
            [
                use(line, line.queues, "Cards in use per queue over time."),
                use(line, line.kinds, "Cards in use per kind of server over time."),
                waiting(line),
            ]
        )
        nodes_drawn = grid(run.picture, sorted(line.queues))
        blocks: list[Block] = [pictures, Picture(nodes_drawn, picture_caption(run.picture))]
        chapters.append(Chapter(f"policy-{run.policy}", f"Policy {run.policy}", blocks))
    for result in results:
        if result["unplaced"]:
            count = len(result["unplaced"])
            title = f"Never placed under {result['policy']}"
            table = reasons(result["unplaced"])
            chapters.append(Chapter(f"unplaced-{result['policy']}", title, [table], count))
    return BlockDocument(
        title="Cluster simulation",
        subtitle=f"{nodes} · {trace}",
        chapters=chapters,
        footer="joymigrate cluster simulate",
        data={"results": list(results)},
    )


def summary(results: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Tiles of the best policy and a table of all."""
    best = max(results, key=lambda one: (one["allocation_pct"], -one["wait_mean_h"]))
    figures = [
        Tile(f"{best['allocation_pct']:.2f} %", "cards in use", f"policy {best['policy']}"),
        Tile(f"{best['wait_mean_h']:.2f} h", "mean wait", f"99 % below {best['wait_p99_h']:.1f} h"),
        Tile(str(best["evictions"]), "gangs stopped", "for a queue's or a priority's claim"),
        Tile(f"{best['decisions_per_s']:,.0f}", "decisions per second", f"{best['jobs']:,} jobs"),
    ]
    keys = ("allocation_pct", "wait_mean_h", "wait_p99_h", "blocked_pct", "fragmentation_pct",
            "fairness", "evictions", "decisions_per_s")  # fmt: skip
    head = ("Policy", "In use %", "Mean wait h", "p99 wait h", "Blocked %", "Fragmented %",
            "Fairness", "Stopped", "Decisions/s", "Unplaced")  # fmt: skip
    rows = [
        (one["policy"], *(figure_text(one.get(key)) for key in keys), len(one["unplaced"]))
        for one in results
    ]
    return [TileRow(figures), TableBlock(head, rows, range(1, len(head)))]


def figure_text(value: float | None) -> str:
    """A figure, or a dash where the experiment has none."""
    return "–" if value is None else f"{value:,.2f}".rstrip("0").rstrip(".")


def reasons(unplaced: Sequence[Mapping[str, str]]) -> TableBlock:
    """The most frequent reasons."""
    counted: dict[str, int] = {}
    for item in unplaced:
        counted[item["reason"]] = counted.get(item["reason"], 0) + 1
    rows = sorted(counted.items(), key=lambda item: -item[1])[:REASONS]
    return TableBlock(("Reason", "Jobs"), rows, first=FIRST)


def use(line: ClusterTimeline, series: Mapping[str, Sequence[float]], caption: str) -> Picture:
    """Cards in use, one area on the other up to the cluster's cards."""
    areas = [
        StackLayer(name, COLORS[number % len(COLORS)], values)
        for number, (name, values) in enumerate(series.items())
    ]
    most = float(sum(line.capacity.values()))
    return Picture(stack_areas(line.hours, areas, caption, "hours", "cards", most=most), caption)


def waiting(line: ClusterTimeline) -> Picture:
    """The number of waiting jobs as a line."""
    curve = Curve("jobs", list(zip(line.hours, line.waiting, strict=True)))
    caption, style = "Jobs that wait over time.", PlotStyle(steps=True, ground=True)
    return Picture(lines([curve], caption, "hours", "jobs", style=style), caption)


def grid(picture: TimelineView, queues: Sequence[str]) -> Html:
    """One row of squares per node; a colour per queue, grey for broken or foreign cards."""
    color = {queue: COLORS[i % len(COLORS)] for i, queue in enumerate(queues)}
    color |= {"-": "#444c", "*": "#8888", "+": "#888c"}
    per_column = -(-len(picture.rows) // COLUMNS) or 1
    wide = WIDTH / COLUMNS
    squares = []
    for number, (name, kind, leaf, held) in enumerate(picture.rows):
        x0, y = wide * (number // per_column), (number % per_column) * (CELL + 3)
        where = f"{name} ({kind}{', leaf ' + leaf if leaf else ''})"
        for card, owner in enumerate(held):
            fill = f'fill="{color[owner]}"' if owner else 'fill="none" stroke="currentColor"'
            squares.append(
                f'<rect x="{x0 + card * (CELL + 1):.1f}" y="{y}" width="{CELL}" height="{CELL}" '
                f'{fill} stroke-opacity=".3"><title>{escape(where)} card {card}: '
                f"{escape(owner or 'free')}</title></rect>"
            )
    keys = "".join(
        f'<li><i style="background: {color[queue]}"></i>{escape(queue)}</li>' for queue in queues
    )
    height = per_column * (CELL + 3)
    return Html(
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        f'aria-label="nodes and cards">{"".join(squares)}</svg><ul class="legend">{keys}</ul>'
    )


def picture_caption(picture: TimelineView) -> str:
    """What the picture shows, and what it leaves out."""
    more = f" {picture.more:,} further nodes are not shown." if picture.more else ""
    return f"Nodes × cards when most were in use; empty squares are free.{more}"
