"""The inventory: nodes, their cards, health and place in the network; read from YAML, JSON or CSV.

CSV inventories are recognised by their header: the openb node list
(`sn,cpu_milli,memory_mib,gpu,model`) and the spot-cluster list
(`gpu_model,gpu_capacity_num,cpu_num,node_name`).
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.cluster import kinds
from joymigrate.run.cluster.kinds import Kind

UNLIMITED = 1 << 60  # CPU or memory of a node that does not state them
MOST = 100_000  # nodes in one line, pods of a job, cards of a block: more is a slip of the pen
KEYS = [
    "name",
    "kind",
    "cards",
    "used",
    "unhealthy",
    "leaf",
    "spine",
    "superpod",
    "model",
    "cpu",
    "memory_gib",
    "numa",
    "labels",
    "ready",
    "address",
    "shared",
    "reserved",
    "count",
    "per_leaf",
    "leaves_per_spine",
    "per_superpod",
]


@dataclass(frozen=True, slots=True)
class Node:
    """One server. `used` cards are held by somebody outside this scheduler.

    `cpu_milli` and `memory_mib` are what jobs may take. `shared` maps a card to the thousandths of
    it that are in use elsewhere. `numa` lists card ids per NUMA node, where detected.
    """

    name: str
    kind: Kind
    cards: int
    used: tuple[int, ...] = ()
    unhealthy: tuple[int, ...] = ()
    leaf: str = ""
    spine: str = ""
    superpod: str = ""
    model: str = ""
    cpu_milli: int = UNLIMITED
    memory_mib: int = UNLIMITED
    numa: tuple[tuple[int, ...], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    ready: bool = True
    address: str = ""
    shared: Mapping[int, int] = field(default_factory=dict)
    reserved: str = ""  # the only queue whose jobs may use it


@dataclass(frozen=True, slots=True)
class Inventory:
    """All nodes, in the order they were given, and what could not be known about them."""

    nodes: tuple[Node, ...]
    warnings: tuple[str, ...] = ()

    @property
    def cards(self) -> int:
        """Cards of all nodes, healthy or not."""
        return sum(node.cards for node in self.nodes)

    def count(self) -> dict[str, int]:
        """Cards per kind."""
        found: dict[str, int] = {}
        for node in self.nodes:
            found[node.kind.name] = found.get(node.kind.name, 0) + node.cards
        return found


def load(path: Path) -> Inventory:
    """Read an inventory file; a mistake in it raises `JoyError` with file and item."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise JoyError(
            f"cannot read the inventory: {error}", where=str(path), help="name an existing file"
        ) from error
    head = text.split("\n", 1)[0].strip().replace('"', "").split(",")
    if {"sn", "gpu"} <= set(head):
        return Inventory(tuple(openb_nodes(text, str(path))))
    if {"gpu_model", "gpu_capacity_num", "node_name"} <= set(head):
        return Inventory(tuple(spot_nodes(text, str(path))))
    if path.suffix == ".csv" or ("," in text.split("\n", 1)[0] and ":" not in text[:200]):
        raise JoyError(
            f"unknown CSV header: {','.join(head)[:120]}",
            where=str(path),
            help="columns sn,cpu_milli,memory_mib,gpu,model, or an inventory in YAML",
        )
    return from_data(parse(text, str(path)), str(path))


def parse(text: str, where: str) -> Any:
    """YAML or JSON text to data; a syntax error names the line."""
    try:
        if text.lstrip().startswith("{"):
            return json.loads(text)
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except json.JSONDecodeError as error:
        raise JoyError(f"not valid JSON: {error.msg}", where=f"{where}:{error.lineno}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise JoyError(
            f"not valid YAML: {getattr(error, 'problem', error)}",
            where=f"{where}{line}",
            help="correct the file",
        ) from error


def from_data(raw: Any, where: str = "inventory") -> Inventory:
    """An inventory from parsed YAML or JSON: `nodes: [{name, kind, …}]`."""
    if not isinstance(raw, dict) or not isinstance(raw.get("nodes"), list):
        raise JoyError(
            "an inventory has a list `nodes`", where=where, help="see docs/cluster.md, Inventory"
        )
    nodes: list[Node] = []
    seen: set[str] = set()
    for number, item in enumerate(raw["nodes"]):
        for node in read_nodes(item, f"{where}: nodes[{number}]"):
            if node.name in seen:
                raise JoyError(
                    f"two nodes are called '{node.name}'",
                    where=f"{where}: nodes[{number}]",
                    help="give every node its own name",
                )
            seen.add(node.name)
            nodes.append(node)
    if not nodes:
        raise JoyError("the inventory has no node", where=where, help="see docs/cluster.md")
    return Inventory(tuple(nodes), tuple(str(text) for text in raw.get("warnings") or ()))


def read_nodes(item: Any, where: str) -> Iterable[Node]:
    """One item of `nodes`: one node, or `count` equal ones called `<name>-0` and on."""
    if not isinstance(item, dict) or "name" not in item or "kind" not in item:
        raise JoyError(f"a node needs a name and a kind, got {item!r}", where=where)
    for key in item:
        if key not in KEYS:
            raise JoyError(
                f"unknown key '{key}' of node {item['name']}.{did_you_mean(str(key), KEYS)}",
                where=where,
                help="see docs/cluster.md, Inventory",
            )
    if "count" not in item:
        yield read_node(item, where)
        return
    per_leaf = whole(item.get("per_leaf", 0), "per_leaf", where)
    per_spine = whole(item.get("leaves_per_spine", 0), "leaves_per_spine", where)
    per_superpod = whole(item.get("per_superpod", 0), "per_superpod", where)
    for number in range(whole(item["count"], "count", where)):
        one = {**item, "name": f"{item['name']}-{number}"}
        if per_leaf:
            one["leaf"] = f"{item['name']}-leaf{number // per_leaf}"
        if per_leaf and per_spine:
            one["spine"] = f"{item['name']}-spine{number // (per_leaf * per_spine)}"
        if per_superpod:
            one["superpod"] = f"{item['name']}-superpod{number // per_superpod}"
        yield read_node(one, where)


def read_node(item: Mapping[str, Any], where: str) -> Node:
    """One node from its mapping."""
    kind = kinds.get(str(item["kind"]), where)
    given = item.get("cards", kind.cards)
    present = (
        card_ids(item, "cards", kind, where)
        if isinstance(given, list)
        else tuple(range(whole(given, "cards", where)))
    )
    if len(present) > kind.cards:
        raise JoyError(
            f"node {item['name']}: {len(present)} cards, a {kind.name} has {kind.cards}",
            where=where,
            help="correct `cards` or `kind`",
        )
    absent = tuple(card for card in range(kind.cards) if card not in present)
    memory = item.get("memory_gib")
    return Node(
        name=label(item["name"], "name", where),
        kind=kind,
        cards=len(present),
        used=card_ids(item, "used", kind, where),
        unhealthy=tuple(sorted({*card_ids(item, "unhealthy", kind, where), *absent})),
        leaf=label(item.get("leaf"), "leaf", where),
        spine=label(item.get("spine"), "spine", where),
        superpod=label(item.get("superpod"), "superpod", where),
        model=label(item.get("model"), "model", where),
        cpu_milli=UNLIMITED
        if item.get("cpu") is None
        else round(number(item["cpu"], "cpu", where) * 1000),
        memory_mib=UNLIMITED
        if memory is None
        else round(number(memory, "memory_gib", where) * 1024),
        numa=numa_groups(item, kind, where),
        labels={
            str(key): str(value)
            for key, value in mapping(item.get("labels"), "labels", where).items()
        },
        ready=flag(item.get("ready", True), "ready", where),
        address=label(item.get("address"), "address", where),
        reserved=label(item.get("reserved"), "reserved", where),
        shared=card_shares(item, kind, where),
    )


def numa_groups(item: Mapping[str, Any], kind: Kind, where: str) -> tuple[tuple[int, ...], ...]:
    """Card ids per NUMA node."""
    groups = listing(item.get("numa"), "numa", where)
    return tuple(card_ids({**item, "numa": group}, "numa", kind, where) for group in groups)


def card_shares(item: Mapping[str, Any], kind: Kind, where: str) -> dict[int, int]:
    """Thousandths in use elsewhere per card id."""
    shares = mapping(item.get("shared"), "shared", where)
    card_ids({**item, "shared": list(shares)}, "shared", kind, where)
    for card, milli in shares.items():
        if whole(milli, f"shared.{card}", where) > 1000:
            raise JoyError(
                f"`shared` of card {card} is {milli}, a card has 1000 thousandths", where=where
            )
    return shares


def flag(value: Any, key: str, where: str) -> bool:
    """True or false; anything else raises `JoyError`."""
    if not isinstance(value, bool):
        raise JoyError(f"`{key}` is true or false, got {value!r}", where=where)
    return value


def card_ids(item: Mapping[str, Any], key: str, kind: Kind, where: str) -> tuple[int, ...]:
    """A list of card ids of this kind; an id it does not have raises `JoyError`."""
    raw = item.get(key) or []
    if not isinstance(raw, list):
        raise JoyError(f"node {item['name']}: `{key}` is a list of card ids", where=where)
    for card in raw:
        if isinstance(card, bool) or not isinstance(card, int) or not 0 <= card < kind.cards:
            raise JoyError(
                f"node {item['name']}: card {card!r} in `{key}`, a {kind.name} has 0 to "
                f"{kind.cards - 1}",
                where=where,
                help="correct the card id or the kind",
            )
    return tuple(sorted(set(raw)))


def whole(value: Any, key: str, where: str) -> int:
    """A whole number from 0 to `MOST`; anything else raises `JoyError`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise JoyError(f"`{key}` is a whole number of at least 0, got {value!r}", where=where)
    if value > MOST:
        raise JoyError(f"`{key}` is at most {MOST:,}, got {value:,}", where=where)
    return value


def number(value: Any, key: str, where: str) -> float:
    """A finite number of at least 0; anything else raises `JoyError`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e15:
        raise JoyError(f"`{key}` is a number of at least 0, got {value!r}", where=where)
    return float(value)


def listing(value: Any, key: str, where: str) -> list[Any]:
    """A list, empty where nothing is given; anything else raises `JoyError`."""
    if value is not None and not isinstance(value, list):
        raise JoyError(f"`{key}` is a list, got {value!r}", where=where)
    return value or []


def mapping(value: Any, key: str, where: str) -> dict[Any, Any]:
    """A mapping, empty where nothing is given; anything else raises `JoyError`."""
    if value is not None and not isinstance(value, dict):
        raise JoyError(f"`{key}` is a mapping, got {value!r}", where=where)
    return value or {}


def label(value: Any, key: str, where: str) -> str:
    """A name or other short text; null is the empty text, a list or mapping raises `JoyError`."""
    if isinstance(value, (list, dict)):
        raise JoyError(f"`{key}` is one name, got {value!r}", where=where)
    return "" if value is None else str(value)


def rows(text: str, where: str, needed: Iterable[str]) -> Iterable[dict[str, str]]:
    """Rows of a CSV text; a missing column raises `JoyError`."""
    reader = csv.DictReader(io.StringIO(text))
    missing = [name for name in needed if name not in (reader.fieldnames or ())]
    if missing:
        raise JoyError(
            f"missing column {', '.join(missing)}",
            where=f"{where}:1",
            help=f"it has {', '.join(reader.fieldnames or ())}",
        )
    for line, row in enumerate(reader, start=2):
        cut = [key for key in needed if row[key] is None]
        if cut:
            raise JoyError(f"the row ends before {', '.join(cut)}", where=f"{where}:{line}")
        yield row


def csv_count(row: Mapping[str, str], key: str, where: str, line: int) -> int:
    """A whole number of one CSV cell, 0 where it is empty."""
    try:
        found = float(row[key] or 0)
    except (TypeError, ValueError) as error:
        raise JoyError(f"`{key}` is {row[key]!r}, not a number", where=f"{where}:{line}") from error
    return int(number(found, key, f"{where}:{line}"))


def openb_nodes(text: str, where: str) -> Iterable[Node]:
    """Nodes of the openb list (2023 GPU cluster): sn, cpu_milli, memory_mib, gpu, model."""
    needed = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
    for line, row in enumerate(rows(text, where, needed), start=2):
        cards = csv_count(row, "gpu", where, line)
        kind = kinds.get(f"gpu-{cards}" if cards else "cpu", f"{where}:{line}")
        yield Node(
            name=row["sn"],
            kind=kind,
            cards=cards,
            model=row["model"],
            cpu_milli=csv_count(row, "cpu_milli", where, line),
            memory_mib=csv_count(row, "memory_mib", where, line),
        )


def spot_nodes(text: str, where: str) -> Iterable[Node]:
    """Nodes of the spot-cluster list (2026, 10,412 cards); it states no memory."""
    needed = ("gpu_model", "gpu_capacity_num", "cpu_num", "node_name")
    for line, row in enumerate(rows(text, where, needed), start=2):
        cards = csv_count(row, "gpu_capacity_num", where, line)
        yield Node(
            name=f"node-{row['node_name']}",
            kind=kinds.get(f"gpu-{cards}" if cards else "cpu", f"{where}:{line}"),
            cards=cards,
            model=row["gpu_model"],
            cpu_milli=csv_count(row, "cpu_num", where, line) * 1000,
        )


def to_data(inventory: Inventory) -> dict[str, Any]:
    """The inventory as plain data, ready for YAML; `from_data` reads it back equal."""
    return {
        "schema": "joymigrate.inventory/1",
        "warnings": list(inventory.warnings),
        "nodes": [node_data(node) for node in inventory.nodes],
    }


def node_data(node: Node) -> dict[str, Any]:
    """One node as plain data, leaving out what is empty."""
    limits = {
        "cpu": None if node.cpu_milli == UNLIMITED else node.cpu_milli / 1000,
        "memory_gib": None if node.memory_mib == UNLIMITED else node.memory_mib / 1024,
    }
    present = [card for card in range(node.kind.cards) if card not in node.unhealthy]
    lost = node.kind.cards - node.cards
    optional: dict[str, Any] = {
        "used": list(node.used),
        "unhealthy": [] if lost else list(node.unhealthy),
        "leaf": node.leaf,
        "spine": node.spine,
        "superpod": node.superpod,
        "model": node.model,
        "numa": [list(group) for group in node.numa],
        "labels": dict(node.labels),
        "address": node.address,
        "reserved": node.reserved,
        "shared": dict(node.shared),
        **{key: value for key, value in limits.items() if value is not None},
        **({} if node.ready else {"ready": False}),
    }
    kept = {key: value for key, value in optional.items() if value not in ("", [], {}, None)}
    cards: Any = present if lost else node.cards
    return {"name": node.name, "kind": node.kind.name, "cards": cards, **kept}
