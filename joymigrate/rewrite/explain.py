"""Why a place moves, waits or stays: the lines that its value goes through, from the fact on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from joymigrate.language import Language, Text
from joymigrate.model import Finding, Scan, Tier
from joymigrate.rewrite import flow_sinks
from joymigrate.rewrite.cross_file import takes
from joymigrate.rewrite.solve import CLASS, SILENT, meetings, place_of, target_words
from joymigrate.rewrite.values.cells import Cell, TextPlace
from joymigrate.rewrite.values.graph import ValueGraph, home_of
from joymigrate.rewrite.values.growth import follow, way_to
from joymigrate.rewrite.vocabulary import Vocabulary

MOVES, WAITS, STAYS = "moves", "waits for a look", "stays"
SINK = "taken as a device or a backend"


@dataclass(frozen=True, slots=True)
class FlowStep:
    """One line of the way: where, its text, and what happens to the value there."""

    path: str
    line: int
    text: str
    what: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is decided about one finding, why, and by which way."""

    finding: Finding
    verdict: str
    reason: str
    steps: tuple[FlowStep, ...]


def explain(
    scan: Scan, graph: ValueGraph, vocabulary: Vocabulary, path: str, line: int
) -> list[Explanation]:
    """Every finding that stands in a line of a file, with the way of the fact that decided it."""
    found = []
    for each in scan.findings:
        if each.path != path or not each.line <= line <= each.end_line:
            continue
        way = scan.ways.get((each.path, each.line, each.column), ())
        steps = tuple(FlowStep(p, n, line_of(graph, p, n), what) for p, n, what in way)
        if not steps:
            steps = tuple(explain_text(graph, vocabulary, each))
        verdict = {Tier.SAFE: MOVES, Tier.UNSAFE: WAITS}.get(each.tier, STAYS)
        found.append(Explanation(each, verdict, each.reason or each.message, steps))
    return found


def explain_text(graph: ValueGraph, vocabulary: Vocabulary, finding: Finding) -> Iterator[FlowStep]:
    """Where the text of a finding goes: to what takes or compares it."""
    cell = text_at(graph, finding)
    place = place_of(graph, cell) if cell is not None else None
    if cell is None or place is None:
        return
    sinks = flow_sinks.load(vocabulary.device)
    reached = follow(cell, graph.near, CLASS)
    yield step_of(graph, cell, place, "said")
    for each, _ in reached:
        taker = takes(graph, each, sinks)
        if taker is not None:
            for before, edge in way_to((each, False), reached):
                where = edge.path or home_of(edge.cell) or home_of(before)
                if edge.kind not in SILENT:
                    yield FlowStep(where, edge.line, line_of(graph, where, edge.line), edge.kind)
            yield FlowStep(home_of(each), taker, line_of(graph, home_of(each), taker), SINK)
            break
    targets = target_words(vocabulary)

    def names_target(other: Cell) -> bool:
        there = place_of(graph, other)
        return there is not None and bool(
            targets.search(graph.texts[other[1]][there.start : there.end])
        )

    for other, *_ in meetings(graph, cell, names_target):
        there = place_of(graph, other)
        if there is not None:
            yield step_of(graph, other, there, "compared with it")


def text_at(graph: ValueGraph, finding: Finding) -> Cell | None:
    """The text that a finding is about."""
    home, source = graph.file(finding.path), graph.load(finding.path)
    if home is None or source is None:
        return None
    start = source.starts[finding.line - 1] + finding.column - 1
    inside = (c for c, p in home.places.items() if p.start <= start < p.end)
    return next(inside, None)


def step_of(graph: ValueGraph, cell: Cell, place: TextPlace, what: str) -> FlowStep:
    """The line of a text."""
    return FlowStep(cell[1], place.line, line_of(graph, cell[1], place.line), what)


def line_of(graph: ValueGraph, path: str, line: int) -> str:
    """A line of a file, without its indentation."""
    lines = graph.texts.get(path, "").split("\n", line)
    return lines[line - 1].strip() if 0 < line <= len(lines) else ""


def render(explanation: Explanation, say: Language) -> list[str]:
    """Lines for people: the verdict, the reason, and the way."""
    one = explanation.finding
    before = " ".join(one.before.split())[:60]
    place = f"{one.path}:{one.line}:{one.column}"
    lines = [f"{place}: {one.rule} `{before}` {say(Text(explanation.verdict))}"]
    lines.append(f"  {say(explanation.reason)}")
    width = max((len(f"{s.path}:{s.line}") for s in explanation.steps), default=0)
    for each in explanation.steps:
        where = f"{each.path}:{each.line}".ljust(width)
        lines.append(f"    {where}  {each.text}    [{say(Text(each.what))}]")
    return lines
