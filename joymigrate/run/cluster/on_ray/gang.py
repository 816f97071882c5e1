"""One start of a job on Ray: a placement group and a pod per rank, found again by their names.

Everything can be asked twice. Group and pods are detached: they outlive the controller, whose next
life finds them under the attempt's number.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from joymigrate.run.cluster import cards, rendezvous
from joymigrate.run.cluster.controller.ledger import JobAttempt
from joymigrate.run.cluster.jobs import GangJob
from joymigrate.run.cluster.kinds import ServerKind
from joymigrate.run.cluster.on_ray.pod import Pod

PREFIX = "joymigrate-pod"
NAMESPACE = "joymigrate"
READY_S = 60.0  # for a placement group whose cards we know to be free
RESIZE_GRACE_S = 60.0  # for a job that is told to save and go on in another size
STOP_S = 4.0  # beyond its grace, for a pod to answer that its processes are gone


class Gang:
    """The processes of one attempt. `kinds` and `ids` (Ray's) are by node name."""

    def __init__(
        self, ray: Any, attempt: JobAttempt, job: GangJob, identity: str, root: str
    ) -> None:
        self.ray = ray
        self.attempt = attempt
        self.job = job
        self.identity = identity
        self.root = root
        self.pods: list[Any] = []
        self.task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The placement group's name."""
        return f"{PREFIX}-{self.identity}-{self.attempt.number}"

    def pod_name(self, rank: int) -> str:
        """The name of one pod."""
        return f"{self.name}-{rank}"

    async def bring_up(self, kinds: Mapping[str, ServerKind], ids: Mapping[str, str]) -> None:
        """Make or find the group and all pods. A launched attempt's pods are only looked for."""
        if self.attempt.launched:
            self.pods = [self._find(rank) for rank in range(len(self.attempt.pods))]
            return
        group = self._group(kinds, ids)
        await asyncio.wait_for(group.ready(), READY_S)
        self.pods = [self._make(group, rank, kinds) for rank in range(len(self.attempt.pods))]

    async def start(self) -> None:
        """Start every rank's command; those that run already go on."""
        head, port = await self.pods[0].address.remote()
        starts = []
        for rank, pod in enumerate(self.pods):
            environment = {
                **self.job.environment,
                **rendezvous.variables(str(len(self.pods)), head, str(port), str(rank)),
                "LOCAL_RANK": "0",
                "JOYMIGRATE_JOB": self.job.name,
            }
            starts.append(answer(pod.start.remote(list(self.job.command), environment)))
        await asyncio.gather(*starts)

    async def exit_codes(self) -> tuple[int, ...]:
        """Exit codes of all pods; the first failure ends the wait for the others."""
        waiting = {
            asyncio.ensure_future(answer(pod.wait.remote())): rank
            for rank, pod in enumerate(self.pods)
        }
        codes = [0] * len(self.pods)
        try:
            while waiting and not any(codes):
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for future in done:
                    codes[waiting.pop(future)] = future.result()
        finally:
            for future in waiting:
                future.cancel()
        return tuple(codes)

    async def put_away(self) -> None:
        """End all processes, then take pods and group away: until then the cards are theirs."""
        pods, grace_s, how = [], self.job.grace_s, "SIGTERM"
        if self.attempt.resized:
            grace_s, how = max(grace_s, RESIZE_GRACE_S), "SIGUSR1"
        for rank in range(len(self.attempt.pods)):
            with contextlib.suppress(ValueError):
                pods.append(self._find(rank))
        stops = [answer(pod.stop.remote(grace_s, how)) for pod in pods]
        with contextlib.suppress(Exception):
            await asyncio.wait_for(asyncio.gather(*stops, return_exceptions=True), grace_s + STOP_S)
        for pod in pods:
            with contextlib.suppress(Exception):
                self.ray.kill(pod)
        remove_group(self.name)

    def _find(self, rank: int) -> Any:
        return self.ray.get_actor(self.pod_name(rank), namespace=NAMESPACE)

    def _group(self, kinds: Mapping[str, ServerKind], ids: Mapping[str, str]) -> Any:
        from ray.util import get_placement_group
        from ray.util.placement_group import placement_group

        with contextlib.suppress(ValueError):
            return get_placement_group(self.name)
        ranks = range(len(self.attempt.pods))
        bundles = [self._resources(rank, kinds) for rank in ranks]
        pins = [{"ray.io/node-id": ids[pod.node]} for pod in self.attempt.pods]
        return placement_group(
            bundles,
            strategy="PACK",
            bundle_label_selector=pins,
            name=self.name,
            lifetime="detached",
        )

    def _resources(self, rank: int, kinds: Mapping[str, ServerKind]) -> dict[str, float]:
        """What one pod's bundle asks of Ray."""
        pod = self.attempt.pods[rank]
        task = [task for task in self.job.tasks for _ in range(task.pods)][rank]
        wanted: dict[str, float] = {}
        if pod.cards:
            wanted[kinds[pod.node].ray_resource] = task.milli / 1000 or float(len(pod.cards))
        if task.cpu_milli:
            wanted["CPU"] = task.cpu_milli / 1000
        return wanted or {"CPU": 0.001}

    def _make(self, group: Any, rank: int, kinds: Mapping[str, ServerKind]) -> Any:
        """The actor of one rank, which sees exactly the planned cards."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        pod = self.attempt.pods[rank]
        kind = kinds[pod.node]
        asks = self._resources(rank, kinds)
        visible = ",".join(str(card) for card in pod.cards)
        environment = {}
        if kind.visible:
            environment = {kind.visible: visible, f"RAY_EXPERIMENTAL_NOSET_{kind.visible}": "1"}
        gpus = asks.pop("GPU", 0)
        return (
            self.ray.remote(Pod)
            .options(
                name=self.pod_name(rank),
                namespace=NAMESPACE,
                lifetime="detached",
                get_if_exists=True,
                num_cpus=asks.pop("CPU", 0),
                num_gpus=gpus,
                resources=asks or None,
                max_concurrency=1000,  # waits of earlier controllers stay
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, rank),
                runtime_env={"env_vars": environment},
            )
            .remote(self.root, self.job.name, self.attempt.number, rank)
        )


async def answer(reference: Any) -> Any:
    """A Ray reference as a coroutine."""
    return await reference


def remove_group(name: str) -> None:
    """Take a placement group away, if it is there."""
    from ray.util import get_placement_group, remove_placement_group

    with contextlib.suppress(ValueError):
        remove_placement_group(get_placement_group(name))


def sweep(ray: Any, known: Sequence[Gang]) -> None:
    """End pods and groups that no log knows: those of a controller whose log is gone."""
    from ray.util import placement_group_table

    mine = {gang.name for gang in known}
    for name in ray.util.list_named_actors():
        if name.startswith(PREFIX) and name.rpartition("-")[0] not in mine:
            with contextlib.suppress(ValueError):
                ray.kill(ray.get_actor(name, namespace=NAMESPACE))
    for row in placement_group_table().values():
        name = row.get("name", "")
        if name.startswith(PREFIX) and row.get("state") != "REMOVED" and name not in mine:
            remove_group(name)


def overlap(one: JobAttempt, other: JobAttempt) -> bool:
    """Whether two attempts have a card in common."""
    held = {(pod.node, card) for pod in one.pods for card in pod.cards}
    return any((pod.node, card) in held for pod in other.pods for card in pod.cards)


def card_ids(mask: int) -> tuple[int, ...]:
    """The ids of a mask of cards."""
    return tuple(cards.ids(mask))
