"""The work of one recorded step: operations, bytes, launches, casts, copies, collectives.

Bytes are those that each operator reads and writes when it runs as a kernel of its own. Weights
are counted apart: each has to be read at least once in a step whatever is fused.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from joymigrate.profile.capture import Capture, CapturedOperator, tensors
from joymigrate.profile.cost.flops import Formulas, flops, product
from joymigrate.profile.support import split_name

BYTES = {
    "float64": 8, "int64": 8, "complex64": 8, "complex128": 16, "float32": 4, "int32": 4,
    "uint32": 4, "float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2, "bool": 1, "int8": 1,
    "uint8": 1,
}  # fmt: skip
FLOATING = ("float32", "float16", "bfloat16", "float64")
CASTS = ("_to_copy", "to", "copy_")  # and what a chip calls …_dtype_cast
COPIES = ("clone", "contiguous", "copy_", "_reshape_copy")
# Only a part of the first tensor is read.
PICKS = ("embedding", "index", "index_select", "gather", "take", "select_scatter")
NO_KERNEL = frozenset(
    ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "alias",
     "_unsafe_view", "lift_fresh", "set_", "resize_", "_local_scalar_dense", "item", "is_same_size",
     "_reshape_alias", "result_type", "sym_size", "sym_stride", "sym_numel",
     "_has_compatible_shallow_copy_type")
)  # fmt: skip
WEIGHT = {"mm": 1, "addmm": 2, "bmm": 1, "convolution": 1, "_convolution": 1}
COLLECTIVES = {
    "allreduce": "all_reduce", "all_reduce": "all_reduce", "allgather": "all_gather",
    "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all",
    "all_to_all": "all_to_all", "broadcast": "broadcast", "reduce": "broadcast",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class WorkPart:
    """One kind of operator: operations and bytes of all its calls in one step."""

    name: str
    calls: int
    flops: int
    bytes: int
    dtype: str
    counted: bool  # whether a formula for its operations is known


@dataclass(frozen=True, slots=True)
class Work:
    """One step. Sizes in bytes. `flops` by the dtype of the first tensor."""

    parts: tuple[WorkPart, ...]
    flops: Mapping[str, int]
    bytes: int
    weight_bytes: int
    weights: int  # elements that a gradient is exchanged for
    launches: int
    casts: int
    cast_bytes: int
    copies: int
    copy_bytes: int
    collectives: Mapping[str, int]  # kind → bytes of one rank
    trains: bool
    cards: int
    uncounted: Mapping[str, int] = field(default_factory=dict)  # products without a formula


def work_of(capture: Capture, *, dtype: str | None = None, own: Formulas | None = None) -> Work:
    """Count a recording. `dtype` replaces the floating point type of every tensor."""
    parts: dict[tuple[str, str], list[int]] = {}
    known: dict[tuple[str, str], bool] = {}
    flops_by: Counter[str] = Counter()
    collectives: Counter[str] = Counter()
    uncounted: Counter[str] = Counter()
    weights: dict[Any, tuple[int, int]] = {}
    launches = casts = cast_bytes = copies = copy_bytes = moved = 0
    for operator in capture.operators:
        namespace, base, _ = split_name(operator.op)
        kind = collective(namespace, base)
        if kind:
            collectives[kind] += operator.calls * size_of(operator.args, dtype)
            continue
        if has_no_kernel(operator):
            continue
        type_ = retype(first_dtype(operator), dtype)
        counted = flops(operator, own or {})
        traffic = traffic_of(operator, base, dtype)
        launches += operator.calls
        moved += operator.calls * traffic
        flops_by[type_] += operator.calls * (counted or 0)
        entry = parts.setdefault((operator.op, type_), [0, 0, 0])
        entry[0] += operator.calls
        entry[1] += operator.calls * (counted or 0)
        entry[2] += operator.calls * traffic
        known[operator.op, type_] = counted is not None
        if counted is None and multiplies(base):
            uncounted[operator.op] += operator.calls
        if (base in CASTS or base.endswith("dtype_cast")) and casts_dtype(operator, dtype):
            casts, cast_bytes = casts + operator.calls, cast_bytes + operator.calls * traffic
        elif base in COPIES:
            copies, copy_bytes = copies + operator.calls, copy_bytes + operator.calls * traffic
        if base in WEIGHT and operator.phase == "forward" and of_a_layer(operator, base):
            weight = operator.args[WEIGHT[base]]
            key = (operator.module, operator.where, operator.op, tuple(weight["shape"]))
            weights[key] = (elements(weight), elements(weight) * width(weight, dtype))
    return Work(
        tuple(WorkPart(name, c, f, b, type_, known[name, type_])
              for (name, type_), (c, f, b) in parts.items()),
        dict(flops_by), moved,
        sum(size for _, size in weights.values()), sum(count for count, _ in weights.values()),
        launches, casts, cast_bytes, copies, copy_bytes, dict(collectives), capture.trains,
        int((capture.header.get("environment") or {}).get("world_size") or 1), dict(uncounted),
    )  # fmt: skip


def collective(namespace: str, base: str) -> str:
    """The kind of a collective operator, "" for others."""
    if namespace not in ("c10d", "_c10d_functional", "c10d_functional"):
        return ""
    fitting = [kind for start, kind in COLLECTIVES.items() if base.lstrip("_").startswith(start)]
    return fitting[0] if fitting else ""


def multiplies(base: str) -> bool:
    """Whether an operator's name says that it multiplies matrices."""
    return any(word in base for word in ("mm", "matmul", "conv", "attention", "lstm", "gru", "rnn"))


def of_a_layer(operator: CapturedOperator, base: str) -> bool:
    """Whether the second factor is a weight, not another activation."""
    if base in ("convolution", "_convolution"):
        return True
    return operator.module is not None and "aten::linear" in operator.parents


@functools.lru_cache(maxsize=4096)
def is_view(op: str, overload: str) -> bool:
    """Whether torch's schema says that the result shares its memory with an argument."""
    import torch

    namespace, base, _ = split_name(op)
    packet = getattr(getattr(torch.ops, namespace, None), base, None)
    found = getattr(packet, overload or "default", None)
    returns = found._schema.returns if found is not None else ()
    return bool(returns) and all(r.alias_info and not r.alias_info.is_write for r in returns)


def has_no_kernel(operator: CapturedOperator) -> bool:
    """Views, allocations, and what only asks."""
    base = split_name(operator.op)[1]
    return base in NO_KERNEL or is_view(operator.op, operator.overload)


def first_dtype(operator: CapturedOperator) -> str:
    """The floating point type that an operator computes in, of its first tensor."""
    found = [str(t["dtype"]) for t in operator.tensors()]
    return next((d for d in found if d in FLOATING), found[0] if found else "")


def retype(dtype: str, wanted: str | None) -> str:
    """A dtype after every floating point tensor has the wanted one."""
    return wanted if wanted and dtype in FLOATING else dtype


def width(tensor: Mapping[str, Any], wanted: str | None) -> int:
    """Bytes per element; a byte for formats that are not listed (quantised ones)."""
    return BYTES.get(retype(str(tensor["dtype"]), wanted), 1)


def elements(tensor: Mapping[str, Any]) -> int:
    """Elements that lie in memory: a stride of zero repeats one."""
    strides = tensor.get("stride") or ()
    sizes = [int(n) for n in tensor["shape"]]
    if len(strides) == len(sizes):
        sizes = [1 if stride == 0 else n for n, stride in zip(sizes, strides, strict=True)]
    return max(0, product(sizes))


def size_of(values: Iterable[Any], wanted: str | None) -> int:
    """Bytes of all tensors among values."""
    return sum(elements(t) * width(t, wanted) for t in tensors(values))


def traffic_of(operator: CapturedOperator, base: str, wanted: str | None) -> int:
    """Bytes read and written by one call."""
    inputs = list(operator.tensors())
    written = size_of(operator.outputs, wanted)
    if base in PICKS and inputs:
        return written + written + size_of(inputs[1:], wanted)
    if base == "copy_" and len(inputs) > 1:
        return written + size_of(inputs[1:], wanted)
    return written + size_of(inputs, wanted)


def casts_dtype(operator: CapturedOperator, wanted: str | None) -> bool:
    """Whether a copy changes the type."""
    inputs = [retype(str(t["dtype"]), wanted) for t in operator.tensors()]
    outputs = [retype(str(t["dtype"]), wanted) for t in tensors(operator.outputs)]
    if operator.op.endswith("copy_") and len(inputs) > 1:
        return inputs[0] != inputs[1]
    return bool(inputs and outputs) and inputs[0] != outputs[0]
