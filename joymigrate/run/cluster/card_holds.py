"""Cards that are kept for waiting jobs which fit nowhere: for whom, which, and until when."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from joymigrate.run.cluster import reservation
from joymigrate.run.cluster.allocations import Allocations
from joymigrate.run.cluster.elastic import Resizing
from joymigrate.run.cluster.entries import NEVER, CardHold, WaitingJob
from joymigrate.run.cluster.place import Placer
from joymigrate.run.cluster.state import ClusterState, Placement


class Holding(Resizing):
    """The part of a scheduler that holds cards; it starts no job."""

    state: ClusterState
    guess: Placer
    allocations: Allocations

    def _check_holds(self) -> None:
        """Let go of holds whose time has come without their job having started."""
        self._release(
            [
                hold
                for hold in self.admission.holds
                if hold.entry.job.name not in self.waiting or self._now >= hold.until
            ]
        )

    def _note_ends(self, placement: Placement) -> None:
        """Something has started, ended, or is expected to end later on these nodes."""
        for node in {grant.node for grant in placement}:
            self.state.until[node] = self.allocations.last_end(node)

    def _make_hold(self, entry: WaitingJob) -> None:
        """Hold the cards that a job will get at the earliest time that expected ends make room.

        When the ends that are known do not suffice, all running jobs are thought away and the
        cards are held until it starts. Where cards are held for as many jobs as may be on its
        nodes, none are; cards that are held for another job are never held twice.
        """
        holds = self.admission.holds
        if any(hold.entry is entry for hold in holds) or self.admission.covered(entry):
            return
        for name in self.allocations.overdue(self._now):
            run = self.running[name]
            run.expected = self._expected_end(run.entry, run.started)
            self.allocations.expect(name, run.expected)
            self._note_ends(run.placement)
        parts = (self.state, self.allocations, self.guess, entry.job)
        room = reservation.earliest(*parts, self.admission.together(holds))
        if room is None:
            return
        if not room.stated and self._now - entry.since < self.settings.hold_blind_after:
            return
        mask = room.mask(len(self.state.nodes))
        nodes = self.admission.nodes_of(entry.job)
        if room.until == NEVER and self.admission.holds_on(nodes):
            return  # beside others only for a time that is known
        self._groups[entry.group].promise(entry)
        self.admission.holds = (*holds, CardHold(entry, mask, room.until, nodes))


def holds_met(entry: WaitingJob, ends: Sequence[float], now: float) -> int:
    """How many holds, of those needed at `ends` (sorted), a job that starts now must respect."""
    bound_s = entry.bound_s
    return len(ends) if bound_s is None else bisect.bisect_left(ends, now + bound_s)
