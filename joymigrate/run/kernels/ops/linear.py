"""A linear layer whose weight may be packed once for the processor.

    linear(x, weight, bias=None) -> y

`x` [..., K]; `weight` a tensor [N, K] or a `DenseWeight` (which carries its bias); y [..., N].
Packed bfloat16 is 1.8 to 2.1 times as fast as torch's linear for one row on a CPU, 1.5 to 1.7 for
eight. The packed form has no gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from joymigrate.run.kernels.operator import Call, Implementation, Operator, OperatorCase, rows_of
from joymigrate.run.kernels.samples import Samples
from joymigrate.run.kernels.weights import DenseWeight, remember

Weight = Tensor | DenseWeight
SMALL = 1 << 21  # elements; below it one float32 row gains nothing (0.87 at 896 x 896)


def plain(weight: Weight, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The tensors of a layer."""
    if isinstance(weight, DenseWeight):
        return weight.dense(), weight.bias if bias is None else bias
    return weight, bias


def reference(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """torch's linear."""
    return F.linear(x, *plain(weight, bias))


def multiply_packed(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """oneDNN's product with a weight in its own order, made once."""
    assert isinstance(weight, DenseWeight)

    def make() -> Tensor:
        made: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.dense().detach())
        if weight.drop:
            weight.values = None
        return made

    order = remember(weight, "onednn", make)
    added = weight.bias if bias is None else bias
    rows = x.reshape(-1, x.shape[-1])
    found: Tensor = torch.ops.mkldnn._linear_pointwise(rows, order, added, "none", [], "")
    return found.view(*x.shape[:-1], weight.shape[0])


def can_pack(call: Call) -> str | None:
    """Packed weights: a `DenseWeight`, something to compute, and operators that prove right."""
    if call.variant != "packable":
        return "for a DenseWeight"
    if 0 in call.shape:
        return "for at least one row"
    return find_fault(call.dtype)


def pays(call: Call) -> str | None:
    """Measured: 1.2 to 3 times the reference, but for a row of float32 with a small weight."""
    rows, outputs, inputs = call.shape
    if call.dtype == "float32" and rows < 4 and outputs * inputs < SMALL:
        return "slower than the reference for few rows of a small float32 weight"
    return None


@functools.cache
def find_fault(dtype: str) -> str | None:
    """Try the private operators once; the reason not to use them, or None."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 64, generator=generator).to(getattr(torch, dtype))
    weight = DenseWeight(torch.randn(32, 64, generator=generator).to(x.dtype))
    try:
        with torch.no_grad():
            got, want = multiply_packed(x, weight), F.linear(x.float(), weight.dense().float())
    except Exception as error:  # operators of another build may be missing or refuse
        return f"oneDNN's packed product is not usable here: {type(error).__name__}"
    limit = 1e-4 if dtype == "float32" else 2e-2
    wrong = float((got.float() - want).abs().max() / want.abs().max()) > limit
    return "oneDNN's packed product gives wrong results here" if wrong else None


def describe(
    x: Tensor, weight: Weight, bias: Tensor | None = None
) -> tuple[Tensor, tuple[int, ...], str]:
    is_dense = isinstance(weight, DenseWeight)
    return x, (rows_of(x), *weight.shape), "packable" if is_dense else ""


def cases(random: Samples) -> Iterator[OperatorCase]:
    args = (random.normal(4, 3, 48), random.normal(32, 48), random.normal(32))
    yield OperatorCase("tensor", args, grad=(0, 1, 2))
    for name, (lead, k, n) in SHAPES.items():
        weight = DenseWeight(random.normal(n, k), random.normal(n))
        yield OperatorCase(name, (random.normal(*lead, k), weight))


SHAPES: dict[str, tuple[tuple[int, ...], int, int]] = {
    "packed": ((2, 5), 64, 96),
    "packed, one row": ((1,), 64, 32),
    "packed, odd": ((3,), 37, 11),
    "packed, no rows": ((0,), 16, 8),
}


def grid(random: Samples) -> Iterator[tuple[str, Callable[[], OperatorCase]]]:
    for m in (1, 8, 32):
        for n, k in ((896, 896), (2048, 2048)):

            def build(m: int = m, n: int = n, k: int = k) -> OperatorCase:
                return OperatorCase("", (random.normal(m, k), DenseWeight(random.normal(n, k))))

            yield f"{m}x{k}x{n}", build


OPERATOR = Operator(
    name="linear",
    signature="linear(x, weight, bias=None) -> y",
    formula="y = x weightᵀ + bias",
    reference=reference,
    describe=describe,
    cases=cases,
    grid=grid,
    implementations=(
        Implementation(
            "onednn", multiply_packed, 10, devices=("cpu",), dtypes=("float32", "bfloat16"),
            backward=False,
            when=can_pack, pays=pays, calls="mkldnn::_linear_pointwise",
        ),
    ),
    flops=lambda x, weight: 2 * rows_of(x) * weight.shape[0] * weight.shape[1],
)  # fmt: skip
