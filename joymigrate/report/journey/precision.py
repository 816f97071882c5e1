"""The pictures of a comparison: errors module by module, and how they grow through the network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from joymigrate.report.html import page, plots
from joymigrate.report.html.page import Html, escape
from joymigrate.report.journey.evidence import COUNT, SIGNIFICANT, JourneyStep, real
from joymigrate.report.journey.figures import FigureTable, cell, plot, side_by_side
from joymigrate.report.journey.sentences import VERDICT
from joymigrate.report.journey_words import WORDS, say
from joymigrate.report.verdict_words import TONES

MOST_STEPS = 4  # curves that a plot can show apart
PHASES = ("forward", "backward")


def precision(step: JourneyStep) -> Iterator[Html]:
    """Two plots and the stages."""
    yield side_by_side(*alone(step), *through(step))
    yield from stages(step)


def alone(step: JourneyStep) -> Iterator[Html]:
    """The error of each module, given the baseline's inputs, as a multiple of the baseline's."""
    at = step.evidence
    records: Sequence[Mapping[str, Any]] = at.at(VERDICT, "/records") or []
    worst, order = worst_by_module(records)
    if not order:
        return
    curves, limits, rows = [], [], []
    for phase in PHASES:
        found = sorted((order[module], *pair, module) for module, pair in worst[phase].items())
        if not found:
            continue
        curves.append(plots.Curve(say(phase), [(float(x), y) for x, y, _, _ in found]))
        limit = max(real(records[index]["limit"]) for _, _, index, _ in found)
        name = say("limit_phase", phase=say(phase))
        limits.append(plots.PlotLimit(name, limit, len(curves) - 1))
        rows += [
            [
                page.code(f"`{module}`"),
                say(phase),
                at.figure(SIGNIFICANT, (VERDICT, f"/records/{index}/value")),
                at.figure(SIGNIFICANT, (VERDICT, f"/records/{index}/limit")),
            ]
            for _, _, index, module in found
        ]
    title = say("alone_plot")
    head = [say(key) for key in ("module", "phase", "error_ratio", "limit")]
    yield plot(
        title,
        lambda: plots.lines(
            curves, title, say("depth_axis"), say("ratio_axis"),
            limits=limits, style=plots.PlotStyle(log=True, zero=say("identical")),
        ),
        say("alone_note"),
        FigureTable(head, rows, (2, 3)),
        [VERDICT], at,
    )  # fmt: skip


def worst_by_module(
    records: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, dict[str, tuple[float, int]]], dict[str, int]]:
    """By phase and module: (worst error ratio, its record); and the modules' order."""
    worst: dict[str, dict[str, tuple[float, int]]] = {phase: {} for phase in PHASES}
    order: dict[str, int] = {}
    for index, one in enumerate(records):
        if one["metric"] != "error_ratio" or one["phase"] not in PHASES:
            continue
        value = real(one["value"])
        if math.isnan(value):  # one side has no number where the other has: the worst
            value = math.inf
        if one["phase"] == "forward":
            order.setdefault(one["module"], len(order) + 1)
        known = worst[one["phase"]].get(one["module"])
        if known is None or value > known[0]:
            worst[one["phase"]][one["module"]] = (value, index)
    for module in worst["backward"]:
        order.setdefault(module, len(order) + 1)
    return worst, order


def through(step: JourneyStep) -> Iterator[Html]:
    """How the error grows over the depth of the network when the steps run freely."""
    at = step.evidence
    depth: Sequence[Mapping[str, Any]] = at.at(VERDICT, "/growth/depth") or []
    by_step: dict[Any, list[int]] = {}
    for index, one in enumerate(depth):
        by_step.setdefault(one.get("step"), []).append(index)
    shown = list(by_step.items())[:MOST_STEPS]
    if not shown:
        return
    curves, rows = [], []
    for number, found in shown:
        name = say("step_number", number=number)
        points = [(float(place), real(depth[index]["error"])) for place, index in enumerate(found)]
        curves.append(plots.Curve(name, points))
        rows += [
            [
                page.code(f"`{depth[index]['module']}`"),
                at.figure(str, (VERDICT, f"/growth/depth/{index}/step")),
                at.figure(SIGNIFICANT, (VERDICT, f"/growth/depth/{index}/error")),
            ]
            for index in found
        ]
    title = say("growth_plot")
    head = [say(key) for key in ("module", "step_axis", "error_axis")]
    yield plot(
        title,
        lambda: plots.lines(
            curves, title, say("depth_axis"), say("error_axis"),
            limits=free_limits(at.at(VERDICT, "/records") or []),
            style=plots.PlotStyle(log=True, zero=say("identical")),
        ),
        say("growth_note"),
        FigureTable(head, rows, (1, 2)),
        [VERDICT], at,
    )  # fmt: skip


def free_limits(records: Sequence[Mapping[str, Any]]) -> list[plots.PlotLimit]:
    """What a free step may differ by; the strictest and the mildest where steps have their own."""
    found = {
        real(one["limit"])
        for one in records
        if one["stage"] == "S5" and one["phase"] == "forward" and one["metric"] == "relative_l2"
    }
    found = {value for value in found if math.isfinite(value) and value > 0}
    ends = sorted({min(found), max(found)}) if found else []
    names = ("limit",) if len(ends) < 2 else ("limit_first", "limit_last")
    return [plots.PlotLimit(say(n), v) for n, v in zip(names, ends, strict=False)]


def stages(step: JourneyStep) -> Iterator[Html]:
    """What was compared, one after another."""
    at = step.evidence
    rows = [
        [
            say(key) if (key := f"stage_{one['stage']}") in WORDS else one["title"],
            page.badge(say(one["verdict"]), TONES.get(one["verdict"], "plain")),
            at.figure(COUNT, (VERDICT, f"/stages/{index}/compared")),
            at.figure(COUNT, (VERDICT, f"/stages/{index}/recorded")),
        ]
        for index, one in enumerate(at.at(VERDICT, "/stages") or [])
    ]
    if rows:
        head = [say(key) for key in ("what", "result", "compared", "recorded")]
        yield Html(f"<h3>{escape(say('stages'))}</h3>")
        made = [[cell(value, at) for value in row] for row in rows]
        yield page.table(head, made, right=(2, 3))
