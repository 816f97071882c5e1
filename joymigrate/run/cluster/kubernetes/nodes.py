"""Nodes of a live Kubernetes cluster as an inventory: kinds, places in the network, health."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from joymigrate.run.cluster import kinds
from joymigrate.run.cluster.inventory import UNLIMITED, Inventory, Node
from joymigrate.run.cluster.kinds import ServerKind
from joymigrate.run.cluster.kubernetes import quantity
from joymigrate.run.cluster.kubernetes.renderers import LABELS, PREFIX, resource

KIND_LABEL = f"{PREFIX}/kind"
CORDON = "node.kubernetes.io/unschedulable"  # the taint of a cordoned node
Object = Mapping[str, Any]


def resources() -> set[str]:
    """The names under which all kinds' cards are asked for."""
    return {resource(kind) for kind in kinds.all_kinds().values() if kind.cards}


def inventory_of(nodes: Iterable[Object], taken: Mapping[str, tuple[int, int]]) -> Inventory:
    """The nodes; `taken` is the CPU (thousandths) and memory (MiB) of pods without cards."""
    warnings: list[str] = []
    found = [node_of(node, taken, warnings) for node in nodes]
    return Inventory(tuple(sorted(found, key=lambda node: node.name)), tuple(warnings))


def node_of(item: Object, taken: Mapping[str, tuple[int, int]], warnings: list[str]) -> Node:
    """One node. Where fewer cards may be allocated than there are, the last are taken as sick."""
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    name, labels = str(meta["name"]), meta.get("labels") or {}
    allocatable = status.get("allocatable") or status.get("capacity") or {}
    capacity = status.get("capacity") or allocatable
    kind, count = kind_of(name, labels, capacity, warnings)
    granted = int(quantity.parse(allocatable.get(resource(kind), 0)) or 0) if kind.cards else 0
    gone = tuple(range(count, kind.cards))
    cpu, memory = quantity.parse(allocatable.get("cpu")), quantity.parse(allocatable.get("memory"))
    cpu_taken, memory_taken = taken.get(name, (0, 0))
    ready = {one.get("type"): one.get("status") for one in status.get("conditions") or ()}
    return Node(
        name=name,
        kind=kind,
        cards=count,
        unhealthy=tuple(range(min(granted, count), kind.cards)),
        absent=gone,
        leaf=str(labels.get(LABELS["leaf"], "")),
        spine=str(labels.get(LABELS["spine"], "")),
        superpod=str(labels.get(LABELS["superpod"], "")),
        model=name,  # so that a pod can name the nodes that it may go to
        cpu_milli=UNLIMITED if cpu is None else round(cpu * 1000) - cpu_taken,
        memory_mib=UNLIMITED if memory is None else int(memory / 2**20) - memory_taken,
        elsewhere=(cpu_taken, memory_taken),
        labels=labels,
        ready=ready.get("Ready", "True") == "True" and not spec.get("unschedulable"),
    )


def kind_of(
    name: str, labels: Mapping[str, Any], capacity: Mapping[str, Any], warnings: list[str]
) -> tuple[ServerKind, int]:
    """A node's kind of server and how many cards it has.

    Our own label says it; else the resource, the labels that the kinds' data name, and the count.
    """
    if KIND_LABEL in labels:
        kind = kinds.get(str(labels[KIND_LABEL]), f"label {KIND_LABEL} of node {name}")
        return kind, min(kind.cards, int(quantity.parse(capacity.get(resource(kind), 0)) or 0))
    known = {key: int(quantity.parse(capacity[key]) or 0) for key in resources() & capacity.keys()}
    counts = {key: count for key, count in known.items() if count}
    if not counts:
        return kinds.get("cpu"), 0
    key, count = max(counts.items(), key=lambda pair: pair[1])
    if len(counts) > 1:
        warnings.append(f"{name}: cards of {', '.join(sorted(counts))}; {key} is looked at alone")
    offers = [
        kind
        for kind in kinds.all_kinds().values()
        if kind.cards and resource(kind) == key and kind.cards >= count
    ]
    if not offers:
        most = max(k.cards for k in kinds.all_kinds().values() if resource(k) == key)
        warnings.append(f"{name}: {count} cards of {key}, of which {most} are looked at")
        offers = [k for k in kinds.all_kinds().values() if resource(k) == key and k.cards == most]
        count = most

    def likeness(kind: ServerKind) -> tuple[bool, bool, bool]:
        wanted = kind.kubernetes.get("labels") or {}
        same = bool(wanted) and all(str(labels.get(k)) == str(v) for k, v in wanted.items())
        return (same, kind.cards == count, not kind.groups)

    best = max(offers, key=lambda kind: (*likeness(kind), -kind.cards))
    same, exact, _ = likeness(best)
    twins = [kind for kind in offers if likeness(kind)[:2] == (same, exact)]
    if len({kind.groups for kind in twins}) > 1:
        warnings.append(
            f"{name}: taken as {best.name}; the label {KIND_LABEL} says which kind it is"
        )
    return best, count


def admits(node: Object, pod: Mapping[str, Any]) -> bool:
    """Whether a pod's selector, its required node affinity and tolerations let it go to a node."""
    labels = node["metadata"].get("labels") or {}
    wanted = pod.get("nodeSelector") or {}
    if any(str(labels.get(key)) != str(value) for key, value in wanted.items()):
        return False
    affinity = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms") or ()
    if terms and not any(meets(node, term) for term in terms):
        return False
    given = pod.get("tolerations") or ()
    return all(
        any(tolerates(one, taint) for one in given)
        for taint in (node.get("spec") or {}).get("taints") or ()
        if taint.get("effect") in ("NoSchedule", "NoExecute") and taint.get("key") != CORDON
    )


def meets(node: Object, term: Mapping[str, Any]) -> bool:
    """Whether a node meets every expression of one term; a term without any meets none."""
    labels = node["metadata"].get("labels") or {}
    name = {"metadata.name": node["metadata"]["name"]}
    found = [matches(labels, one) for one in term.get("matchExpressions") or ()]
    found += [matches(name, one) for one in term.get("matchFields") or ()]
    return bool(found) and all(found)


def matches(labels: Mapping[str, Any], one: Mapping[str, Any]) -> bool:
    """One expression: `key` `operator` `values`."""
    there, values = one["key"] in labels, [str(value) for value in one.get("values") or ()]
    value, way = str(labels.get(one["key"], "")), one.get("operator")
    plain = {
        "In": there and value in values,
        "NotIn": value not in values or not there,
        "Exists": there,
        "DoesNotExist": not there,
    }
    if way in plain:
        return plain[str(way)]
    number, bound = quantity.parse(value), quantity.parse(values[0] if values else "")
    if not there or number is None or bound is None:
        return False
    return number > bound if way == "Gt" else number < bound


def tolerates(one: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Whether a toleration is for a taint."""
    if one.get("effect") not in (None, "", taint.get("effect")):
        return False
    if not one.get("key"):
        return one.get("operator") == "Exists"
    if one["key"] != taint.get("key"):
        return False
    return one.get("operator") == "Exists" or one.get("value", "") == taint.get("value", "")
