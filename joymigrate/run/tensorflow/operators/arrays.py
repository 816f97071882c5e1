"""Arithmetic, products and reductions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from joymigrate.run.tensorflow.operators.table import DTYPES, beside, ints, operator, whole

Binary = Callable[[Any, Any], Any]


def both(function: Binary) -> Binary:
    """A function of two tensors, one of which may be on the host."""

    def call(a: Any, b: Any) -> Any:
        return function(beside(a, b), beside(b, a))

    return call


def text_or_number(function: Binary, text: Binary) -> Binary:
    """A comparison of tensors, or of texts."""

    def call(a: Any, b: Any) -> Any:
        if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
            return torch.from_numpy(np.asarray(text(np.asarray(a), np.asarray(b)), dtype=bool))
        return function(beside(a, b), beside(b, a))

    return call


def divide_no_nan(a: Any, b: Any) -> Any:
    """Quotients, 0 where the divisor is 0."""
    return torch.where(b == 0, torch.zeros_like(a / b), a / b)


add = operator("AddV2", "Add")(both(torch.add))
subtract = operator("Sub")(both(torch.sub))
multiply = operator("Mul")(both(torch.mul))
divide = operator("RealDiv")(both(torch.div))
floor_div = operator("FloorDiv")(both(partial(torch.div, rounding_mode="floor")))
floor_mod = operator("FloorMod")(both(torch.remainder))
truncate_div = operator("TruncateDiv")(both(partial(torch.div, rounding_mode="trunc")))
truncate_mod = operator("TruncateMod")(both(torch.fmod))
x_log_y = operator("Xlogy")(both(torch.xlogy))
bitwise_and = operator("BitwiseAnd")(both(torch.bitwise_and))
bitwise_or = operator("BitwiseOr")(both(torch.bitwise_or))
bitwise_xor = operator("BitwiseXor")(both(torch.bitwise_xor))
div_no_nan = operator("DivNoNan")(both(divide_no_nan))
maximum = operator("Maximum")(both(torch.maximum))
minimum = operator("Minimum")(both(torch.minimum))
power = operator("Pow")(both(torch.pow))
squared_difference = operator("SquaredDifference")(both(lambda a, b: (a - b) * (a - b)))
less = operator("Less")(both(torch.lt))
less_equal = operator("LessEqual")(both(torch.le))
greater = operator("Greater")(both(torch.gt))
greater_equal = operator("GreaterEqual")(both(torch.ge))
equal = operator("Equal")(text_or_number(torch.eq, np.equal))
not_equal = operator("NotEqual")(text_or_number(torch.ne, np.not_equal))
logical_and = operator("LogicalAnd")(both(torch.logical_and))
logical_or = operator("LogicalOr")(both(torch.logical_or))
UNARY: dict[str, Callable[..., Any]] = {
    "Abs": torch.abs,
    "Ceil": torch.ceil,
    "Elu": functional.elu,
    "Erf": torch.erf,
    "Erfc": torch.erfc,
    "Exp": torch.exp,
    "Expm1": torch.expm1,
    "Floor": torch.floor,
    "IsFinite": torch.isfinite,
    "IsNan": torch.isnan,
    "Log": torch.log,
    "Log1p": torch.log1p,
    "Lgamma": torch.lgamma,
    "Sin": torch.sin,
    "Cos": torch.cos,
    "LogicalNot": torch.logical_not,
    "Neg": torch.neg,
    "OnesLike": torch.ones_like,
    "Reciprocal": torch.reciprocal,
    "Inv": torch.reciprocal,
    "Relu": torch.relu,
    "Relu6": functional.relu6,
    "Round": torch.round,
    "Rsqrt": torch.rsqrt,
    "Selu": functional.selu,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Softplus": functional.softplus,
    "Softsign": functional.softsign,
    "Sqrt": torch.sqrt,
    "Square": torch.square,
    "Tanh": torch.tanh,
    "ZerosLike": torch.zeros_like,
}
for name, unary in UNARY.items():
    operator(name)(unary)


@operator("LeakyRelu")
def leaky_relu(x: Tensor, *, alpha: float) -> Tensor:
    """x, or alpha·x below 0."""
    return functional.leaky_relu(x, alpha)


@operator("Cast")
def cast(x: Any, *, DstT: str) -> Any:
    """Another type; fractions are cut towards zero."""
    return x.to(DTYPES[DstT])


@operator("ClipByValue")
def clip(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """x between two bounds."""
    return torch.minimum(torch.maximum(x, beside(low, x)), beside(high, x))


@operator("Select")
def select(condition: Tensor, x: Any, y: Any) -> Any:
    """x where the condition holds, y elsewhere; a condition of one axis chooses rows."""
    x, y = beside(x, y), beside(y, x)
    condition = beside(condition, x)
    rank = x.ndim
    if condition.ndim == 1 and rank > 1:
        condition = condition.reshape(-1, *[1] * (rank - 1))
    return select_broadcast(condition, x, y)


@operator("SelectV2")
def select_broadcast(condition: Tensor, x: Any, y: Any) -> Any:
    """x where the condition holds, y elsewhere, all three broadcast."""
    if isinstance(x, np.ndarray):
        return np.where(condition.cpu().numpy(), x, y)
    x, y = beside(x, y), beside(y, x)
    return torch.where(beside(condition, x), x, y)


@operator("AddN")
def add_all(*values: Tensor) -> Tensor:
    """The sum of all."""
    total = values[0]
    for each in values[1:]:
        total = add(total, each)
    return total


@operator("BiasAdd")
def add_bias(x: Tensor, bias: Tensor, *, data_format: str = "NHWC") -> Tensor:
    """x and a bias of its last axis, or of its second one."""
    if data_format == "NCHW" and x.ndim > 2:
        return x + bias.reshape(-1, *[1] * (x.ndim - 2))
    return x + bias


@operator("MatMul")
def matmul(a: Tensor, b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """a·b of two matrices."""
    a, b = beside(a, b), beside(b, a)
    return (a.mT if transpose_a else a) @ (b.mT if transpose_b else b)


@operator("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def batch_matmul(a: Tensor, b: Tensor, *, adj_x: bool = False, adj_y: bool = False) -> Tensor:
    """a·b over the last two axes."""
    a, b = beside(a, b), beside(b, a)
    return (a.mT if adj_x else a) @ (b.mT if adj_y else b)


@operator("Einsum")
def einsum(*values: Tensor, equation: str) -> Tensor:
    """A sum of products."""
    return torch.einsum(equation, *[beside(each, *values) for each in values])


@operator("Softmax")
def softmax(x: Tensor) -> Tensor:
    """Over the last axis."""
    return torch.softmax(x, -1)


@operator("LogSoftmax")
def log_softmax(x: Tensor) -> Tensor:
    """Over the last axis."""
    return torch.log_softmax(x, -1)


@operator("L2Loss")
def half_square_sum(x: Tensor) -> Tensor:
    """Half of the sum of squares."""
    return (x * x).sum() / 2


def axes_of(axes: Any, rank: int) -> list[int]:
    """Axes as a sorted list from 0."""
    return sorted({axis % rank for axis in ints(axes)}) if rank else []


def over_axes(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """A reduction over axes; over none it is the tensor itself."""

    def call(x: Tensor, axes: Any, *, keep_dims: bool = False) -> Any:
        over = axes_of(axes, x.ndim)
        return reduce(x, over, keepdim=keep_dims) if over else x

    return call


def same_type_sum(x: Tensor, over: list[int], *, keepdim: bool) -> Tensor:
    """Sums in the type of x."""
    return x.sum(over, keepdim=keepdim, dtype=x.dtype)


def same_type_product(x: Tensor, over: list[int], *, keepdim: bool) -> Tensor:
    """Products in the type of x, axis by axis."""
    for axis in reversed(over):
        x = x.prod(axis, keepdim=keepdim, dtype=x.dtype)
    return x


reduce_sum = operator("Sum", host=(1,))(over_axes(same_type_sum))
reduce_mean = operator("Mean", host=(1,))(over_axes(torch.mean))
reduce_max = operator("Max", host=(1,))(over_axes(torch.amax))
reduce_min = operator("Min", host=(1,))(over_axes(torch.amin))
reduce_prod = operator("Prod", host=(1,))(over_axes(same_type_product))
reduce_all = operator("All", host=(1,))(over_axes(torch.all))
reduce_any = operator("Any", host=(1,))(over_axes(torch.any))


@operator("ArgMax", host=(1,))
def arg_max(x: Tensor, axis: Any, *, output_type: str = "int64") -> Tensor:
    """The first place of the largest."""
    return first_of(x == x.amax(whole(axis), keepdim=True), whole(axis), output_type)


@operator("ArgMin", host=(1,))
def arg_min(x: Tensor, axis: Any, *, output_type: str = "int64") -> Tensor:
    """The first place of the smallest."""
    return first_of(x == x.amin(whole(axis), keepdim=True), whole(axis), output_type)


def first_of(hits: Tensor, axis: int, dtype: str) -> Tensor:
    """The first hit along an axis: torch leaves open which of several equal ones it names."""
    return hits.to(torch.uint8).argmax(axis).to(DTYPES[dtype])


@operator("Cumsum", host=(1,))
def cumsum(x: Tensor, axis: Any, *, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Running sums."""
    at = whole(axis)
    turned = x.flip(at) if reverse else x
    total = turned.cumsum(at, dtype=x.dtype)
    total = total - turned if exclusive else total
    return total.flip(at) if reverse else total


@operator("TopKV2", host=(1,))
def top_k(x: Tensor, k: Any) -> tuple[Tensor, Tensor]:
    """The k largest of the last axis; of equal ones the first comes first, as there."""
    values, places = torch.sort(x, dim=-1, descending=True, stable=True)
    return values[..., : whole(k)], places[..., : whole(k)].to(torch.int32)


@operator("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def batch_norm(
    x: Tensor,
    scale: Tensor,
    offset: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = 1e-4,
    data_format: str = "NHWC",
) -> tuple[Tensor, ...]:
    """Normalised by stored statistics."""
    shape = [1, -1, *[1] * (x.ndim - 2)] if data_format == "NCHW" else [-1]
    factor = (scale * torch.rsqrt(variance + epsilon)).reshape(shape)
    y = (x - mean.reshape(shape)) * factor + offset.reshape(shape)
    return y, mean, variance, mean, variance, variance


@operator("MatrixBandPart", host=(1, 2))
def band(x: Tensor, lower: Any, upper: Any) -> Tensor:
    """A matrix with what lies outside of a band set to 0; -1 keeps that side."""
    below, above = whole(lower), whole(upper)
    x = torch.tril(x, above) if above >= 0 else x
    return torch.triu(x, -below) if below >= 0 else x
