"""Writes a flat graph as a PyTorch module that people can read: one line for each operator.

What follows from shapes and texts alone stays on the host; everything else runs where the weights
are. Constants that only say a shape, an axis or a key are written out.
"""

from __future__ import annotations

import inspect
import keyword
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from joymigrate.errors import JoyError
from joymigrate.run.tensorflow import operators
from joymigrate.run.tensorflow.graph import (
    BRANCHES,
    LOOPS,
    TABLES,
    VARIABLES,
    Body,
    Graph,
    GraphNode,
    Ref,
    every,
    is_trained,
)
from joymigrate.run.tensorflow.operators import OPERATORS
from joymigrate.run.tensorflow.operators.texts import is_shared

SYMBOLS = {"AddV2": "+", "Add": "+", "Sub": "-", "Mul": "*", "RealDiv": "/"}
OF_SHAPE = ("Shape", "ShapeN", "Size", "Rank")
LITERAL = 64  # elements of a constant that is written out
MODULES = ("arrays", "control", "indexing", "segments", "sparse", "texts")


@dataclass(frozen=True)
class EmittedLine:
    """One operator: the names that it gives, and how they are computed."""

    node: str
    targets: tuple[str, ...]
    text: str
    several: bool  # the function gives a tuple, be it of one
    outputs: tuple[int, ...] = ()  # the operator's outputs that the names are for; () for all

    def assignment(self) -> str:
        """The line."""
        if not self.targets:
            return f"{self.text}  # {self.node}"
        comma = "," if self.several and len(self.targets) == 1 else ""
        short = re.sub(r"(Stateful)?PartitionedCall(_\d+)?/", "", self.node)
        return f"{', '.join(self.targets)}{comma} = {self.text}  # {short}"


@dataclass(frozen=True)
class EmittedMethod:
    """A branch, or the condition or the step of a loop."""

    name: str
    arguments: tuple[str, ...]
    lines: tuple[EmittedLine, ...]
    results: tuple[str, ...]

    def source(self) -> str:
        """The method."""
        given = "".join(f", {name}" for name in self.arguments)
        found = "".join(f"{text}, " for text in self.results).rstrip()
        body = [f"        {line.assignment()}\n" for line in self.lines]
        return "".join([f"\n    def {self.name}(self{given}):\n", *body,
                        f"        return ({found})\n"])  # fmt: skip


@dataclass(frozen=True)
class EmittedModule:
    """A module's source, and what is stored beside it."""

    lines: tuple[EmittedLine, ...]
    weights: dict[str, Any]  # attribute → array
    stored: dict[str, str]  # attribute → the variable's name in TensorFlow
    parameters: frozenset[str]
    inputs: dict[str, str]  # input → parameter of forward
    outputs: dict[str, str]  # output → expression
    tables: dict[str, str]  # node → key
    methods: tuple[EmittedMethod, ...] = ()

    def source(self, about: str, *, watched: bool = False) -> str:
        """The module's text; `watched` calls `seen(name, value)` for every tensor."""
        return source_of(self, about, watched=watched)


def check(graph: Graph) -> None:
    """One error that names every operator that can't be converted."""
    known = {*OPERATORS, *VARIABLES, *TABLES, *BRANCHES, *LOOPS, "Const", "Placeholder"}
    nodes = graph.every()
    wrong = [(node, kind_of(node)) for node in nodes if node.op not in known or find_limit(node)]
    missing = Counter(kind for _, kind in wrong)
    if not missing:
        return
    first = {kind: node.name for node, kind in reversed(wrong)}
    listed = [f"{op} ({count}x, first {first[op]})" for op, count in sorted(missing.items())]
    raise JoyError(
        f"{len(missing)} operator{'s' * (len(missing) > 1)} can't be converted: "
        + ", ".join(listed),
        help="export a signature without them (--signature), or keep that part in TensorFlow",
    )


def write(graph: Graph, weights: Mapping[str, Any]) -> EmittedModule:
    """The module of a graph whose variables have the values of `weights`, by node."""
    check(graph)
    return LineWriter(graph, weights).write()


def find_limit(node: GraphNode) -> str:
    """Why a form of a known operator can't be converted; empty for those that can."""
    if node.op == "SparseCross" and not node.attributes["hashed_output"]:
        return "whose result is texts"
    if node.op == "StaticRegexReplace":
        pattern, rewrite = (str(node.attributes[one]) for one in ("pattern", "rewrite"))
        return "" if is_shared(pattern, rewrite) else f"by {pattern!r}, which only RE2 reads so"
    if node.op == "RaggedTensorToTensor":
        kinds = node.attributes["row_partition_types"]
        return "" if kinds == ["ROW_SPLITS"] else f"by {', '.join(kinds)}"
    if node.op.startswith("FusedBatchNorm") and node.attributes.get("is_training"):
        return "in training"
    return ""


def kind_of(node: GraphNode) -> str:
    """An operator, with the form that is not known."""
    return f"{node.op} {find_limit(node)}".strip()


class LineWriter:
    """Gives names to tensors and writes lines."""

    def __init__(self, graph: Graph, weights: Mapping[str, Any]) -> None:
        self.graph = graph
        self.values = weights
        self.nodes = {node.name: node for node in graph.every()}
        self.constants = {node.name: constant(node) for node in graph.every() if node.op == "Const"}
        self.methods: list[EmittedMethod] = []
        self.names: dict[Ref, str] = {}
        self.taken: set[str] = {"self", "torch", "functional", "seen", *MODULES}
        self.attributes: dict[str, str] = {}  # node → attribute
        self.stored: dict[str, str] = {}
        self.arrays: dict[str, Any] = {}
        self.host = {node.name for node in graph.nodes if node.op in TABLES}
        self.inputs: dict[str, str] = {}

    def write(self) -> EmittedModule:
        """All lines."""
        for each in self.graph.inputs:
            name = self.name(each.name)
            self.inputs[each.name] = name
            self.names[each.ref] = name
            if each.dtype == "string":
                self.host.add(each.ref[0])
        for node in self.graph.nodes:
            self.place(node)
        self.hold_variables()
        lines = self.lines(self.graph.nodes)
        return EmittedModule(
            lines=lines,
            weights=self.arrays,
            stored=self.stored,
            parameters=frozenset(
                attribute
                for attribute, name in self.stored.items()
                if self.arrays[attribute].dtype.kind == "f" and is_trained(name, self.graph.trained)
            ),
            inputs=self.inputs,
            outputs={each.name: self.read(each.ref) for each in self.graph.outputs},
            tables={node.name: node.name for node in self.graph.nodes if node.op in TABLES},
            methods=tuple(self.methods),
        )

    def lines(self, nodes: Sequence[GraphNode]) -> tuple[EmittedLine, ...]:
        """A line for each operator; bodies become methods."""
        found = []
        for node in nodes:
            if node.bodies:
                found.append(self.controlled(node))
            elif node.op in OPERATORS:
                found.append(self.line(node))
        return tuple(found)

    def controlled(self, node: GraphNode) -> EmittedLine:
        """The line of a branch or a loop."""
        given = [self.use(node, slot, False) for slot in node.slots]
        methods = [f"self.{self.method(node, body)}" for body in node.bodies]
        targets = []
        for number in node.computed:
            targets.append(self.name(f"{node.name}_{number}"))
            self.names[node.name, number] = targets[-1]
        packed = ", ".join(given)
        if node.op in LOOPS:
            text = f"control.loop({', '.join(methods)}, ({packed}{',' * bool(given)}))"
        elif node.op.endswith("Case"):
            text = f"control.choose({self.use(node, 0, False)}, [{', '.join(methods)}])({packed})"
        else:
            asked = f"control.truth({self.use(node, 0, False)})"
            text = f"({methods[0]} if {asked} else {methods[1]})({packed})"
        return EmittedLine(node.name, tuple(targets), text, True, node.computed)

    def method(self, node: GraphNode, body: Body) -> str:
        """The method of a body, named behind its node."""
        name = self.name(f"{node.name}_{body.label}")
        arguments = []
        for ref in body.arguments:
            arguments.append(self.name(ref[0]))
            self.names[ref] = arguments[-1]
        lines = self.lines(body.nodes)
        results = tuple(self.result(ref) for ref in body.results)
        self.methods.append(EmittedMethod(name, tuple(arguments), lines, results))
        return name

    def result(self, ref: Ref) -> str:
        """What a body gives back; a variable of the loop may be handed on as it is."""
        return self.names[ref] if ref in self.names else self.read(ref)

    def place(self, node: GraphNode) -> None:
        """Say whether an operator runs on the host."""
        if node.bodies:
            self.place_bodies(node)
            return
        if node.op in OF_SHAPE:
            self.host.add(node.name)
        elif node.op in OPERATORS:
            sources = [name for name, _ in node.inputs if name not in self.constants]
            if all(name in self.host for name in sources):
                self.host.add(node.name)

    def place_bodies(self, node: GraphNode) -> None:
        """Say what of a body runs on the host: a loop's variable that stays there, step by step."""
        on_host = [self.stays(node.inputs[slot]) for slot in node.slots]
        while True:
            ends = []
            for body in node.bodies:
                for ref, stays in zip(body.arguments, on_host, strict=True):
                    (self.host.add if stays else self.host.discard)(ref[0])
                for one in every(body.nodes):
                    self.host.discard(one.name)
                for one in body.nodes:
                    self.place(one)
                ends.append([self.stays(ref) for ref in body.results])
            if node.op not in LOOPS:
                break
            kept = [a and b for a, b in zip(on_host, ends[-1], strict=True)]
            if kept == on_host:
                break
            on_host = kept
        # Any branch may run, and a loop may hand on what it was given.
        if all(one and all(one) for one in ([on_host] if node.op in LOOPS else ends)):
            self.host.add(node.name)

    def stays(self, ref: Ref) -> bool:
        """Whether a tensor is on the host."""
        return ref[0] in self.host or ref[0] in self.constants

    def hold_variables(self) -> None:
        """An attribute for each variable."""
        for node in self.graph.nodes:
            if node.op in VARIABLES:
                name = node.attributes.get("shared_name") or node.name
                attribute = self.attribute(node.name, name)
                self.stored[attribute] = name
                self.arrays[attribute] = np.asarray(self.values[node.name])

    def attribute(self, node: str, name: str) -> str:
        """A free attribute of the module."""
        self.attributes[node] = self.name(name, whole=True)
        return self.attributes[node]

    def name(self, text: str, *, whole: bool = False) -> str:
        """A free Python name like a TensorFlow one."""
        base = text if whole else text.rstrip("/").rpartition("/")[2]
        base = re.sub(r"\W+", "_", base).strip("_").lower() or "value"
        base = f"v_{base}" if base[0].isdigit() or keyword.iskeyword(base) else base
        name, number = base, 1
        while name in self.taken:
            number += 1
            name = f"{base}_{number}"
        self.taken.add(name)
        return name

    def line(self, node: GraphNode) -> EmittedLine:
        """The line of one operator."""
        known = OPERATORS[node.op]
        slots = {slot % len(node.inputs) for slot in known.host} if node.inputs else set()
        given = [self.use(node, slot, slot in slots) for slot in range(len(node.inputs))]
        targets = tuple(
            self.name(node.name if not number else f"{node.name}_{number}")
            for number in range(node.outputs)
        )
        for number, target in enumerate(targets):
            self.names[node.name, number] = target
        return EmittedLine(
            node.name, targets, self.expression(node, given), gives_several(known.function)
        )

    def expression(self, node: GraphNode, given: Sequence[str]) -> str:
        """A call, or a sum or product with its sign."""
        places = [name in self.host for name, _ in node.inputs if name not in self.constants]
        if node.op in SYMBOLS and len(set(places)) == 1:
            return f" {SYMBOLS[node.op]} ".join(self.scalar(node, given))
        function = OPERATORS[node.op].function
        attributes = [
            f"{name}={node.attributes[name]!r}"
            for name in keywords(function)
            if node.attributes.get(name) is not None
        ]
        return f"{path_of(function)}({', '.join([*given, *attributes])})"

    def scalar(self, node: GraphNode, given: Sequence[str]) -> list[str]:
        """Inputs of a sum or product, single numbers written out."""
        found = []
        for text, (name, _) in zip(given, node.inputs, strict=True):
            value = self.constants.get(name)
            others = [each for each, _ in node.inputs if each not in self.constants]
            single = value is not None and value.ndim == 0 and value.dtype.kind == "f"
            if value is None or not single or not others or not np.isfinite(value):
                found.append(text)
            else:
                found.append(literal(value))
        return found

    def use(self, node: GraphNode, slot: int, plain: bool) -> str:
        """How an operator names one of its inputs."""
        name, _ = node.inputs[slot]
        value = self.constants.get(name)
        if value is None:
            return self.read(node.inputs[slot])
        if plain and value.size <= LITERAL:
            return literal(value)
        if node.name in self.host and value.size <= LITERAL:
            return host_tensor(value)
        if value.dtype.kind in "OS":
            return host_tensor(value)
        text = f"self.{self.constant_attribute(name, value)}"
        return f"{text}.cpu()" if plain or node.name in self.host else text

    def constant_attribute(self, name: str, value: Any) -> str:
        """The buffer that holds a constant."""
        if name not in self.attributes:
            attribute = self.attribute(name, "constant_" + name.rpartition("/")[2])
            self.arrays[attribute] = value
        return self.attributes[name]

    def read(self, ref: Ref) -> str:
        """The name of a tensor that is there."""
        name, _ = ref
        if ref in self.names:
            return self.names[ref]
        node = self.nodes[name]
        if node.op in VARIABLES:
            return f"self.{self.attributes[name]}"
        if node.op in TABLES:
            return f"self.tables[{name!r}]"
        if node.op == "Const":
            value = self.constants[name]
            text = value.dtype.kind in "OS"
            return host_tensor(value) if text else f"self.{self.constant_attribute(name, value)}"
        if ref not in self.names:
            raise JoyError(
                f"the placeholder {name} is no input of the signature",
                help="export with all inputs that the outputs need",
            )
        return self.names[ref]


def constant(node: GraphNode) -> Any:
    """A constant's value."""
    from tensorflow.python.framework import tensor_util

    return np.asarray(tensor_util.MakeNdarray(node.definition.attr["value"].tensor))


def literal(value: Any) -> str:
    """A number or a list as Python writes it; the shortest text that gives the same float32."""
    if value.dtype.kind == "f":
        return (
            str(np.asarray(value).astype(value.dtype)) if value.ndim == 0 else repr(value.tolist())
        )
    return repr(value.tolist())


def host_tensor(value: Any) -> str:
    """A constant on the host."""
    if value.dtype.kind in "OS":
        return f"texts.texts({value.tolist()!r})"
    text = re.sub(r"\b(inf|nan)\b", r"float('\1')", repr(value.tolist()))
    return f"torch.tensor({text}, dtype=torch.{value.dtype.name})"


def keywords(function: Any) -> list[str]:
    """Attributes that a function reads."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # torch's own functions
        return []
    return [each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]


def gives_several(function: Any) -> bool:
    """Whether a function gives a tuple."""
    return str(getattr(function, "__annotations__", {}).get("return", "")).startswith("tuple")


def path_of(function: Any) -> str:
    """How the generated module names a function."""
    for module in MODULES:
        for name, value in vars(getattr(operators, module)).items():
            if value is function:
                return f"{module}.{name}"
    name = function.__name__
    return f"torch.{name}" if getattr(torch, name, None) is function else f"functional.{name}"


HEAD = '''"""{about}

Written by `joymigrate convert savedmodel`. `load()` gives the module with its weights.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn import functional

if __package__:
    from .tensorflow_operators import arrays, control, indexing, segments, sparse, texts
    from .tensorflow_operators.table import LookupTable
else:
    from tensorflow_operators import arrays, control, indexing, segments, sparse, texts
    from tensorflow_operators.table import LookupTable

HERE = Path(__file__).parent


class Model(torch.nn.Module):
    """{about}"""

    def __init__(self, folder=HERE):
        super().__init__()
        weights = load_file(folder / "weights.safetensors")
        self.tables = LookupTable.load(folder / "tables.json")
'''


def source_of(written: EmittedModule, about: str, *, watched: bool) -> str:
    """The text of model.py."""
    text = [HEAD.format(about=about.replace('"', "'"))]
    for attribute in written.weights:
        stored = written.stored.get(attribute)
        note = f"  # {stored}" if stored and stored != attribute else ""
        if attribute in written.parameters:
            value = f'torch.nn.Parameter(weights["{attribute}"])'
            text.append(f"        self.{attribute} = {value}{note}\n")
        else:
            text.append(
                f'        self.register_buffer("{attribute}", weights["{attribute}"]){note}\n'
            )
    arguments = "".join(f", {name}" for name in ("*", *written.inputs.values()))
    seen = ", seen=None" if watched else ""
    text += [method.source() for method in written.methods]
    text.append(f"\n    def forward(self{arguments}{seen}):\n")
    for line in written.lines:
        text.append(f"        {line.assignment()}\n")
        if watched:
            text += [
                f"        seen({f'{line.node}:{number}'!r}, {target})\n"
                for number, target in zip(
                    line.outputs or range(len(line.targets)), line.targets, strict=True
                )
            ]
    answers = ", ".join(f"{name!r}: {value}" for name, value in written.outputs.items())
    text.append(f"        return {{{answers}}}\n\n\n")
    text.append('def load(folder=HERE):\n    """The model with its weights, for inference."""\n')
    text.append("    return Model(Path(folder)).eval()\n")
    return "".join(text)
