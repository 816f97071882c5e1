"""The pictures of operators: what the chip has, where the time goes, what would be faster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from joymigrate.report.html import page, plots
from joymigrate.report.html.page import Html
from joymigrate.report.journey.evidence import (
    COUNT,
    MILLISECONDS,
    PERCENT,
    Figure,
    JourneyStep,
    real,
)
from joymigrate.report.journey.figures import (
    MOST_LISTED,
    Cell,
    FigureTable,
    note,
    plot,
    side_by_side,
    titled_table,
)
from joymigrate.report.journey.sentences import ADVICE, COVERAGE, recorded_on
from joymigrate.report.journey_words import say

MOST_BARS = 10
LACKING = ("cpu_fallback", "missing", "unknown")
SHARES = ("ops", "calls", "time")
LEVEL_TONES = {"error": "report", "warning": "unsafe", "note": "plain"}


def coverage(step: JourneyStep) -> Iterator[Html]:
    """Shares of operators, calls and time; the operators that count; those that are lacking."""
    at = step.evidence
    shares = [(name, at.figure(PERCENT, (COVERAGE, f"/share/{name}"))) for name in SHARES]
    known = [(name, one) for name, one in shares if one is not None]
    ops = at.at(COVERAGE, "/ops") or []
    if known and ops:
        yield side_by_side(shares_plot(step, known), operators_plot(step, ops))
    lacking = [
        [
            page.code(f"`{one['op']}`"),
            say(one["status"]),
            at.figure(COUNT, (COVERAGE, f"/ops/{index}/calls")),
            page.code(f"`{one['where']}`") if one.get("where") else "",
            at.quote(
                COVERAGE, f"/ops/{index}/{'alternative' if one.get('alternative') else 'note'}"
            ),
        ]
        for index, one in enumerate(ops)
        if one["status"] in LACKING
    ][:MOST_LISTED]
    head = [say(key) for key in ("operator", "runs", "calls", "where", "instead")]
    yield from titled_table(step, say("lacking"), head, lacking, (2,))


def shares_plot(step: JourneyStep, shares: list[tuple[str, Figure]]) -> Html:
    """How much of the program the chip runs, counted in three ways."""
    bars = [
        plots.Bar(
            say(f"share_{name}"),
            [("safe-fill", 100 * one.value), ("report-fill", 100 - 100 * one.value)],
            one.text,
        )
        for name, one in shares
    ]
    parts = [("safe", say("on_the_chip")), ("report", say("not_on_the_chip"))]
    title = say("coverage_plot")
    rows: list[list[Cell]] = [[say(f"share_{name}"), one] for name, one in shares]
    return plot(
        title,
        lambda: plots.bars(bars, "coverage", title, "%", parts, most=100),
        say(f"coverage_note{recorded_on(step)}"),
        FigureTable([say("of_all"), say("on_the_chip")], rows, (1,)),
        [COVERAGE], step.evidence,
    )  # fmt: skip


def operators_plot(step: JourneyStep, ops: list[Any]) -> Html:
    """The operators that take most of the time."""
    at = step.evidence
    ordered = sorted(enumerate(ops), key=lambda pair: -real(pair[1]["self_us"]))[:MOST_BARS]
    bars = [
        plots.Bar(
            one["op"].removeprefix("aten::") + (f".{one['overload']}" if one["overload"] else ""),
            [("report-fill" if one["status"] in LACKING else "safe-fill", one["self_us"] / 1e3)],
            MILLISECONDS(one["self_us"]),
        )
        for _, one in ordered
    ]
    rows = [
        [
            page.code(f"`{one['op']}`"),
            at.figure(MILLISECONDS, (COVERAGE, f"/ops/{index}/self_us")),
            at.figure(COUNT, (COVERAGE, f"/ops/{index}/calls")),
            say(one["status"]),
        ]
        for index, one in ordered
    ]
    title = say("operators_plot")
    head = [say(key) for key in ("operator", "time", "calls", "runs")]
    return plot(
        title,
        lambda: plots.bars(bars, "operators", title, say(f"ms_axis{recorded_on(step)}"), []),
        say(f"operators_note{recorded_on(step)}"),
        FigureTable(head, rows, (1, 2)),
        [COVERAGE], at,
    )  # fmt: skip


def advice(step: JourneyStep) -> Iterator[Html]:
    """The hints, the weightiest first."""
    at = step.evidence
    hints = at.at(ADVICE, "/advice") or []
    rows: list[list[Cell]] = []
    for index, one in enumerate(hints[:MOST_LISTED]):
        places = [place["where"] for place in one.get("places") or () if place.get("where")]
        rows.append(
            [
                page.badge(say(f"level_{one['level']}"), LEVEL_TONES[one["level"]]),
                Html(
                    f"<b>{at.quote(ADVICE, f'/advice/{index}/title')}</b><br>"
                    f"{at.quote(ADVICE, f'/advice/{index}/action')}"
                ),
                at.figure(PERCENT, (ADVICE, f"/advice/{index}/share")),
                page.code(f"`{places[0]}`") if places else "",
            ]
        )
    head = [say(key) for key in ("weight", "hint", "share_of_time", "where")]
    yield from titled_table(step, say("hints"), head, rows, (2,))
    if len(hints) > MOST_LISTED:
        yield note(say("more_in", file="advice/advice.html"))
