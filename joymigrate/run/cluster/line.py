"""Waiting jobs that ask for the same cards, and whose turn it is among them.

They may differ in CPU, memory and run time. Thousands of different jobs form a few such lines, so
that an event costs what the lines cost, not what the jobs do.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from joymigrate.run.cluster.entries import NEVER, ClusterSettings, WaitingJob

Floats = NDArray[np.float64]
# Rows of what is known of each entry, see `_times_of`.
SUBMITTED, RUN, LATE, BOUND, CPU, MEMORY, ODD = range(7)


class WaitingLine:
    """Entries by number of submission. Legend: E entries."""

    def __init__(self, settings: ClusterSettings) -> None:
        self.entries: list[WaitingJob] = []
        self.settings = settings
        self._times: Floats | None = None  # (7, E), made when first asked for
        self.elastic = 0  # of them
        # Whose turn it is, between which times nobody of those here comes before it.
        self._first: tuple[float, float, WaitingJob] | None = None

    def add(self, entry: WaitingJob) -> None:
        """A job begins to wait."""
        self.elastic += entry.job.elastic
        at = bisect.bisect_left(self.entries, entry)
        self.entries.insert(at, entry)
        self._first = self._still(entry)
        if self._times is not None:
            self._times = np.insert(self._times, at, self._times_of(entry), axis=1)

    def remove(self, entry: WaitingJob) -> None:
        """A job waits no longer."""
        self.elastic -= entry.job.elastic
        at = bisect.bisect_left(self.entries, entry)
        del self.entries[at]
        if self._first is not None and self._first[2] is entry:
            self._first = None
        if self._times is not None:
            self._times = np.delete(self._times, at, axis=1)

    def promise(self, entry: WaitingJob) -> None:
        """Cards are held for this job: it stays the first."""
        entry.promised = True
        self._first = None
        if self._times is not None:
            at = bisect.bisect_left(self.entries, entry)
            self._times[:, at] = self._times_of(entry)

    def first(self, now: float) -> WaitingJob:
        """Whose turn it is at `now` (seconds)."""
        if self._first is None or not self._first[0] <= now < self._first[1]:
            urgency = self._urgency(now)
            at = int(urgency.argmax())
            self._first = now, self._until(now, urgency, at), self.entries[at]
        return self._first[2]

    def _still(self, entry: WaitingJob) -> tuple[float, float, WaitingJob] | None:
        """Whose turn it stays beside a new one that can never come before it; None: not known."""
        if self._first is None:
            return None
        begin, until, first = self._first
        submitted, run_s, late_after = self._times_of(entry)[: LATE + 1]
        later = submitted >= first.submitted and run_s >= first.run_s
        if not run_s or entry < first or not (later or self.settings.order == "submission"):
            return None
        return begin, min(until, late_after), first

    def _until(self, now: float, urgency: Floats, at: int) -> float:
        """Until when the first one stays it: urgencies grow evenly, and some become late."""
        run_s, late_after = self._known()[[RUN, LATE]]
        late = late_after[late_after >= now]
        until = float(late.min(initial=NEVER))
        if self.settings.order == "submission" or urgency[at] == NEVER:
            return until
        rate = 1 / np.maximum(run_s, 1e-9) ** 2
        faster = rate > rate[at]
        behind = urgency[at] - urgency[faster]
        # A little early, for rounding: then it is looked at again.
        meets = now + 0.999 * behind / (rate[faster] - rate[at])
        return min(until, float(meets.min(initial=NEVER)))

    def shortest(self) -> WaitingJob:
        """The one that is known to end first."""
        return self.entries[int(self._known()[BOUND].argmin())]

    def others(
        self, first: WaitingJob, now: float, needed: Sequence[float], cards_there: bool
    ) -> Iterator[WaitingJob]:
        """Those that may start though `first` could not, by whose turn it is.

        `needed` are the times (sorted) at which held cards are needed: one that ends before may
        use them. The rest need `cards_there`, free ones that are held for nobody. One that has been
        handed out could not start either when the next is asked for: then none can that asks for
        as much CPU and memory and must respect as many holds.
        """
        known = self._known()
        gap = known[BOUND] <= (needed[-1] - now if needed else 0.0)
        if not (cards_there or gap.any()):
            return
        met = np.searchsorted(needed, now + known[BOUND])
        order = np.argsort(-self._urgency(now), kind="stable")
        left = order[(gap | cards_there)[order]]
        at = bisect.bisect_left(self.entries, first)
        most = int(met[at])
        while True:
            more = (known[CPU] < known[CPU, at]) | (known[MEMORY] < known[MEMORY, at])
            more |= gap & ((met < most) | (known[ODD] > 0))
            left = left[more[left] & (left != at)]
            if not len(left):
                return
            at = int(left[0])
            most = int(met[at]) if gap[at] else len(needed)
            yield self.entries[at]

    def _urgency(self, now: float) -> Floats:
        """E values, the largest goes first: too late, promised, then as `Entry.urgency`."""
        submitted, run_s, late_after = self._known()[: LATE + 1]
        square = np.maximum(run_s, 1e-9) ** 2
        urgency: Floats = np.where(run_s > 0, (now - submitted) / square, NEVER)
        if self.settings.order == "submission":
            urgency = np.where(run_s > 0, 0.0, NEVER)
        return np.where(now > late_after, NEVER, urgency)

    def _known(self) -> Floats:
        """(7, E): see `_times_of`."""
        if self._times is None:
            self._times = np.array([self._times_of(entry) for entry in self.entries]).T
        return self._times

    def _times_of(self, entry: WaitingJob) -> tuple[float, ...]:
        """When it was submitted, its run time (0: promised), when it is late, its longest time;
        a pod's CPU and memory; 1 for one that may start though another like it could not."""
        late = self.settings.order == "submission" or entry.job.minutes is None
        late_after = entry.since + self.settings.patience if late else NEVER
        run_s = 0.0 if entry.promised else entry.run_s
        bound_s, task = entry.bound_s, entry.job.tasks[0]
        odd = float(entry.promised or entry.job.elastic)
        bound_s = NEVER if bound_s is None else bound_s
        size = (task.cpu_milli, task.memory_mib)
        return entry.submitted, run_s, late_after, bound_s, *size, odd
