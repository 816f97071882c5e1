"""Matrix products: torch_npu's own matmul gradients, linear, batched, transposed, mixed dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from joymigrate.run.rehearse.refs.activations import fast_gelu_of
from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated, saturate
from joymigrate.run.rehearse.refs.gradients import vjp, working

FORMULAS = "op-plugin derivatives.yaml"
DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md"
Maybe = Tensor | None


def mask_unasked(gradients: Sequence[Maybe], wanted: Sequence[bool]) -> tuple[Maybe, ...]:
    """Gradients that were asked for; None for the others."""
    return tuple(grad if keep else None for grad, keep in zip(gradients, wanted, strict=True))


@reference("aten::matmul_backward", source=FORMULAS)
def matmul_backward(
    grad: Tensor, x: Tensor, other: Tensor, mask: Sequence[bool]
) -> tuple[Maybe, ...]:
    return mask_unasked(vjp(torch.matmul, (x, other), grad), mask)


@reference("matmul_double_backward", source=FORMULAS)
def matmul_double_backward(
    grad_self: Maybe,
    grad_other: Maybe,
    grad_out: Tensor,
    x: Tensor,
    other: Tensor,
    mask: Sequence[bool],
) -> tuple[Maybe, ...]:
    """Gradients of matmul_backward's inputs (grad_out, self, other)."""

    def backward(out: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
        product = (torch.matmul(a, b) * out).sum()
        return list(torch.autograd.grad(product, (a, b), create_graph=True))

    return mask_unasked(vjp(backward, (grad_out, x, other), (grad_self, grad_other)), mask)


@reference("npu_linear", source="op-plugin （beta）torch_npu-npu_linear.md")
def npu_linear(x: Tensor, weight: Tensor, bias: Maybe) -> Tensor:
    shift = None if bias is None else working(bias)
    return F.linear(working(x), working(weight), shift).to(x.dtype)


@reference("npu_linear_backward", source=FORMULAS)
def npu_linear_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Maybe, ...]:
    return vjp(F.linear, (x, weight), grad)


@reference("npu_bmmV2", source="op-plugin （beta）torch_npu-npu_bmmV2.md")
def npu_bmm_v2(x: Tensor, mat2: Tensor, output_sizes: Sequence[int]) -> Tensor:
    found = (working(x) @ working(mat2)).to(x.dtype)
    return found.sum_to_size(list(output_sizes)) if len(output_sizes) else found


@reference("npu_bmm_v2_mat1_backward", source=FORMULAS)
def npu_bmm_v2_mat1_backward(
    grad: Tensor, mat1: Tensor, mat2: Tensor, size: Sequence[int]
) -> Tensor:
    found = vjp(torch.matmul, (mat1, mat2), grad)[0]
    assert found is not None
    return found.reshape(list(size))


@reference("npu_bmm_v2_mat2_backward", source=FORMULAS)
def npu_bmm_v2_mat2_backward(
    grad: Tensor, mat1: Tensor, mat2: Tensor, size: Sequence[int]
) -> Tensor:
    found = vjp(torch.matmul, (mat1, mat2), grad)[1]
    assert found is not None
    return found.reshape(list(size))


@reference("npu_transpose_batchmatmul", source=DOCS.format("npu_transpose_batchmatmul"))
def npu_transpose_batchmatmul(given: ReferenceArguments) -> Tensor:
    """(x permuted @ weight permuted + bias) permuted; [M, B·N] int8 with a scale."""
    left = working(given.x).permute(*(given.perm_x1 or (0, 1, 2)))
    found = left @ working(given.weight).permute(*(given.perm_x2 or (0, 1, 2)))
    if given.bias is not None:
        found = found + working(given.bias)
    found = found.permute(*(given.perm_y or (1, 0, 2)))
    if given.scale is not None:
        flat = found.reshape(found.shape[0], 1, -1) * working(given.scale).reshape(-1)
        return saturate(flat, torch.int8)
    factor = given.batch_split_factor or 1
    if factor > 1:
        parts = found.reshape(found.shape[0], factor, -1)
        return parts.transpose(0, 1).contiguous().to(given.x.dtype)
    return found.contiguous().to(given.x.dtype)


@reference("npu_fused_matmul", source="op-plugin FusedMatmulKernelNpuOpApi.cpp")
def npu_fused_matmul(x1: Tensor, x2: Tensor, bias: Maybe, x3: Maybe, fused_op_type: str) -> Tensor:
    """x1 @ x2 + bias, then nothing, + x3, · x3, relu or gelu."""
    found = working(x1) @ working(x2)
    if bias is not None:
        found = found + working(bias)
    if fused_op_type in ("add", "mul"):
        assert x3 is not None
        found = found + working(x3) if fused_op_type == "add" else found * working(x3)
    elif fused_op_type in ("gelu_erf", "gelu_tanh"):
        found = F.gelu(found, approximate="none" if fused_op_type == "gelu_erf" else "tanh")
    elif fused_op_type == "relu":
        found = F.relu(found)
    elif fused_op_type not in ("", "16cast32"):
        raise Unsimulated("npu_fused_matmul", f"fused_op_type {fused_op_type}")
    return found.to(torch.float32 if fused_op_type == "16cast32" else x1.dtype)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "fastgelu": fast_gelu_of,
    "silu": F.silu,
}


GATES = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu"}


def _feed_forward(
    x: Tensor, weight1: Tensor, weight2: Tensor, bias1: Maybe, bias2: Maybe, activation: str
) -> Tensor:
    hidden = working(x) @ working(weight1)
    hidden = hidden if bias1 is None else hidden + working(bias1)
    if activation in GATES:
        left, right = hidden.chunk(2, -1)
        hidden = ACTIVATIONS[GATES[activation]](left) * right
    elif activation in ACTIVATIONS:
        hidden = ACTIVATIONS[activation](hidden)
    else:
        raise Unsimulated("npu_ffn", f"activation {activation}")
    found = hidden @ working(weight2)
    return found if bias2 is None else found + working(bias2)


@reference("npu_ffn", source=DOCS.format("npu_ffn"), without="deq_scale1 antiquant_scale1")
def npu_ffn(
    x: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    activation: str,
    expert_tokens: Sequence[int] | None,
    expert_tokens_index: Sequence[int] | None,
    bias1: Maybe,
    bias2: Maybe,
) -> Tensor:
    """activation(x @ weight1 + bias1) @ weight2 + bias2, by expert when tokens are counted."""
    if expert_tokens is None and expert_tokens_index is None:
        found = _feed_forward(x, weight1, weight2, bias1, bias2, activation)
        return found.to(x.dtype)
    ends = list(expert_tokens_index or torch.tensor(list(expert_tokens or [])).cumsum(0).tolist())
    parts = []
    for expert, (start, stop) in enumerate(zip([0, *ends], ends, strict=False)):
        own1 = None if bias1 is None else bias1[expert]
        own2 = None if bias2 is None else bias2[expert]
        rows = x[start:stop]
        parts.append(_feed_forward(rows, weight1[expert], weight2[expert], own1, own2, activation))
    return torch.cat(parts).to(x.dtype)


# ── aten products with an output dtype, which torch has for CUDA alone ──────────────────────────


@reference("aten::mm.dtype", "aten::bmm.dtype", source="torch native_functions.yaml")
def mm_dtype(x: Tensor, mat2: Tensor, output_dtype: torch.dtype) -> Tensor:
    return (working(x) @ working(mat2)).to(output_dtype)


@reference("aten::addmm.dtype", "aten::baddbmm.dtype", source="torch native_functions.yaml")
def addmm_dtype(
    x: Tensor, mat1: Tensor, mat2: Tensor, output_dtype: torch.dtype, beta: float, alpha: float
) -> Tensor:
    product = alpha * (working(mat1) @ working(mat2))
    return (product if beta == 0 else product + beta * working(x)).to(output_dtype)
