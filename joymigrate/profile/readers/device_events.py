"""What a trace tells of its device, in columns: kernels, launches into graphs, odd times."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from math import inf
from typing import Any

import numpy as np

from joymigrate.language import Text
from joymigrate.profile.table import NONE, Captured

LONG_US = 1e6  # shorter ones are never called too long
OVERLAP = 0.05  # streams that run at once: worth a word above this
OVERLAPS = "device work overlaps: {total} µs in all streams within {busy} µs; shares are of the sum"
LAUNCHES = re.compile(r"Launch|Memcpy|Memset|memcpy|memset")


class DeviceEvents:
    """Device work as columns. `places` holds where an arrow ends for those without a number."""

    def __init__(self) -> None:
        self.names: list[tuple[str, str]] = []
        self.name = array("l")
        self.correlation = array("q")
        self.external = array("q")
        self.ts = array("d")
        self.dur = array("d")
        self.places: dict[int, tuple[str, str, float]] = {}
        self._names: dict[tuple[str, str], int] = {}

    def add(
        self, name: str, kind: str, correlation: int, external: int, ts: float, dur: float
    ) -> None:
        """Take one in. `kind` is copy, or the kind of core that ran it."""
        key = (name, kind)
        number = self._names.get(key)
        if number is None:
            number = self._names[key] = len(self.names)
            self.names.append(key)
        self.name.append(number)
        self.correlation.append(correlation)
        self.external.append(external)
        self.ts.append(ts)
        self.dur.append(dur)


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
