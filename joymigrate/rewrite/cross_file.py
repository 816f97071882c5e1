"""What one file of a project means for another: values that pass between them, options.

Files are analysed one by one; what a file leaves open is asked of the graph of values here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from joymigrate.rewrite import analyse, flow_sinks
from joymigrate.rewrite.conditions import question_names
from joymigrate.rewrite.discover import File
from joymigrate.rewrite.module import Pending
from joymigrate.rewrite.solve import CLASS, READ, place_of
from joymigrate.rewrite.source import read_text
from joymigrate.rewrite.values.cells import COMPARED, GOES, Cell
from joymigrate.rewrite.values.graph import ValueGraph, deeper, home_of
from joymigrate.rewrite.values.growth import follow, sources


def settle(
    results: list[analyse.FileAnalysis],
    files: dict[str, File],
    job: analyse.ScanContext,
    graph: ValueGraph,
) -> list[analyse.FileAnalysis]:
    """Decide the open sites by following their values through the other files."""
    asked = OpenSites(graph, job)
    answers = {
        result.path: {analyse.place(one): asked.moves(result.path, one) for one in result.open}
        for result in results
        if result.open
    }
    done = [
        analyse.settle(files[result.path], job, answers[result.path]) if result.open else result
        for result in results
    ]
    # A rewritten value moves the comparisons that see it in other files.
    written = {
        (result.path, graph.line(one), one.column)
        for result in done
        for one in result.findings
        if one.edits
    }
    for number, result in enumerate(done):
        moved = {
            analyse.place(one): True
            for one in result.watched
            if asked.meets(result.path, one, written)
        }
        if moved:
            known = answers.get(result.path, {}) | moved
            done[number] = analyse.settle(files[result.path], job, known)
    done = reread_launches(done, files, job)
    analyse.close_modules(job)
    return done


@dataclass(slots=True)
class OpenSites:
    """Answers for sites whose values go to other files, or come from there."""

    graph: ValueGraph
    job: analyse.ScanContext

    def moves(self, path: str, site: Pending) -> bool:
        """Whether a value arrives at a sink of its kind, or stands behind a question for the
        origin's device."""
        if site.asked is not None and self.asks(path, site.asked):
            return True
        cell = self.cell(path, site)
        if cell is None:
            return False
        sinks = flow_sinks.load(self.job.context.origin.device)
        starts = [cell, *self.compared(cell)]
        return any(
            takes(self.graph, each, sinks, site.kind) is not None
            for start in starts
            for each, _ in follow(start, self.graph.near, CLASS)
        )

    def meets(self, path: str, site: Pending, written: set[tuple[str, int, int]]) -> bool:
        """Whether a compared text meets one that is written."""
        cell = self.cell(path, site)
        for start in self.compared(cell) if cell is not None else ():
            self.graph.allowance = READ
            near = sources([start], self.graph.near, CLASS)
            self.graph.allowance = sys.maxsize
            self.graph.forget_partial()
            for each in near:
                place = place_of(self.graph, each)
                source = self.graph.load(each[1]) if place is not None else None
                if place is None or source is None or each == cell:
                    continue
                if (each[1], *source.position(place.start)) in written:
                    return True
        return False

    def compared(self, cell: Cell) -> Iterator[Cell]:
        """Values that a text is compared with."""
        for each, _ in follow(cell, self.graph.near, CLASS):
            yield from (e.cell for e in self.graph.near(each, GOES) if e.kind == COMPARED)
            if each[0] == "field":  # `["cuda:0", "cuda:1"] == cards()`: element by element
                lists = (e.cell for e in self.graph.near(each[1], GOES) if e.kind == COMPARED)
                yield from filter(None, (deeper(one, each[2]) for one in lists))

    def cell(self, path: str, site: Pending) -> Cell | None:
        """The text of an open site."""
        home, source = self.graph.file(path), self.graph.load(path)
        if home is None or source is None:
            return None
        start = source.starts[site.yes.line - 1] + site.yes.column - 1
        inside = (cell for cell, at in home.places.items() if at.start <= start < at.end)
        return next(inside, None)

    def asks(self, path: str, condition: tuple[int, int]) -> bool:
        """Whether a condition asks, by itself or by others, for the origin's device."""
        home = self.graph.file(path)
        guard = home.conditions.get(condition) if home is not None else None
        platform, device = self.job.context.origin.module, self.job.context.origin.device
        for cell in sources(guard.cells, self.graph.near, CLASS) if guard is not None else ():
            there = self.graph.file(home_of(cell))
            question = there.questions.get(cell, "") if there is not None else ""
            named = question_names(device).fullmatch(question.rpartition(".")[2])
            if named or question == f"is_{device}" or question.startswith(f"{platform}."):
                return True
        return False


def takes(
    graph: ValueGraph, cell: Cell, sinks: flow_sinks.Sinks, kind: str | None = None
) -> int | None:
    """The line of a call that takes the value of a cell as a device or a backend, or of what
    gives it a name that says so. `kind`: as this one alone."""
    name = str(cell[3] if cell[0] in ("name", "attribute") else cell[-1])
    home = graph.file(home_of(cell))
    for call, key in home.given.get(cell, ()) if home is not None else ():
        positions = sinks.calls.get(call.name) or sinks.methods.get(str(call.called[-1]), {})
        found = sinks.keyword(key) or (positions.get(int(key)) if key.isdigit() else None)
        if call.name.startswith(sinks.modules) and key.isdigit():
            found = flow_sinks.DEVICE
        if found and found == (kind or found):
            return call.line
    found = sinks.names.get(name) if cell[0] in ("name", "attribute", "field", "setting") else None
    if found and found == (kind or found):
        edges = home.edges.get(cell, ()) if home is not None else ()
        return next((edge.line for edge in edges if edge.flow != GOES), 1)
    return None


def reread_launches(
    results: list[analyse.FileAnalysis], files: dict[str, File], job: analyse.ScanContext
) -> list[analyse.FileAnalysis]:
    """Read launch lines again that give values to options whose values were rewritten.

    `run.sh: --place cuda` goes with `add_argument("--place", choices=["cuda", "cpu"])`.
    """
    options = dict(each for result in results for each in result.options)
    if not options:
        return results
    words = "|".join(re.escape(name).replace("_", "[-_]") for name in sorted(options))
    given = re.compile(rf"--(?:{words})\b")
    job = replace(job, context=replace(job.context, options=tuple(sorted(options.items()))))
    return [
        analyse.analyse(files[result.path], job)
        if files[result.path].kind != "python" and given.search(read_text(files[result.path].path))
        else result
        for result in results
    ]
