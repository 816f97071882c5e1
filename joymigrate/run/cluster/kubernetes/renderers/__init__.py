"""Manifests for one engine each: one file per engine, found by folder, with `NAME` and `render`.

We hold policy, the engine places: what a manifest cannot say of ours is a note, not a silence.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.cluster import kinds
from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.jobs import Job, PodGroup, Queue, Workload
from joymigrate.run.cluster.kinds import Kind

IMAGE = "docker.io/library/python:3.11"
PREFIX = "joymigrate.io"
LABELS = {"leaf": f"{PREFIX}/leaf", "spine": f"{PREFIX}/spine", "superpod": f"{PREFIX}/superpod"}


@dataclass(slots=True)
class Rendered:
    """Objects in the order they should be applied, and what they could not say."""

    objects: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)


def engines() -> dict[str, ModuleType]:
    """Renderers by name."""
    stems = sorted(path.stem for path in Path(__file__).parent.glob("*.py"))
    found = [importlib.import_module(f"{__name__}.{s}") for s in stems if s[0] != "_"]
    return {module.NAME: module for module in found}


def render(workload: Workload, inventory: Inventory | None, engine: str) -> Rendered:
    """Manifests for all jobs and queues; an unknown engine raises `JoyError`."""
    known = engines()
    if engine not in known:
        raise JoyError(
            f"--for does not know '{engine}'.{did_you_mean(engine, known)}",
            help=f"one of {', '.join(known)}",
        )
    for job in workload.jobs:
        for task in job.tasks:
            if task.milli:
                raise JoyError(
                    f"job {job.name} asks for a share of a card, which no manifest of {engine} "
                    "can say",
                    help="ask for whole cards, or run it with joymigrate cluster submit",
                )
    out = Rendered()
    known[engine].render(workload, inventory, out)
    return out


def kind_of(job: Job, task: PodGroup, inventory: Inventory | None) -> Kind | None:
    """The server kind of a task: its first accepted one, else the inventory's first with cards."""
    if not task.cards:
        return None
    if task.kinds:
        return kinds.get(task.kinds[0])
    if inventory is not None:
        for node in inventory.nodes:
            if node.kind.cards and (not task.models or node.model in task.models):
                return node.kind
    raise JoyError(f"job {job.name} names no kind", help="add `kind`, or give --inventory")


def resource(kind: Kind) -> str:
    """The resource name of a kind's cards on Kubernetes."""
    return str(kind.kubernetes.get("resource", f"{PREFIX}/{kind.family}"))


def pod_spec(job: Job, task: PodGroup, kind: Kind | None, out: Rendered) -> dict[str, Any]:
    """A pod's spec: one container with requests equal to limits."""
    if not job.image:
        out.note(f"job {job.name} names no image: {IMAGE} stands in for it")
    asks: dict[str, str] = {}
    if task.cpu_milli:
        asks["cpu"] = f"{task.cpu_milli}m"
    if task.memory_mib:
        asks["memory"] = f"{task.memory_mib}Mi"
    if kind is not None:
        asks[resource(kind)] = str(task.cards)
    container: dict[str, Any] = {
        "name": dns(task.name),
        "image": job.image or IMAGE,
        "resources": {"requests": dict(asks), "limits": dict(asks)},
    }
    if job.command:
        container["command"] = list(job.command)
    if job.environment:
        container["env"] = [{"name": k, "value": v} for k, v in job.environment.items()]
    return {"restartPolicy": "Never", "containers": [container]}


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
    bounds: Mapping[str, float], known: Sequence[Kind], what: str, out: Rendered
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
        for name in mine:
            found[name] = found.get(name, 0.0) + bound if len(mine) == 1 else bound
    return {name: f"{value:g}" for name, value in sorted(found.items())}


def matches(kind: Kind, key: str) -> bool:
    """Whether a limit's key means this kind."""
    return key in (kind.name, kind.family)


def kinds_in_use(workload: Workload, inventory: Inventory | None) -> list[Kind]:
    """Kinds of the inventory's nodes and of the jobs, each once."""
    found: dict[str, Kind] = {}
    for node in inventory.nodes if inventory else ():
        if node.kind.cards:
            found.setdefault(node.kind.name, node.kind)
    for job in workload.jobs:
        for task in job.tasks:
            kind = kind_of(job, task, inventory)
            if kind is not None:
                found.setdefault(kind.name, kind)
    return list(found.values())
