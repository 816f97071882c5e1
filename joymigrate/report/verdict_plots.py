"""Plots of verdicts as inline SVG: curves side by side, and intervals beside a margin.

Hand-made, because the page forbids requests and a plotting library is no core dependency.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from joymigrate.report.html.page import Html, escape, translate

WIDTH, HEIGHT = 560, 260
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 14, 40
COLOURS = ("var(--link)", "var(--report-fill)", "var(--safe-fill)", "var(--unsafe-fill)")
DASHES = ("", "6 3", "2 3", "8 3 2 3")  # curves differ without colour too


@dataclass(frozen=True, slots=True)
class PlotLine:
    """One line: (x, y) points; a y of NaN interrupts it."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Mark:
    """A point that is worth a word."""

    x: float
    y: float
    text: str


def line_plot(
    curves: Sequence[PlotLine],
    x_title: str,
    y_title: str,
    *,
    log: bool = False,
    limit: float | None = None,
    limit_name: str = "limit",
    mark: Mark | None = None,
) -> Html:
    """Curves over a common x. `log` draws y in decades and leaves out what is not positive."""
    points = [
        (x, y)
        for curve in curves
        for x, y in curve.points
        if math.isfinite(y) and (y > 0 or not log)
    ]
    if not points:
        return Html('<p class="empty">' + translate("nothing to draw") + "</p>")
    ys = [y for _, y in points] + ([limit] if limit is not None and (limit > 0 or not log) else [])
    xs = [x for curve in curves for x, _ in curve.points]  # plots side by side share their x
    view = PlotView.around(xs, ys, log)
    parts = [view.axes(x_title, y_title)]
    if limit is not None and (limit > 0 or not log):
        level = view.y(limit)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{level:.1f}" y2="{level:.1f}" '
            'stroke="var(--report-fill)" stroke-dasharray="4 4"/>'
            f'<text x="{WIDTH - RIGHT}" y="{level - 4:.1f}" text-anchor="end">'
            f"{translate(limit_name)}</text>"
        )
    for index, curve in enumerate(curves):
        parts.append(view.line(curve, index, dots=len(curve.points) <= 60))
    if mark is not None and math.isfinite(mark.y) and (mark.y > 0 or not log):
        x, y = view.x(mark.x), view.y(mark.y)
        anchor = "end" if x > WIDTH / 2 else "start"
        shift = -9 if anchor == "end" else 9
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="none" stroke="var(--report)" '
            f'stroke-width="2"/><text x="{x + shift:.1f}" y="{max(y - 8, 12):.1f}" '
            f'text-anchor="{anchor}" font-weight="600">{escape(mark.text)}</text>'
        )
    names = "; ".join(curve.name for curve in curves)
    legend = key(curves) if len(curves) > 1 else ""
    return Html(svg("".join(parts), f"{y_title} over {x_title}: {names}") + legend)


@dataclass(frozen=True, slots=True)
class PlotView:
    """The part of the plane that is drawn."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    log: bool

    @classmethod
    def around(cls, xs: Sequence[float], ys: Sequence[float], log: bool) -> PlotView:
        """A view with room around the points; whole decades when logarithmic."""
        low, high = min(ys), max(ys)
        if log:
            low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
            high = high if high > low else low * 10
        else:
            room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
            low, high = low - room, high + room
        x_low, x_high = min(xs), max(xs)
        return cls(x_low, x_high if x_high > x_low else x_low + 1, low, high, log)

    def x(self, value: float) -> float:
        """Pixels from the left."""
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - self.x_low) / (self.x_high - self.x_low)

    def y(self, value: float) -> float:
        """Pixels from the top."""
        low, high = self.y_low, self.y_high
        if self.log:
            value, low, high = math.log10(value), math.log10(low), math.log10(high)
        share = (value - low) / (high - low)
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(max(share, 0.0), 1.0))

    def axes(self, x_title: str, y_title: str) -> str:
        """Grid lines with numbers, and the titles."""
        parts = []
        for value in self.y_ticks():
            y = self.y(value)
            parts.append(
                f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
                f'stroke="var(--line)"/><text x="{LEFT - 6}" y="{y + 4:.1f}" '
                f'text-anchor="end">{value:.3g}</text>'
            )
        for value in ticks(self.x_low, self.x_high, 6):
            x = self.x(value)
            parts.append(
                f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
                f"{value:g}</text>"
            )
        middle = (TOP + HEIGHT - BOTTOM) / 2
        parts.append(
            f'<text x="{(LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle">'
            f'{translate(x_title)}</text><text transform="translate(13 {middle:.0f}) rotate(-90)" '
            f'text-anchor="middle">{translate(y_title)}</text>'
        )
        return "".join(parts)

    def y_ticks(self) -> list[float]:
        """Round values; decades when logarithmic, at most about eight."""
        if not self.log:
            return ticks(self.y_low, self.y_high, 5)
        first, last = round(math.log10(self.y_low)), round(math.log10(self.y_high))
        step = max(1, math.ceil((last - first) / 7))
        return [10.0**power for power in range(first, last + 1, step)]

    def line(self, curve: PlotLine, index: int, dots: bool) -> str:
        """One curve, interrupted where it has no value."""
        colour, dash = COLOURS[index % 4], DASHES[index % 4]
        runs: list[list[str]] = [[]]
        for x, y in curve.points:
            if not math.isfinite(y) or (self.log and y <= 0):
                runs.append([])
                continue
            runs[-1].append(f"{self.x(x):.1f},{self.y(y):.1f}")
        style = f'fill="none" stroke="{colour}" stroke-width="1.8" stroke-dasharray="{dash}"'
        parts = [f'<polyline {style} points="{" ".join(run)}"/>' for run in runs if len(run) > 1]
        if dots:
            parts += [
                '<circle r="2.4" fill="{}" cx="{}" cy="{}"/>'.format(colour, *point.split(","))
                for run in runs
                for point in run
            ]
        return "".join(parts)


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers between two ends."""
    raw = (high - low) / most
    power = 10 ** math.floor(math.log10(raw)) if raw > 0 else 1
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw)
    first = math.ceil(low / step - 1e-9)
    return [step * n for n in range(first, math.floor(high / step + 1e-9) + 1)]


def key(curves: Sequence[PlotLine]) -> str:
    """The legend below a plot."""
    items = "".join(
        f'<li><svg width="26" height="10" aria-hidden="true"><line x1="0" x2="26" y1="5" y2="5" '
        f'stroke="{COLOURS[i % 4]}" stroke-width="2" stroke-dasharray="{DASHES[i % 4]}"/></svg> '
        f"{translate(curve.name)}</li>"
        for i, curve in enumerate(curves)
    )
    return f'<ul class="legend">{items}</ul>'


def svg(content: str, label: str, height: int = HEIGHT) -> str:
    """The frame of a picture, with its label for those who don't see it."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        f'aria-label="{translate(label)}" font-size="12" fill="var(--text)" '
        f'font-family="system-ui, sans-serif">{content}</svg>'
    )


def beside(*figures: Html) -> Html:
    """Figures side by side, one below the other where the screen is narrow."""
    columns = "repeat(auto-fit,minmax(min(100%,27rem),1fr))"
    style = f"display:grid;grid-template-columns:{columns};gap:0 1.5rem"
    return Html(f'<div style="{style}">{"".join(figures)}</div>')


def interval_plot(
    rows: Sequence[tuple[str, float, float, float]], margin: float, title: str
) -> Html:
    """(name, value, low, high) as points with whiskers, the margin and zero as lines."""
    finite = [v for _, *values in rows for v in values if isinstance(v, int | float)]
    low, high = min([margin, 0.0, *finite]), max([margin, 0.0, *finite])
    room = (high - low) * 0.08 or 1.0
    view = PlotView(low - room, high + room, 0, 1, False)
    height = 64 + 30 * len(rows)
    parts = []
    for value, text, colour in ((margin, "margin", "var(--report)"), (0.0, "0", "var(--soft)")):
        x = view.x(value)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="20" y2="{height - 36}" stroke="{colour}" '
            f'stroke-dasharray="4 3"/><text x="{x:.1f}" y="14" text-anchor="middle">'
            f"{translate(text)}</text>"
        )
    for index, (name, value, start, end) in enumerate(rows):
        y = 38 + 30 * index
        ends = [v if isinstance(v, int | float) else e for v, e in ((start, low), (end, high))]
        a, b = view.x(ends[0]), view.x(ends[1])
        parts.append(
            f'<line x1="{a:.1f}" x2="{b:.1f}" y1="{y}" y2="{y}" stroke="var(--link)" '
            f'stroke-width="3"/><circle cx="{view.x(value):.1f}" cy="{y}" r="5" '
            f'fill="var(--link)"/><text x="{b + 8:.1f}" y="{y + 4}">'
            f"{translate(name.split(' ')[0])}</text>"
        )
    for value in ticks(view.x_low, view.x_high, 7):
        parts.append(
            f'<text x="{view.x(value):.1f}" y="{height - 20}" text-anchor="middle">{value:g}</text>'
        )
    parts.append(
        f'<text x="{WIDTH / 2}" y="{height - 4}" text-anchor="middle">{translate(title)}</text>'
    )
    return Html(svg("".join(parts), title, height))
