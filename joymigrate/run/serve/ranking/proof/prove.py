"""Proves on an exported program that every row of an output depends on its own row alone.

The graph is read once, in core ATen, with a row's way through each operator (`operators`). What
adds, sorts, picks or cuts along the rows interacts; what has no rule is unknown; both mean that
each request is computed alone. Proven is exact arithmetic: kernels may round otherwise for another
number of rows. Not looked at: whether padding changes scores (all other sizes are equal in merged
requests, and `trial` looks at padding).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from joymigrate.run.serve.ranking.proof.operators import (
    ALONG,
    BY_PLACE,
    DATA,
    FACTORIES,
    LIKE,
    MIXING,
    POINTWISE,
    REDUCE,
    RULES,
    SAME_PLACES,
    ExtentRules,
)
from joymigrate.run.serve.ranking.proof.shapes import (
    INTERACTS,
    ROW,
    UNKNOWN,
    Atom,
    Expr,
    NodeValue,
    RowFault,
    broadcast,
    expr_of,
    forbid,
    interacts,
    size_of,
    tags,
    tidy,
)

if TYPE_CHECKING:
    from torch.export import ExportedProgram

# Graphs inside the graph that run as they stand.
SUBGRAPHS = ("wrap_with_set_grad_enabled", "wrap_with_autocast", "invoke_subgraph")
SIZES = ("size", "end", "N", "HxW", "repeats", "split_sizes")  # arguments that may hold the count
ZEROS, FULL = ("zeros", "new_zeros"), ("full", "new_full")
NUMBERS = ("lengths", "zero")  # kinds that are numbers of their own rows, and no places
SHIFTED = "places among the rows are used as numbers: merging shifts them"


@dataclass(frozen=True, slots=True)
class Axes:
    """What is known of the inputs by name. `rows`: the axis that dimension 0 counts (absent: one
    value for all). `places`: the axis whose rows an input numbers. `lengths` and `offsets`: (axis
    of the tokens, axis of the rows) that an input cuts."""

    rows: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    lengths: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    offsets: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RowProof:
    """`why` rows meet, or it is unknown whether they do; empty: every row is its own. `most` rows
    is what the program was exported for."""

    why: str = ""
    most: int | None = None


def prove(core: ExportedProgram, axes: Axes) -> RowProof:
    """Whether every output of a program (see `decompose`) has one row per candidate, by itself."""
    try:
        return Prover(core, axes).run()
    except Exception as error:  # a graph that cannot be read proves nothing
        return RowProof(f"unknown: the graph cannot be followed: {type(error).__name__}: {error}")


def decompose(program: ExportedProgram) -> ExportedProgram:
    """The program in core ATen. A loaded one with a size such as rows + 1 has that as a key among
    its symbols, at which torch 2.13 stops: such keys go."""
    import sympy

    for node in program.graph.find_nodes(op="placeholder"):
        for size in getattr(node.meta.get("val"), "shape", ()):
            ranges = size.node.shape_env.var_to_range if hasattr(size, "node") else {}
            for key in [key for key in ranges if not isinstance(key, sympy.Symbol)]:
                del ranges[key]
    core: ExportedProgram = program.run_decompositions()
    return core


class Prover(ExtentRules):
    """One reading of one graph."""

    def __init__(self, program: ExportedProgram, axes: Axes) -> None:
        self.program, self.axes = program, axes
        self.extent: dict[str, Expr] = {}
        self.known: set[Any] = set()  # symbols of sizes of inputs

    def run(self) -> RowProof:
        """Read the graph; judge its outputs."""
        signature = self.program.graph_signature
        nodes = self.program.graph.find_nodes(op="placeholder")
        for node in nodes:
            shape = [expr_of(size) for size in getattr(node.meta.get("val"), "shape", ())]
            self.known |= {symbol for size in shape for symbol in size.free_symbols}
            if node.name in self.axes.rows:
                self.extent.setdefault(self.axes.rows[node.name], shape[0])
        self.marks = {symbol for size in self.extent.values() for symbol in size.free_symbols}
        leaves = [self.given(node, user=node.name in signature.user_inputs) for node in nodes]
        results = self.interpret(self.program.graph, leaves)
        for spec, value in zip(signature.output_specs, results, strict=True):
            if "MUTATION" in spec.kind.name:
                return RowProof(f"it writes what it keeps ({spec.target})")
            if spec.kind.name == "USER_OUTPUT" and (fault := self.judge(value)):
                return RowProof(describe(fault))
        return RowProof(most=self.most_rows())

    def most_rows(self) -> int | None:
        """How many rows the program takes at most; None: any number."""
        span = self.program.range_constraints.get(self.extent[ROW])
        upper = getattr(span, "upper", None)
        return int(upper) if upper is not None and getattr(upper, "is_Integer", False) else None

    def judge(self, value: NodeValue) -> RowFault | None:
        """Why an output is not one row per candidate."""
        if value.fault:
            return value.fault
        if value.kind:
            return RowFault(INTERACTS, "the output is a place among the merged rows")
        first = value.dims[0] if value.dims else ()
        if len(first) != 1 or first[0].axis != ROW:
            return RowFault(UNKNOWN, "dimension 0 of an output is not the candidates")
        return None

    def given(self, node: Any, *, user: bool, held: Any = None) -> NodeValue:
        """What is known of an input, a weight or a constant."""
        name, val = node.name, node.meta.get("val", held)
        if not hasattr(val, "shape"):
            return NodeValue(expr=expr_of(0 if val is None else val))
        axes, sizes = self.axes, [expr_of(size) for size in val.shape]
        dims = [tidy((Atom(size),)) for size in sizes]
        kind: tuple[Any, ...] | None = None
        fault, axis = None, axes.rows.get(name) if user else None
        if user and name in axes.offsets:
            tokens, axis = axes.offsets[name]
            dims[0] = (Atom(sizes[0], f"{axis}+1"),)
            kind = ("bounds", self.one_axis(tokens), axis)
        elif axis:
            dims[0] = (Atom(sizes[0], axis),)
            if sizes[0] != self.extent[axis] or not sizes[0].free_symbols:
                fault = RowFault(UNKNOWN, f"dimension 0 of '{name}' is not free as '{axis}' is")
        if user and name in axes.lengths:
            kind = ("lengths", self.one_axis(axes.lengths[name][0]), axis)
        if user and name in axes.places:
            kind = ("place", axes.places[name])
        if any(self.grows(size) for size in sizes[1 if axis else 0 :]):
            fault = RowFault(INTERACTS, f"another dimension of '{name}' grows with the rows")
        return NodeValue(tuple(dims), kind, None, fault)

    def interpret(self, graph: Any, leaves: Sequence[NodeValue]) -> list[NodeValue]:
        """Follow a graph from its inputs to its outputs."""
        import torch

        env: dict[Any, Any] = {}
        waiting: Iterator[NodeValue] = iter(leaves)
        for node in graph.nodes:
            if node.op == "placeholder":
                env[node] = next(waiting)
            elif node.op == "get_attr":
                held = operator.attrgetter(node.target)(graph.owning_module)
                inner = isinstance(held, torch.fx.GraphModule)
                env[node] = held if inner else self.given(node, user=False, held=held)
            elif node.op == "output":
                outputs = torch.fx.map_arg(tuple(node.args[0]), env.get)
                return [one if isinstance(one, NodeValue) else NodeValue(expr=expr_of(0))
                        for one in outputs]  # fmt: skip
            else:
                env[node] = self.call(node, env)
        raise RowFault(UNKNOWN, "a graph without an output")

    def call(self, node: Any, env: dict[Any, Any]) -> Any:
        """What is known of an operator's result, or results."""
        import torch
        from torch.utils._pytree import tree_leaves

        args = torch.fx.map_arg(list(node.args), env.get)
        kwargs = torch.fx.map_arg(dict(node.kwargs), env.get)
        if node.target is operator.getitem:
            return args[0][args[1]] if isinstance(args[0], tuple) else args[0]
        values = [one for one in tree_leaves((args, kwargs)) if isinstance(one, NodeValue)]
        try:
            if getattr(node.target, "__name__", "") in SUBGRAPHS:
                at = next(place for place, one in enumerate(args)
                          if isinstance(one, torch.fx.GraphModule))  # fmt: skip
                return tuple(self.interpret(args[at].graph, args[at + 1 :]))
            return self.transfer(node, args, kwargs, values)
        except RowFault as caught:
            fault = caught
        except Exception as error:  # a rule that fails proves nothing
            fault = RowFault(UNKNOWN, f"{type(error).__name__}: {error}")
        if not fault.op:
            fault = RowFault(fault.verdict, fault.why, str(node.target), line_of(node))
        return NodeValue(fault=fault)

    def transfer(self, node: Any, args: Any, kwargs: Any, values: list[NodeValue]) -> Any:
        """One operator's result; raises `RowFault`."""
        import torch

        val, target = node.meta.get("val"), node.target
        tensors = [one for one in values if one.expr is None]
        if isinstance(val, torch.SymInt | torch.SymFloat | torch.SymBool | int | float):
            return self.number(node, expr_of(val), values, tensors)
        if faults := [one.fault for one in values if one.fault]:
            raise min(faults, key=lambda one: one.verdict)  # interacts before unknown
        if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
            raise RowFault(UNKNOWN, "no rule for this operator")
        name, overload = target._schema.name.split("::")[1], target._overloadname
        bound = {
            one.name: args[at] if at < len(args) else kwargs.get(one.name, one.default_value)
            for at, one in enumerate(target._schema.arguments)
        }
        self.check_numbers(bound)
        if torch.Tag.nondeterministic_seeded in target.tags:
            interacts("draws random numbers")
        first = val if isinstance(val, torch.Tensor) else val[0]
        outs = [expr_of(size) for size in first.shape]
        if not any(tags(one.dims) or (one.expr is not None and self.grows(one.expr))
                   for one in values):  # fmt: skip
            empty = name in ZEROS or (name in FULL and bound["fill_value"] == 0)
            kind = ("zero",) if empty and outs == [1] else None
            return self.finish(val, None, kind)  # the same for all rows, whatever it does
        if (cuts := self.on_cuts(name, bound, tensors, outs)) is not None:
            return cuts
        kind = self.kind_after(name, bound, tensors)
        rule = RULES.get(name, name)
        if name in MIXING or (name == "where" and overload == "default"):
            interacts(MIXING.get(name, "its size depends on all rows"))
        dims: Any
        if name == "arange":
            dims, kind = self.arange(bound)
        elif name in FACTORIES:
            dims = [self.count_rows(size) for size in outs]
        elif name in LIKE:
            dims = tensors[0].dims
        elif name in ALONG:
            dims = self.along(bound, outs, ALONG[name])
        elif (torch.Tag.reduction in target.tags and overload != "other") or name in REDUCE:
            dims = self.reduce(bound)
        elif torch.Tag.pointwise in target.tags or name in POINTWISE:
            if name == "bucketize":
                forbid("compared with bounds made of rows", *bound["boundaries"].dims)
                tensors = [bound["self"]]
            dims = broadcast(*(one.dims for one in tensors))
        elif hasattr(self, f"on_{rule}"):
            if rule == "index_put" and is_mask(node.args[1][0]):
                rule = "masked_put"
            dims = getattr(self, f"on_{rule}")(bound, outs)
        else:
            raise RowFault(UNKNOWN, "no rule for this operator")
        return self.finish(val, dims, kind)

    def check_numbers(self, bound: Mapping[str, Any]) -> None:
        """The number of rows may be a size, and nothing else."""
        from torch.utils._pytree import tree_leaves

        for key, held in bound.items():
            for one in tree_leaves(held) if key not in SIZES else ():
                if isinstance(one, NodeValue) and one.expr is not None and self.grows(one.expr):
                    interacts("the number of rows is used as a number")

    def on_cuts(
        self, name: str, bound: Mapping[str, Any], tensors: list[NodeValue], outs: list[Expr]
    ) -> NodeValue | None:
        """What lengths and bounds of rows become; None where this is nothing of the kind."""
        kind = tensors[0].kind if tensors else None
        if name == "slice" and kind and kind[0] == "bounds":
            return self.cut_bounds(bound, kind, outs)
        if name == "cumsum" and kind and kind[0] == "lengths":
            return NodeValue(tensors[0].dims, ("ends", *kind[1:]))
        if name == "cat" and bound["dim"] == 0:
            return self.join_ends(bound["tensors"])
        plain = bound.get("value") in (None, 0, 0.0)
        if name == "constant_pad_nd" and kind and list(bound["pad"]) == [1, 0] and plain:
            return self.join_ends([NodeValue(kind=("zero",)), tensors[0]])
        return None

    def kind_after(
        self, name: str, bound: Mapping[str, Any], tensors: list[NodeValue]
    ) -> tuple[Any, ...] | None:
        """The places that a result holds; raises `RowFault` where places are used as numbers."""
        places = {
            one.kind for one in tensors if one.kind and one.kind[0] not in ("lengths", "zero")
        }
        if name in SAME_PLACES and len(tensors) == 1:
            return tensors[0].kind
        if RULES.get(name, name) in BY_PLACE:
            data = (bound[key].kind for key in DATA if isinstance(bound.get(key), NodeValue))
            places = {kind for kind in data if kind and kind[0] not in NUMBERS}
        elif name == "sub" and [one.kind and one.kind[0] for one in tensors] == ["ends", "starts"]:
            one, other = tensors
            if bound["alpha"] == 1 and one.kind and other.kind and one.kind[1:] == other.kind[1:]:
                places = set()  # lengths
        if places and name not in LIKE:
            interacts(SHIFTED)
        return None

    def finish(self, val: Any, dims: Any, kind: tuple[Any, ...] | None) -> Any:
        """The result, or results; sizes are checked against those that the exporter found."""
        import sympy

        if isinstance(val, tuple | list):
            each = dims if dims and isinstance(dims[0], list) else [dims] * len(val)
            lost = NodeValue(fault=RowFault(UNKNOWN, "a result that this rule does not follow"))
            return tuple(
                self.finish(one, each[at], kind) if at < len(each) and one is not None else lost
                for at, one in enumerate(val)
            )
        sizes = [expr_of(size) for size in val.shape]
        given = [(Atom(size),) for size in sizes] if dims is None else dims
        tidied = tuple(tidy(dim) for dim in given)
        if len(tags(tidied)) > 1:
            interacts("every row meets every other row")
        for dim, size in zip(tidied, sizes, strict=True):
            if sympy.expand(size_of(dim) - size) != 0:
                raise RowFault(UNKNOWN, "this rule and the exporter disagree about a size")
            if any(not atom.axis and self.grows(atom.size) for atom in dim):
                interacts("a dimension grows with the rows and is not theirs")
        return NodeValue(tidied, kind)

    def number(
        self, node: Any, expr: Expr, values: list[NodeValue], tensors: list[NodeValue]
    ) -> NodeValue:
        """A size, or a number that is read out of a tensor."""
        fault = next((one.fault for one in values if one.fault), None)
        if str(node.target).startswith(("aten.sym_size", "aten.sym_numel")):
            # A size of inputs says nothing of what a tensor holds.
            fault = None if expr.free_symbols <= self.known else fault
        elif not fault and any(tags(one.dims) for one in tensors):
            interacts("a number is read out of the rows")
        return NodeValue(expr=expr, fault=fault)


def is_mask(node: Any) -> bool:
    """Whether an index is a mask."""
    import torch

    return node is not None and bool(node.meta["val"].dtype == torch.bool)


def line_of(node: Any) -> str:
    """The last line outside of torch; torch keeps frames of functions named `forward` only."""
    trace = node.meta.get("stack_trace") or ""
    found = re.findall(r'File "([^"]+)", line (\d+), in .*\n\s*(.*)', trace)
    found = [one for one in found if "/torch/" not in one[0]] or found
    if not found:
        return ""
    path, line, text = found[-1]
    return f"{path.rpartition('/')[2]}:{line} {text}"


def describe(fault: RowFault) -> str:
    """A fault in one line: what, by which operator, where."""
    where = " at ".join(part for part in (fault.op, fault.line) if part)
    text = fault.why if fault.verdict == INTERACTS else f"unknown: {fault.why}"
    return f"{text} ({where})" if where else text


def cut_only(axes: Axes) -> Axes:
    """The axes of one request in pieces: each piece brings all users and all their tokens."""
    kept = {name: axis for name, axis in axes.rows.items() if axis == ROW}
    return replace(axes, rows=kept, places={}, lengths={}, offsets={})
