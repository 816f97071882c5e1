"""Manifests for one engine each: one file per engine, found by folder, with `NAME` and `render`.

We hold policy, the engine places: what a manifest cannot say of ours is a note, not a silence. An
engine's `SAYS` are the keys of `KEYS` that its manifests carry; `SHARES` is the device sharer whose
resources it asks for (absent: it cannot share a card); `RINGS` that it knows which cards of a
server are linked. Pods of a job get the variables of one world, or the engine gives them. An engine
whose jobs Kueue admits has `write_jobs` in place of `render`: the queues are Kueue's.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.cluster import kinds, rendezvous
from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.jobs import GRACE_S, GangJob, PodGroup, Workload
from joymigrate.run.cluster.kinds import ServerKind
from joymigrate.run.cluster.kubernetes.renderers import _shares
from joymigrate.run.cluster.queues import Queue

IMAGE = "docker.io/library/python:3.11"
PREFIX = "joymigrate.io"
KEYS: dict[str, Callable[[GangJob], bool]] = {  # what not every engine can say, and who asks for it
    "min_pods": lambda job: 0 < job.min_pods < job.pods,
    "time_limit_minutes": lambda job: job.time_limit is not None,
    "after": lambda job: bool(job.after),
    "numa: one": lambda job: job.numa == "one",
    "leaf: one": lambda job: job.leaf == "one" and job.pods > 1,
    "sp_block": lambda job: job.sp_block > 0,
    "grace_s": lambda job: job.grace_s != GRACE_S,
}
LABELS = {"leaf": f"{PREFIX}/leaf", "spine": f"{PREFIX}/spine", "superpod": f"{PREFIX}/superpod"}


@dataclass(slots=True)
class RenderedObjects:
    """Objects in the order they should be applied, and what they could not say.

    `text` is a script, for an engine that takes no objects. `sharer` is what splits its cards.
    """

    objects: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    text: str = ""
    sharer: str = ""

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)


def engines() -> dict[str, ModuleType]:
    """Renderers by name."""
    stems = sorted(path.stem for path in Path(__file__).parent.glob("*.py"))
    found = [importlib.import_module(f"{__name__}.{s}") for s in stems if s[0] != "_"]
    return {module.NAME: module for module in found}


def render(workload: Workload, inventory: Inventory | None, engine: str) -> RenderedObjects:
    """Manifests for all jobs and queues; an unknown engine raises `JoyError`."""
    known = engines()
    if engine not in known:
        raise JoyError(
            f"--for does not know '{engine}'.{did_you_mean(engine, known)}",
            help=f"one of {', '.join(known)}",
        )
    module = known[engine]
    out = RenderedObjects(sharer=getattr(module, "SHARES", ""))
    for job in workload.jobs:
        if not out.sharer and any(task.milli for task in job.tasks):
            raise JoyError(
                f"job {job.name} asks for a share of a card, which no manifest of {engine} can say",
                help="ask for whole cards, or run it with joymigrate cluster submit",
            )
        for key, asked in KEYS.items():
            if asked(job) and key not in module.SAYS:
                out.note(f"job {job.name}: `{key}` is not expressible with {engine}")
        if not getattr(module, "RINGS", False):
            note_lost_rings(job, inventory, engine, out)
    if hasattr(module, "write_jobs"):
        known["kueue"].render_queues(workload, inventory, out, module.write_jobs)
    else:
        module.render(workload, inventory, out)
    check_names(out.objects)
    return out


def note_lost_rings(
    job: GangJob, inventory: Inventory | None, engine: str, out: RenderedObjects
) -> None:
    """Say that a part of a server may be given over two of its rings."""
    for task in job.tasks:
        kind = kind_of(job, task, inventory)
        if kind is not None and kind.groups and 0 < task.cards < kind.cards:
            out.note(
                f"job {job.name}: {engine} does not know the links inside {kind.name}, its "
                f"{task.cards} cards may lie in different rings (mindcluster knows them)"
            )


def world_variables(job: GangJob, master: str, rank: Any, out: RenderedObjects) -> dict[str, Any]:
    """What makes one world of a job's pods; of several tasks only the place of the first pod."""
    if job.pods == 1:
        return {}
    port = str(rendezvous.PORT)
    if len(job.tasks) > 1:
        out.note(f"job {job.name}: RANK and WORLD_SIZE are not set over several tasks")
        return {"MASTER_ADDR": master, "MASTER_PORT": port}
    cards = job.tasks[0].cards
    return rendezvous.variables(str(job.pods), master, port, rank, str(cards) if cards else None)


def check_names(objects: Sequence[Mapping[str, Any]]) -> None:
    """Refuse two objects of one kind and name: the second would replace the first."""
    seen: set[tuple[str, str]] = set()
    for item in objects:
        key = (str(item["kind"]), str(item["metadata"]["name"]))
        if key in seen:
            raise JoyError(
                f"two objects of kind {key[0]} would be called '{key[1]}'",
                help="names become lower case, with dashes, of 63 characters: rename one",
            )
        seen.add(key)


def kind_of(job: GangJob, task: PodGroup, inventory: Inventory | None) -> ServerKind | None:
    """The server kind of a task: its first accepted one, else the inventory's first with cards."""
    if not task.cards and not task.milli:
        return None
    if task.kinds:
        return kinds.get(task.kinds[0])
    if inventory is not None:
        for node in inventory.nodes:
            if node.kind.cards and (not task.models or node.model in task.models):
                return node.kind
    raise JoyError(f"job {job.name} names no kind", help="add `kind`, or give --inventory")


def resource(kind: ServerKind) -> str:
    """The resource name of a kind's cards on Kubernetes."""
    return str(kind.kubernetes.get("resource", f"{PREFIX}/{kind.family}"))


def requests(
    job: GangJob, task: PodGroup, kind: ServerKind | None, out: RenderedObjects
) -> dict[str, str]:
    """What one pod asks for; a share of a card by the names of the engine's sharer."""
    asks: dict[str, str] = {}
    if task.cpu_milli:
        asks["cpu"] = f"{task.cpu_milli}m"
    if task.memory_mib:
        asks["memory"] = f"{task.memory_mib}Mi"
    if kind is not None and task.milli:
        asks.update(_shares.requests(job, task, kind, out.sharer))
        what = f"limits on {resource(kind)} do not count shares of a card"
        out.note(f"{what}, and a server's cards are either shared or whole")
    elif kind is not None:
        asks[resource(kind)] = str(task.cards)
    return asks


def image_of(job: GangJob, out: RenderedObjects) -> str:
    """The container's image; one that stands in is a note."""
    if not job.image:
        out.note(f"job {job.name} names no image: {IMAGE} stands in for it")
    return job.image or IMAGE


def pod_spec(
    job: GangJob,
    task: PodGroup,
    kind: ServerKind | None,
    out: RenderedObjects,
    variables: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A pod's spec: one container with requests equal to limits.

    `variables` come before the job's own: a text is a value, a mapping where it is taken from.
    """
    asks = requests(job, task, kind, out)
    container: dict[str, Any] = {
        "name": dns(task.name),
        "image": image_of(job, out),
        "resources": {"requests": dict(asks), "limits": dict(asks)},
    }
    if job.command:
        container["command"] = list(job.command)
    given = {**(variables or {}), **job.environment}
    if given:
        container["env"] = [
            {"name": name, "value" if isinstance(value, str) else "valueFrom": value}
            for name, value in given.items()
        ]
    spec: dict[str, Any] = {"restartPolicy": "Never", "containers": [container]}
    if job.time_limit is not None:
        spec["activeDeadlineSeconds"] = seconds(job)
    if job.grace_s != GRACE_S:
        spec["terminationGracePeriodSeconds"] = math.ceil(job.grace_s)
    return spec


def seconds(job: GangJob) -> int:
    """A job's time limit in whole seconds, one at least."""
    return max(1, round((job.time_limit or 0) * 60))


def one_task(job: GangJob, engine: str) -> PodGroup:
    """The only task of a job, for an engine that knows equal pods only."""
    if len(job.tasks) > 1:
        raise JoyError(
            f"job {job.name} has {len(job.tasks)} kinds of pods, {engine} knows one",
            help="render it for jobset, rayjob or volcano",
        )
    return job.tasks[0]


def dns(name: str) -> str:
    """A name that Kubernetes accepts: lower case letters, digits and dashes, 63 at most."""
    cleaned = "".join(c if c.isascii() and c.isalnum() else "-" for c in name.lower()).strip("-")
    return cleaned[:63].strip("-") or "joymigrate"


def priority_name(priority: int) -> str:
    """The name of the class of a numeric priority."""
    return f"joymigrate-{'minus-' if priority < 0 else ''}{abs(priority)}"


def queue_of(workload: Workload, name: str) -> Queue:
    """A declared queue, or one without limits."""
    return next((queue for queue in workload.queues if queue.name == name), Queue(name))


def used_queues(workload: Workload) -> list[Queue]:
    """Declared queues, and undeclared ones that jobs name."""
    found = {queue.name: queue for queue in workload.queues}
    for job in workload.jobs:
        found.setdefault(job.queue, Queue(job.queue))
    return list(found.values())


def quotas(
    bounds: Mapping[str, float], known: Sequence[ServerKind], what: str, out: RenderedObjects
) -> dict[str, str]:
    """A limit as resource quantities. A budget over several resources cannot be said by any."""
    found: dict[str, float] = {}
    names = sorted({resource(kind) for kind in known})
    for key, bound in bounds.items():
        if key == "cards":
            if len(names) > 1:
                out.note(f"{what}: one budget over {', '.join(names)} is not expressible")
                if not what.endswith("MAX"):
                    continue
            for name in names:
                found[name] = min(found.get(name, bound), bound)
            continue
        mine = {resource(kind) for kind in kinds.all_kinds().values() if matches(kind, key)}
        mine &= set(names) or mine
        if len({k.name for k in known if resource(k) in mine}) > 1 and key in kinds.all_kinds():
            out.note(f"{what}: kinds that share a resource name share its limit")
        if len(mine) > 1:
            out.note(f"{what}: {key} {bound:g} is said of each of {', '.join(sorted(mine))}, "
                     "their sum is not expressible")  # fmt: skip
        for name in mine:
            found[name] = found.get(name, 0.0) + bound if len(mine) == 1 else bound
    return {name: f"{value:g}" for name, value in sorted(found.items())}


def matches(kind: ServerKind, key: str) -> bool:
    """Whether a limit's key means this kind."""
    return key in (kind.name, kind.family)


def kinds_in_use(workload: Workload, inventory: Inventory | None) -> list[ServerKind]:
    """Kinds of the inventory's nodes and of the jobs, each once."""
    found: dict[str, ServerKind] = {}
    for node in inventory.nodes if inventory else ():
        if node.kind.cards:
            found.setdefault(node.kind.name, node.kind)
    for job in workload.jobs:
        for task in job.tasks:
            kind = kind_of(job, task, inventory)
            if kind is not None:
                found.setdefault(kind.name, kind)
    return list(found.values())
