"""Holds a fill's results against torch's CPU kernels in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from joymigrate.run.rehearse.fill.declare import Fill
from joymigrate.run.rehearse.fill.register import find, writes

aten = torch.ops.aten
# Overloads that make a new result, of fills that have none among their own.
FUNCTIONAL: dict[str, Any] = {
    "max.unary_out": aten.max.default,
    "min.unary_out": aten.min.default,
    "frexp.Tensor_out": aten.frexp.Tensor,
    "huber_loss_backward.out": aten.huber_loss_backward.default,
    "scatter_add.out": aten.scatter_add.default,
    "linalg_lstsq.out": aten.linalg_lstsq.default,
}
# torch's own CPU kernel only knows these dtypes.
NARROW = ("frexp.Tensor_out", "nextafter", "_weight_int8pack_mm", "_int_mm", "copysign.Tensor")
QUANTISED = "fake_quantize"
HALF_EPS = {torch.float16: 2**-10, torch.bfloat16: 2**-7}


def functional(fill: Fill, case: Any = ((), {})) -> Any:
    """The overload to compare with."""
    if isinstance(case[1].get("lr"), Tensor):
        return find(fill.overloads[0])._overloadpacket.tensor_lr
    if fill.name in FUNCTIONAL:
        return FUNCTIONAL[fill.name]
    for name in fill.overloads:
        overload = find(name)
        if not any(writes(a) for a in overload._schema.arguments):
            return overload
    return find(fill.overloads[0])


def widened(value: Any) -> Any:
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return value.to(torch.float64) if floating else value


def copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def reference(fill: Fill, case: tuple[Any, Any]) -> list[Any]:
    """torch's results on the CPU, in float64 where it can, and the arguments it wrote to."""
    if fill.name == "_fused_rms_norm_backward":  # torch has it for CUDA only
        return rms_norm_gradients(*tree_map(widened, case[0]))
    if fill.name == "_embedding_bag_dense_backward" and case[0][6]:
        # torch's CPU kernel divides by another index's count; its CUDA kernel, and embedding's
        # own gradient, by that of the index
        grad, indices, bags = case[0][:3]
        return [aten.embedding_dense_backward(grad.double()[bags], indices, case[0][5], -1, True)]
    if fill.name == "linalg_lstsq.out":
        case = (case[0], {"driver": "gels"})  # the driver that CUDA has
    narrow = fill.name in NARROW or QUANTISED in fill.name
    args, kwargs = tree_map(copied if narrow else widened, case)
    args, kwargs = tree_map(copied, (args, kwargs))
    made = functional(fill, case)(*args, **kwargs)
    return outcome(fill, made, args, case)


def rms_norm_gradients(
    grad: Tensor, x: Tensor, shape: list[int], rstd: Tensor, weight: Tensor | None, mask: list[bool]
) -> list[Any]:
    """Gradients of x rstd(x) weight by autograd."""
    inputs = [x.requires_grad_()] + ([] if weight is None else [weight.requires_grad_()])
    made = x * torch.rsqrt((x * x).mean(-1, keepdim=True)) * (1 if weight is None else weight)
    return [*torch.autograd.grad(made, inputs, grad), *([None] if weight is None else [])]


def outcome(fill: Fill, made: Any, args: Any, case: tuple[Any, Any]) -> list[Any]:
    """What to compare: results, or the arguments of an operator that writes; ambiguity resolved."""
    if made is None:
        return tree_flatten(args)[0]
    results = list(made) if isinstance(made, (tuple, list)) else [made]
    if fill.name == "mode":  # any index of the value is right
        source, dim, keep = case[0]
        index = results[1] if keep else results[1].unsqueeze(dim)
        found = source.to(index.device).gather(dim, index)
        results[1] = found if keep else found.squeeze(dim)
    if fill.name == "_linalg_eigh":  # eigenvectors have no sign: A V = V diag(values)
        values, vectors = results
        vectors = vectors.cpu().double()
        full = case[0][0].double()
        gap = full @ vectors - vectors * values.cpu().double()[..., None, :]
        one = vectors.mT @ vectors - torch.eye(full.shape[-1], dtype=torch.float64)
        results = [values, gap.round(decimals=4), one.round(decimals=4)]
    if fill.name == "_linalg_det":
        results = results[:1]  # the factors are those of A or of its transpose, for autograd
    if fill.name == "_linalg_slogdet":
        results = results[:2]
    if fill.name == "linalg_lstsq.out":
        results = results[:2]  # rank and singular values are not worked out
    return results


def worst(
    fill: Fill, found: list[Any], expected: list[Any], scale: float = 1.0, more: float = 0.0
) -> float:
    """The largest error as a share of what is allowed; inf for a wrong shape, dtype or edge."""
    largest = 0.0
    for a, b in zip(found, expected, strict=True):
        if not isinstance(b, Tensor):
            continue
        if a.layout != b.layout:
            return float("inf")
        a, b = a.detach().to_dense().cpu(), b.detach().to_dense()
        if a.shape != b.shape or a.is_floating_point() != b.is_floating_point():
            return float("inf")
        largest = max(largest, ratio(fill, a, b, scale, more))
    return largest


def ratio(fill: Fill, a: Tensor, b: Tensor, scale: float, more: float) -> float:
    if not b.is_floating_point():
        return 0.0 if torch.equal(a.to(torch.int64), b.to(torch.int64)) else float("inf")
    eps = HALF_EPS.get(a.dtype, 0.0)
    limit = torch.finfo(a.dtype).max
    a, b = a.to(torch.float64), b.to(torch.float64)
    b = torch.where(b.abs() > limit * (1 - 1e-6), torch.sign(b) * torch.inf, b)
    a = torch.where(a.abs() > limit * (1 - 1e-5), torch.sign(a) * torch.inf, a)
    same = (a == b) | (a.isnan() & b.isnan())
    allowed = scale * (fill.atol + more + (fill.rtol + more + eps) * b.abs()) + 1e-300
    share = torch.where(same, 0.0, (a - b).abs() / allowed)
    return float(share.nan_to_num(torch.inf).max()) if share.numel() else 0.0


def run(function: Callable[..., Any], fill: Fill, case: tuple[Any, Any], device: str) -> list[Any]:
    """The fill's results for a case, on `device`."""

    def moved(value: Any) -> Any:
        return value.clone().to(device) if isinstance(value, Tensor) else value

    args, kwargs = tree_map(moved, case)
    return outcome(fill, function(*args, **kwargs), args, case)


def dtypes(values: list[Any]) -> list[torch.dtype]:
    return [v.dtype for v in values if isinstance(v, Tensor)]
