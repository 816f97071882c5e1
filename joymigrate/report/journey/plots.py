"""The plots of a journey's page: curves with limits, one above the other, and bars."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from joymigrate.report.html.page import Html, escape
from joymigrate.report.journey.drawing import COLOUR, Texts, draw

CURVES = ("link", "report-fill", "safe-fill", "unsafe-fill")
DASHES: tuple[Any, ...] = ("solid", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
SVG_DASHES = ("", "6 3", "2 2", "7 3 2 3")  # curves differ without colour, too
MARKERS = ("o", "s", "^", "D")
NAME_ROOM = 0.1  # of a plot's height: what the name of a limit takes
DOTTED = 60  # up to so many points are drawn as points


@dataclass(frozen=True, slots=True)
class Curve:
    """One line: (x, y) points; a y of NaN interrupts it."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Limit:
    """A level that must not be passed. It has the dash and colour of the curve at `curve`."""

    name: str
    value: float
    curve: int | None = None


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar, made of (tone, length) pieces, with a text at its end."""

    name: str
    pieces: Sequence[tuple[str, float]]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Area:
    """One layer of a stack: a tone, and its height at every x."""

    name: str
    tone: str
    heights: Sequence[float]


def available() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def lines(
    curves: Sequence[Curve],
    name: str,
    label: str,
    x_title: str,
    y_title: str,
    *,
    limits: Sequence[Limit] = (),
    log: bool = False,
    zero: str = "0",
    steps: bool = False,
    ground: bool = False,
) -> Html:
    """Curves over a common x, with a legend below where there is more than one.

    `log` draws y in decades, and values of zero at the bottom, where the axis says `zero`.
    `steps` holds each value until the next point; `ground` begins y at zero. Whole
    numbers on x are labelled as such.
    """

    def make(figure: Any, texts: Texts) -> None:
        axes = figure.add_subplot()
        fill(axes, curves, texts, limits, log, zero, steps, ground)
        axes.set_xlabel(texts(x_title))
        axes.set_title(texts(y_title), loc="left", fontsize=12, color=COLOUR["soft"], pad=8)

    picture = draw(make, name, f"{label} {describe_curves(curves)}")
    return Html(picture + legend(curves, limits))


def lines_below(
    upper: Sequence[Curve],
    lower: Sequence[Curve],
    name: str,
    label: str,
    x_title: str,
    y_titles: tuple[str, str],
    *,
    limits: Sequence[Limit] = (),
    zero: str = "0",
) -> Html:
    """Two plots over one x: curves, and below them what is between them (in decades)."""

    def make(figure: Any, texts: Texts) -> None:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(1.5, 1))
        fill(top, upper, texts, (), False, zero, False)
        fill(bottom, lower, texts, limits, True, zero, False)
        bottom.set_xlabel(texts(x_title))
        for axes, title in ((top, y_titles[0]), (bottom, y_titles[1])):
            axes.set_title(texts(title), loc="left", fontsize=12, color=COLOUR["soft"], pad=8)

    picture = draw(make, name, f"{label} {describe_curves(upper)}", height=380)
    return Html(picture + legend(upper, limits))


def fill(
    axes: Any,
    curves: Sequence[Curve],
    texts: Texts,
    limits: Sequence[Limit],
    log: bool,
    zero: str,
    steps: bool,
    ground: bool = False,
) -> None:
    """Curves, limits, grid and ticks of one pair of axes."""
    from matplotlib.ticker import MaxNLocator

    values = [y for curve in curves for _, y in curve.points if math.isfinite(y)]
    positive = [y for y in values if y > 0] + [one.value for one in limits if one.value > 0]
    endless = any(math.isinf(y) for curve in curves for _, y in curve.points)
    floor, roof = 0.0, math.nan
    if log:
        roof = 10.0 ** (math.ceil(math.log10(max(positive, default=1.0))) + 1)
        lowest = min(positive, default=1e-9)
        floor = 10 ** (math.floor(math.log10(lowest)) - 1) if min(values, default=1) <= 0 else 0
        axes.set_yscale("log")
    for index, curve in enumerate(curves):
        ys = [roof if math.isinf(y) else floor if log and y <= 0 else y for _, y in curve.points]
        axes.plot(
            [x for x, _ in curve.points],
            ys,
            color=COLOUR[CURVES[index % 4]],
            linestyle=DASHES[index % 4],
            linewidth=1.8,
            marker=MARKERS[index % 4] if len(curve.points) <= DOTTED else None,
            markersize=3.5,
            drawstyle="steps-post" if steps else "default",
        )
    for value in sorted({limit.value for limit in limits}):
        tone = COLOUR[tone_of(limits, value)]
        axes.axhline(value, color=tone, linestyle=(0, (2, 3)), linewidth=1.4)
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    whole = all(float(x).is_integer() for curve in curves for x, _ in curve.points)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=whole))
    if not log:
        plain(axes, curves, ground)
    else:
        decades(axes, positive, floor, roof if endless else 0.0, texts(zero))
    name_limits(axes, limits, texts)


def tone_of(limits: Sequence[Limit], value: float) -> str:
    """The colour of a limit's line: its curve's, unless several have this value."""
    curves = [limit.curve for limit in limits if limit.value == value]
    return "text" if len(curves) > 1 or curves[0] is None else CURVES[curves[0] % 4]


def name_limits(axes: Any, limits: Sequence[Limit], texts: Texts) -> None:
    """The name of each limit at the right: above its line, or below it where the next higher one
    is too near. Limits of one value share a line and have their names side by side."""
    values = sorted({limit.value for limit in limits})
    places = [float(axes.transData.transform((0, value))[1]) for value in values]
    room = NAME_ROOM * float(axes.bbox.height)
    for number, value in enumerate(values):
        below = number + 1 < len(values) and places[number + 1] - places[number] < room
        axes.annotate(
            texts(" / ".join(limit.name for limit in limits if limit.value == value)),
            (1, value),
            xycoords=("axes fraction", "data"),
            xytext=(0, -3 if below else 3),
            textcoords="offset points",
            ha="right",
            va="top" if below else "bottom",
            color=COLOUR["text"],
            fontsize=11,
        )


def plain(axes: Any, curves: Sequence[Curve], ground: bool) -> None:
    """The range and the ticks of a plain y."""
    from matplotlib.ticker import MaxNLocator

    low, high = axes.get_ylim()
    least = min((y for c in curves for _, y in c.points if math.isfinite(y)), default=0)
    # Room above for the name of a limit.
    low = 0 if least >= 0 and (ground or low < 0) else low
    axes.set_ylim(low, high + 0.05 * (high - low))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))


def decades(axes: Any, positive: Sequence[float], floor: float, roof: float, zero: str) -> None:
    """Powers of ten on y; zero stands at the floor, what has no end or is no number at the roof."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    first = math.floor(math.log10(min(positive, default=1e-9)))
    last = max(math.ceil(math.log10(max(positive, default=1.0))), first + 1)
    stride = max(1, math.ceil((last - first) / 5))
    powers = [10.0**power for power in range(last, first - 1, -stride)]
    ends = {floor: zero, roof: "inf, nan"}
    axes.yaxis.set_major_locator(FixedLocator([*powers, *(end for end in ends if end)]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: ends.get(y) or decade(y)))
    axes.set_ylim((floor or 10.0**first) * 0.6, (roof or 10.0**last) * 1.6)


def decade(value: float) -> str:
    """A power of ten: plainly where it is short."""
    if 1e-3 <= value <= 1e4:
        return f"{value:g}"
    return f"1e{round(math.log10(value))}"


def bars(
    rows: Sequence[Bar],
    name: str,
    label: str,
    x_title: str,
    parts: Sequence[tuple[str, str]],
    *,
    most: float | None = None,
) -> Html:
    """Horizontal bars with their names above them, and a legend of `parts` (tone, text) below."""
    from matplotlib.ticker import MaxNLocator

    height = 40 + 38 * len(rows)

    def make(figure: Any, texts: Texts) -> None:
        axes = figure.add_subplot()
        longest = most or max((sum(v for _, v in row.pieces) for row in rows), default=1) or 1
        for index, row in enumerate(rows):
            start = 0.0
            for tone, value in row.pieces:
                if value <= 0:
                    continue
                hatch = "////" if tone == "unsafe-fill" else None
                axes.barh(index, value, left=start, height=0.44, color=COLOUR[tone], hatch=hatch,
                          edgecolor=COLOUR["ground"], linewidth=0.8)  # fmt: skip
                start += value
            axes.text(0, index - 0.34, texts(row.name), fontsize=12, color=COLOUR["text"])
            axes.text(longest, index - 0.34, texts(row.text), fontsize=12, ha="right",
                      color=COLOUR["soft"])  # fmt: skip
        axes.set_xlim(0, longest)
        axes.set_ylim(len(rows) - 0.6, -0.85)
        axes.set_yticks([])
        whole = all(float(value).is_integer() for row in rows for _, value in row.pieces)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=whole))
        axes.tick_params(length=0)
        axes.set_xlabel(texts(x_title))
        axes.spines["left"].set_visible(False)

    spoken_rows = "; ".join(f"{row.name}: {row.text}" for row in rows)
    picture = draw(make, name, f"{label} {spoken_rows}", height=height)
    keys = "".join(f'<li><i class="{tone}"></i>{escape(text)}</li>' for tone, text in parts)
    return Html(picture + (f'<ul class="legend">{keys}</ul>' if keys else ""))


def stack_areas(
    xs: Sequence[float], areas: Sequence[Area], name: str, label: str, x_title: str, y_title: str
) -> Html:
    """Areas on top of one another over a common x, the first one lowest, with a legend below."""
    from matplotlib.ticker import MaxNLocator

    def make(figure: Any, texts: Texts) -> None:
        axes = figure.add_subplot()
        low = [0.0] * len(xs)
        for area in areas:
            high = [below + height for below, height in zip(low, area.heights, strict=True)]
            axes.fill_between(
                xs, low, high, step="post", facecolor=COLOUR[area.tone],
                edgecolor=COLOUR["ground"], linewidth=0.4,
            )  # fmt: skip
            low = high
        axes.set_ylim(0, 1.05 * max(low, default=1.0) or 1.0)
        axes.margins(x=0)
        axes.grid(axis="y")
        axes.tick_params(length=0)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.set_xlabel(texts(x_title))
        axes.set_title(texts(y_title), loc="left", fontsize=12, color=COLOUR["soft"], pad=8)

    most = "; ".join(f"{one.name}: {max(one.heights, default=0):.4g}" for one in areas)
    keys = "".join(
        f'<li><i style="background: var(--{one.tone})"></i>{escape(one.name)}</li>' for one in areas
    )
    return Html(draw(make, name, f"{label} {most}") + f'<ul class="legend">{keys}</ul>')


def legend(curves: Sequence[Curve], limits: Sequence[Limit]) -> str:
    """What the lines are; nothing where there is but one."""
    if len(curves) < 2 and not limits:
        return ""
    items = [
        f"<li>{swatch(CURVES[i % 4], SVG_DASHES[i % 4])} {escape(curve.name)}</li>"
        for i, curve in enumerate(curves)
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


def swatch(tone: str, dash: str) -> str:
    """A piece of a line for the legend."""
    return (
        f'<svg width="28" height="10" aria-hidden="true"><line x1="0" x2="28" y1="5" y2="5" '
        f'style="stroke: var(--{tone})" stroke-width="2" stroke-dasharray="{dash}"/></svg>'
    )


def describe_curves(curves: Sequence[Curve]) -> str:
    """Curves in words: first and last value of each."""
    said = []
    for curve in itertools.islice(curves, 4):
        known = [y for _, y in curve.points if math.isfinite(y)]
        if known:
            said.append(f"{curve.name}: {known[0]:.4g} … {known[-1]:.4g}")
    return "; ".join(said)
