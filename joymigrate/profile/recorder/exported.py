"""Operators of an exported program: a graph of torch.export, of TorchScript, or an ONNX program."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

SCHEMA = re.compile(r"(?P<name>[\w.]+::\w+)(?:\.(?P<overload>\w+))?\(")
Call = tuple[str, str, tuple[str, ...]]


def exported_calls(exported: Any) -> Iterator[Call]:
    """(`aten::add`, `Tensor`, dtypes) of each node; nothing for what has no graph."""
    program = getattr(exported, "exported_program", exported)  # of an ONNX program
    module = getattr(program, "graph_module", None)
    if module is not None and hasattr(module, "graph"):
        yield from fx_calls(module)
        return
    for method in ("inlined_graph", "graph"):
        try:
            graph = getattr(exported, method)
        except (AttributeError, RuntimeError):
            continue
        yield from script_calls(graph)
        return


def fx_calls(module: Any) -> Iterator[Call]:
    """Nodes of a graph module, and of the ones inside it."""
    for part in module.modules():
        for node in getattr(getattr(part, "graph", None), "nodes", ()):
            schema = getattr(node.target, "_schema", None)
            if node.op != "call_function" or schema is None:
                continue
            values = [arg.meta.get("val") for arg in node.args if hasattr(arg, "meta")]
            dtypes = tuple(
                str(value.dtype).removeprefix("torch.")
                for value in values
                if hasattr(value, "dtype")
            )
            yield schema.name, schema.overload_name, dtypes


def script_calls(graph: Any) -> Iterator[Call]:
    """Nodes of TorchScript that are operators."""
    for node in walk(graph):
        found = SCHEMA.match(node.schema() or "")
        if found and not found["name"].startswith("prim"):
            dtypes = tuple(filter(None, map(dtype_of, node.inputs())))
            yield found["name"], found["overload"] or "", dtypes


def walk(block: Any) -> Iterator[Any]:
    """Nodes of a block and of the blocks inside."""
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from walk(inner)


def dtype_of(value: Any) -> str:
    """dtype of a tensor value, where tracing knew it."""
    try:
        dtype = value.type().dtype()
    except (AttributeError, RuntimeError):  # no tensor: asking is an error inside torch
        return ""
    return str(dtype).removeprefix("torch.") if dtype is not None else ""
