"""Rules that admission webhooks hold and no schema does, written from Volcano's and Kueue's own.

Each rule takes objects of one kind and yields (object number, path, what, help).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from joymigrate.run.cluster.kubernetes.quantity import parse

Object = Mapping[str, Any]
Broken = Iterator[tuple[int, str, str, str]]
Rule = Callable[[Sequence[Object]], Broken]
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
BOTH_TIERS = "names both highestTierAllowed and highestTierName"


def spec_of(item: Object) -> Mapping[str, Any]:
    """The spec of an object, empty where it has none."""
    spec = item.get("spec")
    return spec if isinstance(spec, dict) else {}


def name_of(item: Object) -> str:
    """metadata.name."""
    meta = item.get("metadata")
    return str(meta.get("name", "")) if isinstance(meta, dict) else ""


def whole(value: Any, default: int = 0) -> int:
    """A whole number, or the default where something else stands there."""
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def tiers(topology: Any) -> bool:
    """Whether a network topology names its tier in both ways."""
    return isinstance(topology, dict) and {"highestTierAllowed", "highestTierName"} <= set(topology)


def jobs(items: Sequence[Object]) -> Broken:
    """Volcano jobs: numbers of pods, names of tasks, partitions."""
    for number, item in enumerate(items):
        spec = spec_of(item)
        tasks = [task for task in spec.get("tasks") or () if isinstance(task, dict)]
        total = sum(whole(task.get("replicas"), 1) for task in tasks)
        if not tasks:
            yield number, "spec.tasks", "the job has no task", "add one"
        if whole(spec.get("minAvailable")) > total:
            least = spec["minAvailable"]
            what = f"is {least}, the tasks have {total} replicas"
            yield number, "spec.minAvailable", what, f"at most {total}"
        if tiers(spec.get("networkTopology")):
            yield number, "spec.networkTopology", BOTH_TIERS, "keep one of them"
        seen: set[str] = set()
        for index, task in enumerate(tasks):
            at = f"spec.tasks[{index}]"
            name = str(task.get("name", ""))
            if name and name in seen:
                yield number, f"{at}.name", f"'{name}' is used twice", "rename one task"
            seen.add(name)
            yield from ((number, *found) for found in task_rules(task, at))


def task_rules(task: Mapping[str, Any], at: str) -> Iterator[tuple[str, str, str]]:
    """One task: its least number of pods, and how it is partitioned."""
    replicas = whole(task.get("replicas"), 1)
    least = task.get("minAvailable")
    if whole(least) > replicas:
        what = f"is {least}, the task has {replicas} replicas"
        yield f"{at}.minAvailable", what, f"at most {replicas}"
    parts = task.get("partitionPolicy")
    if isinstance(parts, dict):
        count, size = whole(parts.get("totalPartitions")), whole(parts.get("partitionSize"))
        if replicas != count * size:
            what = f"{count} partitions of {size} are not {replicas} replicas"
            yield f"{at}.partitionPolicy", what, "replicas = totalPartitions × partitionSize"
        fewest = whole(parts.get("minPartitions"))
        if least is not None and fewest and least != fewest * size:
            what = f"is {least}, {fewest} partitions of {size} are {fewest * size}"
            yield f"{at}.minAvailable", what, "minAvailable = minPartitions × partitionSize"
        if tiers(parts.get("networkTopology")):
            yield f"{at}.partitionPolicy.networkTopology", BOTH_TIERS, "keep one of them"


def pod_groups(items: Sequence[Object]) -> Broken:
    """Volcano pod groups."""
    for number, item in enumerate(items):
        if tiers(spec_of(item).get("networkTopology")):
            yield number, "spec.networkTopology", BOTH_TIERS, "keep one of them"


def resources(spec: Mapping[str, Any], *path: str) -> dict[str, float]:
    """Resource quantities at a path of a spec."""
    at: Any = spec
    for key in path:
        at = at.get(key) if isinstance(at, dict) else None
    if not isinstance(at, dict):
        return {}
    found = {str(name): parse(value) for name, value in at.items()}
    return {name: value for name, value in found.items() if value is not None}


def queues(items: Sequence[Object]) -> Broken:
    """Volcano queues: guarantee ≤ deserved ≤ capability, and children inside their parents."""
    by_name = {name_of(item): spec_of(item) for item in items}
    for number, item in enumerate(items):
        spec, name = spec_of(item), name_of(item)
        guarantee = resources(spec, "guarantee", "resource")
        deserved, capability = resources(spec, "deserved"), resources(spec, "capability")
        for key, low in guarantee.items():
            if key in deserved and deserved[key] < low:
                what = f"{key} deserves {deserved[key]:g}, less than its guarantee {low:g}"
                yield number, "spec.deserved", what, "deserved ≥ guarantee"
            if key in capability and capability[key] < low:
                what = f"{key} is {capability[key]:g}, less than its guarantee {low:g}"
                yield number, "spec.capability", what, "capability ≥ guarantee"
        for key, amount in deserved.items():
            if key in capability and capability[key] < amount:
                what = f"{key} deserves {amount:g}, more than its capability {capability[key]:g}"
                yield number, "spec.deserved", what, "deserved ≤ capability"
        parent = str(spec.get("parent") or "")
        if parent and parent == name:
            yield number, "spec.parent", "the queue is its own parent", "name another queue"
        elif parent in by_name:
            above = resources(by_name[parent], "capability")
            for key, high in capability.items():
                if key in above and high > above[key]:
                    what = f"{key} is {high:g}, its parent {parent} has {above[key]:g}"
                    yield number, "spec.capability", what, "at most the parent's"
        yield from ((number, *found) for found in children(name, by_name))


def children(name: str, by_name: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """What a queue's children are promised may not exceed what it is promised itself."""
    own = by_name[name]
    below = [spec for other, spec in by_name.items() if spec.get("parent") == name != other]
    for field in (("guarantee", "resource"), ("deserved",)):
        mine = resources(own, *field)
        for key, amount in mine.items():
            total = sum(resources(spec, *field).get(key, 0.0) for spec in below)
            if total > amount:
                what = f"{key}: the children add up to {total:g}, the queue has {amount:g}"
                yield "spec." + ".".join(field), what, "raise the queue's or lower the children's"


def hyper_nodes(items: Sequence[Object]) -> Broken:
    """Volcano hyper nodes: exactly one selector per member."""
    ways = ("exactMatch", "regexMatch", "labelMatch")
    for number, item in enumerate(items):
        for index, member in enumerate(spec_of(item).get("members") or ()):
            selector = member.get("selector") if isinstance(member, dict) else None
            used = [way for way in ways if isinstance(selector, dict) and way in selector]
            at = f"spec.members[{index}].selector"
            if len(used) != 1:
                what = f"has {len(used)} of {', '.join(ways)}"
                yield number, at, what, "use exactly one of them"
            elif used == ["labelMatch"] and member.get("type") == "HyperNode":
                yield number, at, "labelMatch selects nodes only", "use exactMatch or regexMatch"


def cluster_queues(items: Sequence[Object]) -> Broken:
    """Kueue cluster queues: limits of lending and borrowing need a cohort, flavors are unique."""
    for number, item in enumerate(items):
        spec = spec_of(item)
        cohort = spec.get("cohortName") or spec.get("cohort")
        covered: set[str] = set()
        for g, group in enumerate(spec.get("resourceGroups") or ()):
            at = f"spec.resourceGroups[{g}]"
            names = [str(name) for name in group.get("coveredResources") or ()]
            for name in names:
                if name in covered:
                    yield number, f"{at}.coveredResources", f"'{name}' is covered twice", "once"
                covered.add(name)
            for f, flavor in enumerate(group.get("flavors") or ()):
                inside = f"{at}.flavors[{f}].resources"
                given = [str(r.get("name")) for r in flavor.get("resources") or ()]
                if given != names:
                    what = f"lists {', '.join(given)}; covered are {', '.join(names)}"
                    yield number, inside, what, "the same resources in the same order"
                for r, resource in enumerate(flavor.get("resources") or ()):
                    limits = {"borrowingLimit", "lendingLimit"} & set(resource)
                    if limits and not cohort:
                        what = f"{', '.join(sorted(limits))} without a cohort"
                        yield number, f"{inside}[{r}]", what, "set spec.cohortName"
                    lend, own = (
                        parse(resource.get("lendingLimit", 0)),
                        parse(resource.get("nominalQuota", 0)),
                    )
                    if lend is not None and own is not None and lend > own:
                        what = f"lends {lend:g} of {own:g}"
                        yield number, f"{inside}[{r}].lendingLimit", what, "at most nominalQuota"


def short_names(most: int, longest_pod: bool = False) -> Rule:
    """Names that become those of services and pods: RFC 1035 labels of at most `most` signs."""

    def rule(items: Sequence[Object]) -> Broken:
        for number, item in enumerate(items):
            name = name_of(item)
            remedy = f"a letter first, then lowercase letters, digits and '-', at most {most}"
            if name and not (LABEL.fullmatch(name) and len(name) <= most):
                yield number, "metadata.name", f"is {name!r}", remedy
            for part in spec_of(item).get("replicatedJobs") or () if longest_pod else ():
                if isinstance(part, dict):
                    # Pods are called set-job-index-index-xxxxx.
                    pod = f"{name}-{part.get('name', '')}-0-0-abcde"
                    if len(pod) > most:
                        what = f"a pod would be called {pod!r}, {len(pod)} characters"
                        yield number, "spec.replicatedJobs", what, f"at most {most}"

    return rule


RULES: dict[tuple[str, str], Rule] = {
    ("batch.volcano.sh", "Job"): jobs,
    ("scheduling.volcano.sh", "Queue"): queues,
    ("scheduling.volcano.sh", "PodGroup"): pod_groups,
    ("topology.volcano.sh", "HyperNode"): hyper_nodes,
    ("kueue.x-k8s.io", "ClusterQueue"): cluster_queues,
    ("jobset.x-k8s.io", "JobSet"): short_names(63, longest_pod=True),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): short_names(63),
    ("kubeflow.org", "PyTorchJob"): short_names(63),
    ("trainer.kubeflow.org", "TrainJob"): short_names(63),
    ("ray.io", "RayJob"): short_names(47),
    ("ray.io", "RayCluster"): short_names(53),
}
