"""Our own log: the folder of a cluster on Ray (`cluster submit --store FOLDER`), in use or not."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from joymigrate.run.cluster import kinds
from joymigrate.run.cluster.controller import store
from joymigrate.run.cluster.controller.ledger import JobLedger, LogFact
from joymigrate.run.cluster.events import Cancelled, CardsFailed, Event, NodeBack, NodeLost
from joymigrate.run.cluster.inventory import Inventory, Node
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.traces import Arrival, JobTrace

NETWORK = ("leaf", "spine", "superpod", "model")  # what a log says of a node, if it is a newer one


@dataclass(slots=True)
class LoggedJob:
    """A job from its submission, or from when it waits anew after a failure; times in seconds."""

    job: GangJob
    at: float  # when it could start first
    since: float  # when it last began to wait
    waited: float = 0.0
    began: float | None = None
    seconds: float = float("inf")
    left: float | None = None  # when it was taken back while it waited


class LogReader:
    """Collects what a log says, fact by fact."""

    def __init__(self) -> None:
        self.ledger = JobLedger()
        self.nodes: dict[str, Node] = {}
        self.events: list[Event] = []
        self.jobs: list[LoggedJob] = []
        self.last: dict[str, LoggedJob] = {}  # of each name
        self.kinds: Counter[str] = Counter()
        self.opened = 0.0

    def take(self, fact: LogFact) -> None:
        """The next fact."""
        self.ledger.apply(fact)
        self.kinds[fact.kind] += 1
        if fact.kind == "opened":
            self.opened = fact.at
        elif fact.kind == "submitted":
            self._wait(replace(self.ledger.records[fact.job].job, after=()), fact.at)
        elif fact.job in self.last:
            self._follow(self.last[fact.job], fact)
        elif fact.data.get("node"):
            self._node(str(fact.data["node"]), fact)

    def _wait(self, job: GangJob, at: float) -> None:
        self.last[job.name] = LoggedJob(job, at, at)
        self.jobs.append(self.last[job.name])

    def _follow(self, one: LoggedJob, fact: LogFact) -> None:
        """What has happened to a job."""
        match fact.kind:
            case "ready" | "released" if one.began is None:
                one.since = fact.at
                one.at = fact.at if not one.waited else one.at
            case "started":
                one.waited += max(0.0, fact.at - one.since)
                one.began = fact.at if one.began is None else one.began
            case "evicted" if not fact.data.get("resize"):
                one.since, one.began = fact.at, None
            case "evicted":
                one.since = fact.at
            case "ended" | "cancelled" if one.began is not None:
                one.seconds = fact.at - one.began
                if fact.data.get("state") == "waiting":
                    self._wait(one.job, fact.at)
            case "cancelled":
                one.left = fact.at

    def _node(self, name: str, fact: LogFact) -> None:
        """What has happened to a node; one that came later was lost until then."""
        sick = self.ledger.failed.get(name, ())
        if fact.kind == "node came":
            if name not in self.nodes:
                kind = kinds.get(fact.data["kind"], f"node {name} of the log")
                cards, place = fact.data["cards"], {k: fact.data.get(k, "") for k in NETWORK}
                gone = tuple(range(cards, kind.cards))
                self.nodes[name] = Node(name, kind, cards, unhealthy=gone, absent=gone, **place)
                self.events += [NodeLost(name, self.opened)] if fact.at > self.opened + 1 else []
            self.events.append(NodeBack(name, sick, fact.at))
        elif name not in self.nodes:
            return
        elif fact.kind == "node gone":
            self.events.append(NodeLost(name, fact.at))
        elif fact.kind == "cards_failed":
            self.events.append(CardsFailed(name, tuple(fact.data["cards"]), fact.at))
        elif fact.kind == "cards_healed":
            self.events.append(NodeBack(name, sick, fact.at))

    def trace(self) -> JobTrace:
        """All that was collected."""
        seen: Counter[str] = Counter()
        arrivals, events = [], self.events
        for one in self.jobs:
            seen[one.job.name] += 1
            times = seen[one.job.name]
            job = replace(one.job, name=f"{one.job.name}#{times}") if times > 1 else one.job
            ran = one.began is not None or one.waited > 0
            arrivals.append(Arrival(job, one.at, one.seconds, one.waited if ran else None))
            events += [Cancelled(job.name, one.left)] if one.left is not None else []
        counts = {"cordons": self.kinds["cordoned"], "changed priorities": self.kinds["priority"]}
        notes = [f"{count} {what} are not replayed" for what, count in counts.items() if count]
        if self.kinds["limited"]:
            notes.append(f"the queues changed {self.kinds['limited']} times: the last ones count")
        return JobTrace(
            tuple(sorted(arrivals, key=lambda arrival: arrival.at)),
            self.ledger.queues,
            tuple(self.ledger.weights.items()),
            inventory=Inventory(tuple(self.nodes.values())),
            events=tuple(sorted(events, key=lambda event: event.at)),
            notes=tuple(notes),
        )


def read(path: Path) -> JobTrace:
    """Jobs by submission, nodes as they went and came, and the queues that were last in force."""
    reader = LogReader()
    with closing(store.read_only(path)) as base:
        for fact in store.facts(base):
            reader.take(fact)
    return reader.trace()
