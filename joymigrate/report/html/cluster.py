"""The page of a simulation: figures per policy, use over time per queue and kind, nodes × cards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from joymigrate.report.html.page import Html, Page, Section, Tile, escape, figure, table, tiles
from joymigrate.report.labels import Labels
from joymigrate.run.cluster.simulate import Simulation
from joymigrate.run.cluster.timeline import Timeline, TimelineView

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 960, 240, 56, 24, 8
# Colours that differ in lightness too, and read on light and dark ground.
COLORS = (
    "#3b7dd8", "#d98a2b", "#2f9e77", "#b4559c", "#8a6d3b", "#5f6bc4", "#c0504d", "#6b9e2f",
    "#2b9bb0", "#98567c",
)  # fmt: skip
CELL = 9  # pixels of one card in the picture
COLUMNS = 4  # columns of nodes in the picture
REASONS = 50


def render(
    results: Sequence[Mapping[str, Any]], runs: Sequence[Simulation], nodes: str, trace: str
) -> str:
    """One HTML document for all policies."""
    sections = [Section("summary", "Summary", summary(results))]
    for run in runs:
        line = run.timeline
        body = Html(
            figure(stack_areas(line, line.queues), "Cards in use per queue over time, in hours.")
            + figure(stack_areas(line, line.kinds), "Cards in use per kind of server over time.")
            + figure(waiting(line), "Jobs that wait over time.")
            + figure(grid(run.picture, sorted(line.queues)), picture_caption(run.picture))
        )
        sections.append(Section(f"policy-{run.policy}", f"Policy {run.policy}", body))
    for result in results:
        if result["unplaced"]:
            count = len(result["unplaced"])
            title = f"Never placed under {result['policy']}"
            body = reasons(result["unplaced"])
            sections.append(Section(f"unplaced-{result['policy']}", title, body, count))
    return Page(
        title="Cluster simulation",
        subtitle=f"{nodes} · {trace}",
        sections=sections,
        say=Labels("en"),
        footer="joymigrate cluster simulate",
        data={"results": list(results)},
    ).render()


def summary(results: Sequence[Mapping[str, Any]]) -> Html:
    """Tiles of the best policy and a table of all."""
    best = max(results, key=lambda one: (one["allocation_pct"], -one["wait_mean_h"]))
    figures = [
        Tile(f"{best['allocation_pct']:.2f} %", "cards in use", f"policy {best['policy']}"),
        Tile(f"{best['wait_mean_h']:.2f} h", "mean wait", f"99 % below {best['wait_p99_h']:.1f} h"),
        Tile(str(best["evictions"]), "gangs stopped", "for a queue's or a priority's claim"),
        Tile(f"{best['decisions_per_s']:,.0f}", "decisions per second", f"{best['jobs']:,} jobs"),
    ]
    keys = ("allocation_pct", "wait_mean_h", "wait_p99_h", "blocked_pct", "fragmentation_pct",
            "fairness", "evictions")  # fmt: skip
    head = ("Policy", "In use %", "Mean wait h", "p99 wait h", "Blocked %", "Fragmented %",
            "Fairness", "Stopped", "Unplaced")  # fmt: skip
    rows = [
        (one["policy"], *(figure_text(one.get(key)) for key in keys), len(one["unplaced"]))
        for one in results
    ]
    return Html(tiles(figures) + table(head, rows, right=range(1, len(head))))


def figure_text(value: float | None) -> str:
    """A figure, or a dash where the experiment has none."""
    return "–" if value is None else f"{value:,.2f}".rstrip("0").rstrip(".")


def reasons(unplaced: Sequence[Mapping[str, str]]) -> Html:
    """The most frequent reasons."""
    counted: dict[str, int] = {}
    for item in unplaced:
        counted[item["reason"]] = counted.get(item["reason"], 0) + 1
    rows = sorted(counted.items(), key=lambda item: -item[1])[:REASONS]
    return table(("Reason", "Jobs"), rows, right=(1,))


def axes(hours: Sequence[float], top: float, unit: str) -> str:
    """Frame, three lines across and the ends of both scales."""
    span = HEIGHT - TOP - BOTTOM
    lines = []
    for part in (0.0, 0.5, 1.0):
        y = TOP + span * (1 - part)
        lines.append(
            f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" '
            f'stroke-opacity=".25"/><text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" '
            f'font-size="11" fill="currentColor">{top * part:,.0f}</text>'
        )
    last = hours[-1] if hours else 0
    for part, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        x = LEFT + (WIDTH - LEFT) * part
        lines.append(
            f'<text x="{x:.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}" font-size="11" '
            f'fill="currentColor">{last * part:,.1f} {unit}</text>'
        )
    return "".join(lines)


def place(hours: Sequence[float], values: Sequence[float], top: float) -> list[str]:
    """Points of a series inside the frame."""
    span, last = HEIGHT - TOP - BOTTOM, (hours[-1] if hours else 0) or 1
    return [
        f"{LEFT + (WIDTH - LEFT) * h / last:.1f},{TOP + span * (1 - v / top):.1f}"
        for h, v in zip(hours, values, strict=True)
    ]


def stack_areas(line: Timeline, series: Mapping[str, Sequence[float]]) -> Html:
    """Areas on top of each other up to the cluster's cards, with a legend."""
    top = float(sum(line.capacity.values()) or 1)
    below = [0.0] * len(line.hours)
    areas, keys = [], []
    for number, (name, values) in enumerate(series.items()):
        color = COLORS[number % len(COLORS)]
        above = [b + v for b, v in zip(below, values, strict=True)]
        points = place(line.hours, above, top) + place(line.hours, below, top)[::-1]
        areas.append(
            f'<polygon points="{" ".join(points)}" fill="{color}"><title>{escape(name)}'
            f"</title></polygon>"
        )
        keys.append(f'<span style="color:{color}">■</span> {escape(name)} ')
        below = above
    body = axes(line.hours, top, "h") + "".join(areas)
    return Html(svg(body, HEIGHT, f"cards in use, {len(series)} series") + legend(keys))


def legend(keys: Sequence[str]) -> str:
    """What the colours mean, on a line of its own."""
    return f"<div>{''.join(keys)}</div>"


def waiting(line: Timeline) -> Html:
    """The number of waiting jobs as a line."""
    top = float(max(line.waiting, default=0) or 1)
    points = " ".join(place(line.hours, line.waiting, top))
    body = axes(line.hours, top, "h")
    body += f'<polyline points="{points}" fill="none" stroke="{COLORS[0]}" stroke-width="1.5"/>'
    return svg(body, HEIGHT, "waiting jobs")


def svg(body: str, height: int, label: str) -> Html:
    """The frame of one chart."""
    return Html(
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        f'aria-label="{escape(label)}">{body}</svg>'
    )


def grid(picture: TimelineView, queues: Sequence[str]) -> Html:
    """One row of squares per node; a colour per queue, grey for broken or foreign cards."""
    color = {queue: COLORS[i % len(COLORS)] for i, queue in enumerate(queues)}
    color |= {"-": "#444c", "*": "#8888"}
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
    keys = [f'<span style="color:{color[q]}">■</span> {escape(q)} ' for q in queues]
    return Html(svg("".join(squares), per_column * (CELL + 3), "nodes and cards") + legend(keys))


def picture_caption(picture: TimelineView) -> str:
    """What the picture shows, and what it leaves out."""
    more = f" {picture.more:,} further nodes are not shown." if picture.more else ""
    return f"Nodes × cards when most were in use; empty squares are free.{more}"
