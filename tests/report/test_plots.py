"""Plots: whatever the points are, every mark lies inside the picture, and nothing is lost."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joymigrate.report.html.plots import (
    HEIGHT,
    WIDTH,
    Bar,
    Curve,
    PlotLimit,
    PlotMark,
    PlotStyle,
    Scale,
    StackLayer,
    bars,
    interval_plot,
    lines,
    lines_below,
    stack_areas,
)

VALUES = st.floats(allow_nan=True, allow_infinity=True, width=32)
POINTS = st.lists(st.tuples(st.floats(-1e6, 1e6), VALUES), max_size=8)


def pictures(html: str) -> list[ElementTree.Element]:
    return [
        ElementTree.fromstring(one)
        for one in re.findall(r'<svg class="plot".*?</svg>', html, re.DOTALL)
    ]


def places(html: str) -> list[tuple[float, float]]:
    """Every point of a line or a dot."""
    found = []
    for picture in pictures(html):
        for node in picture.iter():
            if node.tag in ("polyline", "polygon"):
                found += [tuple(map(float, one.split(","))) for one in node.get("points").split()]
            elif node.tag == "circle":
                found.append((float(node.get("cx")), float(node.get("cy"))))
    return found


@given(
    st.lists(POINTS, min_size=1, max_size=5),
    st.lists(st.floats(1e-9, 1e9), max_size=3),
    st.booleans(), st.booleans(), st.booleans(), st.booleans(),
)  # fmt: skip
def test_every_point_lies_inside_the_picture(
    curves: list[list[tuple[float, float]]],
    limits: list[float],
    log: bool,
    log_x: bool,
    steps: bool,
    ground: bool,
) -> None:
    made = lines(
        [Curve(f"c{n}", points) for n, points in enumerate(curves)],
        "label", "x", "y",
        limits=[PlotLimit(f"l{n}", value) for n, value in enumerate(limits)],
        style=PlotStyle(log=log, log_x=log_x, steps=steps, ground=ground),
    )  # fmt: skip
    for x, y in places(made):
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT
    shown = [y for points in curves for _, y in points if math.isfinite(y)]
    dots = sum(one.tag == "circle" for picture in pictures(made) for one in picture.iter())
    if not steps and shown:
        expected = sum(
            not math.isnan(y) and (log or not math.isinf(y)) for points in curves for _, y in points
        )
        assert dots == expected


def test_a_line_is_interrupted_where_it_has_no_value() -> None:
    points = [(0, 1.0), (1, 2.0), (2, math.nan), (3, 3.0), (4, 2.0)]
    assert lines([Curve("a", points)], "l", "x", "y").count("<polyline") == 2


def test_zero_and_infinity_have_a_place_of_their_own_in_decades() -> None:
    points = [(0.0, 0.0), (1.0, 1e-3), (2.0, math.inf)]
    made = lines([Curve("a", points)], "l", "x", "y", style=PlotStyle(log=True, zero="identical"))
    assert ">identical<" in made
    assert ">inf, nan<" in made
    (_, low), (_, middle), (_, high) = places(made)[-3:]
    assert low > middle > high


def test_names_of_limits_that_lie_close_do_not_cover_each_other() -> None:
    limits = [PlotLimit("low", 1.0), PlotLimit("high", 1.01)]
    made = lines([Curve("a", [(0, 0.0), (1, 10.0)])], "l", "x", "y", limits=limits)
    heights = [
        float(one) for one in re.findall(r'y="([\d.]+)" text-anchor="end"[^>]*>\w{3,4}<', made)
    ]
    assert abs(heights[-1] - heights[-2]) > 10


def test_nothing_to_draw_says_so() -> None:
    assert "nothing to draw" in lines([Curve("a", [])], "l", "x", "y")
    assert "nothing to draw" in lines([Curve("a", [(0, math.nan)])], "l", "x", "y")


def test_the_other_plots_hold_their_parts() -> None:
    rows = [Bar("<a>", (("safe-fill", 3), ("unsafe-fill", 1)), "4"), Bar("b", (), "0")]
    made = bars(rows, "n", "label", "x", [("safe", "safe")])
    assert made.count("<rect") == 3  # two pieces and the hatch
    assert "&lt;a&gt;" in made
    areas = [StackLayer("w", "link", [1, 2, 3]), StackLayer("g", "plain-fill", [1, 0, 1])]
    assert len(pictures(stack_areas([0, 1, 2], areas, "l", "x", "y"))) == 1
    below = lines_below(
        [Curve("a", [(0, 1), (1, 2)])], [Curve("d", [(0, 0.0), (1, 1e-4)])], "l", "x", ("y", "z")
    )
    assert "<svg" in below
    assert "margin" in interval_plot([("d", 0.1, -0.2, math.inf)], -0.5, "points")
    assert lines([Curve("a", [(1, 1), (2, 3)])], "l", "x", "y", mark=PlotMark(2, 3, "here")).count(
        "here"
    )


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3, 7), (1e-9, 3e-9), (0, 123456)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    found = [value for value, _ in Scale(low, high, 0, 100).ticks()]
    assert 3 <= len(found) <= 12
    assert all(low - 1e-12 <= value <= high * (1 + 1e-9) for value in found)
