"""The part of a scheduler that knows which cards may be used: nodes that go and come."""

from __future__ import annotations

from joymigrate.errors import JoyError
from joymigrate.run.cluster import cards
from joymigrate.run.cluster.entries import ClusterSettings, RunningJob
from joymigrate.run.cluster.events import Action, Evict, NodeBack
from joymigrate.run.cluster.quota import Quotas
from joymigrate.run.cluster.state import ClusterState
from joymigrate.run.cluster.waiting_jobs import WaitingJobs


class Outages(WaitingJobs):
    """Jobs on cards that are gone wait again."""

    state: ClusterState

    def __init__(self, quotas: Quotas, settings: ClusterSettings) -> None:
        super().__init__(quotas, settings)
        self.running: dict[str, RunningJob] = {}

    def _end(self, name: str) -> None:
        """Give a running job's cards back."""
        raise NotImplementedError

    def _reopen(self) -> None:
        """Something was given back: what has failed may fit now."""
        raise NotImplementedError

    def _lost(self, node: str, failed: tuple[int, ...] | None) -> list[Action]:
        """A node or some of its cards are gone: the gangs on them wait again, in their place."""
        number = self.node_number(node)
        mask = (1 << 16) - 1 if failed is None else cards.bits(failed)
        actions: list[Action] = []
        for run in list(self.running.values()):
            if any(g.node == number and (failed is None or g.mask & mask) for g in run.placement):
                self._end(run.entry.job.name)
                self._requeue(run)
                why = f"node {node} is lost" if failed is None else f"cards of {node} failed"
                actions.append(Evict(run.entry.job, "", why))
        kept = int(self.state.usable[number]) & ~mask
        self.state.set_usable(number, kept, failed is not None and bool(self.state.ready[number]))
        self._reopen()
        self.admission.holds = ()
        return actions

    def _back(self, event: NodeBack) -> None:
        number = self.node_number(event.node)
        node = self.state.nodes[number]
        broken = cards.bits(list(event.unhealthy)) | cards.bits(list(node.used))
        self.state.set_usable(number, int(self.state.present[number]) & ~broken, True)
        self._release(self.admission.holds)
        self._reopen()

    def node_number(self, name: str) -> int:
        """Index of a node; an unknown one raises `JoyError`."""
        if name not in self.state.number:
            raise JoyError(f"no node '{name}' in the inventory", help="check the name")
        return self.state.number[name]

    def _requeue(self, run: RunningJob) -> None:
        """Wait again with the old number: at the head of its class."""
        run.entry.since = self._now
        run.entry.job, run.entry.whole = run.entry.whole or run.entry.job, None
        self._wait(run.entry)
