"""How each operator of core ATen treats the rows of its inputs: one method for each family.

A rule returns the dimensions of the result, or says that rows meet (`interacts`). An operator
without a rule is unknown, and so is one whose rule fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from joymigrate.run.serve.ranking.proof.shapes import (
    ROW,
    UNKNOWN,
    Atom,
    Dim,
    Dims,
    Expr,
    NodeValue,
    RowFault,
    broadcast,
    expr_of,
    forbid,
    interacts,
    regroup,
    size_of,
    tags,
    whole,
)

# Elementwise ones that torch does not tag as such.
POINTWISE = frozenset(("_to_copy", "copy", "clone", "alias", "detach", "lift_fresh_copy", "fill",
                       "_prelu_kernel", "bucketize"))  # fmt: skip
LIKE = frozenset(("zeros_like", "ones_like", "full_like", "empty_like"))
FACTORIES = frozenset(("full", "zeros", "ones", "empty", "new_zeros", "new_ones", "new_full",
                       "new_empty"))  # fmt: skip
REDUCE = frozenset(("kthvalue", "median", "mode", "nanmedian"))  # and those that torch tags
SAME_PLACES = frozenset(("_to_copy", "clone", "alias", "detach", "lift_fresh_copy", "view",
                         "_unsafe_view", "unsqueeze", "squeeze", "permute", "expand",
                         "slice"))  # fmt: skip
ALONG = {
    "_softmax": "is divided by a sum over all rows",
    "_log_softmax": "subtracts a sum over all rows",
    "cumsum": "adds up the rows before it",
    "cumprod": "is multiplied by the rows before it",
    "sort": "is ordered among all rows",
    "topk": "must be among the best",
    "flip": "takes another's place",
    "cummax": "meets the rows before it",
    "cummin": "meets the rows before it",
    "logcumsumexp": "adds up the rows before it",
    "roll": "takes another's place",
}
COUNTS = "its size depends on all rows"
MIXING = dict.fromkeys(("_unique2", "unique_dim", "unique_consecutive", "nonzero", "bincount",
                        "histc", "masked_select"), COUNTS)  # fmt: skip
MIXING |= dict.fromkeys(("_native_batch_norm_legit", "_native_batch_norm_legit_functional",
                         "native_batch_norm"), "normalised by the mean over all rows")  # fmt: skip
# Operators whose rule has another name.
RULES = {
    "_unsafe_view": "view", "unsqueeze": "view", "squeeze": "view", "mm": "matmul",
    "split_with_sizes": "split", "constant_pad_nd": "pad", "bmm": "matmul", "triu": "tril",
    "addmm": "matmul", "baddbmm": "matmul", "native_layer_norm": "norm", "scatter_add": "scatter",
    "native_group_norm": "norm", "_native_batch_norm_legit_no_training": "batch_norm",
    "_embedding_bag_forward_only": "embedding_bag", "_embedding_bag": "embedding_bag",
    "slice_scatter": "put_part", "select_scatter": "put_part",
    "scatter_reduce": "scatter", "index_add": "scatter",
    "_scaled_dot_product_flash_attention_for_cpu": "attention",
    "_scaled_dot_product_efficient_attention": "attention",
}  # fmt: skip
# Of these operators an argument holds places; the others of `DATA` hold what is placed.
BY_PLACE = ("index", "index_select", "index_put", "embedding_bag", "scatter")
DATA = ("self", "src", "source", "values", "weight", "per_sample_weights")

Bound = Mapping[str, Any]  # an operator's arguments by name
Made = Sequence[Sequence[Atom]]


class ExtentRules:
    """`extent`: how many rows each axis has. `marks`: the symbols of those sizes."""

    extent: dict[str, Expr]
    marks: set[Any]

    def grows(self, size: Expr) -> bool:
        """Whether a size depends on how many rows there are."""
        return bool(size.free_symbols & self.marks)

    def count_rows(self, size: Expr) -> Dim:
        """A dimension of a new constant: all rows hold the same."""
        for axis, extent in self.extent.items():
            rest = whole(size / extent) if size.free_symbols & extent.free_symbols else None
            if rest is not None:
                return (Atom(extent, axis), Atom(rest))
        return (Atom(size),)

    def one_axis(self, axis: str) -> Dim:
        """The dimension that numbers an axis."""
        return (Atom(self.extent[axis], axis),)

    # Constants

    def arange(self, bound: Bound) -> tuple[Made, tuple[Any, ...]]:
        """Numbers of the rows, or starts of equal parts."""
        import sympy

        start, end, step = (
            one.expr if isinstance(one, NodeValue) else expr_of(one)
            for one in (bound.get("start") or 0, bound["end"], bound.get("step") or 1)
        )
        for axis, extent in self.extent.items():
            if start == 0 and sympy.expand(end - extent * step) == 0 and not self.grows(step):
                at = self.one_axis(axis)
                if step == 1:
                    return [at], ("place", axis)
                return [at], ("starts", (*at, Atom(step)), axis)
        interacts("counts the rows")

    def cut_bounds(self, bound: Bound, kind: tuple[Any, ...], outs: Sequence[Expr]) -> NodeValue:
        """`offsets[:-1]` and `offsets[1:]`."""
        import sympy

        start, axis = bound["start"] or 0, kind[2]
        if bound["step"] != 1 or sympy.expand(outs[0] - self.extent[axis]) != 0 or start > 1:
            interacts("cuts the bounds of the rows")
        return NodeValue((self.one_axis(axis),), ("ends" if start else "starts", *kind[1:]))

    def join_ends(self, parts: Sequence[NodeValue]) -> NodeValue | None:
        """The bounds that a zero and the ends of rows make; None for anything else."""
        if len(parts) != 2 or parts[0].kind != ("zero",) or parts[1].kind is None:
            return None
        name, tokens, axis = (*parts[1].kind, None, None)[:3]
        if name != "ends":
            return None
        return NodeValue(((Atom(self.extent[axis], f"{axis}+1"),),), ("bounds", tokens, axis))

    # Along dimensions

    def along(self, bound: Bound, outs: Sequence[Expr], why: str) -> Made:
        """What orders, sums or moves along dimensions, which must not be the rows'."""
        from torch.utils._pytree import tree_leaves

        dims = list(bound["self"].dims)
        for at in tree_leaves(bound.get("dim", bound.get("dims", -1))) or range(len(dims)):
            forbid("each row " + why, dims[at])
            dims[at] = (Atom(outs[at]),)
        return dims

    def reduce(self, bound: Bound) -> Made:
        """Sums, means, extremes: over other dimensions than the rows'."""
        from torch.utils._pytree import tree_leaves

        dims, keep = bound["self"].dims, bound.get("keepdim", False)
        named = [d % len(dims) for d in tree_leaves(bound.get("dim")) if d is not None]
        at = named or list(range(len(dims)))
        forbid("one number is made of all rows", *(dims[d] for d in at))
        return [() if d in at else dim for d, dim in enumerate(dims) if keep or d not in at]

    def on_view(self, bound: Bound, outs: Sequence[Expr]) -> Made:
        return regroup(bound["self"].dims, outs)

    def on_permute(self, bound: Bound, outs: Sequence[Expr]) -> Made:
        return [bound["self"].dims[d] for d in bound["dims"]]

    def on_expand(self, bound: Bound, outs: Sequence[Expr]) -> Made:
        dims = ((),) * (len(outs) - len(bound["self"].dims)) + bound["self"].dims
        return [dim or self.count_rows(size) for dim, size in zip(dims, outs, strict=True)]

    def on_repeat(self, bound: Bound, outs: Sequence[Expr]) -> Made:
        dims = ((),) * (len(outs) - len(bound["self"].dims)) + bound["self"].dims
        times = [
            one.expr if isinstance(one, NodeValue) else expr_of(one) for one in bound["repeats"]
        ]
        return [(*self.count_rows(n), *dim) for n, dim in zip(times, dims, strict=True)]

    def on_select(self, bound: Bound, outs: Sequence[Expr]) -> Made:
        dims = list(bound["self"].dims)
        forbid("one row is picked for all", dims.pop(bound["dim"]))
        return dims

    def on_slice(self, bound: Bound, outs: Sequence[Expr]) -> Made:
        import sympy

        dims, at = list(bound["self"].dims), bound["dim"]
        if bound["step"] != 1 or sympy.expand(size_of(dims[at]) - outs[at]) != 0:
            forbid("only some of the rows stay", dims[at])
            dims[at] = (Atom(outs[at]),)
        return dims

    def on_split(self, bound: Bound, outs: Sequence[Expr]) -> Any:
        dims, at = list(bound["self"].dims), bound["dim"] % len(outs)
        forbid("the rows are cut in parts", dims[at])
        return [[*dims[:at], (Atom(expr_of(n)),), *dims[at + 1 :]] for n in bound["split_sizes"]]

    def on_cat(self, bound: Bound, outs: Sequence[Expr]) -> Made:
        many, at = [list(one.dims) for one in bound["tensors"]], bound["dim"] % len(outs)
        ends, joined = [dims.pop(at) for dims in many], (Atom(outs[at]),)
        if tags(ends) and all(one == ends[0] for one in ends):  # a stack, before its reshape
            joined = (Atom(expr_of(len(ends))), *ends[0])
        else:
            forbid("rows are put behind other rows", *ends)
        dims = list(broadcast(*many))
        return [*dims[:at], joined, *dims[at:]]

    def on_pad(self, bound: Bound, outs: Sequence[Expr]) -> Made:
        dims = list(bound["self"].dims)
        for at in range(len(dims)):
            if any(one != 0 for one in bound["pad"][2 * (len(dims) - 1 - at) :][:2]):
                forbid("rows are added", dims[at])
                dims[at] = (Atom(outs[at]),)
        return dims

    # Products and norms

    def on_matmul(self, bound: Bound, outs: Sequence[Expr]) -> Made:
        """mm, bmm, addmm, baddbmm: [.., m, k] @ [.., k, n]."""
        a = bound.get("mat1", bound.get("batch1", bound["self"])).dims
        b: Dims = (bound["mat2"] if "mat2" in bound else bound["batch2"]).dims
        forbid("the product adds up all rows", a[-1], b[-2])
        dims = (*broadcast(a[:-2], b[:-2]), a[-2], b[-1])
        return broadcast(bound["self"].dims, dims) if "beta" in bound else dims

    def on_attention(self, bound: Bound, outs: Sequence[Expr]) -> Any:
        q, k, v = (bound[one].dims for one in ("query", "key", "value"))
        forbid("every row attends to all rows", k[-2], v[-2], q[-1], k[-1])
        mask = bound.get("attn_mask") or bound.get("attn_bias") or NodeValue()
        made = broadcast(mask.dims, (*broadcast(q[:-2], k[:-2], v[:-2]), q[-2], k[-2]))
        return [[*made[:-1], v[-1]]]

    def on_norm(self, bound: Bound, outs: Sequence[Expr]) -> Any:
        x: Dims = (bound["input"] if "input" in bound else bound["self"]).dims
        last = len(bound.get("normalized_shape", x[1:]))
        forbid("normalised over all rows", *x[len(x) - last :])
        return [list(x)]

    def on_batch_norm(self, bound: Bound, outs: Sequence[Expr]) -> Any:
        x, stats = bound["input"].dims, (*bound["running_mean"].dims, *bound["running_var"].dims)
        forbid("its statistics are made of rows", *stats, x[1])
        return [list(x)]

    def on_convolution(self, bound: Bound, outs: Sequence[Expr]) -> Made:
        x, bias = bound["input"].dims, bound["bias"] or NodeValue()
        forbid("neighbouring rows are added", *x[1:], *bound["weight"].dims, *bias.dims)
        return [x[0], *((Atom(size),) for size in outs[1:])]

    def on_diagonal(self, bound: Bound, outs: Sequence[Expr]) -> Made:
        dims = list(bound["self"].dims)
        one, two = sorted((bound["dim1"] % len(dims), bound["dim2"] % len(dims)))
        forbid("a diagonal pairs rows with places", dims.pop(two), dims.pop(one))
        return [*dims, (Atom(outs[-1]),)]

    def on_tril(self, bound: Bound, outs: Sequence[Expr]) -> Dims:
        forbid("rows are cut by their place", *bound["self"].dims[-2:])
        dims: Dims = bound["self"].dims
        return dims

    # Lookups

    def on_embedding(self, bound: Bound, outs: Sequence[Expr]) -> Made:
        forbid("the table is made of rows", *bound["weight"].dims)
        return (*bound["indices"].dims, bound["weight"].dims[1])

    def on_embedding_bag(self, bound: Bound, outs: Sequence[Expr]) -> Any:
        forbid("the table is made of rows", *bound["weight"].dims)
        kind: tuple[Any, ...] = bound["offsets"].kind or ("",)
        weights = bound["per_sample_weights"] or NodeValue()
        due = "bounds" if bound["include_last_offset"] else "starts"
        tokens = bound["indices"]
        if kind[0] != due or tokens.dims[0] != kind[1] or tokens.kind:
            interacts("bags are not the rows")
        broadcast(weights.dims, tokens.dims)
        return [[self.one_axis(kind[2]), bound["weight"].dims[1]]]

    def picked(
        self, x: Dims, indices: Sequence[NodeValue | None], *, write: bool = False
    ) -> tuple[list[int], Dims]:
        """Where indices point: own rows only, or dimensions that are the same for all."""
        used = [(at, one) for at, one in enumerate(indices) if one is not None]
        for at, one in used:
            axis = one.kind[1] if one.kind and one.kind[0] == "place" else None
            if (tags([x[at]]) or one.kind) and (not axis or x[at] != self.one_axis(axis)):
                interacts("an index may point to any row")
            if write and axis and axis != ROW and ROW in tags(one.dims):
                interacts("one is made of several rows")
        return [at for at, _ in used], broadcast(*(one.dims for _, one in used))

    def on_index(self, bound: Bound, outs: Sequence[Expr]) -> Made:
        x = bound["self"].dims
        ats, where = self.picked(x, bound["indices"])
        rest = [(at, dim) for at, dim in enumerate(x) if at not in ats]
        first = ats[0] if ats[-1] - ats[0] + 1 == len(ats) else 0
        before = [dim for at, dim in rest if at < first]
        return [*before, *where, *(dim for at, dim in rest if at >= first)]

    def on_index_select(self, bound: Bound, outs: Sequence[Expr]) -> Made:
        at = bound["dim"] % len(bound["self"].dims)
        indices = [*[None] * at, bound["index"]]
        return self.on_index({"self": bound["self"], "indices": indices}, outs)

    def on_index_put(self, bound: Bound, outs: Sequence[Expr]) -> Dims:
        x: Dims = bound["self"].dims
        ats, where = self.picked(x, bound["indices"], write=True)
        if tags(where) != tags([x[at] for at in ats]):
            interacts("all rows write into one tensor")
        if tags(bound["values"].dims):
            broadcast([tuple(dim) for dim in self.on_index(bound, outs)], bound["values"].dims)
        return x

    def on_masked_put(self, bound: Bound, outs: Sequence[Expr]) -> Dims:
        x: Dims = bound["self"].dims
        mask = bound["indices"][0].dims
        if len(bound["indices"]) > 1 or bound["values"].dims or mask != x[: len(mask)]:
            raise RowFault(UNKNOWN, "a mask that is not aligned with what it writes")
        return x

    def on_put_part(self, bound: Bound, outs: Sequence[Expr]) -> Dims:
        """slice_scatter, select_scatter."""
        x: Dims = bound["self"].dims
        part, at = list(bound["src"].dims), bound["dim"] % len(outs)
        if len(part) < len(x):
            part.insert(at, ())
        if part[at] != x[at]:
            forbid("only some of the rows are written", x[at], part[at])
        self.align(x, part, at, "rows write into other rows")
        return x

    def on_gather(self, bound: Bound, outs: Sequence[Expr]) -> Dims:
        x, at = bound["self"].dims, bound["dim"] % len(outs)
        index: Dims = bound["index"].dims
        forbid("an index may point to any row", x[at])
        self.align(x, index, at, "an index reads other rows")
        return index

    def on_scatter(self, bound: Bound, outs: Sequence[Expr]) -> Dims:
        """scatter, scatter_add, scatter_reduce, index_add: into own rows only."""
        x: Dims = bound["self"].dims
        index, at = bound["index"], bound["dim"] % len(outs)
        self.picked(x, [*[None] * at, index], write=True)
        source = bound.get("src", bound.get("source"))
        along = index.dims[at if len(index.dims) == len(x) else 0]
        for one in (index, source):
            if not isinstance(one, NodeValue) or len(one.dims) != len(x):
                continue
            if one.dims[at] != along if index.kind else tags([one.dims[at], along]):
                interacts("all rows write into one tensor")
            self.align(x, one.dims, at, "all rows write into one tensor")
        return x

    def align(self, x: Sequence[Dim], other: Sequence[Dim], at: int, why: str) -> None:
        """In all dimensions but `at` the rows of both are the same."""
        if any(tags([x[d], other[d]]) and x[d] != other[d] for d in range(len(x)) if d != at):
            interacts(why)
