"""The pictures of runs: what the chip refused, losses, speed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from joymigrate.report.html import page, plots
from joymigrate.report.html.page import Html
from joymigrate.report.journey.evidence import COUNT, LOSS, RATE, JourneyStep, real
from joymigrate.report.journey.figures import (
    MOST_LISTED,
    Cell,
    FigureTable,
    plot,
    side_by_side,
    titled_table,
)
from joymigrate.report.journey.memory import memory
from joymigrate.report.journey.sentences import LOSS as LOSSES
from joymigrate.report.journey.sentences import REHEARSE, SPEED
from joymigrate.report.journey_words import say


def rehearse(step: JourneyStep) -> Iterator[Html]:
    """Memory, what fell back to the CPU, what was refused."""
    pictures = list(memory(step))
    lists = Html("".join([*traps(step), *fallbacks(step), *not_run(step)]))
    yield side_by_side(*pictures, *([Html(f"<div>{lists}</div>")] if lists else []))


def traps(step: JourneyStep) -> Iterator[Html]:
    """What the chip refuses."""
    own = step.raw["figures"].get("found_traps")
    file, base = step.place("figures", "found_traps") if own else (REHEARSE, "/traps")
    known = own or step.evidence.at(REHEARSE, "/traps") or []
    rows: list[list[Cell]] = [
        [
            page.code(f"`{one.get('where') or '?'}`"),
            Html(
                "<br>".join(
                    step.evidence.quote(file, f"{base}/{index}/{key}")
                    for key in ("message", "remedy")
                )
            ),
        ]
        for index, one in enumerate(known[:MOST_LISTED])
    ]
    head = [say(key) for key in ("where", "refused")]
    yield from titled_table(step, say("traps"), head, rows)


def not_run(step: JourneyStep) -> Iterator[Html]:
    """What was rewritten and did not run."""
    figures = step.raw["figures"]
    rest = figures.get("not_run") or []
    rows: list[list[Cell]] = [
        [page.code(f"`{one['path']}:{one['line']}`"), page.code(f"`{one['text']}`")]
        for one in rest[:MOST_LISTED]
    ]
    if rows:
        count = figures["places"] - figures["places_run"]
        entry = shlex.join(step.evidence.document["entry"])
        title = say("not_run", entry=entry, count=count).rstrip(":：")
        yield from titled_table(step, title, [say("where"), say("statement")], rows)
    if figures.get("not_python"):
        text = say("not_python", files=", ".join(figures["not_python"]))
        yield Html(f"<p>{page.escape(text)}</p>")


def fallbacks(step: JourneyStep) -> Iterator[Html]:
    """What ran on the CPU."""
    at = step.evidence
    rows: list[list[Cell]] = [
        [
            page.code(f"`{one['op']}`"),
            at.figure(COUNT, (REHEARSE, f"/fallbacks/{index}/calls")),
            page.code(
                ", ".join(f"`{at.file_text(where, REHEARSE)}`" for where in one.get("where") or ())
            ),
        ]
        for index, one in enumerate((at.at(REHEARSE, "/fallbacks") or [])[:MOST_LISTED])
    ]
    head = [say(key) for key in ("operator", "calls", "where")]
    yield from titled_table(step, say("fell_back"), head, rows, (1,))


def train(step: JourneyStep) -> Iterator[Html]:
    """Loss curves with their difference, and how fast both sides went."""
    yield side_by_side(*losses(step), *throughput(step))


def losses(step: JourneyStep) -> Iterator[Html]:
    """Both sides' losses, and below them how far they are apart."""
    at = step.evidence
    files = {side: f"train/{side}.jsonl" for side in ("baseline", "chip")}
    sides = {side: at.load(file) or [] for side, file in files.items()}
    if not any(sides.values()):
        return
    values = {
        side: {row["step"]: real(row["loss"]) for row in rows} for side, rows in sides.items()
    }
    curves = [
        plots.Curve(say(side), [(float(x), y) for x, y in values[side].items()]) for side in sides
    ]
    base, chip = values["baseline"], values["chip"]
    apart = [(float(x), abs(chip[x] - y) / abs(y)) for x, y in base.items() if x in chip and y]
    limit = at.at(LOSSES, "/curve/limit_pass")
    limits = [plots.PlotLimit(say("limit_of_mean"), limit)] if limit else []
    index = {row["step"]: number for number, row in enumerate(sides["chip"])}
    rows = [
        [
            at.figure(str, (files["baseline"], f"/{number}/step")),
            at.figure(LOSS, (files["baseline"], f"/{number}/loss")),
            at.figure(LOSS, (files["chip"], f"/{index[row['step']]}/loss"))
            if row["step"] in index
            else None,
        ]
        for number, row in enumerate(sides["baseline"])
    ]
    title = say("loss_plot")
    yield plot(
        title,
        lambda: plots.lines_below(
            curves,
            [plots.Curve(say("apart"), apart)],
            title,
            say("step_axis"),
            (say("loss_axis"), say("apart")),
            limits=limits,
            zero="0",
        ),
        say("loss_note"),
        FigureTable([say("step_axis"), *(say(side) for side in sides)], rows, (0, 1, 2)),
        list(files.values()),
        at,
    )


def throughput(step: JourneyStep) -> Iterator[Html]:
    """Steps per second; a simulated chip has no speed, and the page says so."""
    at = step.evidence
    curves, rows, why = [], [], ""
    for side in ("baseline", "chip"):
        points = at.at(SPEED, f"/{side}/points")
        if not points:
            continue
        name = say(side)
        curves.append(
            plots.Curve(name, [(real(one["step"]), real(one["steps_per_s"])) for one in points])
        )
        rows += [
            [
                name,
                at.figure(str, (SPEED, f"/{side}/points/{index}/step")),
                at.figure(RATE, (SPEED, f"/{side}/points/{index}/steps_per_s")),
            ]
            for index in range(len(points))
        ]
    if not curves:
        return
    if at.at(SPEED, "/rehearsal"):
        why = say("no_chip_speed")
    title = say("speed_plot")
    head = [say(key) for key in ("side", "step_axis", "speed_axis")]
    yield plot(
        title,
        lambda: plots.lines(
            curves, title, say("step_axis"), say("speed_axis"),
            style=plots.PlotStyle(ground=True),
        ),
        f"{say('speed_note')} {why}".strip(),
        FigureTable(head, rows, (1, 2)),
        [SPEED], at,
    )  # fmt: skip
