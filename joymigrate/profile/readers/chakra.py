"""Chakra execution traces (MLCommons): the protobuf file (`.et`) and its JSON (`workload_graph`).

A protobuf file is a metadata message and then one message per node, each behind its length. Read
are id, name, dependencies, duration and `is_cpu_op`; nothing else is decoded. Schema:
mlcommons/chakra, schema/protobuf/et_def.proto.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.profile.readers.binder import Binder
from joymigrate.profile.readers.names import is_operator
from joymigrate.profile.readers.stream import TextWindow, open_bytes
from joymigrate.profile.readers.sweep import phase_by_name
from joymigrate.profile.table import NONE, OpTable, Trace

PART = re.compile(r"\((\d+)\)$")  # an operator that was cut into parts: the first one counts
LARGEST = 64 << 20  # bytes of one message
NAME, CONTROL, DATA, DURATION, ATTRIBUTE = 2, 4, 5, 7, 10


@dataclass(slots=True)
class ChakraNode:
    """One node. `parents` are the nodes it waits for, the calling one first."""

    number: int = 0
    name: str = ""
    us: float = 0.0
    on_host: bool = True
    parents: list[int] = field(default_factory=list)


def read_json(path: Path) -> Trace:
    """The JSON form."""
    nodes: list[ChakraNode] = []
    cut = False
    with TextWindow(path) as window:
        try:
            for key in window.members() if window.peek() == "{" else ():
                if key == "workload_graph" and window.peek() == "[":
                    nodes += [node_of(item) for item in window.objects()]
                else:
                    window.value()
        except ValueError as error:
            raise JoyError(f"not a Chakra trace: {error}", where=str(path)) from None
        except EOFError:
            cut = True
    return trace_of(path, nodes, cut=cut or window.cut)


def node_of(item: dict[str, Any]) -> ChakraNode:
    """One node of the JSON form; what is malformed is left empty."""
    low = {str(key).lower().replace("_", ""): value for key, value in item.items()}
    above = [*numbers(low.get("ctrldeps")), *numbers(low.get("datadeps"))]
    duration = low.get("runtime", low.get("durationmicros", 0))
    return ChakraNode(
        low["id"] if isinstance(low.get("id"), int) else 0,
        str(low.get("name") or ""),
        float(duration) if isinstance(duration, (int, float)) and duration >= 0 else 0.0,
        bool(low.get("iscpuop", True)),
        above,
    )


def numbers(value: Any) -> list[int]:
    """Whole numbers of a list, or of one alone."""
    values = value if isinstance(value, list) else [value]
    return [one for one in values if isinstance(one, int)]


def read_protobuf(path: Path) -> Trace:
    """The protobuf form."""
    nodes, cut = [], False
    with open_bytes(path) as file:
        data = file.read(LARGEST * 8)
    at, first = 0, True
    while at < len(data):
        try:
            size, at = varint(data, at)
            if size > LARGEST or at + size > len(data):
                raise IndexError
            if not first:
                nodes.append(node_from(data[at : at + size]))
        except (IndexError, ValueError):
            cut = True
            break
        at += size
        first = False
    return trace_of(path, nodes, cut=cut)


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and the place behind it. `IndexError` at the end of the data."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field, value) of a message."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
            yield key >> 3, value
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            yield key >> 3, data[at : at + size]
            at += size
        elif kind == 2:
            size, at = varint(data, at)
            if at + size > len(data):
                raise IndexError
            yield key >> 3, data[at : at + size]
            at += size
        else:
            raise ValueError("a group")


def node_from(data: bytes) -> ChakraNode:
    """One node of the protobuf form."""
    node = ChakraNode()
    control: list[int] = []
    for number, value in fields(data):
        if number == 1 and isinstance(value, int):
            node.number = value
        elif number == NAME and isinstance(value, bytes):
            node.name = value.decode("utf-8", "replace")
        elif number in (CONTROL, DATA):
            found = read_packed(value) if isinstance(value, bytes) else [value]
            (control if number == CONTROL else node.parents).extend(found)
        elif number == DURATION and isinstance(value, int):
            node.us = float(value)
        elif number == ATTRIBUTE and isinstance(value, bytes):
            name, flag = attribute(value)
            if name == "is_cpu_op":
                node.on_host = flag
    node.parents = [*control, *node.parents]
    return node


def read_packed(data: bytes) -> list[int]:
    """Numbers packed into one field."""
    found, at = [], 0
    while at < len(data):
        value, at = varint(data, at)
        found.append(value)
    return found


def attribute(data: bytes) -> tuple[str, bool]:
    """Name of an attribute, and its value where that is a number or a switch."""
    name, flag = "", False
    for number, value in fields(data):
        if number == 1 and isinstance(value, bytes):
            name = value.decode("utf-8", "replace")
        elif isinstance(value, int) and number != 2:
            flag = bool(value)
    return name, flag


def trace_of(path: Path, nodes: list[ChakraNode], *, cut: bool) -> Trace:
    """Operators with their callers, and the device's work with the operator that it waits for."""
    if not nodes:
        raise JoyError("no nodes in this Chakra trace", where=str(path))
    table = OpTable()
    rows: dict[int, int] = {}
    by_number = {node.number: node for node in nodes}
    binder = Binder(table)
    for node in sorted(nodes, key=lambda one: (not one.on_host, one.number)):
        part = PART.search(node.name)
        name = PART.sub("", node.name)
        above = next((rows[p] for p in climb(node, by_number) if p in rows), NONE)
        if node.on_host and part and part[1] != "0" and above == NONE:
            continue
        if node.on_host and is_operator(name):
            rows[node.number] = table.add(
                table.name_id(name), parent=above, dur=node.us, self_us=node.us,
                phase=phase_by_name(name), calls=1,
            )  # fmt: skip
        elif not node.on_host:
            binder.work.add(name, "", 0.0, node.us, row=above)
    notes = ["the file is cut short; what is in it was read"] if cut else []
    return Trace(path, "chakra", table, notes=tuple(notes), **binder.bind())


def climb(node: ChakraNode, nodes: dict[int, ChakraNode]) -> Iterator[int]:
    """The nodes around one, the nearest first; a ring ends."""
    seen: set[int] = {node.number}
    while True:
        above = next((p for p in node.parents if p in nodes and p not in seen), None)
        if above is None:
            yield from node.parents[1:]
            return
        seen.add(above)
        yield above
        node = nodes[above]


def kind_of(start: bytes, text: str) -> str:
    """chakra-json for an object with a workload graph, chakra for a metadata message first."""
    if text.startswith("{") and '"workload_graph"' in text[:4096]:
        return "chakra-json"
    return "chakra" if b"\n\x06schema" in start[:64] or starts_with_node(start) else ""


def starts_with_node(start: bytes) -> bool:
    """Whether a metadata message, of any content, and a node with a name come first."""
    try:
        size, at = varint(start, 0)
        if {number for number, _ in fields(start[at : at + size])} - {1, 2}:
            return False
        size, at = varint(start, at + size)
        name = dict(fields(start[at : at + size])).get(NAME)
        return isinstance(name, bytes) and name.decode().isprintable() and bool(name)
    except (IndexError, ValueError):
        return False


RANK = 1
READERS = {"chakra-json": read_json, "chakra": read_protobuf}
