"""What an exported graph tells: its dimensions, the tables behind its ids, and a cut at them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joymigrate.run.serve.ranking.signature import Dimensions

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

LOOKUPS = ("aten.embedding.default", "aten.embedding_bag.default", "aten._embedding_bag.default")
# Operators that hand ids on unchanged.
PASSING = (
    *("aten.view.default", "aten.reshape.default", "aten.unsqueeze.default", "aten.clone.default"),
    *("aten.squeeze.dim", "aten.flatten.using_ints", "aten.contiguous.default"),
    *("aten.to.dtype", "aten._to_copy.default", "aten.to.dtype_layout", "aten.alias.default"),
    *("aten.index.Tensor", "aten.index_select.default", "aten.expand.default"),
)
Columns = tuple[int, ...] | None  # of the last dimension; None: all of them


def dimensions(program: ExportedProgram) -> tuple[list[Dimensions], list[Dimensions]]:
    """Inputs and outputs with their free dimensions by name."""
    nodes = {node.name: node for node in program.graph.nodes}
    ins = [describe(name, nodes[name].meta["val"]) for name in program.graph_signature.user_inputs
           if isinstance(name, str)]  # fmt: skip
    names = [name for name in program.graph_signature.user_outputs if isinstance(name, str)]
    outs = [
        describe(name if len(names) > 1 else "score", nodes[name].meta["val"]) for name in names
    ]
    return ins, outs


def describe(name: str, value: Any) -> Dimensions:
    """One tensor of the graph."""
    sizes = tuple(size if isinstance(size, int) else str(size) for size in value.shape)
    return Dimensions(name, str(value.dtype).removeprefix("torch."), sizes)


def weights_of(program: ExportedProgram) -> dict[str, str]:
    """Parameters and buffers: the placeholder's name → the name in the state."""
    signature = program.graph_signature
    return {**signature.inputs_to_parameters, **signature.inputs_to_buffers}


def lookups(program: ExportedProgram) -> list[tuple[Node, str]]:
    """Every embedding lookup of the graph, with the name of its table in the state."""
    weights = weights_of(program)
    found = []
    for node in program.graph.nodes:
        if node.op == "call_function" and str(node.target) in LOOKUPS:
            table = weights.get(getattr(node.args[0], "name", ""))
            if table is not None:
                found.append((node, table))
    return found


def bounds(program: ExportedProgram) -> dict[str, int | tuple[int, ...]]:
    """For inputs of ids: the rows of the tables that they look into, by column where it differs.

    Followed through operators that hand ids on; ids that are computed with have no bound here.
    """
    found: dict[str, int | tuple[int, ...]] = {}
    nodes = {node.name: node for node in program.graph.nodes}
    for name in program.graph_signature.user_inputs:
        if not isinstance(name, str) or nodes[name].meta["val"].is_floating_point():
            continue
        ends = tables_behind(nodes[name])
        if not ends or any(rows is None for rows, _ in ends):
            continue
        width = nodes[name].meta["val"].shape[-1] if nodes[name].meta["val"].ndim > 1 else None
        bound = bound_of([(rows or 0, columns) for rows, columns in ends], width)
        if bound is not None:
            found[name] = bound
    return found


def bound_of(ends: list[tuple[int, Columns]], width: Any) -> int | tuple[int, ...] | None:
    """One bound, or one per column; None when a column leads nowhere."""
    if all(columns is None for _, columns in ends):
        return min(rows for rows, _ in ends)
    if not isinstance(width, int):
        return None
    each: list[int | None] = [None] * width
    for rows, columns in ends:
        for column in range(width) if columns is None else columns:
            each[column] = min(rows, each[column] or rows)
    if any(rows is None for rows in each):
        return None
    return tuple(rows for rows in each if rows is not None)


def tables_behind(start: Node) -> list[tuple[int | None, Columns]]:
    """(rows, columns) of every table that this input's ids reach; rows None: they go elsewhere."""
    ends: list[tuple[int | None, Columns]] = []
    waiting: list[tuple[Node, Columns]] = [(start, None)]
    while waiting:
        node, columns = waiting.pop()
        for user in node.users:
            target = str(user.target)
            if user.op != "call_function" or target == "aten.sym_size.int":
                continue
            if target in LOOKUPS and user.args[1] is node:
                table: Any = user.args[0]
                ends.append((int(table.meta["val"].shape[0]), columns))
            elif target in PASSING and user.args[0] is node:
                kept = columns if same_last(node, user) else None
                waiting.append((user, kept if columns is None or kept is not None else columns))
            elif target in ("aten.slice.Tensor", "aten.select.int") and user.args[0] is node:
                waiting.append((user, narrow_columns(node, user, columns)))
            elif target not in COMPARING:
                ends.append((None, columns))
    return ends


# A mask made from ids bounds nothing, and needs nothing bounded.
COMPARING = ("aten.ne.Scalar", "aten.eq.Scalar", "aten.gt.Scalar", "aten.lt.Scalar",
             "aten.ge.Scalar", "aten.le.Scalar")  # fmt: skip


def same_last(node: Node, user: Node) -> bool:
    """Whether the last dimension is the same before and after."""
    before, after = node.meta["val"].shape, user.meta["val"].shape
    return bool(before) and bool(after) and str(before[-1]) == str(after[-1])


def narrow_columns(node: Node, user: Node, columns: Columns) -> Columns:
    """The columns after a slice or a selection; a cut of another dimension keeps them."""
    shape = node.meta["val"].shape
    args: Any = user.args
    dim = int(args[1]) if len(args) > 1 else 0
    if len(shape) < 2 or dim % len(shape) != len(shape) - 1 or not isinstance(shape[-1], int):
        return columns
    held = tuple(range(shape[-1])) if columns is None else columns
    if len(held) != shape[-1]:
        return columns
    if str(user.target) == "aten.select.int":
        return (held[int(args[2])],)
    start, stop, step = ([*args[2:], *(None,) * 3])[:3]
    return held[slice(start, stop, step)]
