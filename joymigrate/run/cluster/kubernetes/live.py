"""A live Kubernetes cluster's objects, and why its waiting gangs wait by our rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from joymigrate.run.cluster import kinds
from joymigrate.run.cluster.entries import ClusterSettings
from joymigrate.run.cluster.events import Action, Evict, Past, Start, Submitted
from joymigrate.run.cluster.explain import explain
from joymigrate.run.cluster.foresight import look_ahead
from joymigrate.run.cluster.inventory import Inventory
from joymigrate.run.cluster.jobs import DEFAULT_QUEUE
from joymigrate.run.cluster.kubernetes import gangs, quantity
from joymigrate.run.cluster.kubernetes.gangs import Gangs, drop_rest
from joymigrate.run.cluster.kubernetes.nodes import Object, inventory_of
from joymigrate.run.cluster.kubernetes.renderers import resource
from joymigrate.run.cluster.plan import placement_data
from joymigrate.run.cluster.queues import Queue
from joymigrate.run.cluster.reasons import PlacementRefusal
from joymigrate.run.cluster.scheduler import Scheduler

SCHEMA = "joymigrate.gangs/1"
KINDS = (  # what is read: API version and kind
    ("v1", "Node"),
    ("v1", "Pod"),
    ("scheduling.k8s.io/v1", "PriorityClass"),
    ("batch/v1", "Job"),
    ("batch.volcano.sh/v1alpha1", "Job"),
    ("scheduling.volcano.sh/v1beta1", "Queue"),
    ("kueue.x-k8s.io/v1beta2", "ClusterQueue"),
    ("kueue.x-k8s.io/v1beta2", "LocalQueue"),
    ("kueue.x-k8s.io/v1beta2", "Workload"),
    ("kueue.x-k8s.io/v1beta2", "AdmissionCheck"),
    ("kueue.x-k8s.io/v1beta1", "ClusterQueue"),
    ("kueue.x-k8s.io/v1beta1", "LocalQueue"),
    ("kueue.x-k8s.io/v1beta1", "Workload"),
    ("kueue.x-k8s.io/v1beta1", "AdmissionCheck"),
)
Objects = Mapping[tuple[str, str], Sequence[Object]]


@dataclass(frozen=True, slots=True)
class LiveCluster:
    """What the objects say, in our words."""

    inventory: Inventory
    queues: tuple[Queue, ...]
    gangs: Gangs


def read(objects: Objects, now: float) -> LiveCluster:
    """The cluster that these objects describe; `now` in seconds since 1970."""
    pods = objects.get(("v1", "Pod"), ())
    inventory = inventory_of(objects.get(("v1", "Node"), ()), gangs.count_beside(pods))
    classes = {
        str(one["metadata"]["name"]): int(one.get("value", 0))
        for one in objects.get(("scheduling.k8s.io/v1", "PriorityClass"), ())
    }
    locals_: dict[str, str] = {}
    queues: dict[str, Queue] = {}
    for (version, kind), items in objects.items():
        for item in items:
            name = str(item["metadata"]["name"])
            if kind == "Queue" and version.startswith("scheduling.volcano.sh"):
                queues[name] = volcano_queue(name, item.get("spec") or {})
            elif kind == "ClusterQueue":
                queues[name] = kueue_queue(name, item.get("spec") or {})
            elif kind == "LocalQueue":
                space = item["metadata"].get("namespace", "default")
                locals_[f"{space}/{name}"] = str(item["spec"]["clusterQueue"])
    kept_back = [
        *(one for _, one in of_kind(objects, "Workload")),
        *objects.get(("batch.volcano.sh/v1alpha1", "Job"), ()),
        *objects.get(("batch/v1", "Job"), ()),
    ]
    raw = {str(one["metadata"]["name"]): one for one in objects.get(("v1", "Node"), ())}
    sites = [gangs.NodeSite(node, raw[node.name]) for node in inventory.nodes]
    found = gangs.read(pods, kept_back, locals_, sites, classes, now)
    for job in (*found.running, *found.waiting):
        if job.queue not in queues and job.queue != DEFAULT_QUEUE:
            found.notes.append(f"queue {job.queue} is not there: taken as one without limits")
            queues[job.queue] = Queue(job.queue)
    return LiveCluster(inventory, tuple(root_queues(queues)), found)


def of_kind(objects: Objects, kind: str) -> list[tuple[str, Object]]:
    """The objects of a kind of Kueue's, each with the version that it was read in."""
    return [
        (version, item)
        for (version, name), items in objects.items()
        if name == kind and version.startswith("kueue.x-k8s.io/")
        for item in items
    ]


@dataclass(frozen=True, slots=True)
class LiveDecision:
    """One cycle of our rules over a live cluster, by the names of gangs (also for the rest of one):
    who starts where, whom a claim stops for that, and why the others wait."""

    scheduler: Scheduler
    starts: dict[str, Start]
    stops: dict[str, list[str]]
    reasons: dict[str, PlacementRefusal]

    def pods_on(self, gang: str) -> Counter[str]:
        """How many pods of a gang that starts go to each node."""
        nodes = self.scheduler.state.nodes
        return Counter(nodes[grant.node].name for grant in self.starts[gang].placement)


def decide(
    live: LiveCluster,
    now: float,
    queues: Sequence[Queue] = (),
    weights: Mapping[str, float] | None = None,
    first: Collection[str] = (),
) -> LiveDecision:
    """What our rules say at `now`; `queues` replace the cluster's own of their names, `first` are
    gangs that were let in before and have no pods yet. Nothing is remembered: the objects say all
    there is."""
    limits = {one.name: one for one in (*live.queues, *queues)}
    settings = ClusterSettings(overcommit=True)
    scheduler = Scheduler(live.inventory, [*limits.values()], None, weights, settings)
    scheduler.on_all(
        Submitted(job, now, Past(number, now, now)) for number, job in enumerate(live.gangs.running)
    )
    before = set(scheduler.running)
    actions: list[Action] = []
    for let_in in (True, False):
        line = [job for job in live.gangs.waiting if (drop_rest(job.name) in first) == let_in]
        actions += scheduler.on_all(Submitted(job, now) for job in line)
    found = LiveDecision(scheduler, {}, {}, {})
    for one in actions:
        name = drop_rest(one.job.name)
        if isinstance(one, Evict) and one.job.name in before:
            found.stops.setdefault(drop_rest(one.by), []).append(name)
        elif isinstance(one, Start) and one.job.name in scheduler.running.keys() - before:
            found.starts[name] = one
    for job in live.gangs.waiting:
        why = scheduler.why(job.name)
        if why is not None:
            found.reasons[drop_rest(job.name)] = why
    return found


def by_family(amounts: Mapping[str, Any]) -> dict[str, float]:
    """Limits on resources as limits on our families; CPU and memory are left out."""
    found: dict[str, float] = {}
    families = {resource(k): k.family for k in kinds.all_kinds().values() if k.cards}
    for key, amount in amounts.items():
        number = quantity.parse(amount)
        if key in families and number is not None:
            found[families[key]] = found.get(families[key], 0.0) + number
    return found


def volcano_queue(name: str, spec: Mapping[str, Any]) -> Queue:
    """MIN is the guarantee, MAX the capability."""
    parent = str(spec.get("parent") or "")
    return Queue(
        name=name,
        min=by_family((spec.get("guarantee") or {}).get("resource") or {}),
        max=by_family(spec.get("capability") or {}),
        deserved=by_family(spec.get("deserved") or {}),
        parent="" if parent == "root" else parent,
        weight=float(spec.get("weight") or 1),
        priority=int(spec.get("priority") or 0),
        eviction=("over-deserved",) if spec.get("reclaimable", True) else ("never",),
        strategy="fifo" if spec.get("dequeueStrategy") == "fifo" else "traverse",
    )


def kueue_queue(name: str, spec: Mapping[str, Any]) -> Queue:
    """MIN is the nominal quota, MAX what it may borrow beyond; without a cohort nothing."""
    low: dict[str, float] = {}
    high: dict[str, float] = {}
    alone = not (spec.get("cohort") or spec.get("cohortName"))
    for group in spec.get("resourceGroups") or ():
        for flavor in group.get("flavors") or ():
            for one in flavor.get("resources") or ():
                key, nominal = one["name"], quantity.parse(one.get("nominalQuota", 0)) or 0.0
                low[key] = low.get(key, 0.0) + nominal
                borrow = 0 if alone else one.get("borrowingLimit")
                if borrow is not None:
                    high[key] = high.get(key, 0.0) + nominal + (quantity.parse(borrow) or 0.0)
    within = (spec.get("preemption") or {}).get("withinClusterQueue", "Never")
    return Queue(
        name=name,
        min=by_family(low),
        max=by_family(high),
        eviction=("over-deserved",) if within == "Never" else ("lower-priority", "over-deserved"),
        strategy="fifo" if spec.get("queueingStrategy") == "StrictFIFO" else "traverse",
    )


def root_queues(queues: Mapping[str, Queue]) -> list[Queue]:
    """The queues; a parent that is not there is nobody's."""
    return [
        replace(queue, parent=queue.parent if queue.parent in queues else "")
        for queue in queues.values()
    ]


def judge(live: LiveCluster, now: float) -> dict[str, Any]:
    """Every waiting gang with its reason, or where our rules would put it, as plain data."""
    decided = decide(live, now)
    scheduler = decided.scheduler
    outlook = look_ahead(scheduler, now)
    rows = []
    for job in live.gangs.waiting:
        row: dict[str, Any] = {"job": job.name, "queue": job.queue}
        row["kubernetes"] = live.gangs.says.get(job.name, "")
        gang = drop_rest(job.name)
        if gang in decided.starts:
            row["fits"] = placement_data(scheduler, decided.starts[gang])["pods"]
            row["stops"] = decided.stops.get(gang, [])
        else:
            row |= explain(scheduler, job.name, now, outlook) or {}
        rows.append(row)
    free = {
        node.name: int(scheduler.state.free[i]).bit_count()
        for i, node in enumerate(live.inventory.nodes)
    }
    return {
        "schema": SCHEMA,
        "waiting": rows,
        "running": [job.name for job in live.gangs.running],
        "nodes": [
            {"node": n.name, "kind": n.kind.name, "cards": n.cards, "ready": n.ready,
             "free_after": free[n.name]}
            for n in live.inventory.nodes
        ],
        "notes": [*live.inventory.warnings, *dict.fromkeys(live.gangs.notes)],
    }  # fmt: skip
