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


class Line:
    """Entries by number of submission. Legend: E entries."""

    def __init__(self, settings: Settings) -> None:
        self.entries: list[Entry] = []
        self.settings = settings
        self._times: tuple[Floats, Floats, Floats] | None = None

    def add(self, entry: Entry) -> None:
        """A job begins to wait."""
        bisect.insort(self.entries, entry)
        self._times = None

    def remove(self, entry: Entry) -> None:
        """A job waits no longer."""
        del self.entries[bisect.bisect_left(self.entries, entry)]
        self._times = None

    def promise(self, entry: Entry) -> None:
        """Cards are held for this job: it stays the first."""
        entry.promised = True
        self._times = None

    def first(self, now: float) -> Entry:
        """Whose turn it is at `now` (seconds)."""
        return self.entries[int(self._urgency(now).argmax())]

    def in_order(self, now: float) -> list[Entry]:
        """All of them, the first one first."""
        order = np.argsort(-self._urgency(now), kind="stable")
        return [self.entries[int(i)] for i in order]

    def _urgency(self, now: float) -> Floats:
        """E values, the largest goes first: too late, promised, then the response ratio."""
        if self._times is None:
            self._times = self._read()
        submitted, run_s, late_after = self._times
        urgency: Floats = np.where(run_s > 0, (now - submitted) / np.maximum(run_s, 1e-9), NEVER)
        if self.settings.order == "submission":
            urgency = np.where(run_s > 0, 0.0, NEVER)
        return np.where(now > late_after, NEVER, urgency)

    def _read(self) -> tuple[Floats, Floats, Floats]:
        """When each was submitted, its run time (0: promised), and when it is late."""
        run_s = [0.0 if entry.promised else entry.run_s for entry in self.entries]
        strict = self.settings.order == "submission"
        late_after = [
            entry.since + self.settings.patience if strict or entry.job.minutes is None else NEVER
            for entry in self.entries
        ]
        submitted = [entry.submitted for entry in self.entries]
        return np.array(submitted), np.array(run_s), np.array(late_after)
