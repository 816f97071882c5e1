"""Floating point operations of one recorded call, by torch's own formulas.

`torch.utils.flop_counter` counts matrix products, convolutions and attention from shapes; all else
counts nothing, which can only make a lower bound lower. What it does not know by name is
added here, and a chip's own operators come from its `peaks.yaml`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from joymigrate.profile.capture import CapturedOperator
from joymigrate.profile.cost.peaks import Formula

# Other names of operators that torch has a formula for, with the same leading arguments.
SAME = {
    "_scaled_dot_product_flash_attention_for_cpu": "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_fused_attention_overrideable": "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu_backward": (
        "_scaled_dot_product_flash_attention_backward"
    ),
    "_scaled_dot_product_fused_attention_overrideable_backward": (
        "_scaled_dot_product_flash_attention_backward"
    ),
    "convolution_backward_overrideable": "convolution_backward",
    "_int_mm": "mm",
    "_addmm_activation": "addmm",
}
MASKS = ("attn_mask", "attn_bias", "bias")
Formulas = Mapping[str, Formula]


def flops(operator: CapturedOperator, own: Formulas) -> int | None:
    """The count for one call; None where no formula is known. `own` are the chip's operators.

    Attention that is causal, or has a mask, counts half: a kernel may skip what is masked.
    """
    formula = own.get(operator.op)
    try:
        if formula is not None:
            return by_formula(operator, formula)
        return by_torch(operator)
    except (IndexError, KeyError, TypeError, ValueError, AssertionError):
        return None  # a recording without the shapes that the formula needs


def by_torch(operator: CapturedOperator) -> int | None:
    """Torch's formula of an aten operator."""
    if not operator.op.startswith("aten::"):
        return None
    base = operator.op.removeprefix("aten::")
    formula = formulas().get(SAME.get(base, base))
    if formula is None:
        return PLAIN[base](operator) if base in PLAIN else None
    args = [shape_of(value) for value in operator.args]
    outputs = [shape_of(value) for value in operator.outputs]
    out: Any = outputs[0] if len(outputs) == 1 else outputs
    if base.startswith("convolution_backward"):
        out = outputs
    if "attention" in base:  # only the tensors count: names behind them differ between variants
        tensors = [a for a in args if isinstance(a, tuple) and len(a) == 4]
        args = tensors[:4] if "backward" in base else tensors[:3]
    counted = int(formula(*args, out_val=out))
    return counted // 2 if "attention" in base and skips(operator) else counted


def skips(operator: CapturedOperator) -> bool:
    """Whether a kernel may leave out a part of the scores."""
    for name, value in name_arguments(operator):
        if name == "is_causal" and value is True:
            return True
        if name in MASKS and isinstance(value, Mapping) and "shape" in value:
            return True
    return False


def name_arguments(operator: CapturedOperator) -> list[tuple[str, Any]]:
    """Arguments with the names of torch's schema."""
    import torch

    packet = getattr(torch.ops.aten, operator.op.removeprefix("aten::"), None)
    overload = getattr(packet, operator.overload or "default", None)
    names = [a.name for a in overload._schema.arguments] if overload is not None else []
    return [*zip(names, operator.args, strict=False), *operator.kwargs.items()]


@functools.cache
def formulas() -> dict[str, Callable[..., int]]:
    """Torch's formulas by base name."""
    from torch.utils.flop_counter import flop_registry

    return {str(key).removeprefix("aten."): value for key, value in flop_registry.items()}


def shape_of(value: Any) -> Any:
    """A tensor's shape in its place; other arguments as they are."""
    if isinstance(value, Mapping) and "shape" in value:
        return tuple(int(n) for n in value["shape"])
    return value


def matrix_vector(operator: CapturedOperator) -> int:
    """mv, dot, addmv: two operations per element of the matrix."""
    shapes = [s for s in map(shape_of, operator.args) if isinstance(s, tuple)]
    return 2 * max(product(shape) for shape in shapes)


PLAIN: dict[str, Callable[[CapturedOperator], int]] = {
    "mv": matrix_vector, "dot": matrix_vector, "addmv": matrix_vector, "vdot": matrix_vector,
}  # fmt: skip


def by_formula(operator: CapturedOperator, formula: Formula) -> int:
    """A chip's own operator. Its attention counts half: masks are not followed."""
    shapes = [shape_of(value) for value in operator.args]
    if formula.kind == "matmul":
        return 2 * product(shapes[formula.a]) * int(shapes[formula.b][-1])
    layout = "BNSD" if formula.layout is None else operator.args[formula.layout]
    heads = 1 if formula.heads is None else operator.args[formula.heads]
    batch, count, length, size = attention_sizes(shapes[formula.query], layout, heads)
    longest = attention_sizes(shapes[formula.key], layout, heads)[2]
    products = 5 if formula.backward else 2
    return products * 2 * batch * count * length * longest * size // 2


def attention_sizes(shape: Sequence[int], layout: str, heads: int) -> tuple[int, int, int, int]:
    """batch, heads, length and head size of a tensor in a layout such as BNSD or SBH."""
    sizes = dict(zip(layout, shape, strict=True))
    if "H" in sizes:
        sizes |= {"N": heads, "D": sizes["H"] // heads}
    return sizes["B"], sizes["N"], sizes["S"], sizes["D"]


def product(shape: Sequence[int]) -> int:
    """Elements of a shape."""
    total = 1
    for size in shape:
        total *= size
    return total
