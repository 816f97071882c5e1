"""A program cut into parts: the ids and the dense rest, or the user's side and the candidates'.

The cut is found in the exported graph, not written by hand. A part shares the program's weights.
Sparse: every embedding table whose ids come from the inputs alone leaves the graph; the dense part
takes the rows of a batch (each id once) and the places of the ids among them, so that its lookups
compute what they computed on the whole table, bit for bit.
User side: everything that depends on user inputs alone, up to where candidates meet it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joymigrate.errors import JoyError
from joymigrate.run.serve.ranking.graph import LOOKUPS
from joymigrate.run.serve.ranking.signature import USER, ModelSignature

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node

Run = Callable[..., Any]
DENSE, USERS, CANDIDATES = "dense", "user", "candidate"  # names of parts
PARTS = (DENSE, USERS, CANDIDATES)


@dataclass(frozen=True, slots=True)
class ModelPiece:
    """A part that runs: the inputs that it takes by name, and the outputs in order."""

    run: Run
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SparseCut:
    """`ids` computes one tensor of ids per lookup; `dense` takes `rows_*` and `places_*` for them.

    `tables` names the weight of each lookup, `rows` the dense input that takes a table's rows.
    """

    ids: ModelPiece
    dense: ModelPiece
    tables: tuple[str, ...]
    rows: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class UserCut:
    """`user` computes the frontier that `candidate` takes. `lengths`: which dimensions of each
    frontier tensor are the length of which padded sequence."""

    user: ModelPiece
    candidate: ModelPiece
    lengths: Mapping[str, Mapping[int, str]]


def extract(model: GraphModule, outputs: Sequence[Node], given: Mapping[Node, str]) -> ModelPiece:
    """The part of a graph that computes `outputs`; `given` nodes become inputs of these names."""
    from torch.fx import Graph, GraphModule

    needed = ancestors(outputs, given)
    graph = Graph()
    copied = {node: graph.placeholder(name) for node, name in given.items() if node in needed}
    for node in model.graph.nodes:
        if node in needed and node not in copied:
            copied[node] = graph.node_copy(node, copied.__getitem__)
    graph.output(tuple(copied[node] for node in outputs))
    graph.lint()
    made = GraphModule(model, graph)
    names = tuple(str(node.target) for node in graph.nodes if node.op == "placeholder")
    return ModelPiece(made, names, tuple(node.name for node in outputs))


def ancestors(outputs: Iterable[Node], stop: Mapping[Node, Any]) -> set[Node]:
    """Everything that the outputs need; what `stop` names is the end of the way."""
    found: set[Node] = set()
    waiting = list(outputs)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += [] if node in stop else node.all_input_nodes
    return found


def results(model: GraphModule) -> list[Node]:
    """The nodes that a graph returns."""
    from torch.fx import Node

    last = next(node for node in model.graph.nodes if node.op == "output")
    return [node for node in last.all_input_nodes if isinstance(node, Node)]


def cut_sparse(model: GraphModule) -> SparseCut:
    """Take the embedding tables out. Raises `JoyError` where there is none to take."""
    able = {node for node in lookups(model) if only_inputs(node)}
    cut = [node for node in lookups(model)
           if node in able and set(table_of(node).users) <= able]  # fmt: skip
    if not cut:
        raise JoyError("this program has no embedding table that can be taken out",
                       help="ids come from the inputs alone, and the table serves lookups alone; "
                       "leave --part out")  # fmt: skip
    tables = [str(table_of(node).target) for node in cut]
    rows = {name: f"rows_{place}" for place, name in enumerate(dict.fromkeys(tables))}
    copy, own = separate_ids(model, cut)
    by_name = {node.name: node for node in copy.graph.nodes}
    given = {by_name[table_of(node).name]: rows[str(table_of(node).target)] for node in cut}
    given |= {by_name[name]: f"places_{place}" for place, name in enumerate(own)}
    dense = extract(copy, results(copy), given)
    ids = extract(model, [ids_of(node) for node in cut], {})
    return SparseCut(ids, dense, tuple(tables), rows)


def separate_ids(model: GraphModule, cut: Sequence[Node]) -> tuple[GraphModule, list[str]]:
    """A copy of the graph in which each lookup reads ids through a node of its own; their names."""
    from torch.fx import Graph, GraphModule

    graph = Graph()
    copied: dict[Node, Node] = {}
    moved: dict[Node, str] = {}
    for node in model.graph.nodes:
        if node.op == "call_module" and not node.users:  # torch's guards of example sizes
            continue
        if node in cut:
            ids = copied[ids_of(node)]
            own = graph.call_function(keep, (ids,))
            moved[node] = own.name
            places = dict(copied)
            places[ids_of(node)] = own
            copied[node] = graph.node_copy(node, places.__getitem__)
            continue
        copied[node] = graph.node_copy(node, copied.__getitem__)
    return GraphModule(model, graph), [moved[node] for node in cut]


def keep(tensor: Any) -> Any:
    """The same tensor: marks a place in a graph."""
    return tensor


def lookups(model: GraphModule) -> list[Node]:
    """Lookups in a table that is a weight of the model."""
    found = []
    for node in model.graph.nodes:
        if node.op != "call_function" or str(node.target) not in LOOKUPS:
            continue
        if node.args[0] is table_of(node) and table_of(node).op == "get_attr" and plain(node):
            found.append(node)
    return found


def plain(node: Node) -> bool:
    """Whether a lookup works on any rows: a bag with a padding id needs the id itself."""
    if "embedding_bag" not in str(node.target):
        return True
    padding = node.args[8] if len(node.args) > 8 else node.kwargs.get("padding_idx", -1)
    return padding in (-1, None)


def table_of(node: Node) -> Node:
    """The table of a lookup."""
    return node.all_input_nodes[0]


def ids_of(node: Node) -> Any:
    """The ids of a lookup."""
    return node.args[1]


def only_inputs(node: Node) -> bool:
    """Whether the ids of a lookup need no weight and no other lookup."""
    return all(
        one.op != "get_attr" and str(one.target) not in LOOKUPS
        for one in ancestors([ids_of(node)], {})
    )


def cut_users(model: GraphModule, signature: ModelSignature) -> UserCut:
    """Separate the user's side. Raises `JoyError` with the reason where this does not work."""
    mine = user_nodes(model, signature)
    frontier = frontier_of(model, mine)
    if not frontier:
        raise JoyError("nothing of this program depends on the user alone",
                       help="leave --user-cache out")  # fmt: skip
    rows, lengths = symbols(model, signature)
    dims: dict[str, dict[int, str]] = {}
    for node in frontier:
        shape = [size if isinstance(size, int) else str(size) for size in node.meta["val"].shape]
        if not shape or shape[0] != rows:
            raise JoyError(f"'{node.name}' of the user's side has no row for each user",
                           help="leave --user-cache out")  # fmt: skip
        dims[f"user_{node.name}"] = found = {}
        for place, size in enumerate(shape[1:], 1):
            if isinstance(size, int):
                continue
            if size not in lengths:
                raise JoyError(f"'{node.name}' of the user's side has a free size that is no "
                               "sequence's length", help="leave --user-cache out")  # fmt: skip
            found[place] = lengths[size]
    named = {node: f"user_{node.name}" for node in frontier}
    user = extract(model, frontier, {})
    candidate = extract(model, results(model), named)
    return UserCut(ModelPiece(user.run, user.inputs, tuple(dims)), candidate, dims)


def user_nodes(model: GraphModule, signature: ModelSignature) -> set[Node]:
    """Nodes that need user inputs, and no candidates'."""
    sides: dict[Node, frozenset[str]] = {}
    for node in model.graph.nodes:
        if node.op == "placeholder":
            one = signature.by_name.get(str(node.target))
            sides[node] = frozenset(("user" if one is not None and one.axis == USER else "other",))
        else:
            sides[node] = frozenset().union(*(sides[one] for one in node.all_input_nodes))
    return {node for node, side in sides.items() if side == {"user"}}


def frontier_of(model: GraphModule, mine: set[Node]) -> list[Node]:
    """Tensors of the user's side that the rest takes, in the order of the graph."""
    import torch

    found: set[Node] = set()
    seen: set[Node] = set()
    waiting = results(model)
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        tensor = isinstance(node.meta.get("val"), torch.Tensor)
        if node in mine and tensor and node.op == "call_function":
            found.add(node)
        else:
            waiting += node.all_input_nodes
    return [node for node in model.graph.nodes if node in found]


def symbols(model: GraphModule, signature: ModelSignature) -> tuple[str, dict[str, str]]:
    """The free size that counts users, and the sequence behind each length."""
    rows, lengths = "", {}
    for node in model.graph.nodes:
        one = signature.by_name.get(str(node.target)) if node.op == "placeholder" else None
        if one is None or one.axis != USER or "val" not in node.meta:
            continue
        shape = [str(size) for size in node.meta["val"].shape]
        if one.role != "offsets":
            rows = shape[0]
        if one.layout == "padded" and one.shape[1] is None:
            lengths[shape[1]] = one.name
    return rows, lengths


def export_part(exported: ExportedProgram, signature: ModelSignature, part: str) -> ExportedProgram:
    """A part as a program of its own, over the free sizes of the whole: what gets compiled."""
    import torch
    from torch.export import Dim

    model: Any = exported.module()
    inputs = example(signature)
    if part == DENSE:
        split = cut_sparse(model)
        piece = split.dense
        inputs |= local_rows(split, inputs, dict(model.named_parameters()) | dict(
            model.named_buffers()))  # fmt: skip
    else:
        users = cut_users(model, signature)
        piece = users.user if part == USERS else users.candidate
        if part == CANDIDATES:
            made = users.user.run(**{name: inputs[name] for name in users.user.inputs})
            inputs |= dict(zip(users.user.outputs, made, strict=True))
    given = {name: inputs[name] for name in piece.inputs}
    free: dict[str, Any] = {}
    for name, tensor in given.items():
        one = signature.by_name.get(name)
        if one is not None:
            shape = one.shape
        else:  # rows and places, or a tensor of the frontier: sizes of the example that may vary
            shape = tuple(None if free_size(tensor, at) else size
                          for at, size in enumerate(tensor.shape))  # fmt: skip
        free[name] = {at: Dim.AUTO for at, size in enumerate(shape) if size is None}
    return torch.export.export(piece.run, (), kwargs=given, dynamic_shapes=free)  # type: ignore[arg-type]


EXAMPLE_SIZES = (13, 17)  # length and candidates of the example: sizes of no weight


def free_size(tensor: Any, at: int) -> bool:
    """Whether a size of a cut tensor comes from the example's free ones."""
    return at == 0 or int(tensor.shape[at]) in EXAMPLE_SIZES


def example(signature: ModelSignature) -> dict[str, Any]:
    """Inputs of a batch of two users, with sizes above one everywhere."""
    import torch

    from joymigrate.run.serve.ranking.inputs import draw
    from joymigrate.run.serve.ranking.merge import merge

    requests = [draw(signature, count, 13, seed) for seed, count in enumerate((8, 9))]
    batch = merge(signature, requests)
    return {name: torch.from_numpy(array.copy()) for name, array in batch.arrays.items()}


def local_rows(
    cut: SparseCut, inputs: Mapping[str, Any], state: Mapping[str, Any]
) -> dict[str, Any]:
    """Rows and places of a batch out of tables that are here."""
    found = cut.ids.run(**{name: inputs[name] for name in cut.ids.inputs})
    unique, places = compact(cut, found)
    rows = {cut.rows[name]: state[name].detach()[ids.long()] for name, ids in unique.items()}
    return {**rows, **places}


def compact(cut: SparseCut, found: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """By table the ids of all its lookups, each once; by lookup where its ids are among them."""
    import torch

    by_table: dict[str, list[int]] = {}
    for place, table in enumerate(cut.tables):
        by_table.setdefault(table, []).append(place)
    unique, places = {}, {}
    for table, mine in by_table.items():
        flat = torch.cat([found[place].reshape(-1) for place in mine])
        ids, inverse = torch.unique(flat, return_inverse=True)
        unique[table] = ids
        start = 0
        for place in mine:
            count = found[place].numel()
            part = inverse[start : start + count].reshape(found[place].shape)
            places[f"places_{place}"] = part.to(found[place].dtype)
            start += count
    return unique, places
