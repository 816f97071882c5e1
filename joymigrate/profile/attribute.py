"""Device work that no recorded operator launched: what can be said about it, and what can't.

In this order: kernels that a graph replays are joined to the operators that launched them when the
graph was captured; a kernel that operators launch elsewhere in the recording belongs to these; a
kernel is known by its name. The rest is unattributed, and counts against the share.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from joymigrate.language import Text
from joymigrate.profile.kernel_names import dtype_in, operator_of
from joymigrate.profile.readers.binder import WHOLE_GRAPH
from joymigrate.profile.readers.names import is_operator
from joymigrate.profile.table import (
    EMPTY,
    NONE,
    CallSignature,
    Captured,
    GraphReplay,
    Loose,
    OpTable,
    Trace,
)

CAPTURE, SAME, NAME = "capture", "same kernel", "kernel name"
COPY = "copy"
LEAST = 0.5  # part of a replay's kernels that a capture has to explain
ALIKE = 0.9  # part of a kernel's launches that one operator makes, where order alone pairs them
REASONS = {
    "graph": "replayed by a graph, and no capture explains it",
    "whole graph": "a graph that was recorded without its kernels",
    "launch": "its launch was not recorded",
    "process": "several processes launched work with its number",
    "operator": "launched outside of any operator",
}


@dataclass(slots=True)
class Attribution:
    """`rows` are traces of what was found, `by` how much time (µs) each way found."""

    rows: list[tuple[str, Trace]] = field(default_factory=list)
    by: dict[str, float] = field(default_factory=dict)
    loose: list[Loose] = field(default_factory=list)


def attribute(trace: Trace, sources: Sequence[Trace]) -> Attribution:
    """Find owners for the loose device work of `trace`; `sources` may hold its captures."""
    found = Attribution()
    left = list(trace.loose)
    left += join_replays(trace, [trace, *(s for s in sources if s is not trace)], found)
    left = find_same(trace, sources, left, found)
    found.loose = find_by_name(trace, left, found)
    return found


def join_replays(trace: Trace, sources: Sequence[Trace], found: Attribution) -> list[Loose]:
    """Give replayed kernels to the operators of their capture; what is left over."""
    names = trace.kernel_names
    groups: dict[tuple[int, int], list[GraphReplay]] = defaultdict(list)
    left: Counter[int] = Counter()
    left_us: dict[int, float] = defaultdict(float)

    def leave(number: int, us: float) -> None:
        left[number] += 1
        left_us[number] += us

    for replay in trace.replays:
        best = best_capture(replay, names, sources)
        if best is None:
            for number, us in replay.kernels:
                leave(number, us)
        else:
            groups[best].append(replay)
    for (source, window), replays in groups.items():
        joined = ReplayedOperators(sources[source], len(replays))
        captured = sources[source].captures[window]
        for replay in replays:
            for number, us, row in match(replay, names, captured):
                if row == NONE or not joined.add(row, us):
                    leave(number, us)
        found.by[CAPTURE] = found.by.get(CAPTURE, 0.0) + joined.us
        found.rows.append((CAPTURE, joined.trace(trace)))
    return [Loose(*names[n], "graph", calls, left_us[n]) for n, calls in left.items()]


def best_capture(
    replay: GraphReplay, names: Sequence[tuple[str, str]], sources: Sequence[Trace]
) -> tuple[int, int] | None:
    """Which capture explains most of a replay; (source, number of the capture)."""
    wanted = Counter(names[number][0] for number, _ in replay.kernels)
    best, most = None, LEAST * len(replay.kernels)
    for index, source in enumerate(sources):
        for window, captured in enumerate(source.captures):
            if not any(captured.names):  # a profiler that does not name what it launches
                alike = len(captured.rows) if fits_in_order(replay, captured, source) else 0
            else:
                had = Counter(captured.names)
                alike = sum(min(count, had[name]) for name, count in wanted.items())
            if alike > most:
                best, most = (index, window), alike
    return best


def fits_in_order(replay: GraphReplay, captured: Captured, source: Trace) -> bool:
    """Whether the n-th kernel of a replay can be the n-th launch of a capture without names.

    A kernel that is replayed several times has to come from one operator: two unlike runs with the
    same number of launches pair it with several. Where no kernel repeats, nothing speaks for it.
    """
    if len(captured.rows) != len(replay.kernels):
        return False
    operators: dict[int, Counter[str]] = defaultdict(Counter)
    table = source.ops
    for (number, _), row in zip(replay.kernels, captured.rows, strict=True):
        operators[number][table.names[table.name[row]] if row != NONE else ""] += 1
    repeated = [counts for counts in operators.values() if counts.total() > 1]
    same = sum(max(counts.values()) for counts in repeated)
    return bool(repeated) and same >= ALIKE * sum(counts.total() for counts in repeated)


def match(
    replay: GraphReplay, names: Sequence[tuple[str, str]], captured: Captured
) -> list[tuple[int, float, int]]:
    """(kernel's number, µs, row of the capture) of each kernel: the n-th launch of each name."""
    if not any(captured.names):
        return [
            (number, us, row)
            for (number, us), row in zip(replay.kernels, captured.rows, strict=True)
        ]
    waiting: dict[str, deque[int]] = defaultdict(deque)
    for name, row in zip(captured.names, captured.rows, strict=True):
        waiting[name].append(row)
    return [
        (number, us, waiting[names[number][0]].popleft() if waiting[names[number][0]] else NONE)
        for number, us in replay.kernels
    ]


class ReplayedOperators:
    """Operators of a capture with the time of its replays, as a table of their own."""

    def __init__(self, source: Trace, replays: int) -> None:
        self.source = source
        self.replays = replays
        self.table = OpTable()
        self.copied: dict[int, int] = {}
        self.us = 0.0

    def add(self, row: int, us: float) -> bool:
        """Count time on the copy of a row. False where the row lies in no operator."""
        table = self.source.ops
        if not any(table.operator[one] for one in self.chain(row)):
            return False
        for one in reversed(self.chain(row)):
            if one not in self.copied:
                above = table.parent[one]
                self.copied[one] = self.table.add(
                    self.table.name_id(table.names[table.name[one]]),
                    signature=self.table.signature_id(table.signatures[table.signature[one]]),
                    parent=self.copied.get(above, NONE),
                    place=self.table.place_id(table.places[table.place[one]]),
                    phase=table.phase[one],
                    calls=self.replays,
                    operator=bool(table.operator[one]),
                )
        inside = next(one for one in self.chain(row) if table.operator[one])
        self.table.device_us[self.copied[inside]] += us
        self.us += us
        return True

    def chain(self, row: int) -> list[int]:
        """A row and what is around it, innermost first."""
        found = []
        while row != NONE:
            found.append(row)
            row = self.source.ops.parent[row]
        return found

    def trace(self, of: Trace) -> Trace:
        """The table as a trace."""
        return Trace(of.path, "joined", self.table, overloads=self.source.overloads)


def find_same(
    trace: Trace, sources: Sequence[Trace], left: list[Loose], found: Attribution
) -> list[Loose]:
    """Share kernels among the operators that launch the same ones elsewhere."""
    owners: dict[str, Counter[str]] = defaultdict(Counter)
    for source in {id(t): t for t in (trace, *sources)}.values():
        for kernel in () if source.ran else source.kernels:
            if is_operator(kernel.operator):
                owners[kernel.name][kernel.operator] += kernel.calls
    table, rest = OpTable(), []
    for one in left:
        known = owners.get(one.name)
        if not known or one.kind in (COPY, WHOLE_GRAPH):
            rest.append(one)
            continue
        total = sum(known.values())
        for name, calls in known.items():
            add(table, name, one, calls / total)
        found.by[SAME] = found.by.get(SAME, 0.0) + one.device_us
    if len(table):
        found.rows.append((SAME, Trace(trace.path, "joined", table, overloads=trace.overloads)))
    return rest


def find_by_name(trace: Trace, left: list[Loose], found: Attribution) -> list[Loose]:
    """What the kernels' own names say; the rest."""
    table, rest = OpTable(), []
    for one in left:
        name = operator_of(one.name)[0] if one.kind != WHOLE_GRAPH else ""
        if name:
            add(table, name, one, 1.0, dtype_in(one.name))
            found.by[NAME] = found.by.get(NAME, 0.0) + one.device_us
        else:
            rest.append(one)
    if len(table):
        found.rows.append((NAME, Trace(trace.path, "joined", table, tree=False)))
    return rest


def add(table: OpTable, name: str, one: Loose, share: float, dtype: str = "") -> None:
    """A row for a part of the calls of a kernel; `dtype` where its name says one."""
    inputs = CallSignature((dtype,), ((1,),)) if dtype else EMPTY
    table.add(
        table.name_id(name),
        signature=table.signature_id(inputs),
        calls=max(1, round(one.calls * share)),
        device_us=one.device_us * share,
    )


def note_of(one: Loose) -> Text:
    """Why nobody can say what a kernel computes."""
    return Text(REASONS[one.reason])
