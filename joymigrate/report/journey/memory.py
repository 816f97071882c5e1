"""The pictures of device memory: over time, and what it holds in the first steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from joymigrate.report.html import plots
from joymigrate.report.html.page import Html
from joymigrate.report.journey.evidence import MIB, SECONDS, JourneyStep, real
from joymigrate.report.journey.figures import FigureTable, plot
from joymigrate.report.journey.peak_memory import HELD, MEMORY, fullest
from joymigrate.report.journey.sentences import REHEARSE
from joymigrate.report.journey_words import say

DRAWN = 4  # processes in one picture


def memory(step: JourneyStep) -> Iterator[Html]:
    """Memory over time, then by what it holds."""
    yield from over_time(step)
    yield from by_category(step)


def over_time(step: JourneyStep) -> Iterator[Html]:
    """A line per process, with the peak that the allocator counted."""
    at = step.evidence
    file, base, peaks = (REHEARSE, "/ranks", at.at(REHEARSE, "/peak_memory_bytes") or {})
    if not at.at(file, base):  # on a chip
        file, base = MEMORY, "/processes"
        rows = at.at(file, base) or ()
        peaks = {name: bytes_ for one in rows for name, bytes_ in one["peak_bytes"].items()}
    ranks = at.at(file, base) or []
    drawn = [(i, one) for i, one in enumerate(ranks) if len(one.get("timeline") or ()) > 1][:DRAWN]
    if not drawn:
        return
    curves, table = [], []
    for index, one in drawn:
        name = process_name(one)
        curves.append(plots.Curve(name, [(s, b / 2**20) for s, b in one["timeline"]]))
        for point, _ in enumerate(one["timeline"]):
            place = f"{base}/{index}/timeline/{point}"
            table.append(
                [
                    name if one["rank"] is None else at.figure(str, (file, f"{base}/{index}/rank")),
                    at.figure(SECONDS, (file, f"{place}/0")),
                    at.figure(MIB, (file, f"{place}/1")),
                ]
            )
    limits = [
        plots.PlotLimit(say("peak_of", device=name), bytes_ / 2**20)
        for name, bytes_ in sorted(peaks.items(), key=lambda pair: -pair[1])[:1]
    ]
    note = [say("memory_note" if file == REHEARSE else "memory_note_chip")]
    if len(ranks) > len(drawn):
        note.append(say("processes_note", shown=len(drawn), all=len(ranks)))
    title = say("memory_plot")
    yield plot(
        title,
        lambda: plots.lines(
            curves,
            title,
            say("seconds_axis"),
            say("mib_axis"),
            limits=limits,
            style=plots.PlotStyle(steps=True, ground=True),
        ),
        " ".join(note),
        FigureTable([say("process_head"), say("time"), say("held")], table, (1, 2)),
        [file],
        at,
    )


def process_name(one: Any) -> str:
    """What a process is called."""
    if one["rank"] is None:
        return say("program")
    return say("process", number=one["rank"])


def by_category(step: JourneyStep) -> Iterator[Html]:
    """Weights, gradients, optimiser states, activations and the rest, stacked."""
    at = step.evidence
    number = fullest(at)
    if number is None:
        return
    base = f"/processes/{number}"
    one = at.at(MEMORY, base)
    held = one["held"]
    areas = [
        plots.StackLayer(say(word), tone, [row[index] / 2**20 for row in held["points"]])
        for index, (_, word, tone) in enumerate(HELD, 1)
    ]
    rows = [
        [say(word), at.figure(MIB, (MEMORY, f"{base}/held/peak/bytes/{key}"))]
        for key, word, _ in HELD
    ]
    allocator = at.figure(MIB, (MEMORY, f"{base}/held/allocator_peak_bytes"))
    note = [say("held_note", allocator=allocator.text if allocator else "–")]
    if len(at.at(MEMORY, "/processes")) > 1:
        note.append(say("held_note_of", name=process_name(one), device=held["device"]))
    title = say("held_plot")
    axis = say("steps_axis" if held["unit"] == "step" else "events_axis")
    yield plot(
        title,
        lambda: plots.stack_areas(
            [real(row[0]) for row in held["points"]], areas, title, axis,
            say("mib_axis"),
        ),
        " ".join(note),
        FigureTable([say("category"), say("at_peak")], rows, (1,)),
        [MEMORY], at,
    )  # fmt: skip
