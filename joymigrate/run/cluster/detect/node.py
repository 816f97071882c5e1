"""Puts one node together from what its tools say: kind, cards, NUMA, health, network place."""

from __future__ import annotations

import importlib
import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from joymigrate import processors
from joymigrate.errors import JoyError
from joymigrate.run.cluster import kinds
from joymigrate.run.cluster.detect import LinkTable, lscpu, numa_groups, plain_node, slurm
from joymigrate.run.cluster.inventory import Inventory, Node, parse

TIMEOUT_S = 20.0
LABELS = {"leaf": ("joymigrate/leaf", "volcano.sh/tor"), "superpod": ("joymigrate/superpod",)}


def tools() -> list[ModuleType]:
    """Readers of vendors' tools: modules of this folder with a `TOPO` command."""
    package = __name__.rpartition(".")[0]
    others = ("__init__", "node", "matrix", "lscpu")
    stems = sorted(path.stem for path in Path(__file__).parent.glob("*.py"))
    found = [importlib.import_module(f"{package}.{s}") for s in stems if s not in others]
    return [module for module in found if hasattr(module, "TOPO")]


def detect(
    records: Path | None = None,
    name: str | None = None,
    network: Mapping[str, Mapping[str, str]] | None = None,
) -> Inventory:
    """This node, or the one whose tool outputs lie in the folder `records`.

    `records` holds files named after the tool: `nvidia-smi-topo.txt`, `lscpu.txt` and so on; with
    `scontrol-show-node.txt` it is about all nodes of a Slurm cluster.
    `network` maps a node to its leaf, spine and superpod.
    """
    listed = output_of(slurm.COMMAND, records) if records is not None else None
    if listed is not None:
        return slurm.read(listed, str(records), network or {})
    host = name or platform.node() or "node"
    warnings: list[str] = []
    cpus = cpu_table(records)
    node: Node | None = None
    for tool in tools():
        node = read_node(tool, host, cpus, records, warnings) or node
    if node is None:
        warnings.append("no accelerator tool answered: a node without cards")
        node = Node(host, kinds.get("cpu"), 0)
    place = dict((network or {}).get(host, {}))
    if not place.get("leaf") and node.cards:
        warnings.append(f"{host}: its leaf switch is not known (give --network FILE)")
    cores = len(cpus) or (processors.available() if records is None else 0)
    found = replace(
        node,
        leaf=place.get("leaf", ""),
        spine=place.get("spine", ""),
        superpod=place.get("superpod", ""),
        cpu_milli=cores * 1000 if cores else node.cpu_milli,
    )
    return Inventory((found,), tuple(warnings))


def read_health() -> dict[int, str]:
    """Broken cards of this machine, and in what words its own tools say so.

    What no tool says is not known: an empty answer does not mean that all is well.
    """
    found: dict[int, str] = {}
    for tool in tools():
        found |= tool.find_broken(output_of(tool.HEALTH, None) or "")
    return found


def all_said(tool: ModuleType, records: Path | None) -> str:
    """What a tool says of its cards one by one: its lists and their health."""
    commands = dict.fromkeys((tool.HEALTH, *tool.LISTS))
    return "\n".join(output_of(command, records) or "" for command in commands)


def read_node(
    tool: ModuleType,
    host: str,
    cpus: Mapping[int, int],
    records: Path | None,
    warnings: list[str],
) -> Node | None:
    """The node as one tool sees it; without a link table its cards are counted, no ring claimed.

    In a container cards keep the number that they have outside: here they are numbered from 0.
    """
    text, said = output_of(tool.TOPO, records), all_said(tool, records)
    models: dict[int, str] = tool.models(said)
    table: LinkTable | None = None
    notes: list[str] = []
    try:
        table = None if text is None else tool.topo(text)
    except JoyError as error:
        notes = [f"{host}: {error.what}; no ring is claimed"]
    if table is None and records is None and hasattr(tool, "ask_runtime"):
        table = tool.ask_runtime()
    count = len(table.ids) if table is not None else len(models)
    if not count:
        warnings += notes
        return None
    if table is None:
        warnings += notes or [f"{host}: how its cards are linked is not known; no ring is claimed"]
        found = plain_node(host, tool.FAMILY, count, ())
    else:
        kind_name, notes = tool.kind(table)
        warnings += [f"{host}: {note}" for note in notes]
        numa = numa_groups(table, cpus)
        found = (
            plain_node(host, tool.FAMILY, count, numa)
            if kind_name is None
            else Node(host, kinds.get(kind_name), count, numa=numa)
        )
    if found is None:
        every = kinds.all_kinds().values()
        alike = [kind.name for kind in every if (kind.family, kind.cards) == (tool.FAMILY, count)]
        warnings.append(
            f"{host}: {count} cards without known links may be {' or '.join(alike) or 'anything'}: "
            "record the link table, or write the node with its kind into the inventory"
        )
        return None
    place = {card: at for at, card in enumerate(sorted(models))}
    broken = {place.get(card, card): why for card, why in tool.find_broken(said).items()}
    warnings += [f"{host}: card {card}: {why}" for card, why in broken.items() if card < count]
    sick = {*found.unhealthy, *(card for card in broken if card < count)}
    names = {*models.values()}
    return replace(
        found,
        unhealthy=tuple(sorted(sick)),
        model=names.pop() if len(names) == 1 else "",
    )


def cpu_table(records: Path | None) -> dict[int, int]:
    """CPU → NUMA node, from the records or from this machine."""
    if records is None:
        return lscpu.from_sysfs()
    text = output_of(("lscpu", "-e=CPU,NODE"), records)
    return lscpu.read(text, str(records)) if text else {}


# How the record of a command is called where it is not the command's own words.
RECORD_ENDS = (
    ("lscpu-e", "lscpu"),
    ("-query-gpu", "-list"),
    ("-l", "-list"),
    ("-smi", "-smi-info"),
)


def output_of(command: tuple[str, ...], records: Path | None) -> str | None:
    """What a tool says: its recorded file, or its output here; None where there is neither."""
    if records is not None:
        if not records.is_dir():
            raise JoyError("no folder of recorded outputs", where=str(records))
        words = [word.lstrip("-") for word in command if word not in ("-t", "-m", "info")]
        stem = "-".join(words).split("=")[0]
        for end, name in RECORD_ENDS:
            if stem.endswith(end):
                stem = stem.removesuffix(end) + name
                break
        path = records / f"{stem}.txt"
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
            encoding="utf-8", errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout or done.stderr


def read_network(path: Path) -> dict[str, dict[str, str]]:
    """Leaf, spine and super-pod per node: a CSV (node,leaf,spine,superpod), a YAML mapping, or the
    list of switches with their servers (`server_list: [{tor_id, server: [{server_ip}]}]`)."""
    import csv
    import io

    text = path.read_text(encoding="utf-8-sig")
    head = text.split("\n", 1)[0].lower().split(",")
    if head[0].strip() == "node":
        rows = csv.DictReader(io.StringIO(text.replace("\r", "")))
        return {row["node"]: {k: v for k, v in row.items() if k != "node" and v} for row in rows}
    raw = parse(text, str(path))
    if isinstance(raw, dict) and "server_list" in raw:
        return {
            str(server["server_ip"]): {"leaf": str(switch["tor_id"])}
            for switch in raw["server_list"]
            for server in switch.get("server") or ()
        }
    if not isinstance(raw, dict):
        raise JoyError("a network file maps nodes to leaf, spine, superpod", where=str(path))
    return {
        str(node): {
            k: str(v) for k, v in (item if isinstance(item, dict) else {"leaf": item}).items()
        }
        for node, item in raw.items()
    }
