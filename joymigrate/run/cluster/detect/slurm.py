"""All nodes of a Slurm cluster, from `scontrol show node`: cards, CPU, memory and health.

It says how many cards a node has, not how they are linked: no ring is claimed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from joymigrate.errors import JoyError
from joymigrate.run.cluster.detect import plain_node
from joymigrate.run.cluster.inventory import Inventory, Node
from joymigrate.run.cluster.kinds import all_kinds, get

COMMAND = ("scontrol", "show", "node")
FIELD = re.compile(r"(\w+)=(\S*)")
GRES = re.compile(r"(\w+)(?::([^:,()]+))?:(\d+)(?:\([^)]*\))?(?:,|$)")
# A node in one of these states takes no work (scontrol(1), NODE STATES); so does one whose state
# ends in `*`: it does not answer.
AWAY = {
    "DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "FUTURE", "MAINT", "NOT_RESPONDING",
    "POWERED_DOWN", "POWERING_DOWN", "UNKNOWN",
}  # fmt: skip


def read(text: str, where: str, network: Mapping[str, Mapping[str, str]]) -> Inventory:
    """Every node that is listed, and what is not known of it; `network` as in `node.detect`."""
    nodes: list[Node] = []
    warnings: list[str] = []
    for fields in blocks(text):
        node = read_node(fields, warnings)
        place = network.get(node.name, {})
        leaf, spine, superpod = (place.get(key, "") for key in ("leaf", "spine", "superpod"))
        nodes.append(replace(node, leaf=leaf, spine=spine, superpod=superpod))
    if not nodes:
        raise JoyError("no NodeName", where=where, help="record `scontrol show node`")
    return Inventory(tuple(nodes), tuple(warnings))


def blocks(text: str) -> Iterator[dict[str, str]]:
    """The fields of each node, be it on one line or on several."""
    for block in re.split(r"(?=\bNodeName=)", text):
        fields = dict(FIELD.findall(block))
        if "NodeName" in fields:
            yield fields


def read_node(fields: Mapping[str, str], warnings: list[str]) -> Node:
    """One node. Gres of families that no server kind has (licences, scratch) are left out."""
    name = fields["NodeName"]
    families = {kind.family for kind in all_kinds().values()}
    found = [one for one in GRES.findall(fields.get("Gres", "")) if one[0] in families]
    models = {model for _, model, _ in found}
    count = sum(int(cards) for _, _, cards in found)
    node = Node(name, get("cpu"), 0)
    if len({one[:2] for one in found}) > 1 or any("g." in model for model in models):
        warnings.append(f"{name}: Gres {fields['Gres']}: slices or two kinds of cards, left out")
    elif count:
        node = plain_node(name, found[0][0], count, ()) or node
        warnings.append(f"{name}: how its cards are linked is not known; no ring is claimed")
    states = re.split(r"\+", fields.get("State", ""))
    return replace(
        node,
        model=models.pop() if len(models) == 1 and node.cards else "",
        cpu_milli=int(fields.get("CPUEfctv") or fields.get("CPUTot") or 0) * 1000 or node.cpu_milli,
        memory_mib=int(fields.get("RealMemory") or 0) or node.memory_mib,
        ready=not any(state.rstrip("*") in AWAY or state.endswith("*") for state in states),
    )
