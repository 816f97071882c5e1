"""Waiting jobs that ask for the same cards, and whose turn it is among them.

They may differ in CPU, memory and run time. Thousands of different jobs form a few such lines, so
that an event costs what the lines cost, not what the jobs do.
"""

from __future__ import annotations

import bisect

import numpy as np
from numpy.typing import NDArray

from joymigrate.run.cluster.entries import NEVER, Entry, Settings

Floats = NDArray[np.float64]
BOUND = 3  # the row of longest times


class Line:
    """Entries by number of submission. Legend: E entries."""

    def __init__(self, settings: Settings) -> None:
        self.entries: list[Entry] = []
        self.settings = settings
        self._times: Floats | None = None
        self._first: tuple[float, Entry] | None = None  # whose turn it was, and when

    def add(self, entry: Entry) -> None:
        """A job begins to wait."""
        at = bisect.bisect_left(self.entries, entry)
        self.entries.insert(at, entry)
        self._first = None
        if self._times is not None:
            self._times = np.insert(self._times, at, self._times_of(entry), axis=1)

    def remove(self, entry: Entry) -> None:
        """A job waits no longer."""
        at = bisect.bisect_left(self.entries, entry)
        del self.entries[at]
        self._first = None
        if self._times is not None:
            self._times = np.delete(self._times, at, axis=1)

    def promise(self, entry: Entry) -> None:
        """Cards are held for this job: it stays the first."""
        entry.promised = True
        self._times = self._first = None

    def first(self, now: float) -> Entry:
        """Whose turn it is at `now` (seconds)."""
        if self._first is None or self._first[0] != now:
            self._first = now, self.entries[int(self._urgency(now).argmax())]
        return self._first[1]

    def in_order(self, now: float, within_s: float | None = None) -> list[Entry]:
        """All of them, or those known to be over in `within_s` seconds; the first one first."""
        order = np.argsort(-self._urgency(now), kind="stable")
        if within_s is not None:
            order = order[self._known()[BOUND][order] <= within_s]
        return [self.entries[int(i)] for i in order]

    def _urgency(self, now: float) -> Floats:
        """E values, the largest goes first: too late, promised, then as `Entry.urgency`."""
        submitted, run_s, late_after, _ = self._known()
        square = np.maximum(run_s, 1e-9) ** 2
        urgency: Floats = np.where(run_s > 0, (now - submitted) / square, NEVER)
        if self.settings.order == "submission":
            urgency = np.where(run_s > 0, 0.0, NEVER)
        return np.where(now > late_after, NEVER, urgency)

    def _known(self) -> Floats:
        """(4, E): see `_times_of`."""
        if self._times is None:
            self._times = np.array([self._times_of(entry) for entry in self.entries]).T
        return self._times

    def _times_of(self, entry: Entry) -> tuple[float, float, float, float]:
        """When it was submitted, its run time (0: promised), when it is late, its longest time."""
        late = self.settings.order == "submission" or entry.job.minutes is None
        late_after = entry.since + self.settings.patience if late else NEVER
        run_s = 0.0 if entry.promised else entry.run_s
        bound_s = entry.bound_s
        return entry.submitted, run_s, late_after, NEVER if bound_s is None else bound_s
