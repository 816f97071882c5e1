"""A SavedModel's signature as one flat graph: calls of functions are gone, data edges stay.

TF 1 and TF 2 models look alike here: nodes of the meta graph, found backwards from the outputs.
Branches and loops (`If`, `Case`, `While`) are nodes with bodies, which are flat graphs again.
Variables, tables and constants that a body is given are read where they stand; the other inputs
are its arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError, did_you_mean

CALLS = ("PartitionedCall", "StatefulPartitionedCall")
PASSED = (
    "Identity",
    "IdentityN",
    "StopGradient",
    "PreventGradient",
    "CheckNumerics",
    "EnsureShape",
    "PlaceholderWithDefault",
    "Snapshot",
    "ReadVariableOp",
)
BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
LOOPS = ("While", "StatelessWhile")
ARGUMENT = "_Arg"
VARIABLES = ("VarHandleOp", "VariableV2", "Variable")
TABLES = ("HashTableV2", "HashTable", "MutableHashTableV2")

Ref = tuple[str, int]  # a node's name and the number of its output


@dataclass(frozen=True)
class Body:
    """A branch, or the condition or the step of a loop: a flat graph with arguments."""

    label: str
    nodes: tuple[GraphNode, ...]
    arguments: tuple[Ref, ...]  # one for each of the node's slots
    results: tuple[Ref, ...]


@dataclass(frozen=True)
class GraphNode:
    """An operator of the flat graph.

    A branch or a loop has bodies; `slots` are the inputs that are their arguments.
    """

    name: str
    op: str
    inputs: tuple[Ref, ...]
    attributes: Mapping[str, Any]
    outputs: int
    definition: Any = field(repr=False)  # NodeDef
    bodies: tuple[Body, ...] = ()
    slots: tuple[int, ...] = ()

    @property
    def computed(self) -> tuple[int, ...]:
        """The outputs that it computes: all of them, but what a loop only hands on."""
        return self.slots if self.op in LOOPS else tuple(range(self.outputs))


@dataclass(frozen=True)
class SignatureTensor:
    """An input or output of a signature; None is a length that is left open."""

    name: str
    ref: Ref
    dtype: str
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True)
class Graph:
    """Nodes in an order in which they can run, with the signature's inputs and outputs."""

    nodes: tuple[GraphNode, ...]
    inputs: tuple[SignatureTensor, ...]
    outputs: tuple[SignatureTensor, ...]
    signature: str
    tags: tuple[str, ...]
    trained: Mapping[str, bool]  # by the names of variables; empty where the model does not say
    given: tuple[SignatureTensor, ...] = ()  # the outputs by the names of the model's own graph

    def every(self) -> Iterator[GraphNode]:
        """All nodes, those of bodies too."""
        return every(self.nodes)


def every(nodes: Sequence[GraphNode]) -> Iterator[GraphNode]:
    """Nodes, and those of their bodies."""
    for node in nodes:
        yield node
        for body in node.bodies:
            yield from every(body.nodes)


@dataclass
class GraphScope:
    """The nodes of a graph or of one call of a function."""

    prefix: str
    nodes: dict[str, Any]
    arguments: dict[str, tuple[GraphScope, str]] = field(default_factory=dict)
    results: tuple[str, ...] = ()
    calls: dict[str, GraphScope] = field(default_factory=dict)
    forms: dict[str, tuple[int, ...]] = field(default_factory=dict)  # slots of loops and branches


def read_meta(folder: Path, tags: Sequence[str] = ("serve",)) -> Any:
    """The MetaGraphDef with some tags."""
    from tensorflow.core.protobuf import saved_model_pb2

    path = folder / "saved_model.pb"
    if not path.is_file():
        raise JoyError(
            "no SavedModel: it has no saved_model.pb",
            where=str(folder),
            help="name the folder that tf.saved_model.save or export_saved_model wrote",
        )
    model = saved_model_pb2.SavedModel()
    try:
        model.ParseFromString(path.read_bytes())
    except Exception as error:  # protobuf's DecodeError has another class in each implementation
        raise JoyError(f"not a SavedModel: {error}", where=str(path)) from None
    for meta in model.meta_graphs:
        if set(tags) == set(meta.meta_info_def.tags):
            return meta
    known = [",".join(meta.meta_info_def.tags) for meta in model.meta_graphs]
    raise JoyError(
        f"no graph with the tags {','.join(tags)}",
        where=str(path),
        help=f"it has: {'; '.join(known)}",
    )


def read_graph(folder: Path, signature: str = "serving_default") -> Graph:
    """The flat graph of a signature."""
    meta = read_meta(folder)
    known = sorted(key for key in meta.signature_def if not key.startswith("__"))
    if signature not in known:
        raise JoyError(
            f"no signature {signature!r}",
            where=str(folder),
            help=f"{did_you_mean(signature, known)} it has: {', '.join(known)}".strip(),
        )
    chosen = meta.signature_def[signature]
    library = {each.signature.name: each for each in meta.graph_def.library.function}
    top = GraphScope("", {node.name: node for node in meta.graph_def.node})
    outputs = sort_by_name(chosen.outputs)
    inputs = sort_by_name(chosen.inputs)
    flat = Flattener(library)
    found = {tensor.name: flat.origin(top, text_of(tensor.ref)) for tensor in outputs}
    nodes = flat.reach(found.values())
    return Graph(
        nodes=nodes,
        inputs=inputs,
        outputs=tuple(
            SignatureTensor(each.name, flat.ref(found[each.name]), each.dtype, each.shape)
            for each in outputs
        ),
        signature=signature,
        tags=tuple(meta.meta_info_def.tags),
        trained=trained_variables(meta),
        given=outputs,
    )


def sort_by_name(tensors: Mapping[str, Any]) -> tuple[SignatureTensor, ...]:
    """A signature's tensors in order of name."""
    from tensorflow import dtypes

    found = []
    for name in sorted(tensors):
        info = tensors[name]
        if not info.name:
            raise JoyError(f"{name} is a sparse or composite tensor", help="export dense tensors")
        shape = None
        if not info.tensor_shape.unknown_rank:
            shape = tuple(dim.size if dim.size >= 0 else None for dim in info.tensor_shape.dim)
        dtype = dtypes.as_dtype(info.dtype).name
        found.append(SignatureTensor(name, ref_of(info.name), dtype, shape))
    return tuple(found)


def ref_of(text: str) -> Ref:
    """A tensor's name as node and output."""
    name, _, number = text.partition(":")
    return name, int(number or 0)


def text_of(ref: Ref) -> str:
    """A tensor's name."""
    return f"{ref[0]}:{ref[1]}"


def trained_variables(meta: Any) -> dict[str, bool]:
    """Whether a variable is trained, by the name it is stored under."""
    saved = [each.variable for each in meta.object_graph_def.nodes if each.HasField("variable")]
    if saved:
        return {each.name: each.trainable for each in saved}
    from tensorflow.core.framework import variable_pb2

    found = {}
    for key in ("variables", "trainable_variables"):
        for data in meta.collection_def[key].bytes_list.value:
            name = variable_pb2.VariableDef.FromString(data).variable_name.partition(":")[0]
            found[name] = key == "trainable_variables"
    return found


def is_trained(name: str, known: Mapping[str, bool]) -> bool:
    """Whether a variable is trained; Keras numbers names when it exports (kernel_1)."""
    if name in known:
        return known[name]
    plain = re.sub(r"_\d+$", "", name)
    return known.get(plain, not plain.endswith(("moving_mean", "moving_variance")))


Place = tuple[GraphScope, str, int]  # a tensor that is not passed on from another one


class Flattener:
    """Follows tensors back through calls of functions."""

    def __init__(self, library: Mapping[str, Any]) -> None:
        self.library = library

    def origin(self, scope: GraphScope, text: str) -> Place:
        """Where a tensor is computed."""
        while True:
            name, number = ref_of(text)
            if name in scope.arguments:
                scope, text = scope.arguments[name]
                continue
            node = scope.nodes[name]
            called = self.called(node)
            if called is not None:
                scope = self.enter(scope, node, called)
                text = scope.results[number]
            elif node.op in LOOPS and number not in self.slots(scope, node):
                text = data_inputs(node)[number]
            elif node.op in PASSED:
                text = data_inputs(node)[number if node.op == "IdentityN" else 0]
            else:
                return scope, name, number

    def called(self, node: Any) -> Any:
        """The function that a node calls, None for an operator."""
        if node.op in CALLS:
            return self.library[node.attr["f"].func.name]
        return self.library.get(node.op)

    def enter(self, scope: GraphScope, node: Any, function: Any) -> GraphScope:
        """The body of a call, one for each node that calls."""
        if node.name not in scope.calls:
            scope.calls[node.name] = self.body(scope, node, function)
        return scope.calls[node.name]

    def functions(self, node: Any) -> list[tuple[str, Any]]:
        """The bodies of a branch or a loop, by name."""
        if node.op in LOOPS:
            named = [("cond", node.attr["cond"].func), ("body", node.attr["body"].func)]
        elif node.op.endswith("Case"):
            branches = node.attr["branches"].list.func
            named = [(f"branch_{number}", one) for number, one in enumerate(branches)]
        else:
            named = [(key, node.attr[f"{key}_branch"].func) for key in ("then", "else")]
        return [(label, self.library[one.name]) for label, one in named]

    def slots(self, scope: GraphScope, node: Any) -> tuple[int, ...]:
        """The inputs that bodies get as arguments, by their number among the node's inputs.

        What stands still (variables, tables, constants) is no argument, unless a loop changes it.
        """
        if node.name not in scope.forms:
            texts = data_inputs(node)
            first = 0 if node.op in LOOPS else 1  # behind what chooses the branch
            still = set()
            for number in range(first, len(texts)):
                place, name, _ = self.origin(scope, texts[number])
                if place.nodes[name].op in (*VARIABLES, *TABLES, "Const"):
                    still.add(number)
            if node.op in LOOPS:
                still &= self.unchanged(scope, node)
            kept = tuple(n for n in range(first, len(texts)) if n not in still)
            scope.forms[node.name] = kept
        return scope.forms[node.name]

    def unchanged(self, scope: GraphScope, node: Any) -> set[int]:
        """The variables of a loop that its step hands on as they are."""
        _, step = self.functions(node)[1]
        every = tuple(range(len(data_inputs(node))))
        trial = self.inside(scope, node, "trial", step, every)
        arguments = [each.name for each in step.signature.input_arg]
        found = set()
        for number, text in enumerate(trial.results):
            place, name, _ = self.origin(trial, text)
            if place is trial and name == arguments[number]:
                found.add(number)
        return found

    def inside(
        self, scope: GraphScope, node: Any, label: str, function: Any, slots: Sequence[int]
    ) -> GraphScope:
        """A body's nodes; inputs in `slots` are nodes of their own, others are bound."""
        from tensorflow.core.framework import node_def_pb2

        first = 0 if node.op in LOOPS else 1
        made = self.body(scope, node, function, data_inputs(node)[first:])
        made.prefix = f"{scope.prefix}{node.name}/{label}/"
        for slot in slots:
            name = function.signature.input_arg[slot - first].name
            del made.arguments[name]
            made.nodes[name] = node_def_pb2.NodeDef(name=name, op=ARGUMENT)
        return made

    def bodies(self, scope: GraphScope, node: Any) -> tuple[Body, ...]:
        """What a branch or a loop runs."""
        if node.op not in (*BRANCHES, *LOOPS):
            return ()
        slots, found = self.slots(scope, node), []
        first = 0 if node.op in LOOPS else 1
        for label, function in self.functions(node):
            made = self.inside(scope, node, label, function, slots)
            names = [function.signature.input_arg[slot - first].name for slot in slots]
            texts = [
                text
                for number, text in enumerate(made.results)
                if node.op not in LOOPS or label == "cond" or number in slots
            ]
            ends = [self.origin(made, text) for text in texts]
            nodes = [one for one in self.reach(ends) if one.name.startswith(made.prefix)]
            found.append(
                Body(
                    label,
                    tuple(one for one in nodes if one.op != ARGUMENT),
                    tuple((made.prefix + name, 0) for name in names),
                    tuple(self.ref(end) for end in ends),
                )
            )
        return tuple(found)

    def body(
        self, scope: GraphScope, node: Any, function: Any, texts: Sequence[str] | None = None
    ) -> GraphScope:
        """A function's nodes, with the call's inputs as arguments."""
        nodes = {
            each.name: type(each).FromString(each.SerializeToString()) for each in function.node_def
        }
        for each in nodes.values():
            flat = [self.counted(nodes, text) for text in data_inputs(each)]
            del each.input[:]
            each.input.extend(flat)
        arguments = [each.name for each in function.signature.input_arg]
        given = zip(arguments, data_inputs(node) if texts is None else texts, strict=True)
        return GraphScope(
            prefix=f"{scope.prefix}{node.name}/",
            nodes=nodes,
            arguments={name: (scope, text) for name, text in given},
            results=tuple(
                self.counted(nodes, function.ret[each.name])
                for each in function.signature.output_arg
            ),
        )

    def counted(self, nodes: Mapping[str, Any], text: str) -> str:
        """A tensor inside of a function, node:output:number, as node:number."""
        name, *output = text.split(":")
        if not output:
            return name
        before = 0
        for each, count in self.outputs(nodes[name]):
            if each == output[0]:
                return f"{name}:{before + int(output[1])}"
            before += count
        raise JoyError(f"{text} names no output", help="the SavedModel is damaged")

    def outputs(self, node: Any) -> list[tuple[str, int]]:
        """Named outputs of a node and how many tensors each has."""
        if node.op in self.library:
            return [(each.name, 1) for each in self.library[node.op].signature.output_arg]
        return outputs_of(node)

    @staticmethod
    def ref(place: Place) -> Ref:
        """The name that a tensor has in the flat graph."""
        scope, name, number = place
        return scope.prefix + name, number

    def reach(self, ends: Any) -> tuple[GraphNode, ...]:
        """All nodes that the ends need, each behind its inputs."""
        done: dict[str, GraphNode] = {}
        entered: set[str] = set()
        waiting = [(scope, name, False) for scope, name, _ in ends]
        while waiting:
            scope, name, ready = waiting.pop()
            full = scope.prefix + name
            if full in done or (full in entered and not ready):
                continue
            node = scope.nodes[name]
            sources = [self.origin(scope, text) for text in data_inputs(node)]
            if not ready:
                entered.add(full)
                waiting.append((scope, name, True))
                waiting += [(where, source, False) for where, source, _ in sources]
                continue
            done[full] = GraphNode(
                full,
                node.op,
                tuple(self.ref(each) for each in sources),
                attributes_of(node),
                sum(count for _, count in outputs_of(node)),
                node,
                self.bodies(scope, node),
                self.slots(scope, node) if node.op in (*BRANCHES, *LOOPS) else (),
            )
        return tuple(done.values())


def data_inputs(node: Any) -> list[str]:
    """A node's inputs without those that only order it."""
    return [each for each in node.input if not each.startswith("^")]


def attributes_of(node: Any) -> dict[str, Any]:
    """A node's attributes; those left out at saving have the operator's defaults."""
    from tensorflow.python.framework import op_def_registry

    definition = op_def_registry.get(node.op)
    defaults = {
        each.name: plain(each.default_value)
        for each in (definition.attr if definition else ())
        if each.HasField("default_value")
    }
    return {**defaults, **{key: plain(value) for key, value in node.attr.items()}}


def outputs_of(node: Any) -> list[tuple[str, int]]:
    """Named outputs of an operator and how many tensors each has."""
    from tensorflow.python.framework import op_def_registry

    definition = op_def_registry.get(node.op)
    if definition is None:
        return [("output", 1)]
    return [(each.name, count_of(node, each)) for each in definition.output_arg]


def count_of(node: Any, argument: Any) -> int:
    """How many tensors an output of an operator has."""
    if argument.number_attr:
        return int(node.attr[argument.number_attr].i)
    if argument.type_list_attr:
        return len(node.attr[argument.type_list_attr].list.type)
    return 1


def plain(value: Any) -> Any:
    """An attribute as Python has it; tensors and functions stay what they are."""
    from tensorflow import dtypes

    kind = value.WhichOneof("value")
    if kind == "s":
        return value.s.decode(errors="replace")
    if kind == "type":
        return dtypes.as_dtype(value.type).name
    if kind == "shape":
        return [dim.size for dim in value.shape.dim]
    if kind == "list":
        return list(plain_list(value.list))
    return getattr(value, kind) if kind else None


def plain_list(values: Any) -> Iterator[Any]:
    """A list of attributes."""
    from tensorflow import dtypes

    yield from (each.decode(errors="replace") for each in values.s)
    yield from values.i
    yield from values.f
    yield from values.b
    yield from (dtypes.as_dtype(each).name for each in values.type)
    yield from ([dim.size for dim in each.dim] for each in values.shape)
