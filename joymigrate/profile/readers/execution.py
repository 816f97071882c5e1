"""Execution traces of torch (`ExecutionTraceObserver`), schemas 1.0 and 1.1.

They have the full schema of every call, so overloads and dtypes are exact, and no times.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.profile.readers.names import dtype_of_tensor, freeze, is_operator
from joymigrate.profile.readers.stream import TextWindow
from joymigrate.profile.readers.sweep import phase_by_name
from joymigrate.profile.table import NONE, CallSignature, OpTable, Trace

SCHEMA = re.compile(r"(?P<name>[\w.]+::[\w.]+)\(")
TENSOR = re.compile(r"Tensor\((?P<type>[^()]*(?:<[^<>]*>)?)\)")


def read(path: Path) -> Trace:
    """One execution trace."""
    nodes: dict[int, dict[str, Any]] = {}
    schema = ""
    with TextWindow(path) as window:
        try:
            for key in window.members() if window.peek() == "{" else ():
                if key == "nodes" and window.peek() == "[":
                    for node in window.objects():
                        keep(node, nodes)
                    continue
                value = window.value()
                schema = str(value) if key == "schema" else schema
        except ValueError as error:
            raise JoyError(f"not an execution trace: {error}", where=str(path)) from None
        except EOFError:
            window.cut = True
    if not nodes:
        raise JoyError("no nodes in this execution trace", where=str(path))
    table = OpTable()
    walk(nodes, table)
    notes = ["an execution trace has no times: only calls are counted"]
    if window.cut:
        notes.append("the file is cut short; what is in it was read")
    if window.skipped:
        notes.append(f"{window.skipped} nodes could not be read and were left out")
    return Trace(
        path,
        "execution",
        table,
        overloads=True,
        notes=tuple(notes),
        environment={"schema": schema},
    )


def keep(node: Mapping[str, Any], nodes: dict[int, dict[str, Any]]) -> None:
    """What is needed of one node."""
    attributes = {a.get("name"): a.get("value") for a in node.get("attrs") or ()}
    inputs = node.get("inputs")
    nested = inputs if isinstance(inputs, dict) else {}
    parent = node.get("parent", node.get("ctrl_deps", attributes.get("ctrl_deps")))
    name = str(node.get("name", ""))
    schema = SCHEMA.match(str(node.get("op_schema") or attributes.get("op_schema") or ""))
    number = node.get("id")
    if not isinstance(number, int):
        return
    nodes[number] = {
        "name": schema["name"] if schema else name,
        "parent": parent if isinstance(parent, int) else 0,
        "tid": int(node.get("tid", attributes.get("tid")) or 0),
        "types": nested.get("types", node.get("input_types")) or [],
        "shapes": nested.get("shapes", node.get("input_shapes")) or [],
        "strides": nested.get("strides") or [],
    }


def walk(nodes: Mapping[int, dict[str, Any]], table: OpTable) -> None:
    """Fill the table, parents first. Nodes of no operator hand their parent and phase on."""
    children: dict[int, list[int]] = {}
    for number, node in nodes.items():
        above = node["parent"] if node["parent"] in nodes and node["parent"] != number else NONE
        children.setdefault(above, []).append(number)
    waiting = [(number, NONE, 0) for number in sorted(children.get(NONE, ()), reverse=True)]
    seen: set[int] = set()
    while waiting:
        number, parent, phase = waiting.pop()
        if number in seen:
            continue
        seen.add(number)
        node = nodes[number]
        name = node["name"]
        phase = phase_by_name(name) or phase
        row = parent
        if is_operator(name):
            row = table.add(
                table.name_id(name),
                signature=table.signature_id(signature_of(node)),
                parent=parent,
                tid=node["tid"],
                phase=phase,
            )
        below = sorted(children.get(number, ()), reverse=True)
        waiting += [(child, row, phase) for child in below]


def signature_of(node: Mapping[str, Any]) -> CallSignature:
    """Inputs of a node; a list of tensors has the dtypes of its elements."""
    dtypes, kinds = [], []
    for written in (str(one) for one in node["types"]):
        types = [dtype_of_tensor(found["type"]) for found in TENSOR.finditer(written)]
        dtypes.append(types[0] if types else "")
        if types:
            kinds.append("tensors" if written.startswith("GenericList") else "tensor")
        else:
            kinds.append("none" if written in ("None", "") else "value")
    return CallSignature(
        tuple(dtypes),
        tuple(freeze(one) for one in node["shapes"]),
        tuple(freeze(one) for one in node["strides"]),
        tuple(kinds),
    )


def kind_of(start: bytes, text: str) -> str:
    """execution for an object with a schema 1.x, or with nodes, and without events."""
    if not text.startswith("{") or '"traceEvents"' in text:
        return ""
    return "execution" if re.search(r'"schema"\s*:\s*"1\.\d|"nodes"\s*:\s*\[', text) else ""


RANK = 2
READERS = {"execution": read}
