"""Operators of an exported program: a graph of torch.export, of TorchScript, or an ONNX program.

An exporter writes down composites whole (`aten::special_gammaincc`). A device computes what is
inside them, so each is called once on tensors without data and the calls below it are noted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SCHEMA = re.compile(r"(?P<name>[\w.]+::\w+)(?:\.(?P<overload>\w+))?\(")


@dataclass(frozen=True, slots=True)
class ExportedCall:
    """One operator of an exported graph.

    `dtypes` are those of its tensors in order; `inside` names the composite that it came out of;
    `closed` says that it is a composite which could not be opened.
    """

    name: str
    overload: str
    dtypes: tuple[str, ...]
    inside: str = ""
    closed: bool = False


class InnerCalls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators that reach a device."""

    def __init__(self, composite: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.composite = composite
        self.calls: list[ExportedCall] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        schema, words = func._schema, kwargs or {}
        dtypes = tensor_dtypes((*args, *words.values()))
        self.calls.append(ExportedCall(schema.name, schema.overload_name, dtypes, self.composite))
        return func(*args, **words)


def exported_calls(exported: Any) -> Iterator[ExportedCall]:
    """The calls of each node; nothing for what has no graph."""
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


def fx_calls(module: Any) -> Iterator[ExportedCall]:
    """Nodes of a graph module, and of the ones inside it."""
    for part in module.modules():
        for node in getattr(getattr(part, "graph", None), "nodes", ()):
            schema = getattr(node.target, "_schema", None)
            if node.op != "call_function" or schema is None:
                continue
            values = [arg.meta.get("val") for arg in node.args if hasattr(arg, "meta")]
            call = ExportedCall(schema.name, schema.overload_name, tensor_dtypes(values))
            yield from open_composite(call, partial(call_node, node))


def call_node(node: Any) -> Any:
    """Call a node's operator on the tensors without data that the exporter kept."""
    args, words = torch.fx.node.map_arg((node.args, node.kwargs), lambda one: one.meta["val"])
    return node.target(*args, **words)


def script_calls(graph: Any) -> Iterator[ExportedCall]:
    """Nodes of TorchScript that are operators."""
    for node in walk(graph):
        found = SCHEMA.match(node.schema() or "")
        if found and not found["name"].startswith("prim"):
            dtypes = tuple(filter(None, map(dtype_of, node.inputs())))
            call = ExportedCall(found["name"], found["overload"] or "", dtypes)
            yield from open_composite(call, partial(call_script, node, call))


def call_script(node: Any, call: ExportedCall) -> Any:
    """Call a node of a traced graph on tensors of the types that tracing wrote down."""
    namespace, name = call.name.split("::")
    operator = getattr(getattr(getattr(torch.ops, namespace), name), call.overload or "default")
    given = [value_of(value) for value in node.inputs()]
    words = {arg.name: value for arg, value in zip(operator._schema.arguments, given, strict=False)
             if arg.kwarg_only}  # fmt: skip
    return operator(*given[: len(given) - len(words)], **words)


def value_of(value: Any) -> Any:
    """The constant behind a value of TorchScript, or a tensor of its type without data.

    Raises LookupError where the graph says neither.
    """
    node = value.node()
    if node.kind() == "prim::ListConstruct":
        return [value_of(one) for one in node.inputs()]
    if node.kind() == "prim::Constant":
        return value.toIValue()
    try:
        sizes, dtype = value.type().sizes(), value.type().dtype()
    except (AttributeError, RuntimeError):  # no tensor: asking is an error inside torch
        sizes = dtype = None
    if sizes is None or dtype is None:
        raise LookupError(f"the graph does not tell the type of {value.debugName()}")
    return torch.empty(sizes, dtype=dtype, device="meta")


def open_composite(call: ExportedCall, run: Callable[[], Any]) -> Iterator[ExportedCall]:
    """What a device is asked for by one node: the call itself, or those inside of a composite."""
    if not is_composite(call):
        yield call
        return
    inner = InnerCalls(call.name)
    try:
        with inner:
            run()
    except Exception:  # whatever an operator raises without data: then nobody has looked inside
        yield ExportedCall(call.name, call.overload, call.dtypes, closed=True)
        return
    yield from inner.calls


def is_composite(call: ExportedCall) -> bool:
    """Whether torch makes the operator out of others on every device."""
    full = f"{call.name}.{call.overload}" if call.overload else call.name
    try:
        return bool(
            torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd")
        )
    except RuntimeError:  # no operator of this torch
        return False


def walk(block: Any) -> Iterator[Any]:
    """Nodes of a block and of the blocks inside."""
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from walk(inner)


def tensor_dtypes(values: Sequence[Any]) -> tuple[str, ...]:
    """dtypes of the tensors among the values, those in lists included."""
    leaves = tree_leaves(list(values))
    return tuple(
        str(leaf.dtype).removeprefix("torch.") for leaf in leaves if hasattr(leaf, "dtype")
    )


def dtype_of(value: Any) -> str:
    """dtype of a tensor value, where tracing knew it."""
    try:
        dtype = value.type().dtype()
    except (AttributeError, RuntimeError):  # no tensor: asking is an error inside torch
        return ""
    return str(dtype).removeprefix("torch.") if dtype is not None else ""
