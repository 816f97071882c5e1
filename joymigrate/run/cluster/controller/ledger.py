"""What is true of a cluster: a pure fold over the log of what has happened to it.

A fact is written down before anything is done about it, so that whoever reads the log again knows
all jobs, all limits, and which processes may still hold which cards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.cluster import run_times
from joymigrate.run.cluster.dependencies import targets_of
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.queues import Queue
from joymigrate.schema import read

LIVE = ("waiting", "held", "running")
KEPT = 2000  # ended jobs that stay at hand, beside those that live ones come after
REQUESTS = 5000  # command lines' requests that are known when they are asked a second time


@dataclass(frozen=True, slots=True)
class LogFact:
    """One line of the log. `number` is its place in it; `at` is in seconds since 1970."""

    kind: str
    at: float
    job: str = ""
    by: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0


@dataclass(frozen=True, slots=True)
class PodPlace:
    """Where one pod of a started job is."""

    node: str
    cards: tuple[int, ...]
    rank: int
    kind: str = ""


@dataclass(slots=True)
class JobAttempt:
    """One start of a job until its processes are gone; its number is that of the fact.

    `launched`: its pods are there, and none is ever made anew under this number.
    """

    number: int
    job: str
    pods: tuple[PodPlace, ...]
    launched: bool = False
    resized: bool = False  # its processes are told to save: another size goes on


@dataclass(slots=True)
class JobRecord:
    """A job as the log leaves it; `number` is its place in the order of submission."""

    job: GangJob
    number: int
    by: str
    since: float
    submitted: float
    state: str = "waiting"  # waiting, held, running, done, failed, cancelled
    started: float | None = None
    ended: float | None = None
    attempt: int = 0  # the last one, 0 before the first
    tries: int = 0
    losses: int = 0  # pods that went away without an exit code
    evictions: int = 0
    promised: bool = False
    ready: bool = False  # nobody comes before it any more
    exit_codes: tuple[int, ...] = ()
    pods: tuple[PodPlace, ...] = ()
    note: str = ""
    held_by: str = ""  # who holds it, where it is held
    whole: GangJob | None = None  # as it was submitted, while it runs in another size
    ran_s: float = 0.0  # in other sizes, before this attempt


@dataclass(slots=True)
class JobLedger:
    """Jobs, open attempts, limits and the state of nodes. A fact of kind `node came` is taken in by
    the method `_node_came`."""

    identity: str = ""  # tells this cluster's processes from those of another log
    policy: str = "topology"
    queues: tuple[Queue, ...] = ()
    weights: dict[str, float] = field(default_factory=dict)
    records: dict[str, JobRecord] = field(default_factory=dict)
    attempts: dict[int, JobAttempt] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)  # those that are there, and their ids
    cordoned: dict[str, str] = field(default_factory=dict)  # node → why
    failed: dict[str, tuple[int, ...]] = field(default_factory=dict)  # node → cards
    strikes: dict[str, tuple[str, ...]] = field(default_factory=dict)  # card → failed programs
    history: dict[str, tuple[float, ...]] = field(default_factory=dict)  # seconds, `run_times`
    requests: tuple[str, ...] = ()
    last: int = 0

    def apply(self, fact: LogFact) -> None:
        """Take in the next fact of the log."""
        change = getattr(self, f"_{fact.kind.replace(' ', '_')}", None)
        if change is not None:  # some are only noted, and older logs hold kinds that are gone
            change(fact)
        self.last = fact.number

    def record(self, name: str) -> JobRecord:
        """A job by name; `JoyError` when there is none."""
        if name not in self.records:
            raise JoyError(f"no job '{name}'", help="joymigrate cluster status")
        return self.records[name]

    def live(self, *states: str) -> list[JobRecord]:
        """Records in these states, in order of submission."""
        found = (record for record in self.records.values() if record.state in states)
        return sorted(found, key=lambda record: record.number)

    def leaving(self) -> list[JobAttempt]:
        """Attempts that are over while their processes may still hold their cards."""
        return [one for one in self.attempts.values() if not self.current(one)]

    def current(self, attempt: JobAttempt) -> bool:
        """Whether this is the attempt that its job runs in."""
        record = self.records.get(attempt.job)
        return record is not None and record.state == "running" and record.attempt == attempt.number

    def _opened(self, fact: LogFact) -> None:
        self.identity, self.policy = fact.data["identity"], fact.data["policy"]
        self._limited(fact)

    def _limited(self, fact: LogFact) -> None:
        known = Queue.__dataclass_fields__  # older logs hold keys that are gone
        rows = [{k: v for k, v in raw.items() if k in known} for raw in fact.data["queues"]]
        self.queues = tuple(read(Queue, raw, "ledger") for raw in rows)
        self.weights = dict(fact.data["weights"])

    def _submitted(self, fact: LogFact) -> None:
        job = read(GangJob, fact.data["job"], "ledger")
        state = "held" if fact.data.get("held") else "waiting"
        self.records.pop(job.name, None)
        self.records[job.name] = JobRecord(job, fact.number, fact.by, fact.at, fact.at, state)
        request = fact.data.get("request")
        if request and request not in self.requests[-1:]:
            self.requests = (*self.requests, request)[-REQUESTS:]

    def _started(self, fact: LogFact) -> None:
        record = self.records[fact.job]
        attempt = begin_attempt(fact)
        record.state, record.started, record.note = "running", fact.at, ""
        if len(attempt.pods) != record.job.pods or "minutes" in fact.data:
            record.whole = record.whole or record.job
            task = replace(record.job.tasks[0], pods=len(attempt.pods))
            minutes = fact.data.get("minutes", record.job.minutes)
            record.job = replace(record.job, tasks=(task,), minutes=minutes)
        record.tries += 1
        record.attempt, record.pods = fact.number, attempt.pods
        self.attempts[fact.number] = attempt

    def _launched(self, fact: LogFact) -> None:
        attempt = self.attempts.get(fact.data["attempt"])
        if attempt is not None:
            attempt.launched = True

    def _evicted(self, fact: LogFact) -> None:
        record = self.records[fact.job]
        record.state, record.note, record.since = "waiting", fact.data["why"], fact.at
        record.pods = ()
        if fact.data.get("resize"):
            record.tries -= 1
            record.ran_s += fact.at - (fact.at if record.started is None else record.started)
            if record.attempt in self.attempts:
                self.attempts[record.attempt].resized = True
            return
        record.evictions += 1
        self._made_whole(record)

    def _made_whole(self, record: JobRecord) -> None:
        """What waits again waits as it was submitted."""
        record.job, record.whole, record.ran_s = record.whole or record.job, None, 0.0

    def _ended(self, fact: LogFact) -> None:
        record = self.records[fact.job]
        if fact.data["state"] == "done" and record.started is not None and record.whole is None:
            run_times.learn(self.history, record.job, fact.at - record.started)
        self._judge_cards(record, fact)
        record.state, record.note = fact.data["state"], fact.data.get("note", "")
        record.exit_codes = tuple(fact.data["codes"])
        record.losses += bool(fact.data.get("lost"))
        record.pods = ()
        if record.state == "waiting":  # it begins anew, behind the others
            record.number, record.promised = fact.number, False
            record.since = record.submitted = fact.at
            self._made_whole(record)
        else:
            self._over(record, fact.at)

    def _judge_cards(self, record: JobRecord, fact: LogFact) -> None:
        """Which programs have failed on each card since one ended well on it."""
        codes = tuple(fact.data["codes"])
        if fact.data.get("limit") or fact.data.get("lost"):
            return  # it was stopped, or its processes went: that says nothing of its cards
        codes = codes if len(codes) == len(record.pods) else codes[:1] * len(record.pods)
        program = " ".join(record.job.command)[:200] or record.job.name
        well = not any(codes)
        for pod, code in zip(record.pods, codes, strict=True):
            for card in pod.cards:
                key = f"{pod.node}/{card}"
                if well:
                    self.strikes.pop(key, None)
                elif code and program not in self.strikes.get(key, ()):
                    self.strikes[key] = (*self.strikes.get(key, ()), program)

    def _cancelled(self, fact: LogFact) -> None:
        record = self.records[fact.job]
        record.state, record.pods = "cancelled", ()
        self._over(record, fact.at)

    def _over(self, record: JobRecord, at: float) -> None:
        record.ended = at
        over = [name for name, one in self.records.items() if one.state not in LIVE]
        if len(over) <= 1.1 * KEPT:
            return
        needed = targets_of(one.job for one in self.records.values() if one.state in LIVE)
        known = (name for name in over if name not in needed)
        for name in list(known)[: len(over) - KEPT]:
            del self.records[name]

    def _closed(self, fact: LogFact) -> None:
        self.attempts.pop(fact.data["attempt"], None)

    def _promised(self, fact: LogFact) -> None:
        self.records[fact.job].promised = True

    def _held(self, fact: LogFact) -> None:
        record, why = self.records[fact.job], fact.data.get("why", "")
        record.state, record.promised = "held", False
        record.note = f"held by {fact.by}" + (f": {why}" if why else "")
        record.held_by = fact.by

    def _released(self, fact: LogFact) -> None:
        record = self.records[fact.job]
        record.state, record.since, record.note = "waiting", fact.at, ""

    def _ready(self, fact: LogFact) -> None:
        record = self.records[fact.job]
        record.ready, record.since, record.submitted = True, fact.at, fact.at

    def _priority(self, fact: LogFact) -> None:
        record = self.records[fact.job]
        record.job = replace(record.job, priority=fact.data["priority"])

    def _node_came(self, fact: LogFact) -> None:
        self.nodes[fact.data["node"]] = fact.data["id"]

    def _node_gone(self, fact: LogFact) -> None:
        self.nodes.pop(fact.data["node"], None)

    def _cordoned(self, fact: LogFact) -> None:
        self.cordoned[fact.data["node"]] = fact.data.get("why", "")

    def _uncordoned(self, fact: LogFact) -> None:
        self.cordoned.pop(fact.data["node"], None)

    def _cards_failed(self, fact: LogFact) -> None:
        node = fact.data["node"]
        self.failed[node] = tuple(sorted({*self.failed.get(node, ()), *fact.data["cards"]}))

    def _cards_healed(self, fact: LogFact) -> None:
        node = fact.data["node"]
        left = tuple(card for card in self.failed.get(node, ()) if card not in fact.data["cards"])
        self.failed[node] = left
        for card in fact.data["cards"]:
            self.strikes.pop(f"{node}/{card}", None)
        if not left:
            del self.failed[node]


def begin_attempt(fact: LogFact) -> JobAttempt:
    """The attempt that a `started` fact begins."""
    pods = tuple(read(PodPlace, raw, "ledger") for raw in fact.data["pods"])
    return JobAttempt(fact.number, fact.job, pods)
