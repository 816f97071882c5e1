"""Who has used how many cards for how long: a fold over the log, and nothing beside it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from joymigrate.run.cluster.controller.ledger import JobAttempt, LogFact, begin_attempt
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.schema import read

ENDS = ("ended", "evicted", "cancelled")


@dataclass(slots=True)
class UserUsage:
    """What one user has used in one queue on one kind of server.

    `jobs` and `starts` are counted where their first pod runs; `wasted_card_h` is the part of
    `card_h` of starts that were stopped or failed.
    """

    user: str
    queue: str
    kind: str
    jobs: int = 0
    starts: int = 0
    card_h: float = 0.0
    wasted_card_h: float = 0.0
    wait_h: float = 0.0


@dataclass(slots=True)
class JobTally:
    """Jobs and open starts while the log is read."""

    jobs: dict[str, tuple[GangJob, str]] = field(default_factory=dict)  # with the user
    waiting: dict[str, float] = field(default_factory=dict)
    running: dict[str, tuple[JobAttempt, float]] = field(default_factory=dict)
    counted: set[tuple[str, str]] = field(default_factory=set)
    uses: dict[tuple[str, str, str], UserUsage] = field(default_factory=dict)


def tally(facts: Iterable[LogFact], since: float, until: float) -> list[UserUsage]:
    """Use between two times (seconds since 1970) by user, queue and kind of server."""
    known = JobTally()
    for fact in facts:
        if fact.at > until:
            break
        if fact.kind == "submitted":
            known.jobs[fact.job] = (read(GangJob, fact.data["job"], "log"), fact.by)
            known.waiting[fact.job] = fact.at
            known.counted = {pair for pair in known.counted if pair[0] != fact.job}
        elif fact.kind == "started":
            start(known, fact, since)
        elif fact.kind in ENDS and fact.job in known.running:
            good = fact.kind == "ended" and fact.data.get("state") == "done"
            good = good or bool(fact.data.get("resize"))  # it goes on in another size
            end(known, fact.job, since, fact.at, wasted=not good)
            known.waiting[fact.job] = fact.at
    for name in list(known.running):
        end(known, name, since, until, wasted=False)
    return sorted(known.uses.values(), key=lambda use: (use.user, use.queue, use.kind))


def use_of(known: JobTally, name: str, kind: str) -> UserUsage:
    """The line that a job counts on."""
    job, user = known.jobs[name]
    key = (user, job.queue, kind)
    return known.uses.setdefault(key, UserUsage(*key))


def start(known: JobTally, fact: LogFact, since: float) -> None:
    """A job starts."""
    attempt = begin_attempt(fact)
    known.running[fact.job] = (attempt, fact.at)
    begun = known.waiting.pop(fact.job, fact.at)
    if fact.at < since:
        return
    use = use_of(known, fact.job, attempt.pods[0].kind)
    use.starts += 1
    use.wait_h += (fact.at - max(begun, since)) / 3600
    if (fact.job, use.kind) not in known.counted:
        known.counted.add((fact.job, use.kind))
        use.jobs += 1


def end(known: JobTally, name: str, since: float, at: float, wasted: bool) -> None:
    """A job's cards are free again."""
    attempt, began = known.running.pop(name)
    hours = max(0.0, at - max(began, since)) / 3600
    if not hours:
        return
    tasks = [task for task in known.jobs[name][0].tasks for _ in range(task.pods)]
    for pod, task in zip(attempt.pods, tasks, strict=False):  # an elastic job has fewer pods
        cards = task.milli / 1000 or len(pod.cards)
        use = use_of(known, name, pod.kind)
        use.card_h += cards * hours
        use.wasted_card_h += cards * hours if wasted else 0.0
