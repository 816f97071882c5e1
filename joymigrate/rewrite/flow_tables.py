"""What values are matched with: tables that are looked up by a device, constants compared with one.

`TABLE{}` is the key of a table's keys. A device that finds its entry is equal to one of them, so
they move with it: `{"cuda": f}[x.device.type]`, `REGISTRY[name] = f`, `x.device.type == C.CARD`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Protocol

from joymigrate.rewrite.flow_graph import SINK
from joymigrate.rewrite.flow_sinks import BACKEND, DEVICE, Sinks
from joymigrate.rewrite.scopes import ModuleScopes

KEYS = "{}"
# A kind of sink beside the others: on a machine without a device the value is matched with one.
COMPARED = "compared"
LOOKUPS = ("get", "pop", "setdefault")
# Calls that read a table from a file: its keys are what another run wrote.
LOADS = ("load", "loads", "safe_load", "full_load", "unsafe_load", "load_file", "read_json")
MEMBERSHIP = (ast.In, ast.NotIn)
EQUALITY = (ast.Eq, ast.NotEq)


class Values(Protocol):
    """What is asked of a module's flow of values (see `flow`)."""

    names: ModuleScopes
    sinks: Sinks
    edges: dict[str, set[str]]
    literals: dict[ast.expr, set[str]]
    loaded: set[str]

    def key(self, node: ast.expr) -> str | None:
        """The key of a variable or an attribute."""

    def target_keys(self, target: ast.expr) -> list[str]:
        """Keys that an assignment writes."""

    def leaves(self, value: ast.expr, depth: int = 0) -> Iterable[str | ast.expr]:
        """Keys and literals that an expression may be."""

    def is_device(self, value: ast.expr, depth: int = 0) -> bool:
        """Whether an expression is a device by its form."""

    def parameters(self, call: ast.Call, which: int | str) -> list[str]:
        """Keys of the parameter that an argument goes to."""

    def into(self, value: ast.expr, target: str) -> None:
        """Draw the edges from an expression to a key."""


def draw(flow: Values) -> None:
    """Add the edges of a module's tables and comparisons to its flow of values."""
    nodes = flow.names.nodes
    for assign in (*nodes[ast.Assign], *nodes[ast.AnnAssign]):
        if assign.value is not None and from_file(assign.value):
            targets = assign.targets if isinstance(assign, ast.Assign) else [assign.target]
            flow.loaded.update(key for target in targets for key in flow.target_keys(target))
    for node in nodes[ast.Dict]:
        read_table(flow, node)
    for node in nodes[ast.DictComp]:
        for table in tables_of(flow, node):
            flow.into(node.key, table)
    for node in nodes[ast.Subscript]:
        looked_up(flow, node.value, node.slice, stored=isinstance(node.ctx, ast.Store))
    for call in nodes[ast.Call]:
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr in LOOKUPS and call.args:
            looked_up(flow, func.value, call.args[0], stored=False)
    hand_on(flow)
    for node in (*nodes[ast.For], *nodes[ast.AsyncFor], *nodes[ast.comprehension]):
        read_loop(flow, node.iter, node.target)
    for node in nodes[ast.Compare]:
        for left, sign, right in zip(
            (node.left, *node.comparators), node.ops, node.comparators, strict=False
        ):
            read_comparison(flow, left, sign, right)


def from_file(value: ast.expr) -> bool:
    """Whether a value is read from a file, or is a part of what is: `torch.load(path)["rng"]`."""
    while isinstance(value, ast.Subscript):
        value = value.value
    func = value.func if isinstance(value, ast.Call) else None
    return getattr(func, "attr", getattr(func, "id", "")) in LOADS


def kind_of(flow: Values, node: ast.expr) -> str | None:
    """The kind of an expression that says by its form or name what it is."""
    if flow.is_device(node):
        return DEVICE
    callee = flow.names.dotted(node.func) if isinstance(node, ast.Call) else None
    if callee in flow.sinks.backend_calls:
        return BACKEND
    name = getattr(node, "attr", getattr(node, "id", ""))
    return flow.sinks.names.get(name)


def table_key(flow: Values, node: ast.expr) -> str | None:
    """The key of a table's keys; None for a table without a name or from a file, and for everyday
    names."""
    while isinstance(node, ast.Subscript):
        node = node.value  # the keys of all levels are one
    key = flow.key(node) if isinstance(node, (ast.Name, ast.Attribute)) else None
    if key is None or key in flow.loaded or key.strip(".") in flow.sinks.everyday:
        return None
    return key + KEYS


def tables_of(flow: Values, node: ast.expr) -> list[str]:
    """Keys of the tables that a display is assigned to."""
    parent = getattr(node, "parent", None)
    while isinstance(parent, ast.Dict) and node in parent.values:
        node, parent = parent, getattr(parent, "parent", None)
    if not isinstance(parent, (ast.Assign, ast.AnnAssign)) or parent.value is not node:
        return []
    targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
    keys = (key for target in targets for key in flow.target_keys(target))
    return [
        key + KEYS
        for key in keys
        if not key.startswith(SINK) and key.strip(".") not in flow.sinks.everyday
    ]


def read_table(flow: Values, node: ast.Dict) -> None:
    """`TABLE = {"cuda": …}`: the keys of a table."""
    for table in tables_of(flow, node):
        for key in node.keys:
            if key is not None:
                flow.into(key, table)


def looked_up(flow: Values, table: ast.expr, index: ast.expr, *, stored: bool) -> None:
    """`TABLE[index]`, `TABLE.get(index)`, `TABLE[index] = …`."""
    key = table_key(flow, table)
    if isinstance(index, ast.Constant) or stored:
        if key is not None and (stored or isinstance(index.value, str)):  # type: ignore[attr-defined]
            flow.into(index, key)
        if stored or isinstance(index, ast.Constant):
            return
    ends = ends_of(flow, index)
    if isinstance(table, ast.Dict):
        for each in table.keys if ends else ():
            for end in ends if each is not None else ():
                flow.into(each, end)  # type: ignore[arg-type]
    elif key is not None and ends:
        flow.edges[key] |= ends


def ends_of(flow: Values, value: ast.expr) -> set[str]:
    """Where something goes that is equal to a value: its kind's sink, or the value's own keys."""
    kind = kind_of(flow, value)
    if kind is not None:
        return {SINK + kind, SINK + COMPARED}
    if isinstance(value, ast.Tuple):
        return {end for each in value.elts for end in ends_of(flow, each)}
    keys = {leaf for leaf in flow.leaves(value) if isinstance(leaf, str)}
    return {*keys, SINK + COMPARED} if keys else set()


def hand_on(flow: Values) -> None:
    """`run(TABLE)`: the keys of a table are those of the parameter that it is given to."""
    known = {each for ends in flow.literals.values() for each in ends if each.endswith(KEYS)}
    for call in flow.names.nodes[ast.Call]:
        given: list[tuple[int | str, ast.expr]] = [*enumerate(call.args)]
        given += [(each.arg, each.value) for each in call.keywords if each.arg is not None]
        for which, value in given:
            table = isinstance(value, ast.Dict) and any(map(text_key, value.keys))
            if isinstance(value, (ast.Name, ast.Attribute)):
                name = getattr(value, "attr", getattr(value, "id", ""))
                key = table_key(flow, value) if known or name.isupper() else None
                if key is None or not (key in known or (name.isupper() and "::" in key)):
                    continue
                for parameter in flow.parameters(call, which):
                    flow.edges[key].add(parameter + KEYS)
            elif table:
                for parameter in flow.parameters(call, which):
                    for each in value.keys:  # type: ignore[attr-defined]
                        flow.into(each, parameter + KEYS)


def text_key(node: ast.expr | None) -> bool:
    """Whether a table's key is a text."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def read_loop(flow: Values, table: ast.expr, target: ast.expr) -> None:
    """`for name in TABLE`, `for name, value in TABLE.items()`."""
    if isinstance(table, ast.Call) and isinstance(table.func, ast.Attribute):
        if table.func.attr not in ("items", "keys"):
            return
        pair = table.func.attr == "items"
        table = table.func.value
        if pair and isinstance(target, ast.Tuple) and target.elts:
            target = target.elts[0]
    key = table_key(flow, table)
    into = flow.key(target) if isinstance(target, ast.Name) else None
    if key is not None and into is not None:
        flow.edges[key].add(into)


def read_comparison(flow: Values, left: ast.expr, sign: ast.cmpop, right: ast.expr) -> None:
    """A name that a device is compared with, or a list of names that it is looked for in."""
    if isinstance(sign, MEMBERSHIP):
        if isinstance(right, (ast.Tuple, ast.List, ast.Set)):
            for each in right.elts:
                read_match(flow, each, left)
            return
        key = flow.key(right) if isinstance(right, (ast.Name, ast.Attribute)) else None
        if key is not None and key not in flow.loaded and not plain(flow, right):
            ends = ends_of(flow, left)
            for end in (key, key + KEYS) if ends else ():
                flow.edges[end] |= ends - {end}
        return
    if isinstance(sign, EQUALITY):
        read_match(flow, left, right)
        read_match(flow, right, left)


def read_match(flow: Values, constant: ast.expr, device: ast.expr) -> None:
    """`x.device.type == CARD`: a name of the program's own for a device."""
    if not isinstance(constant, (ast.Name, ast.Attribute)) or plain(flow, constant):
        return
    kind = kind_of(flow, device)
    if kind is None or kind_of(flow, constant) is not None:
        return
    flow.into(constant, SINK + kind)
    flow.into(constant, SINK + COMPARED)


def plain(flow: Values, node: ast.expr) -> bool:
    """Whether a name is a device by itself, or says nothing."""
    name = getattr(node, "attr", getattr(node, "id", ""))
    if name == "value" and isinstance(node, ast.Attribute):
        return plain(flow, node.value)  # of an enumeration's member
    return name in flow.sinks.names or name in flow.sinks.everyday
