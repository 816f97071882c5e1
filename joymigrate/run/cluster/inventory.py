"""The inventory: nodes, their cards, health and place in the network; read from YAML, JSON or CSV.

CSV inventories are recognised by their header: the openb node list
(`sn,cpu_milli,memory_mib,gpu,model`) and the spot-cluster list
(`gpu_model,gpu_capacity_num,cpu_num,node_name`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.cluster import kinds
from joymigrate.run.cluster.kinds import ServerKind
from joymigrate.schema import DocumentSource, document, parse_json, parse_yaml, read, setting

UNLIMITED = 1 << 60  # CPU or memory of a node that does not state them
MOST = 100_000  # nodes in one line, pods of a job, cards of a block: more is a slip of the pen
HELP = "see docs/how-to/cluster.md, Inventory"


@dataclass(frozen=True, slots=True)
class Node:
    """One server. `used` cards are held by somebody outside this scheduler.

    `cpu_milli` and `memory_mib` are what jobs may take. `shared` maps a card to the thousandths of
    it that are in use elsewhere. `numa` lists card ids per NUMA node, where detected.
    """

    name: str
    kind: ServerKind
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
    absent: tuple[int, ...] = ()  # cards of the kind that are not there; `unhealthy` has them too
    elsewhere: tuple[int, int] = (0, 0)  # CPU (thousandths) and MiB that others have for a time


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


def names_setting(help: str) -> Any:
    """A name that may be written as a number (`leaf: 3`)."""
    return setting("", help, words=True)


@dataclass(frozen=True, slots=True)
class NodeItem:
    """One item of `nodes`: a server, or `count` equal ones called `<name>-0` and on."""

    name: str = setting(help="the server's name", words=True)
    kind: str = setting(help="its server kind, as gpu-8", words=True)
    cards: int | tuple[int, ...] | None = setting(
        None, "how many cards it has, or which (default: those of its kind)", least=0, most=MOST
    )
    used: tuple[int, ...] = setting((), "cards that somebody else holds")
    unhealthy: tuple[int, ...] = setting((), "cards that are sick")
    leaf: str = names_setting("its leaf switch")
    spine: str = names_setting("its spine switch")
    superpod: str = names_setting("its super-pod")
    model: str = names_setting("the model of its cards")
    cpu: float | None = setting(None, "cores that jobs may take", least=0, most=1e15)
    memory_gib: float | None = setting(None, "memory that jobs may take", least=0, most=1e15)
    numa: tuple[tuple[int, ...], ...] = setting((), "card ids of each NUMA node")
    labels: Mapping[str, str] = setting(
        make=dict, help="labels of the node; kept, and no decision asks for them", words=True
    )
    ready: bool = setting(True, "whether it takes work")
    address: str = names_setting("where it is reached")
    shared: Mapping[int, int] = setting(
        make=dict, help="thousandths of a card in use elsewhere, by card id", least=0, most=1000
    )
    reserved: str = names_setting("the only queue whose jobs may use it")
    count: int | None = setting(None, "how many equal servers", least=0, most=MOST)
    per_leaf: int = setting(0, "with count: servers of one leaf", least=0, most=MOST)
    leaves_per_spine: int = setting(0, "with count: leaves of one spine", least=0, most=MOST)
    per_superpod: int = setting(0, "with count: servers of one super-pod", least=0, most=MOST)

    def __post_init__(self) -> None:
        kind = kinds.get(self.kind, "kind")
        lists = {"used": self.used, "unhealthy": self.unhealthy, "shared": self.shared}
        lists |= {"cards": self.cards if isinstance(self.cards, tuple) else ()}
        lists |= {f"numa.{number}": group for number, group in enumerate(self.numa)}
        for key, ids in lists.items():
            for card in ids:
                if not 0 <= card < kind.cards:
                    raise JoyError(
                        f"node {self.name}: there is no card {card}, a {kind.name} has 0 to "
                        f"{kind.cards - 1}",
                        where=key,
                        help="correct the card id or the kind",
                    )
        if len(self.present) > kind.cards:
            raise JoyError(
                f"node {self.name}: {len(self.present)} cards, a {kind.name} has {kind.cards}",
                where="cards",
                help="correct `cards` or `kind`",
            )

    @property
    def present(self) -> range | tuple[int, ...]:
        """Ids of the cards that are there."""
        if isinstance(self.cards, tuple):
            return tuple(sorted(set(self.cards)))
        return range(kinds.get(self.kind).cards if self.cards is None else self.cards)


@document("inventory", "The nodes of a cluster: `--inventory`, and what `cluster detect` writes.")
@dataclass(frozen=True, slots=True)
class InventoryFile:
    """An inventory as its file says it."""

    nodes: tuple[NodeItem, ...] = setting(help="the servers")
    warnings: tuple[str, ...] = setting((), "what could not be known")


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
    return from_data(parse(text, str(path)), DocumentSource(str(path), text))


def parse(text: str, where: str) -> Any:
    """YAML or JSON text to data; a syntax error names the line."""
    return (parse_json if text.lstrip().startswith("{") else parse_yaml)(text, where)


def from_data(raw: Any, source: DocumentSource | str = "inventory") -> Inventory:
    """An inventory from parsed YAML or JSON: `nodes: [{name, kind, …}]`."""
    source = DocumentSource(source) if isinstance(source, str) else source
    file = read(InventoryFile, raw, source, help=HELP)
    nodes: list[Node] = []
    seen: set[str] = set()
    for number, item in enumerate(file.nodes):
        for node in nodes_of(item):
            if node.name in seen:
                raise JoyError(
                    f"two nodes are called '{node.name}'",
                    where=source.at(("nodes", number)),
                    help="give every node its own name",
                )
            seen.add(node.name)
            nodes.append(node)
    if not nodes:
        raise JoyError("the inventory has no node", where=source.at(("nodes",)), help=HELP)
    return Inventory(tuple(nodes), file.warnings)


def nodes_of(item: NodeItem) -> Iterable[Node]:
    """The node of an item, or its `count` equal ones."""
    if item.count is None:
        yield node_of(item)
        return
    for number in range(item.count):
        one: dict[str, Any] = {"name": f"{item.name}-{number}"}
        if item.per_leaf:
            one["leaf"] = f"{item.name}-leaf{number // item.per_leaf}"
        if item.per_leaf and item.leaves_per_spine:
            spine = number // (item.per_leaf * item.leaves_per_spine)
            one["spine"] = f"{item.name}-spine{spine}"
        if item.per_superpod:
            one["superpod"] = f"{item.name}-superpod{number // item.per_superpod}"
        yield replace(node_of(item), **one)


def node_of(item: NodeItem) -> Node:
    """One node of an item."""
    kind = kinds.get(item.kind)
    absent = {*range(kind.cards)} - {*item.present}
    return Node(
        name=item.name,
        kind=kind,
        cards=len(item.present),
        used=tuple(sorted({*item.used})),
        unhealthy=tuple(sorted({*item.unhealthy} | absent)),
        absent=tuple(sorted(absent)),
        leaf=item.leaf,
        spine=item.spine,
        superpod=item.superpod,
        model=item.model,
        cpu_milli=UNLIMITED if item.cpu is None else round(item.cpu * 1000),
        memory_mib=UNLIMITED if item.memory_gib is None else round(item.memory_gib * 1024),
        numa=tuple(tuple(sorted({*group})) for group in item.numa),
        labels=item.labels,
        ready=item.ready,
        address=item.address,
        reserved=item.reserved,
        shared=item.shared,
    )


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
    if not 0 <= found < 1e15:
        raise JoyError(f"`{key}` is a number of at least 0, got {found!r}", where=f"{where}:{line}")
    return int(found)


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
    present = [card for card in range(node.kind.cards) if card not in node.absent]
    optional: dict[str, Any] = {
        "used": list(node.used),
        "unhealthy": [card for card in node.unhealthy if card not in node.absent],
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
    cards: Any = present if node.absent else node.cards
    return {"name": node.name, "kind": node.kind.name, "cards": cards, **kept}
