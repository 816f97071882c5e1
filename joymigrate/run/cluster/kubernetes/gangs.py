"""Pods and job objects of a live Kubernetes cluster as gangs: who runs where, who waits.

Pods belong together where their job's controller says so. A gang of which some pods have a node
runs with those; the others wait as `NAME (rest)`. Jobs that an engine keeps back before it makes
pods (a vcjob, a Kueue Workload, a suspended Job) wait too. The API does not say which cards of a
node a pod has, unless the device plug-in notes it: else those that the kind's own rules would give
are assumed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from joymigrate.run.cluster import cards
from joymigrate.run.cluster.inventory import Node
from joymigrate.run.cluster.jobs import DEFAULT_QUEUE, GangJob, PodAllocation, PodGroup
from joymigrate.run.cluster.kubernetes import quantity
from joymigrate.run.cluster.kubernetes.nodes import Object, admits, resources
from joymigrate.run.cluster.kubernetes.renderers import LABELS, resource

GROUPS = (  # where a pod says which gang it belongs to
    ("annotations", "scheduling.k8s.io/group-name"),
    ("labels", "kueue.x-k8s.io/pod-group-name"),
    ("labels", "jobset.sigs.k8s.io/jobset-name"),
    ("labels", "training.kubeflow.org/job-name"),
    ("labels", "leaderworkerset.sigs.k8s.io/name"),
    ("labels", "ray.io/cluster"),
    ("labels", "volcano.sh/job-name"),
    ("labels", "batch.kubernetes.io/job-name"),
    ("labels", "job-name"),
)
QUEUE_KEYS = (
    ("annotations", "scheduling.volcano.sh/queue-name"),
    ("labels", "volcano.sh/queue-name"),
    ("labels", "kueue.x-k8s.io/queue-name"),
)
REAL = re.compile(r"-(\d+)")  # Ascend910-0,Ascend910-1: as the device plug-in notes a pod's cards
REST = " (rest)"  # behind the name of a gang of which some pods run
PODS_MADE_S = 300.0  # an admitted Workload without pods of its name runs under another one then
ONE_LEAF = "kueue.x-k8s.io/podset-required-topology"


@dataclass(slots=True)
class Gangs:
    """Jobs that run and that wait, what Kubernetes says of those, and what is assumed."""

    running: list[GangJob] = field(default_factory=list)
    waiting: list[GangJob] = field(default_factory=list)
    says: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class NodeSite(NamedTuple):
    """A node, and the object that it was read from."""

    node: Node
    item: Object


@dataclass(slots=True)
class KubernetesGang:
    """The pods of one job: those with a node, and those without."""

    name: str
    queue: str
    bound: list[Object] = field(default_factory=list)
    pending: list[Object] = field(default_factory=list)


def price_pod(spec: Mapping[str, Any]) -> tuple[dict[str, int], int, int]:
    """What a pod asks for: cards by resource, CPU in thousandths, memory in MiB."""
    asked: dict[str, int] = {}
    cpu = memory = 0.0
    for container in spec.get("containers") or ():
        part = container.get("resources") or {}
        wanted = {**(part.get("limits") or {}), **(part.get("requests") or {})}
        cpu += quantity.parse(wanted.get("cpu", 0)) or 0.0
        memory += quantity.parse(wanted.get("memory", 0)) or 0.0
        for key in resources() & wanted.keys():
            asked[key] = asked.get(key, 0) + int(quantity.parse(wanted[key]) or 0)
    return {k: v for k, v in asked.items() if v}, round(cpu * 1000), round(memory / 2**20)


def alive(pod: Object) -> bool:
    """Whether a pod has, or waits for, resources."""
    return (pod.get("status") or {}).get("phase", "Pending") in ("Pending", "Running", "Unknown")


def count_beside(pods: Iterable[Object]) -> dict[str, tuple[int, int]]:
    """CPU and memory per node of pods that ask for no card."""
    taken: dict[str, tuple[int, int]] = {}
    for pod in pods:
        node = pod["spec"].get("nodeName")
        asked, cpu, memory = price_pod(pod["spec"])
        if node and not asked and alive(pod):
            before = taken.get(node, (0, 0))
            taken[node] = (before[0] + cpu, before[1] + memory)
    return taken


def first_value(item: Object, keys: Iterable[tuple[str, str]]) -> str:
    """The first of these labels and annotations that an object has."""
    meta = item["metadata"]
    found = (str((meta.get(where) or {}).get(key, "")) for where, key in keys)
    return next((text for text in found if text), "")


def read(
    pods: Sequence[Object],
    kept_back: Sequence[Object],
    queues: Mapping[str, str],
    nodes: Sequence[NodeSite],
    priorities: Mapping[str, int],
    now: float,
) -> Gangs:
    """All gangs. `queues` names the queue behind a local one; of `kept_back` (Workloads, vcjobs,
    Jobs) the first of a name counts."""
    found: dict[str, KubernetesGang] = {}
    for pod in pods:
        if not (alive(pod) and price_pod(pod["spec"])[0]):
            continue
        meta = pod["metadata"]
        space = str(meta.get("namespace", "default"))
        name = f"{space}/{first_value(pod, GROUPS) or owner(pod) or meta['name']}"
        local = first_value(pod, QUEUE_KEYS)
        queue = queues.get(f"{space}/{local}") or queues.get(local, local) or DEFAULT_QUEUE
        gang = found.setdefault(name, KubernetesGang(name, queue))
        (gang.bound if pod["spec"].get("nodeName") else gang.pending).append(pod)
    out = Gangs()
    cards_of = NodeCards(nodes, out)
    bound = [(gang, pod) for gang in found.values() for pod in gang.bound]
    held = cards_of.held([pod for _, pod in bound])
    for gang in found.values():
        gang.bound.sort(key=by_request)
        gang.pending.sort(key=by_request)
        kept = [pod for pod in gang.bound if pod_key(pod) in held]
        if len(kept) < len(gang.bound):
            out.notes.append(f"{gang.name} has pods on nodes that are not there")
        if kept:
            running = [held[pod_key(pod)] for pod in kept]
            job = job_of(gang.name, gang.queue, kept, nodes, priorities, out)
            out.running.append(with_places(job, kept, running, now))
        if gang.pending:
            name = f"{gang.name}{REST}" if kept else gang.name
            out.waiting.append(job_of(name, gang.queue, gang.pending, nodes, priorities, out))
            out.says[name] = next((text for pod in gang.pending if (text := message(pod))), "")
    for item in kept_back:
        asked = without_pods(item, queues, nodes, priorities, now, out)
        if asked is not None and asked.name not in {*found, *out.says}:
            out.waiting.append(asked)
            state = (item.get("status") or {}).get("state") or {}
            out.says[asked.name] = str(state.get("message") or state.get("phase") or "no pods yet")
    return out


def drop_rest(job: str) -> str:
    """A gang's name without our note that it is the rest of one."""
    return job.removesuffix(REST)


def by_request(pod: Object) -> tuple[Any, ...]:
    """Equal pods next to each other, then by name."""
    asked, cpu, memory = price_pod(pod["spec"])
    return (sorted(asked.items()), cpu, memory, str(pod["metadata"]["name"]))


def owner(pod: Object) -> str:
    """The controller of a pod."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((str(one["name"]) for one in owners if one.get("controller")), "")


def pod_key(pod: Object) -> tuple[str, str]:
    """Namespace and name."""
    return str(pod["metadata"].get("namespace", "default")), str(pod["metadata"]["name"])


def message(pod: Object) -> str:
    """What the cluster's own scheduler says of a pod."""
    for one in (pod.get("status") or {}).get("conditions") or ():
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return str(one.get("message") or one.get("reason") or "")
    return ""


class NodeCards:
    """Which cards the pods of each node have."""

    def __init__(self, nodes: Sequence[NodeSite], out: Gangs) -> None:
        self.nodes = {site.node.name: site.node for site in nodes}
        self.free = {
            name: ((1 << node.kind.cards) - 1) & ~cards.bits(node.unhealthy)
            for name, node in self.nodes.items()
        }
        self.out = out

    def held(self, pods: Sequence[Object]) -> dict[tuple[str, str], PodAllocation]:
        """Node and cards of each pod: noted ones first, so that guesses keep off them."""
        found: dict[tuple[str, str], PodAllocation] = {}
        assumed = 0
        for noted in (True, False):
            for pod in pods:
                ids = read_cards(pod)
                node = self.nodes.get(str(pod["spec"]["nodeName"]))
                if bool(ids) != noted or node is None:
                    continue
                count = sum(price_pod(pod["spec"])[0].values())
                if not ids:
                    ids, assumed = self._guess(node, count), assumed + 1
                self.free[node.name] &= ~cards.bits(list(ids))
                found[pod_key(pod)] = PodAllocation(node.name, tuple(ids))
        if assumed:
            self.out.notes.append(
                f"which cards {assumed} running pods have is not in the API: assumed as the kinds' "
                "rules would give them"
            )
        return found

    def _guess(self, node: Node, count: int) -> tuple[int, ...]:
        free = self.free[node.name]
        mask = 0
        if 0 < count <= node.kind.cards:
            tables = cards.choice(node.kind, count, False)
            mask = int(tables.select[free]) if free < len(tables.select) else 0
        if not mask:  # not by the rules: the lowest ones, sick ones last
            sick = [card for card in range(node.kind.cards) if not free >> card & 1]
            mask = cards.bits([*cards.ids(free), *sick][:count])
        return tuple(cards.ids(mask))


def read_cards(pod: Object) -> tuple[int, ...]:
    """Card ids that the device plug-in wrote down: under a name of the cards' own domain that ends
    with `Real` (what was really given), else under the cards' resource."""
    notes = pod["metadata"].get("annotations") or {}
    domains = {name.partition("/")[0] for name in resources() if "/" in name}
    real = [key for key in notes if key.endswith("Real") and key.partition("/")[0] in domains]
    for key in (*real, *sorted(resources() & notes.keys())):
        if REAL.search(str(notes[key])):
            ids = tuple(int(one) for one in REAL.findall(str(notes[key])))
            return ids if all(card < 16 for card in ids) else ()
    return ()


def job_of(
    name: str,
    queue: str,
    pods: Sequence[Object],
    nodes: Sequence[NodeSite],
    priorities: Mapping[str, int],
    out: Gangs,
) -> GangJob:
    """A gang as a job: equal pods that follow each other are one task."""
    tasks: list[PodGroup] = []
    for pod in pods:
        one = pod_group(name, pod["spec"], nodes, out)
        if tasks and tasks[-1] == PodGroup(tasks[-1].pods, *group_rest(one)):
            tasks[-1] = PodGroup(tasks[-1].pods + 1, *group_rest(one))
        else:
            tasks.append(one)
    spec = pods[0]["spec"]
    limit = spec.get("activeDeadlineSeconds")
    return GangJob(
        name=name,
        tasks=tuple(tasks),
        queue=queue,
        priority=priority_of(spec, priorities),
        minutes=None if limit is None else float(limit) / 60,
        leaf="one" if leaf_wanted(pods[0]) else "prefer",
    )


def group_rest(one: PodGroup) -> tuple[Any, ...]:
    """What a pod group says beside the number of its pods."""
    return (one.cards, one.milli, one.kinds, one.models, one.cpu_milli, one.memory_mib)


def leaf_wanted(item: Object) -> bool:
    """Whether the pods must lie under one leaf switch."""
    return first_value(item, [("annotations", ONE_LEAF)]) == LABELS["leaf"]


def pod_group(
    name: str, spec: Mapping[str, Any], nodes: Sequence[NodeSite], out: Gangs, pods: int = 1
) -> PodGroup:
    """One pod's request, on the kinds of the nodes that its selector names."""
    asked, cpu, memory = price_pod(spec)
    offers = [site for site in nodes if site.node.kind.cards and resource(site.node.kind) in asked]
    mine = [site.node for site in offers if admits(site.item, spec)]
    kinds_ = tuple(dict.fromkeys(node.kind.name for node in mine))
    alike = [site for site in offers if site.node.kind.name in kinds_]
    if offers and not mine:  # a kind that no node is of: it is refused, by these words
        kinds_ = (f"{' and '.join(sorted(asked))} where its selector and tolerations allow it",)
    return PodGroup(
        pods=pods,
        cards=sum(asked.values()),
        kinds=kinds_ or tuple(sorted(asked)),
        models=tuple(node.name for node in mine) if len(mine) < len(alike) else (),
        cpu_milli=cpu,
        memory_mib=memory,
    )


def priority_of(spec: Mapping[str, Any], priorities: Mapping[str, int]) -> int:
    """A pod's number, or that of its class."""
    if spec.get("priority") is not None:
        return int(spec["priority"])
    return priorities.get(str(spec.get("priorityClassName", "")), 0)


def with_places(
    job: GangJob, pods: Sequence[Object], places: Sequence[PodAllocation], now: float
) -> GangJob:
    """A job that runs there, since its first pod started."""
    times = [str((pod.get("status") or {}).get("startTime") or "") for pod in pods]
    begun = [seconds_of(text) for text in times if text]
    ran = max(0.0, now - min(begun)) / 60 if begun else 0.0
    return replace(job, running=tuple(places), ran_minutes=ran)


def without_pods(
    item: Object,
    queues: Mapping[str, str],
    nodes: Sequence[NodeSite],
    priorities: Mapping[str, int],
    now: float,
    out: Gangs,
) -> GangJob | None:
    """A vcjob, a Kueue Workload or a suspended Job as a waiting job; None for one that is over,
    runs under other names, or asks no card."""
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    name, local = str(meta["name"]), first_value(item, QUEUE_KEYS)
    parts: list[tuple[int, Mapping[str, Any]]]
    if "podSets" in spec:
        if over(item) or now - find_admission(item) > PODS_MADE_S:
            return None
        parts = pod_sets(item)
        name, local = owner(item) or name, str(spec.get("queueName") or "")
    elif "tasks" in spec:
        phase = str((status.get("state") or {}).get("phase", "Pending"))
        parts = [(task.get("replicas", 1), task["template"]) for task in spec["tasks"]]
        if phase not in ("Pending", "Inqueue", ""):
            return None
        local = str(spec.get("queue") or "default")
    else:
        if not spec.get("suspend") or status.get("completionTime"):
            return None
        parts = [(spec.get("parallelism", 1), spec["template"])]
    if not asks_cards(parts):
        return None
    space = str(meta.get("namespace", "default"))
    name = f"{space}/{name}"
    tasks = [
        pod_group(name, template["spec"], nodes, out, count) for count, template in parts if count
    ]
    first = parts[0][1]
    said = {key: spec[key] for key in ("priority", "priorityClassName") if spec.get(key)}
    limit = spec.get("maximumExecutionTimeSeconds", first["spec"].get("activeDeadlineSeconds"))
    return GangJob(
        name=name,
        tasks=tuple(tasks),
        queue=queues.get(f"{space}/{local}") or queues.get(local, local) or DEFAULT_QUEUE,
        priority=priority_of({**said, **first["spec"]}, priorities),
        minutes=None if limit is None else float(limit) / 60,
        leaf="one" if leaf_wanted({"metadata": first.get("metadata") or {}}) else "prefer",
    )


def pod_sets(workload: Object) -> list[tuple[int, Mapping[str, Any]]]:
    """(count, template) of a Workload's pods."""
    sets = workload["spec"].get("podSets") or ()
    return [(one.get("count", 1), one["template"]) for one in sets]


def asks_cards(parts: Iterable[tuple[int, Mapping[str, Any]]]) -> bool:
    """Whether a pod of these (count, template) asks for a card or a share of one."""
    return any(count and price_pod(template["spec"])[0] for count, template in parts)


def condition(item: Object, kind: str) -> Mapping[str, Any]:
    """One of an object's conditions, where it is true; else empty."""
    for one in (item.get("status") or {}).get("conditions") or ():
        if one.get("type") == kind and one.get("status") == "True":
            return dict(one)
    return {}


def over(workload: Object) -> bool:
    """Whether a Kueue Workload wants no cards: it has ended, or is taken out of the line."""
    return workload["spec"].get("active") is False or bool(condition(workload, "Finished"))


def find_admission(workload: Object) -> float:
    """When Kueue admitted a Workload (s since 1970); infinity for one that it has not."""
    since = condition(workload, "Admitted").get("lastTransitionTime")
    return seconds_of(str(since)) if since else math.inf


def seconds_of(text: str) -> float:
    """A time of the API server in seconds since 1970."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
