"""Plots as inline SVG: curves with limits, stacks, bars and intervals, in the page's own colours.

Hand-made: a page asks for nothing over the network, and the base package draws it.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from joymigrate.report.html.page import Html, asset, escape, translate
from joymigrate.report.html.scale import Scale

WIDTH, HEIGHT = 420, 250
TITLE, FOOT, RIGHT = 26, 40, 18  # pixels above, below and beside the axes
LETTER = 6.7  # pixels that a digit takes
TONES = ("link", "report-fill", "safe-fill", "unsafe-fill")
DASHES = ("", "6 3", "2 2", "7 3 2 3")  # curves differ without colour, too
NAME_ROOM = 16  # pixels: what the name of a limit takes
DOTTED = 60  # up to so many points are drawn as points
NOTHING = "nothing to draw"
LIGHT = re.compile(r"--([\w-]+): light-dark\((#\w+)")  # the colours of page.css


@dataclass(frozen=True, slots=True)
class Curve:
    """One line: (x, y) points; a y of NaN interrupts it."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class PlotLimit:
    """A level that must not be passed. It has the colour of the curve at `curve`."""

    name: str
    value: float
    curve: int | None = None


@dataclass(frozen=True, slots=True)
class PlotMark:
    """A point that is worth a word."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar, made of (tone, length) pieces, with a text at its end."""

    name: str
    pieces: Sequence[tuple[str, float]]
    text: str = ""


@dataclass(frozen=True, slots=True)
class StackLayer:
    """One layer of a stack: a tone or a colour (`#rrggbb`), and its height at every x."""

    name: str
    tone: str
    heights: Sequence[float]


@dataclass(frozen=True, slots=True)
class PlotStyle:
    """How a pair of axes is drawn. `log` and `log_x` draw in decades, and what is not positive at
    the edge, where the axis says `zero`; `steps` holds a value until the next; `ground` begins at
    zero."""

    log: bool = False
    zero: str = "0"
    steps: bool = False
    ground: bool = False
    log_x: bool = False


def lines(
    curves: Sequence[Curve],
    label: str,
    x_title: str,
    y_title: str,
    *,
    limits: Sequence[PlotLimit] = (),
    mark: PlotMark | None = None,
    style: PlotStyle = PlotStyle(),
) -> Html:
    """Curves over a common x, with a legend below where there is more than one.

    `label` says what the picture shows to those who don't see it.
    """
    if not any(math.isfinite(y) for curve in curves for _, y in curve.points):
        return Html(f'<p class="empty">{translate(NOTHING)}</p>')
    y = y_scale(curves, limits, style, TITLE, HEIGHT - FOOT)
    x = x_scale(curves, left_of([y]), style.log_x)
    parts = [*panel(curves, limits, style, x, y, y_title), foot(x, HEIGHT, x_title)]
    if mark is not None and math.isfinite(mark.y):
        parts.append(draw_mark(mark, x, y))
    return Html(svg(parts, f"{label} {describe(curves)}") + legend(curves, limits))


def lines_below(
    upper: Sequence[Curve],
    lower: Sequence[Curve],
    label: str,
    x_title: str,
    y_titles: tuple[str, str],
    *,
    limits: Sequence[PlotLimit] = (),
    zero: str = "0",
) -> Html:
    """Two plots over one x: curves, and below them what is between them (in decades)."""
    height, middle = 380, 220
    styles = PlotStyle(), PlotStyle(log=True, zero=zero)
    top = y_scale(upper, (), styles[0], TITLE, middle - 16)
    bottom = y_scale(lower, limits, styles[1], middle + TITLE, height - FOOT)
    x = x_scale([*upper, *lower], left_of([top, bottom]), False)
    parts = [
        *panel(upper, (), styles[0], x, top, y_titles[0]),
        *panel(lower, limits, styles[1], x, bottom, y_titles[1]),
        foot(x, height, x_title),
    ]
    return Html(svg(parts, f"{label} {describe(upper)}", height) + legend(upper, limits))


def x_scale(curves: Sequence[Curve], left: float, log: bool) -> Scale:
    """The range of all x; whole numbers are labelled as such."""
    xs = [x for curve in curves for x, _ in curve.points]
    low, high = min(xs, default=0.0), max(xs, default=1.0)
    if log:
        low = min((x for x in xs if x > 0), default=1.0)
    high = high if high > low else (low * 10 if log else low + 1)
    whole = all(float(x).is_integer() for x in xs)
    return Scale(low, high, left, WIDTH - RIGHT, log, whole)


def y_scale(
    curves: Sequence[Curve],
    limits: Sequence[PlotLimit],
    style: PlotStyle,
    top: float,
    bottom: float,
) -> Scale:
    """The range of all y and limits; in decades, zero and what has no end get a place of their
    own."""
    values = [y for curve in curves for _, y in curve.points if math.isfinite(y)]
    endless = any(math.isinf(y) for curve in curves for _, y in curve.points)
    if style.log:
        positive = [y for y in values if y > 0] + [one.value for one in limits if one.value > 0]
        first = math.floor(math.log10(min(positive, default=1e-9)))
        last = max(math.ceil(math.log10(max(positive, default=1.0))), first + 1)
        ends = {}
        if min(values, default=1) <= 0:
            first -= 1
            ends[10.0**first] = style.zero
        if endless:
            last += 1
            ends[10.0**last] = "inf, nan"
        return Scale(10.0**first * 0.6, 10.0**last * 1.6, bottom, top, True, False, ends)
    values += [one.value for one in limits]
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    least = low - room
    if low >= 0 and (style.ground or least < 0):
        least = 0.0
    return Scale(least, high + 2 * room, bottom, top)


def left_of(scales: Sequence[Scale]) -> float:
    """Pixels that the numbers left of the axes take."""
    return max(len(label) for y in scales for _, label in y.ticks()) * LETTER + 14


def panel(
    curves: Sequence[Curve],
    limits: Sequence[PlotLimit],
    style: PlotStyle,
    x: Scale,
    y: Scale,
    title: str,
) -> list[str]:
    """One pair of axes with its curves and limits."""
    parts = grid(x, y, title)
    for value in sorted({limit.value for limit in limits}):
        level = y.at(value)
        parts.append(
            f'<line x1="{x.first:.1f}" x2="{x.last:.1f}" y1="{level:.1f}" y2="{level:.1f}" '
            f'style="stroke: var(--{tone_of(limits, value)})" stroke-width="1.4" '
            'stroke-dasharray="2 3"/>'
        )
    parts += [draw_curve(curve, index, style, x, y) for index, curve in enumerate(curves)]
    return parts + limit_names(limits, x, y)


def grid(x: Scale, y: Scale, title: str) -> list[str]:
    """Grid lines with their numbers, the axis below, and the title above."""
    parts = [text(2, y.last - 10, translate(title), tone="soft")]
    for value, label in y.ticks():
        level = y.at(value)
        parts.append(
            f'<line x1="{x.first:.1f}" x2="{x.last:.1f}" y1="{level:.1f}" y2="{level:.1f}" '
            f'style="stroke: var(--line)" stroke-width=".8"/>'
            + text(x.first - 6, level + 4, label, "end", tone="soft")
        )
    return parts


def foot(x: Scale, height: float, title: str) -> str:
    """The numbers of x, and its title."""
    numbers = "".join(
        text(x.at(value), height - FOOT + 16, label, "middle", tone="soft")
        for value, label in x.ticks()
    )
    return numbers + text((x.first + x.last) / 2, height - 5, translate(title), "middle", "soft")


def draw_curve(curve: Curve, index: int, style: PlotStyle, x: Scale, y: Scale) -> str:
    """One curve, interrupted where it has no value."""
    runs: list[list[tuple[float, float]]] = [[]]
    for at, value in curve.points:
        if math.isnan(value) or (math.isinf(value) and not style.log):
            runs.append([])
            continue
        if math.isinf(value):
            value = max(y.ends)
        elif style.log and value <= 0:
            value = min(y.ends)
        level = y.at(value)
        if style.steps and runs[-1]:
            runs[-1].append((x.at(at), runs[-1][-1][1]))
        runs[-1].append((x.at(at), level))
    tone = f"var(--{TONES[index % 4]})"
    parts = [
        f'<polyline fill="none" style="stroke: {tone}" stroke-width="1.8" '
        f'stroke-dasharray="{DASHES[index % 4]}" '
        f'points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in run)}"/>'
        for run in runs
        if len(run) > 1
    ]
    if len(curve.points) <= DOTTED:
        parts += [
            f'<circle r="2.4" style="fill: {tone}" cx="{a:.1f}" cy="{b:.1f}"/>'
            for a, b in itertools.chain(*runs)
        ]
    return "".join(parts)


def draw_mark(mark: PlotMark, x: Scale, y: Scale) -> str:
    """A ring around a point, and its word beside it, on the side with more room."""
    at, level = x.at(mark.x), y.at(mark.y)
    anchor, shift = ("end", -9) if at > WIDTH / 2 else ("start", 9)
    ring = (
        f'<circle cx="{at:.1f}" cy="{level:.1f}" r="6" fill="none" '
        'style="stroke: var(--report)" stroke-width="2"/>'
    )
    words = text(at + shift, max(level - 8, 12), escape(mark.text), anchor)
    return ring + words.replace("<text", '<text font-weight="600"', 1)


def tone_of(limits: Sequence[PlotLimit], value: float) -> str:
    """The colour of a limit's line: its curve's, unless several have this value."""
    curves = [limit.curve for limit in limits if limit.value == value]
    return "text" if len(curves) > 1 or curves[0] is None else TONES[curves[0] % 4]


def limit_names(limits: Sequence[PlotLimit], x: Scale, y: Scale) -> list[str]:
    """The name of each limit at the right: above its line, or below it where the next higher one
    is too near. Limits of one value share a line and have their names side by side."""
    values = sorted({limit.value for limit in limits})
    parts = []
    for index, value in enumerate(values):
        level = y.at(value)
        near = index + 1 < len(values) and level - y.at(values[index + 1]) < NAME_ROOM
        names = " / ".join(translate(one.name) for one in limits if one.value == value)
        parts.append(text(x.last, level + (12 if near else -4), names, "end"))
    return parts


def text(x: float, y: float, words: str, anchor: str = "start", tone: str = "text") -> str:
    """Words, escaped already, at a place."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" '
        f'style="fill: var(--{tone})">{words}</text>'
    )


def bars(
    rows: Sequence[Bar],
    name: str,
    label: str,
    x_title: str,
    parts: Sequence[tuple[str, str]],
    *,
    most: float | None = None,
) -> Html:
    """Horizontal bars with their names above them, and a legend of `parts` (tone, text) below.

    `name` is unique in the page: what is to be looked at is hatched as well as coloured.
    """
    height = 46 + 38 * len(rows)
    longest = most or max((sum(v for _, v in row.pieces) for row in rows), default=1) or 1
    whole = all(float(value).is_integer() for row in rows for _, value in row.pieces)
    x = Scale(0, longest, 4, WIDTH - RIGHT, whole=whole)
    hatch = (
        f'<defs><pattern id="{name}-hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="6" height="6" '
        'style="fill: var(--unsafe-fill)"/><line x1="0" y1="0" x2="0" y2="6" '
        'style="stroke: var(--ground)" stroke-width="2"/></pattern></defs>'
    )
    found = [hatch]
    for index, row in enumerate(rows):
        top, start = 4 + 38 * index, 0.0
        found.append(text(x.first, top + 10, escape(row.name)))
        found.append(text(x.last, top + 10, escape(row.text), "end", "soft"))
        for tone, value in row.pieces:
            if value <= 0:
                continue
            left, right = x.at(start), x.at(start + value)
            fill = f"url(#{name}-hatch)" if tone == "unsafe-fill" else f"var(--{tone})"
            found.append(
                f'<rect x="{left:.1f}" y="{top + 15}" width="{max(right - left, 1):.1f}" '
                f'height="15" style="fill: {fill}; stroke: var(--ground)" stroke-width=".8"/>'
            )
            start += value
    found.append(foot(x, height, x_title))
    keys = "".join(f'<li><i class="{tone}"></i>{escape(said)}</li>' for tone, said in parts)
    told = "; ".join(f"{row.name}: {row.text}" for row in rows)
    picture = svg(found, f"{label} {told}", height)
    return Html(picture + (f'<ul class="legend">{keys}</ul>' if keys else ""))


def paint(tone: str) -> str:
    """A tone of the page, or a colour, as CSS."""
    return tone if tone.startswith("#") else f"var(--{tone})"


def stack_areas(
    xs: Sequence[float],
    areas: Sequence[StackLayer],
    label: str,
    x_title: str,
    y_title: str,
    *,
    most: float | None = None,
) -> Html:
    """Areas on top of one another over a common x, the first one lowest, with a legend below.

    `most` is what fills the whole height; without it the highest sum does.
    """
    sums = [sum(heights) for heights in zip(*(one.heights for one in areas), strict=True)]
    top = most or 1.05 * max(sums, default=1.0) or 1.0
    y = Scale(0.0, top, HEIGHT - FOOT, TITLE)
    x = x_scale([Curve("", [(one, 0.0) for one in xs])], left_of([y]), False)
    parts = grid(x, y, y_title)
    low = [0.0] * len(xs)
    for area in areas:
        high = [below + height for below, height in zip(low, area.heights, strict=True)]
        edge = [*stairs(xs, high, x, y), *reversed(stairs(xs, low, x, y))]
        parts.append(
            f'<polygon points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in edge)}" '
            f'style="fill: {paint(area.tone)}; stroke: var(--ground)" stroke-width=".4">'
            f"<title>{escape(area.name)}</title></polygon>"
        )
        low = high
    parts.append(foot(x, HEIGHT, x_title))
    told = "; ".join(f"{one.name}: {max(one.heights, default=0):.4g}" for one in areas)
    keys = "".join(
        f'<li><i style="background: {paint(one.tone)}"></i>{escape(one.name)}</li>' for one in areas
    )
    return Html(svg(parts, f"{label} {told}") + f'<ul class="legend">{keys}</ul>')


def stairs(
    xs: Sequence[float], ys: Sequence[float], x: Scale, y: Scale
) -> list[tuple[float, float]]:
    """Pixels of a line that holds each value until the next."""
    found: list[tuple[float, float]] = []
    for at, value in zip(xs, ys, strict=True):
        if found:
            found.append((x.at(at), found[-1][1]))
        found.append((x.at(at), y.at(value)))
    return found


def interval_plot(
    rows: Sequence[tuple[str, float, float, float]], margin: float, title: str
) -> Html:
    """(name, value, low, high) as points with whiskers, the margin and zero as lines."""
    finite = [v for _, *values in rows for v in values if is_drawable(v)]
    low, high = min([margin, 0.0, *finite]), max([margin, 0.0, *finite])
    room = (high - low) * 0.08 or 1.0
    x = Scale(low - room, high + room, 10, WIDTH - 60)
    height = 70 + 30 * len(rows)
    parts = []
    for value, words, tone in ((margin, "margin", "report"), (0.0, "0", "soft")):
        at = x.at(value)
        parts.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="20" y2="{height - FOOT}" '
            f'style="stroke: var(--{tone})" stroke-dasharray="4 3"/>'
            + text(at, 14, translate(words), "middle")
        )
    for index, (name, value, start, end) in enumerate(rows):
        level = 38 + 30 * index
        ends = [v if is_drawable(v) else e for v, e in ((start, low), (end, high))]
        a, b = x.at(ends[0]), x.at(ends[1])
        parts.append(
            f'<line x1="{a:.1f}" x2="{b:.1f}" y1="{level}" y2="{level}" '
            f'style="stroke: var(--link)" stroke-width="3"/><circle cx="{x.at(value):.1f}" '
            f'cy="{level}" r="5" style="fill: var(--link)"/>'
            + text(b + 8, level + 4, translate(name.split(" ")[0]))
        )
    return Html(svg([*parts, foot(x, height, title)], title, height))


def is_drawable(value: object) -> bool:
    """Whether an end of an interval is a number that can be drawn."""
    return isinstance(value, int | float) and math.isfinite(value)


def legend(curves: Sequence[Curve], limits: Sequence[PlotLimit]) -> str:
    """What the lines are; nothing where there is but one."""
    if len(curves) < 2 and not limits:
        return ""
    items = "".join(
        f"<li>{swatch(index)} {translate(curve.name)}</li>" for index, curve in enumerate(curves)
    )
    return f'<ul class="legend">{items}</ul>'


def swatch(index: int) -> str:
    """A piece of a line for the legend."""
    return (
        f'<svg width="28" height="10" aria-hidden="true"><line x1="0" x2="28" y1="5" y2="5" '
        f'style="stroke: var(--{TONES[index % 4]})" stroke-width="2" '
        f'stroke-dasharray="{DASHES[index % 4]}"/></svg>'
    )


def describe(curves: Sequence[Curve]) -> str:
    """Curves in words: first and last value of each."""
    said = []
    for curve in itertools.islice(curves, 4):
        known = [y for _, y in curve.points if math.isfinite(y)]
        if known:
            said.append(f"{curve.name}: {known[0]:.4g} … {known[-1]:.4g}")
    return "; ".join(said)


def svg(parts: Sequence[str], label: str, height: float = HEIGHT) -> str:
    """The frame of a picture, with its label for those who don't see it."""
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{translate(label)}" font-size="12">{"".join(parts)}</svg>'
    )


def standalone(picture: Html) -> str:
    """The first drawing of a picture as a file of its own, in the colours of a light page."""
    drawing, found, _ = picture.partition("</svg>")
    if not found:
        drawing = svg([text(20, 40, translate(NOTHING))], NOTHING).removesuffix("</svg>")
    colors = ";".join(f"--{name}:{one}" for name, one in LIGHT.findall(asset("page.css")))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" style="{colors}" font-family="sans-serif"'
    return f"{drawing.replace('<svg', head, 1)}</svg>"


def beside(*figures: Html) -> Html:
    """Figures side by side, one below the other where the screen is narrow."""
    columns = "repeat(auto-fit,minmax(min(100%,27rem),1fr))"
    style = f"display:grid;grid-template-columns:{columns};gap:0 1.5rem"
    return Html(f'<div style="{style}">{"".join(figures)}</div>')
