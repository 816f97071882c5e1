"""The one table of device work, and the one search for its owners: every reader fills it.

Owners are rows of operators. A piece of work names its row, or the number of the call that launched
it, or the number of its operator's event. What has no owner keeps the reason why. `bind` hands out
every microsecond once: to a row, to a graph's replay, or to what is loose.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from math import inf
from typing import Any

import numpy as np

from joymigrate.language import Text
from joymigrate.profile.readers.names import SCALED_SUM
from joymigrate.profile.readers.sweep import EventColumns
from joymigrate.profile.table import NONE, Captured, DeviceKernel, GraphReplay, Loose, OpTable

WHOLE_GRAPH = "graph"  # kind of a graph's run that was recorded without its kernels
SLOW = re.compile("CPU", re.IGNORECASE)  # kind of core: AI_CPU, AICPU
LONG_US = 1e6  # shorter ones are never called too long
OVERLAP = 0.05  # streams that run at once: worth a word above this
OVERLAPS = "device work overlaps: {total} µs in all streams within {busy} µs; shares are of the sum"
LAUNCHES = re.compile(r"Launch|Memcpy|Memset|memcpy|memset")


class DeviceEvents:
    """Device work as columns."""

    def __init__(self) -> None:
        self.names: list[tuple[str, str]] = []
        self.name = array("l")
        self.correlation = array("q")  # number of the call that launched it
        self.external = array("q")  # number of the operator's event
        self.row = array("l")  # the operator's row, where the source itself says it
        self.ts = array("d")
        self.dur = array("d")
        self.calls = array("q")
        self._names: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        return len(self.name)

    def add(
        self,
        name: str,
        kind: str,
        ts: float,
        dur: float,
        *,
        correlation: int = NONE,
        external: int = NONE,
        row: int = NONE,
        calls: int = 1,
    ) -> None:
        """Take one in. `kind` is copy, graph, or the kind of core that ran it."""
        key = (name, kind)
        number = self._names.get(key)
        if number is None:
            number = self._names[key] = len(self.names)
            self.names.append(key)
        self.name.append(number)
        self.correlation.append(correlation)
        self.external.append(external)
        self.row.append(row)
        self.ts.append(ts)
        self.dur.append(dur)
        self.calls.append(calls)


class Launches:
    """Launches of the runtime, and what is needed to find them again in a graph's replay."""

    def __init__(self) -> None:
        self.graphs: set[int] = set()
        self.captures: list[tuple[int, float, bool]] = []  # thread, ts, whether it begins
        self.correlation = array("q")
        self.name = array("l")
        self.thread = array("l")
        self.ts = array("d")
        self._names: dict[str, int] = {"": 0}

    def add(self, call: str, kernel: Any, correlation: int, thread: int, ts: float) -> None:
        """Take one in. `kernel` is the kernel's name, where the profiler says it."""
        if "GraphLaunch" in call:
            self.graphs.add(correlation)
            return
        name = str(kernel) if kernel else ""
        self.name.append(self._names.setdefault(name, len(self._names)))
        self.correlation.append(correlation)
        self.thread.append(thread)
        self.ts.append(ts)

    def windows(self, owner: dict[int, int], ran: set[int]) -> tuple[Captured, ...]:
        """The launches of each capture, in order. Those whose work `ran` were not captured."""
        names = list(self._names)
        found = []
        for thread, begin, end in pairs_of(self.captures):
            inside = sorted(
                (self.ts[i], i)
                for i in range(len(self.ts))
                if self.thread[i] == thread
                and begin <= self.ts[i] <= end
                and self.correlation[i] not in ran
            )
            order = [i for _, i in inside]
            if order:
                found.append(
                    Captured(
                        tuple(names[self.name[i]] for i in order),
                        tuple(owner.get(self.correlation[i], NONE) for i in order),
                    )
                )
        return tuple(found)


def pairs_of(marks: list[tuple[int, float, bool]]) -> Iterator[tuple[int, float, float]]:
    """Thread, begin and end of each capture."""
    begun: dict[int, float] = {}
    for thread, ts, begins in sorted(marks):
        if begins:
            begun[thread] = ts
        elif thread in begun:
            yield thread, begun.pop(thread), ts


class TimeAnomalies:
    """What is odd about the device's times. Nothing of it is left out of the sums."""

    def __init__(self) -> None:
        self.impossible = 0  # durations below zero, infinite, or no numbers
        self.first, self.last = inf, -inf

    def take(self, ts: float, dur: float) -> None:
        """One event of the device."""
        self.first = min(self.first, ts)
        self.last = max(self.last, ts)

    def notes(self, kernels: DeviceEvents, host_us: float) -> list[Any]:
        """What the user should know. `host_us` is how long the host was recorded."""
        notes: list[Any] = []
        if self.impossible:
            notes.append(
                Text("{number} durations are impossible and count as 0", number=self.impossible)
            )
        span = max(self.last - self.first, host_us)
        long = [us for us in kernels.dur if us > LONG_US and us > span] if span > 0 else []
        if long:
            notes.append(
                Text(
                    "{number} device events last longer than the whole trace ({us} µs of its sums)",
                    number=len(long),
                    us=f"{sum(long):,.0f}",
                )
            )
        total, busy = sum(kernels.dur), busy_us(kernels)
        if total > (1 + OVERLAP) * busy:
            notes.append(Text(OVERLAPS, total=f"{total:,.0f}", busy=f"{busy:,.0f}"))
        return notes


def busy_us(kernels: DeviceEvents) -> float:
    """How long at least one piece of device work ran."""
    if not len(kernels.ts):
        return 0.0
    ts = np.frombuffer(kernels.ts)
    order = np.argsort(ts, kind="stable")
    begin = ts[order]
    end = np.maximum.accumulate(begin + np.frombuffer(kernels.dur)[order])
    before = np.concatenate(([begin[0]], end[:-1]))
    return float(np.maximum(0, end - np.maximum(begin, before)).sum())


class Binder:
    """Collects the device work of one trace and finds its owners."""

    def __init__(self, table: OpTable) -> None:
        self.table = table
        self.work = DeviceEvents()
        self.launches = Launches()
        self.times = TimeAnomalies()
        self.loose: dict[tuple[int, str], list[float]] = {}
        self.replays: dict[int, list[int]] = {}

    def bind(self, timeline: EventColumns | None = None) -> dict[str, Any]:
        """Give the time to the operators' rows; the fields of a `Trace` that tell of the device.

        `timeline` is built: it knows in which row each call lies.
        """
        timeline = timeline or EventColumns(self.table)
        on_processor = [SLOW.search(kind) is not None for _, kind in self.work.names]
        slow: set[int] = set()
        work, found = self.work, dict[tuple[int, int], list[float]]()
        by_event: dict[int, int] | None = None
        for index in range(len(work)):
            number, row = work.correlation[index], work.row[index]
            if row == NONE:
                row = timeline.owner.get(number, NONE)
            if row == NONE and work.external[index] > 0 and number not in timeline.shared:
                if by_event is None:
                    by_event = {n: r for r, n in enumerate(timeline.numbers) if n > 0}
                row = by_event.get(work.external[index], NONE)
            row = self.inside(row, index)
            if row == NONE:
                self.leave(index, timeline)
            else:
                self.table.device_us[row] += work.dur[index]
                if on_processor[work.name[index]]:
                    slow.add(row)
            operator = self.table.name[row] if row != NONE else NONE
            item = found.setdefault((work.name[index], operator), [0, 0.0])
            item[0] += work.calls[index]
            item[1] += work.dur[index]
        return {
            "device_us": float(sum(work.dur)),
            "slow": frozenset(slow),
            "kernels": tuple(
                DeviceKernel(work.names[name][0], self.table.names[op] if op != NONE else "",
                             int(calls), us, work.names[name][1])
                for (name, op), (calls, us) in found.items()
            ),
            "loose": tuple(
                Loose(*work.names[name], reason, int(calls), us)
                for (name, reason), (calls, us) in self.loose.items()
            ),
            "replays": tuple(
                GraphReplay(tuple((work.name[i], work.dur[i])
                                  for i in sorted(group, key=lambda i: work.ts[i])))
                for group in self.replays.values()
            ),
            "captures": self.launches.windows(timeline.owner, set(work.correlation)),
            "kernel_names": tuple(work.names),
        }  # fmt: skip

    def inside(self, row: int, index: int) -> int:
        """The operator around a row, the row itself first: bookkeeping owns no time."""
        if self.work.correlation[index] in self.launches.graphs:
            return NONE  # what launches a graph is not what its kernels compute
        if SCALED_SUM in self.work.names[self.work.name[index]][0]:
            return NONE  # its operator does not tell which reduction it is
        while row != NONE and not self.table.operator[row]:
            row = self.table.parent[row]
        return row

    def leave(self, index: int, timeline: EventColumns) -> None:
        """Keep what has no owner, with the reason."""
        work, number = self.work, self.work.correlation[index]
        kind = work.names[work.name[index]][1]
        if number in self.launches.graphs and kind != WHOLE_GRAPH:
            self.replays.setdefault(number, []).append(index)
            return
        if kind == WHOLE_GRAPH:
            reason = "whole graph"
        elif number in timeline.shared:
            reason = "process"
        else:
            reason = "operator" if number in timeline.owner else "launch"
        item = self.loose.setdefault((work.name[index], reason), [0, 0.0])
        item[0] += work.calls[index]
        item[1] += work.dur[index]
