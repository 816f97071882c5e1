"""Activations and gated linear units: gelu, fast gelu, silu, mish, swiglu, geglu."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import reference
from joymigrate.run.rehearse.refs.gradients import vjp, working

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md"
BETA = "op-plugin docs/zh/custom_APIs/torch_npu/（beta）torch_npu-{}.md"
TANH_OR_ERF = {0: "none", 1: "tanh"}  # npu_geglu's `approximate`


def fast_gelu_of(x: Tensor) -> Tensor:
    """x / (1 + exp(-1.702·x)); the 910A's formula with |x| is the same function."""
    return x * torch.sigmoid(1.702 * x)


def swiglu_of(x: Tensor, dim: int) -> Tensor:
    gate, up = working(x).chunk(2, dim)
    return F.silu(gate) * up


@reference("npu_gelu", source=DOCS.format("npu_gelu"))
def npu_gelu(x: Tensor, approximate: str) -> Tensor:
    return F.gelu(working(x), approximate=approximate).to(x.dtype)


@reference("npu_gelu_backward", source=DOCS.format("npu_gelu"))
def npu_gelu_backward(grad_output: Tensor, x: Tensor, approximate: str) -> Tensor:
    return _one(vjp(lambda a: F.gelu(a, approximate=approximate), (x,), grad_output))


@reference("npu_gelu_mul", source=DOCS.format("npu_gelu_mul"))
def npu_gelu_mul(x: Tensor, approximate: str) -> Tensor:
    first, second = working(x).chunk(2, -1)
    return (F.gelu(first, approximate=approximate) * second).to(x.dtype)


@reference("fast_gelu", "npu_fast_gelu", source=DOCS.format("npu_fast_gelu"))
def npu_fast_gelu(x: Tensor) -> Tensor:
    return fast_gelu_of(working(x)).to(x.dtype)


@reference("npu_fast_gelu_backward", source=DOCS.format("npu_fast_gelu"))
def npu_fast_gelu_backward(grad: Tensor, x: Tensor) -> Tensor:
    return _one(vjp(fast_gelu_of, (x,), grad))


@reference("npu_silu", source=BETA.format("npu_silu"))
def npu_silu(x: Tensor) -> Tensor:
    return F.silu(working(x)).to(x.dtype)


@reference("npu_silu_backward", source="op-plugin derivatives.yaml, npu_silu")
def npu_silu_backward(grad_output: Tensor, x0: Tensor) -> Tensor:
    """`x0` is the input, `x1` the result of the forward operator."""
    return _one(vjp(F.silu, (x0,), grad_output))


@reference("npu_mish", source=BETA.format("npu_mish"))
def npu_mish(x: Tensor) -> Tensor:
    return F.mish(working(x)).to(x.dtype)


@reference("npu_mish_backward", source=BETA.format("npu_mish"))
def npu_mish_backward(grad: Tensor, x: Tensor) -> Tensor:
    return _one(vjp(F.mish, (x,), grad))


@reference("npu_swiglu", source=BETA.format("npu_swiglu"))
def npu_swiglu(x: Tensor, dim: int) -> Tensor:
    """silu(first half) · second half."""
    return swiglu_of(x, dim).to(x.dtype)


@reference("npu_swiglu_backward", source=BETA.format("npu_swiglu"))
def npu_swiglu_backward(grad_output: Tensor, x: Tensor, dim: int) -> Tensor:
    return _one(vjp(lambda a: swiglu_of(a, dim), (x,), grad_output))


def clipped_swiglu_of(
    gate: Tensor, linear: Tensor, alpha: float, limit: float, bias: float
) -> Tensor:
    """The variant with clamps: gate·sigmoid(alpha·gate)·(linear + bias)."""
    gate = gate.clamp(max=limit)
    return gate * torch.sigmoid(alpha * gate) * (linear.clamp(-limit, limit) + bias)


@reference("npu_clipped_swiglu", source=DOCS.format("npu_clipped_swiglu"))
def npu_clipped_swiglu(
    x: Tensor,
    group_index: Tensor | None,
    dim: int,
    alpha: float,
    limit: float,
    bias: float,
    interleaved: bool,
) -> Tensor:
    """Rows behind the groups' tokens are not computed (zero here)."""
    axis = dim % x.dim()
    shape = list(x.shape)
    shape[axis] //= 2
    rows = (
        working(x)
        .flatten(axis)
        .reshape(*x.shape[:axis], -1)
        .reshape(-1, x[(0,) * axis].numel() if axis else x.numel())
    )
    used = rows.shape[0] if group_index is None else int(group_index.sum())
    half = rows.shape[1] // 2
    parts = (rows[:, ::2], rows[:, 1::2]) if interleaved else (rows[:, :half], rows[:, half:])
    out = torch.zeros_like(parts[0])
    out[:used] = clipped_swiglu_of(parts[0][:used], parts[1][:used], alpha, limit, bias)
    return out.reshape(shape).to(x.dtype)


def _geglu_parts(x: Tensor, dim: int, activate_left: bool) -> tuple[Tensor, Tensor]:
    """(linear, gate): the gate is the right half unless told otherwise."""
    left, right = x.chunk(2, dim)
    return (right, left) if activate_left else (left, right)


@reference("npu_geglu", source="torch_npu _op_plugin_docs.py npu_geglu; aclnnGeGluV3")
def npu_geglu(x: Tensor, dim: int, approximate: int, activate_left: bool) -> tuple[Tensor, Tensor]:
    """linear · gelu(gate), and gelu(gate) for the backward operator."""
    linear, gate = _geglu_parts(working(x), dim, activate_left)
    activated = F.gelu(gate, approximate=TANH_OR_ERF[approximate])
    return (linear * activated).to(x.dtype), activated.to(x.dtype).contiguous()


@reference("npu_geglu_grad", source="torch_npu _op_plugin_docs.py npu_geglu")
def npu_geglu_grad(
    grad_output: Tensor, x: Tensor, dim: int, approximate: int, activate_left: bool
) -> Tensor:
    def forward(a: Tensor) -> Tensor:
        linear, gate = _geglu_parts(a, dim, activate_left)
        return linear * F.gelu(gate, approximate=TANH_OR_ERF[approximate])

    return _one(vjp(forward, (x,), grad_output))


def _one(gradients: tuple[Tensor | None, ...]) -> Tensor:
    (gradient,) = gradients
    assert gradient is not None
    return gradient
