"""The one actor that decides: scheduler, ledger and launches behind a detached named actor.

Every command line talks to the same actor, so two of them can never book one card twice, and a new
one finds every job. The actor turns Ray's facts (a pod's end, a dead node) into the scheduler's
events and its actions into placement groups: one bundle per pod, pinned to the planned node; the
planned card ids reach the process through the chip's visible-devices variable.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.cluster import cards, jobs, policies
from joymigrate.run.cluster.events import (
    Action,
    Cancelled,
    Ended,
    Event,
    Evict,
    NodeLost,
    Start,
    Stop,
    Submitted,
    Tick,
)
from joymigrate.run.cluster.jobs import Job, PodAllocation
from joymigrate.run.cluster.on_ray.nodes import inventory
from joymigrate.run.cluster.on_ray.pod import Pod
from joymigrate.run.cluster.scheduler import Scheduler
from joymigrate.run.cluster.state import Placement

WATCH_S = 0.5  # between looks at Ray's nodes
READY_S = 60.0  # for a placement group whose cards we know to be free
LOG_LINES = 200
VERDICT_S = 25.0  # Ray calls a silent node dead within this time
KILLED_S = 3.0  # a process that a dying raylet took along looks killed at first
STOP_S = 5.0  # for a gang's processes to end; a pod's own patience is shorter
LOSSES = 3


@dataclass(slots=True)
class Record:
    """A job as the ledger knows it."""

    job: Job
    state: str = "waiting"  # running, done, failed, cancelled
    since: float = 0.0
    started: float | None = None
    ended: float | None = None
    tries: int = 0
    losses: int = 0  # pods that went away without an exit code
    evictions: int = 0
    exit_codes: tuple[int, ...] = ()
    pods: list[dict[str, Any]] = field(default_factory=list)
    lines: list[list[str]] = field(default_factory=list)
    note: str = ""


@dataclass(slots=True)
class Launch:
    """A started gang: its placement group, pods and the task that follows it."""

    placement: Placement
    task: asyncio.Task[None]
    group: Any = None
    pods: list[Any] = field(default_factory=list)


class Controller:
    """Scheduler and ledger of one Ray cluster."""

    def __init__(self, workload: jobs.Workload, policy: str) -> None:
        self.ray: Any = importlib.import_module("ray")
        self.workload = workload
        self.policy = policy
        self.records: dict[str, Record] = {}
        self.launches: dict[str, Launch] = {}
        self.cluster, self.ids = inventory(self.ray.nodes())
        self.scheduler = self._scheduler()
        self.watching: asyncio.Task[None] | None = None
        self.closing: set[asyncio.Task[None]] = set()

    def _scheduler(self) -> Scheduler:
        return Scheduler(
            self.cluster,
            self.workload.queues,
            policies.get(self.policy),
            self.workload.weights,
        )

    # -- what command lines ask ---------------------------------------------------------

    async def submit(self, new: Sequence[Job]) -> dict[str, Any]:
        """Take jobs in and start what can start; returns their status."""
        self._watch()
        declared = {queue.name for queue in self.workload.queues}
        for job in new:
            old = self.records.get(job.name)
            if old is not None and old.state in ("waiting", "running"):
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
        for job in new:  # all of them, or none
            self.records[job.name] = Record(job, since=time.time())
        self._follow(Submitted(job, time.monotonic()) for job in new)
        return await self.status([job.name for job in new])

    async def status(self, names: Sequence[str] = ()) -> dict[str, Any]:
        """All jobs (or the named ones) with their pods or the reason why they wait."""
        rows = []
        for name, record in self.records.items():
            if names and name not in names:
                continue
            refusal = self.scheduler.why(name) if record.state == "waiting" else None
            rows.append(
                {
                    "job": name,
                    "queue": record.job.queue,
                    "state": record.state,
                    "pods": record.pods if record.state == "running" else [],
                    "reason": refusal.reason if refusal else record.note,
                    "frees": refusal.frees if refusal else "",
                    "permanent": bool(refusal and refusal.permanent),
                    "tries": record.tries,
                    "evictions": record.evictions,
                    "exit_codes": list(record.exit_codes),
                    "waited_s": round((record.started or time.time()) - record.since, 3),
                }
            )
        nodes = [
            {"node": node.name, "kind": node.kind.name, "cards": node.cards,
             "free": int(self.scheduler.state.free[i]).bit_count()}
            for i, node in enumerate(self.cluster.nodes)
        ]  # fmt: skip
        warnings = list(self.cluster.warnings)
        return {
            "schema": "joymigrate.cluster/1",
            "jobs": rows,
            "nodes": nodes,
            "warnings": warnings,
        }

    async def cancel(self, name: str) -> str:
        """Stop a job for good; returns what it was doing."""
        record = self.records.get(name)
        if record is None:
            raise JoyError(f"no job '{name}'", help="joymigrate cluster status")
        before = record.state
        if before in ("waiting", "running"):
            record.state, record.ended = "cancelled", time.time()
            self._follow([Cancelled(name, time.monotonic())])
        return before

    async def logs(self, name: str, count: int = LOG_LINES) -> list[list[str]]:
        """The last lines of every pod, by rank."""
        if name not in self.records:
            raise JoyError(f"no job '{name}'", help="joymigrate cluster status")
        launch = self.launches.get(name)
        if launch is None or not launch.pods:
            return [lines[-count:] for lines in self.records[name].lines]
        return [list(lines) for lines in await self._tails(launch, count)]

    # -- decisions -----------------------------------------------------------------------

    def _follow(self, events: Any) -> None:
        """Give events to the scheduler and carry its actions out."""
        for action in self.scheduler.on_all(list(events)):
            self._do(action)

    def _do(self, action: Action) -> None:
        name = action.job.name
        record = self.records[name]
        match action:
            case Start():
                record.state, record.started, record.note = "running", time.time(), ""
                record.tries += 1
                record.pods = self._pods(action.placement)
                task = asyncio.get_running_loop().create_task(self._run(name, action.placement))
                self.launches[name] = Launch(action.placement, task)
            case Evict():
                record.state, record.note = "waiting", action.why
                record.evictions += 1
                self._clear(name)
            case Stop():
                self._clear(name)

    def _pods(self, placement: Placement) -> list[dict[str, Any]]:
        return [
            {"node": self.cluster.nodes[grant.node].name, "cards": cards.ids(grant.mask), "rank": i}
            for i, grant in enumerate(placement)
        ]

    def _clear(self, name: str) -> None:
        """Take a gang's processes and placement group away."""
        launch = self.launches.pop(name, None)
        if launch is None:
            return
        if launch.task is not asyncio.current_task():
            launch.task.cancel()
        task = asyncio.get_running_loop().create_task(self._put_away(launch))
        self.closing.add(task)
        task.add_done_callback(self.closing.discard)

    async def _put_away(self, launch: Launch) -> None:
        """End the pods' processes, then their actors: until then nobody else gets the bundles."""
        from ray.util import remove_placement_group

        stops = [wait_for(pod.stop.remote()) for pod in launch.pods]
        with contextlib.suppress(Exception):
            await asyncio.wait_for(asyncio.gather(*stops, return_exceptions=True), STOP_S)
        for pod in launch.pods:
            with contextlib.suppress(Exception):
                self.ray.kill(pod)
        if launch.group is not None:
            with contextlib.suppress(Exception):
                remove_placement_group(launch.group)
            launch.group = None

    # -- one gang ------------------------------------------------------------------------

    async def _run(self, name: str, placement: Placement) -> None:
        """Launch a gang, follow it to its end, and tell the scheduler."""
        record = self.records[name]
        lost = ""
        try:
            codes = await self._launch(name, record.job, placement)
        except Exception as error:
            codes = (-1,)
            lost = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        launch = self.launches.get(name)
        if launch is None or launch.task is not asyncio.current_task():
            return
        if await self._node_died(name, launch, VERDICT_S if lost else KILLED_S * (min(codes) < 0)):
            return  # the scheduler has already sent the gang back
        with contextlib.suppress(Exception):
            record.lines = [list(lines) for lines in await self._tails(launch, LOG_LINES)]
        record.exit_codes = codes
        self._clear(name)
        failed = any(codes)
        record.note = lost
        record.losses += bool(lost)
        # A pod that Ray lost is not the job's failure, unless it happens again and again.
        tries = record.tries - record.losses if record.losses <= LOSSES else record.tries
        again = failed and tries <= record.job.retries
        record.state = "waiting" if again else "failed" if failed else "done"
        record.ended = time.time()
        at = time.monotonic()
        events: list[Event] = [Ended(name, at)]
        if again:
            events.append(Submitted(record.job, at))
        self._follow(events)

    async def _node_died(self, name: str, launch: Launch, patience: float) -> bool:
        """Whether a gang's end was the end of one of its nodes, which Ray may learn later."""
        began = time.monotonic()
        while True:
            self._look_at_nodes()
            if self.launches.get(name) is not launch:
                return True
            if time.monotonic() - began >= patience:
                return False
            await asyncio.sleep(WATCH_S)

    async def _launch(self, name: str, job: Job, placement: Placement) -> tuple[int, ...]:
        """Placement group, pods, command; returns the exit codes by rank."""
        from ray.util.placement_group import placement_group

        launch = self.launches[name]
        bundles = [self._resources(job, rank, placement) for rank in range(len(placement))]
        pins = [{"ray.io/node-id": self._ray_id(grant.node)} for grant in placement]
        launch.group = placement_group(bundles, strategy="PACK", bundle_label_selector=pins)
        await asyncio.wait_for(launch.group.ready(), READY_S)
        launch.pods = [
            self._pod(launch.group, job, rank, placement) for rank in range(len(bundles))
        ]
        head, port = await launch.pods[0].address.remote()
        world = str(len(placement))
        runs = [
            pod.run.remote(
                list(job.command),
                {
                    **job.environment,
                    "RANK": str(rank), "WORLD_SIZE": world, "LOCAL_RANK": "0",
                    "NODE_RANK": str(rank), "NNODES": world,
                    "MASTER_ADDR": head, "MASTER_PORT": str(port),
                    "JOYMIGRATE_JOB": name,
                },
            )
            for rank, pod in enumerate(launch.pods)
        ]  # fmt: skip
        return await self._exit_codes(runs)

    async def _exit_codes(self, runs: Sequence[Any]) -> tuple[int, ...]:
        """Exit codes of all pods; the first failure ends the wait for the others."""
        waiting = {asyncio.ensure_future(wait_for(run)): rank for rank, run in enumerate(runs)}
        codes = [0] * len(runs)
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                codes[waiting.pop(future)] = future.result()
            if any(codes):
                for future in waiting:
                    future.cancel()
                break
        return tuple(codes)

    async def _tails(self, launch: Launch, count: int) -> Sequence[Any]:
        tails = (wait_for(pod.tail.remote(count)) for pod in launch.pods)
        found = await asyncio.gather(*tails, return_exceptions=True)
        # A pod that has just been taken away has no lines any more.
        return [[] if isinstance(lines, BaseException) else lines for lines in found]

    def _resources(self, job: Job, rank: int, placement: Placement) -> dict[str, float]:
        """What one pod's bundle asks of Ray."""
        grant = placement[rank]
        kind = self.cluster.nodes[grant.node].kind
        found: dict[str, float] = {}
        if grant.mask:
            found[kind.ray_resource] = grant.milli / 1000 or float(grant.mask.bit_count())
        if grant.cpu_milli:
            found["CPU"] = grant.cpu_milli / 1000
        return found or {"CPU": 0.001}

    def _pod(self, group: Any, job: Job, rank: int, placement: Placement) -> Any:
        """The actor of one rank, which sees exactly the planned cards."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        grant = placement[rank]
        kind = self.cluster.nodes[grant.node].kind
        asks = self._resources(job, rank, placement)
        visible = ",".join(str(card) for card in cards.ids(grant.mask))
        environment = {}
        if kind.visible:
            environment = {kind.visible: visible, f"RAY_EXPERIMENTAL_NOSET_{kind.visible}": "1"}
        gpus = asks.pop("GPU", 0)
        return (
            self.ray.remote(Pod)
            .options(
                num_cpus=asks.pop("CPU", 0),
                num_gpus=gpus,
                resources=asks or None,
                max_concurrency=8,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, rank),
                runtime_env={"env_vars": environment},
            )
            .remote()
        )

    def _ray_id(self, node: int) -> str:
        return self.ids[self.cluster.nodes[node].name]

    # -- nodes ---------------------------------------------------------------------------

    def _watch(self) -> None:
        if self.watching is None or self.watching.done():
            self.watching = asyncio.get_running_loop().create_task(self._watch_nodes())

    async def _watch_nodes(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            self._look_at_nodes()
            self._follow([Tick(time.monotonic())])

    def _look_at_nodes(self) -> None:
        """Tell the scheduler about nodes that died, and take new ones in."""
        cluster, ids = inventory(self.ray.nodes())
        at = time.monotonic()
        state = self.scheduler.state
        # A node that was started anew has its old name and another id.
        for name, known in self.ids.items():
            if ids.get(name) != known and bool(state.ready[state.number[name]]):
                self._follow([NodeLost(name, at)])
        if set(ids.items()) - set(self.ids.items()):
            self._take_in(cluster, ids)

    def _take_in(self, cluster: Any, ids: dict[str, str]) -> None:
        """A scheduler over the new set of nodes; running jobs stand as they are."""
        old, at = self.scheduler, time.monotonic()
        self.cluster, self.ids = cluster, ids
        self.scheduler = self._scheduler()
        for name, launch in list(self.launches.items()):
            job = self.records[name].job
            held = tuple(
                PodAllocation(pod["node"], tuple(pod["cards"])) for pod in self.records[name].pods
            )
            ran = (at - old.running[name].started) / 60
            self.scheduler.on(Submitted(replace(job, running=held, ran_minutes=ran), at))
            launch.placement = self.scheduler.running[name].placement
        line = sorted(old.waiting.values())
        self._follow(
            Submitted(self.records[name].job, at)
            for name in [*(entry.job.name for entry in line), *old.refused]
        )
        for entry in line:
            again = self.scheduler.waiting.get(entry.job.name)
            if again is not None:
                again.since = entry.since


async def wait_for(reference: Any) -> Any:
    """A Ray reference as a coroutine."""
    return await reference
