"""The one actor that decides: scheduler, log and launches behind a detached named actor.

Every command line talks to the same actor, so two of them can never book one card twice. What it
decides is in its log before anything is done about it. Ray starts it anew when its process dies: it
reads the log, finds the live pods by name, ends those that should be gone, and goes on. No card of
an attempt is granted to a process before the processes that had it are gone.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from joymigrate.errors import JoyError
from joymigrate.run.cluster import jobs
from joymigrate.run.cluster.controller import limits
from joymigrate.run.cluster.controller.ledger import LIVE, JobAttempt, LogFact
from joymigrate.run.cluster.controller.orders import ClusterOrder, decide
from joymigrate.run.cluster.controller.restore import find_lost, restore, submission
from joymigrate.run.cluster.controller.store import LogStore
from joymigrate.run.cluster.dependencies import check_order
from joymigrate.run.cluster.detect import node as this_node
from joymigrate.run.cluster.events import (
    Action,
    Cancelled,
    ClusterTick,
    Ended,
    Event,
    Evict,
    Start,
)
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.on_ray import output
from joymigrate.run.cluster.on_ray.answers import ControllerQueries
from joymigrate.run.cluster.on_ray.gang import Gang, answer, card_ids, overlap, sweep
from joymigrate.run.cluster.on_ray.nodes import inventory
from joymigrate.run.cluster.queues import Queue
from joymigrate.run.cluster.scheduler import Scheduler

WATCH_S = 0.5  # between looks at Ray's nodes
IDLE_S = 5.0  # the same, where no job runs or waits
HEALTH_S = 60.0  # between two looks at the health of cards
VERDICT_S = 25.0  # Ray calls a silent node dead within this time
KILLED_S = 3.0  # a process that a dying raylet took along looks killed at first
LOSSES = 3
SCHEDULER = "scheduler"  # who orders what nobody else does


class Controller(ControllerQueries):
    """Scheduler and log of one Ray cluster."""

    def __init__(self, workload: jobs.Workload, policy: str, store: str = "") -> None:
        self.ray: Any = importlib.import_module("ray")
        self.root = store
        self.store = LogStore(Path(store) if store else output.session_folder())
        self.ledger = self.store.load()
        self.gangs: dict[int, Gang] = {}
        self.closing: dict[int, asyncio.Task[None]] = {}
        self.cluster, self.ids = inventory(self.ray.nodes())
        if not self.ledger.identity:
            self._open(workload, policy)
        self._note_nodes()
        self.scheduler: Scheduler
        sweep(self.ray, [self._gang(attempt) for attempt in self.ledger.attempts.values()])
        self._restore()
        loop = asyncio.get_running_loop()
        self.watching = loop.create_task(self._watch_nodes())
        self.nursing = loop.create_task(self._watch_cards())

    def _open(self, workload: jobs.Workload, policy: str) -> None:
        """The first line of a new log."""
        Scheduler(self.cluster, workload.queues, None, workload.weights)  # limits that hold
        limits = limits_data(workload.queues, workload.weights)
        self._write(
            [fact("opened", data={"identity": uuid4().hex[:8], "policy": policy, **limits})]
        )

    # -- what command lines ask ---------------------------------------------------------

    async def submit(
        self, new: Sequence[GangJob], by: str = "", request: str = ""
    ) -> dict[str, Any]:
        """Take jobs in and start what can start; returns their status.

        The same `request` counts once: a command line that lost its answer asks again.
        """
        names = [job.name for job in new]
        if request and request in self.ledger.requests:
            return await self.status(names)
        check_order(new)
        for job in new:
            self._check(job)
        new = [dataclasses.replace(job, user=by) for job in new]
        data = {"request": request}
        self._write(
            fact("submitted", job.name, by, {"job": dataclasses.asdict(job), **data}) for job in new
        )
        at = time.time()
        self._follow(submission(self.ledger.records[name], at) for name in names)
        return await self.status(names)

    def _check(self, job: GangJob) -> None:
        """Refuse a job that cannot be taken in."""
        declared = {queue.name for queue in self.ledger.queues}
        old = self.ledger.records.get(job.name)
        if old is not None and old.state in LIVE:
            raise JoyError(f"a job called '{job.name}' is {old.state}", help="cancel it first")
        if declared and job.queue not in declared and job.queue != jobs.DEFAULT_QUEUE:
            raise JoyError(
                f"job {job.name}: this cluster has no queue '{job.queue}'",
                help=f"queues: {', '.join(sorted(declared))}",
            )
        if not job.command:
            raise JoyError(f"job {job.name} has no command", help="add `command`")
        if job.running:
            raise JoyError(
                f"job {job.name} says where it runs: Ray starts jobs, it takes none over",
                help="leave `running` to `cluster plan`",
            )

    async def order(self, order: ClusterOrder) -> dict[str, Any]:
        """Follow an operator's order; returns whom it stopped and who started at once."""
        order = dataclasses.replace(order, at=time.time())  # a command line's clock may be wrong
        return self._obey(decide(order, self.ledger, self.cluster), order.verb)

    def _obey(self, facts: Sequence[LogFact], verb: str) -> dict[str, Any]:
        """Write an order's facts down and go on from there."""
        self._write(facts)
        last = self.ledger.last
        self._restore()
        stopped = [one.job for one in facts if one.kind == "evicted"]
        for one in self.store.facts(after=last):
            stopped += [one.job] if one.kind == "evicted" else []
        started = [one.job for one in self.store.facts(after=last) if one.kind == "started"]
        return {
            "schema": "joymigrate.order/1",
            "order": verb,
            "stopped": stopped,
            "started": started,
        }

    async def folder(self) -> str:
        """Where the log lies."""
        return str(self.store.folder)

    async def set_quotas(self, workload: jobs.Workload, by: str = "") -> dict[str, Any]:
        """Put other queues into force."""
        await self.compare_quotas(workload)  # refuses what cannot hold
        limited = fact("limited", by=by, data=limits_data(workload.queues, workload.weights))
        return self._obey([limited], "quota apply")

    async def cancel(self, name: str, by: str = "") -> str:
        """Stop a job for good; returns what it was doing."""
        before = self.ledger.record(name).state
        if before in LIVE:
            self._write([fact("cancelled", name, by)])
            self._follow([Cancelled(name, time.time())])
        return before

    async def execute(
        self, name: str, rank: int, command: Sequence[str], limit_s: float, by: str = ""
    ) -> tuple[int, bytes]:
        """Run a command beside one pod of a running job; its exit code and output."""
        record = self.ledger.record(name)
        gang = self.gangs.get(record.attempt)
        if record.state != "running":
            raise JoyError(f"job '{name}' is {record.state}", help="only a running job has pods")
        if gang is None or not gang.attempt.launched or not gang.pods:
            raise JoyError(f"job '{name}' has no pods yet", help="they start just now: ask again")
        if not 0 <= rank < len(gang.pods):
            raise JoyError(f"job '{name}' has no rank {rank}", help=f"0 to {len(gang.pods) - 1}")
        self._write([fact("exec", name, by, {"rank": rank, "command": list(command)})])
        try:
            found: tuple[int, bytes] = await answer(
                gang.pods[rank].execute.remote(command, limit_s)
            )
        except self.ray.exceptions.RayActorError as error:
            raise JoyError(
                f"rank {rank} of job '{name}' went away, and the command with it",
                help=f"joymigrate cluster history {name}",
            ) from error
        return found

    # -- decisions -----------------------------------------------------------------------

    def _write(self, facts: Iterable[LogFact]) -> None:
        """Into the log, then into the ledger."""
        self.store.append(list(facts), self.ledger)

    def _follow(self, events: Iterable[Event]) -> None:
        """Give events to the scheduler, write its decisions down, and carry them out."""
        try:
            self._settle(self.scheduler.on_all(list(events)))
        except Exception:
            self.scheduler, actions = restore(self.ledger, self.cluster, time.time())
            self._settle(actions)
            raise

    def _settle(self, actions: Sequence[Action]) -> None:
        facts = [self._fact_of(action) for action in actions if isinstance(action, Start | Evict)]
        self._write(facts)
        opened, self.scheduler.opened = self.scheduler.opened, []
        self._write(fact("ready", name) for name in opened)
        promised = [hold.entry.job.name for hold in self.scheduler.admission.holds]
        new = [name for name in promised if not self.ledger.records[name].promised]
        if new:
            self._write(fact("promised", name) for name in new)
        self._carry_out()

    def _fact_of(self, action: Start | Evict) -> LogFact:
        name = action.job.name
        if isinstance(action, Evict):
            more = {"resize": True} if action.resize else {}
            return fact("evicted", name, data={"why": action.why, "for": action.by, **more})
        nodes = self.cluster.nodes
        pods = [
            {
                "node": nodes[grant.node].name,
                "cards": card_ids(grant.mask),
                "rank": rank,
                "kind": nodes[grant.node].kind.name,
            }
            for rank, grant in enumerate(action.placement)
        ]
        run = self.scheduler.running.get(name)
        sized = {"minutes": action.job.minutes} if run and run.entry.whole else {}
        return fact("started", name, data={"pods": pods, **sized})

    def _carry_out(self) -> None:
        """Launch every attempt that its job runs in, close every other one."""
        loop = asyncio.get_running_loop()
        for number, attempt in self.ledger.attempts.items():
            if self.ledger.current(attempt):
                if number not in self.gangs:
                    gang = self.gangs[number] = self._gang(attempt)
                    gang.task = loop.create_task(self._run(gang))
            elif number not in self.closing:
                known = self.gangs.pop(number) if number in self.gangs else self._gang(attempt)
                self.closing[number] = loop.create_task(self._close(known))

    def _gang(self, attempt: JobAttempt) -> Gang:
        job = self.ledger.records[attempt.job].job
        return Gang(self.ray, attempt, job, self.ledger.identity, self.root)

    async def _close(self, gang: Gang) -> None:
        """Take a gang's processes away, and say so."""
        if gang.task is not None and gang.task is not asyncio.current_task():
            gang.task.cancel()
        number = gang.attempt.number
        await gang.put_away()
        await self._persist(
            lambda: self._write([fact("closed", gang.job.name, data={"attempt": number})])
        )
        self.closing.pop(number, None)

    async def _persist(self, write: Callable[[], None]) -> None:
        """Write what nobody waits for; a full disk is tried again until it is not full."""
        while True:
            try:
                return write()
            except sqlite3.Error as error:
                warn(error)
                await asyncio.sleep(WATCH_S)

    # -- one gang ------------------------------------------------------------------------

    async def _run(self, gang: Gang) -> None:
        """Launch a gang or find it again, follow it to its end, and tell the scheduler."""
        note = ""
        try:
            await self._vacated(gang.attempt)
            kinds = {node.name: node.kind for node in self.cluster.nodes}
            await gang.bring_up(kinds, self.ids)
            if not gang.attempt.launched:
                data = {"attempt": gang.attempt.number}
                launched = fact("launched", gang.job.name, data=data)
                await self._persist(lambda: self._write([launched]))
            await gang.start()
            codes = await gang.exit_codes()
        except Exception as error:
            codes = (-1,)
            note = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        if not self.ledger.current(gang.attempt):
            return
        patience = VERDICT_S if note else KILLED_S * (min(codes) < 0)
        if not await self._node_died(gang, patience):
            await self._persist(lambda: self._over(gang, codes, note))

    async def _vacated(self, attempt: JobAttempt) -> None:
        """Wait until nobody else's processes are on these cards."""
        while True:
            leaving = [
                self.closing[one.number]
                for one in self.ledger.leaving()
                if one.number in self.closing and overlap(one, attempt)
            ]
            if not leaving:
                return
            await asyncio.wait(leaving)

    def _over(self, gang: Gang, codes: tuple[int, ...], note: str) -> None:
        """A gang has ended by itself: it is done, has failed, or is tried again."""
        if not self.ledger.current(gang.attempt):
            return
        record = self.ledger.records[gang.job.name]
        losses = record.losses + bool(note)
        # A pod that Ray lost is not the job's failure, unless it happens again and again.
        tries = record.tries - losses if losses <= LOSSES else record.tries
        failed = any(codes)
        again = failed and tries <= record.job.retries
        state = "waiting" if again else "failed" if failed else "done"
        data = {"codes": codes, "note": note, "lost": bool(note), "state": state}
        name = gang.job.name
        self._write([fact("ended", name, data=data)])
        at = time.time()
        events: list[Event] = [Ended(name, at, not failed)]
        if again:
            events.append(submission(record, at))
        self._follow(events)
        self._fail_cards(limits.strike_out(self.ledger))

    async def _node_died(self, gang: Gang, patience: float) -> bool:
        """Whether a gang's end was the end of one of its nodes, which Ray may learn later."""
        began = time.monotonic()
        while True:
            self._look_at_nodes()
            if not self.ledger.current(gang.attempt):
                return True
            if time.monotonic() - began >= patience:
                return False
            await asyncio.sleep(WATCH_S)

    # -- nodes ---------------------------------------------------------------------------

    async def _watch_nodes(self) -> None:
        while True:
            await asyncio.sleep(
                WATCH_S if self.ledger.attempts or self.scheduler.waiting else IDLE_S
            )
            try:
                self._look_at_nodes()
                self._follow([*self._ends_due(), ClusterTick(time.time())])
            except Exception as error:  # Ray's head starts anew, the disk is full: look again
                warn(error)

    def _ends_due(self) -> list[Event]:
        """Jobs whose time limit has come are over."""
        facts = limits.ends_due(self.ledger, time.time())
        self._write(facts)
        return [Ended(one.job, one.at, well=False) for one in facts]

    async def _watch_cards(self) -> None:
        """Ask every node's tools for broken cards, again and again."""
        while True:
            await asyncio.gather(*(self._look_at_cards(node) for node in list(self.ids)))
            await asyncio.sleep(HEALTH_S)

    async def _look_at_cards(self, node: str) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if not any(one.name == node and one.cards for one in self.cluster.nodes):
            return
        pinned = NodeAffinitySchedulingStrategy(self.ids[node], soft=False)
        task = self.ray.remote(this_node.read_health)
        asked = task.options(num_cpus=0, scheduling_strategy=pinned, max_retries=0).remote()
        try:
            self._fail_cards({node: await asyncio.wait_for(answer(asked), HEALTH_S)})
        except Exception as error:  # the node has just gone, or does not answer: look again
            warn(error)

    def _fail_cards(self, found: Mapping[str, Mapping[int, str]]) -> None:
        """Take broken cards out of use."""
        widths = {node.name: node.kind.cards for node in self.cluster.nodes}
        facts = []
        for node, sick in found.items():
            there = {card: why for card, why in sick.items() if card < widths.get(node, 0)}
            facts += limits.failures(self.ledger, node, there, time.time())
        if facts:
            self._obey(facts, "cards fail")

    def _look_at_nodes(self) -> None:
        """Let go of nodes that died, and take new ones in."""
        cluster, ids = inventory(self.ray.nodes())
        if ids != self.ids:
            # A node that was started anew has its old name and another id.
            gone = {name for name, known in self.ids.items() if ids.get(name) != known}
            self.cluster, self.ids = cluster, ids
            self._note_nodes()
            self._restore(gone)

    def _note_nodes(self) -> None:
        """Write down which nodes have come and which have gone; a new id is both."""
        known = self.ledger.nodes
        gone = [name for name, old in known.items() if self.ids.get(name) != old]
        came = [node for node in self.cluster.nodes if known.get(node.name) != self.ids[node.name]]
        facts = [fact("node gone", data={"node": name}) for name in gone]
        facts += [
            fact("node came", data={"node": node.name, "id": self.ids[node.name],
                                    "kind": node.kind.name, "cards": node.cards,
                                    "leaf": node.leaf, "spine": node.spine,
                                    "superpod": node.superpod, "model": node.model})
            for node in came
        ]  # fmt: skip
        self._write(facts)

    def _restore(self, gone: Iterable[str] = ()) -> None:
        """A scheduler over the present nodes; running jobs stand, those on `gone` nodes wait."""
        for name, why in find_lost(self.ledger, self.cluster, {*gone}).items():
            self._write([fact("evicted", name, data={"why": why, "for": ""})])
        self.scheduler, actions = restore(self.ledger, self.cluster, time.time())
        self._settle(actions)


def warn(error: Exception) -> None:
    """Into the log that Ray keeps of this actor."""
    print(f"joymigrate controller: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def fact(kind: str, job: str = "", by: str = SCHEDULER, data: Any = None) -> LogFact:
    """A fact of this moment."""
    return LogFact(kind, time.time(), job, by, data or {})


def limits_data(queues: Sequence[Queue], weights: Any) -> dict[str, Any]:
    """Queues and weights as the log keeps them."""
    return {"queues": [dataclasses.asdict(queue) for queue in queues], "weights": dict(weights)}
