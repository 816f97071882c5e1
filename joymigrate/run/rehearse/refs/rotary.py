"""Rotary position embeddings: one tensor, query and key, interleaved, multi-axis."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated
from joymigrate.run.rehearse.refs.gradients import vjp, working

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md"


def rotate(x: Tensor, mode: str) -> Tensor:
    """`half`: (-second half, first half). `interleave`: (-odd, even) pair by pair.

    `quarter`: `half` within each half of the axis.
    """
    if mode == "half":
        first, second = x.chunk(2, -1)
        return torch.cat((-second, first), -1)
    if mode == "interleave":
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    if mode == "quarter":
        a, b, c, d = x.chunk(4, -1)
        return torch.cat((-b, a, -d, c), -1)
    raise Unsimulated("npu_rotary_mul", f"rotary_mode {mode}")


def rope(x: Tensor, cos: Tensor, sin: Tensor, mode: str) -> Tensor:
    """x·cos + rotated(x)·sin over the first axis entries that cos covers; the rest passes."""
    size = cos.shape[-1]
    turned, rest = x[..., :size], x[..., size:]
    turned = turned * cos + rotate(turned, mode) * sin
    return torch.cat((turned, rest), -1) if rest.shape[-1] else turned


@reference("npu_rotary_mul", source=DOCS.format("npu_rotary_mul"))
def npu_rotary_mul(
    x: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str, rotate: Tensor | None
) -> Tensor:
    """`r1` is cos, `r2` is sin; `rotate` [D, D] replaces the rotation by a matrix product."""
    wide, cos, sin = working(x), working(r1.to(x.dtype)), working(r2.to(x.dtype))
    if rotate is not None:
        return (wide * cos + (wide @ working(rotate)) * sin).to(x.dtype)
    return rope(wide, cos, sin, rotary_mode).to(x.dtype)


@reference("npu_rotary_mul_backward", source="op-plugin RotaryMulBackwardKernelNpuOpApi.cpp")
def npu_rotary_mul_backward(
    grad: Tensor, x: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str
) -> tuple[Tensor | None, ...]:
    """dx, dcos, dsin, all in x's dtype."""
    found = vjp(lambda a, c, s: rope(a, c, s, rotary_mode), (x, r1, r2), grad)
    return tuple(None if g is None else g.to(x.dtype) for g in found)


@reference(
    "npu_apply_rotary_pos_emb", source="torch_npu _op_plugin_docs.py npu_apply_rotary_pos_emb"
)
def npu_apply_rotary_pos_emb(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, rotary_mode: str
) -> tuple[Tensor, Tensor]:
    """Rotates query and key IN PLACE and returns them, as the chip does."""
    for tensor in (query, key):
        tensor.copy_(rope(working(tensor), working(cos), working(sin), rotary_mode))
    return query, key


def deinterleave(x: Tensor) -> Tensor:
    """(a0, b0, a1, b1, …) → (a0, a1, …, b0, b1, …)."""
    return torch.cat((x[..., ::2], x[..., 1::2]), -1)


@reference("npu_interleave_rope", source=DOCS.format("npu_interleave_rope"))
def npu_interleave_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs are put apart first, then rotated by halves; x is [B, N, S, D]."""
    return rope(deinterleave(working(x)), working(cos), working(sin), "half").to(x.dtype)


def _sections(
    table: Tensor, section: Sequence[int] | None, cache_mode: str
) -> tuple[Tensor, Tensor]:
    """cos and sin of every token [T, rotary/2]; table is [m, T, rotary] for m position axes."""
    cos, sin = table.chunk(2, -1)
    if table.dim() == 2:
        return cos, sin
    if not section or sum(section) == 0:
        return cos[0], sin[0]
    if cache_mode == "default":
        return _by_block(cos, section), _by_block(sin, section)
    return _by_stride(cos, section), _by_stride(sin, section)


def _by_block(values: Tensor, section: Sequence[int]) -> Tensor:
    parts = torch.split(values, list(section), -1)
    return torch.cat([part[number] for number, part in enumerate(parts)], -1)


def _by_stride(values: Tensor, section: Sequence[int]) -> Tensor:
    mixed = values[0].clone()
    stop = section[1] * 3
    mixed[..., 1:stop:3] = values[1, ..., 1:stop:3]
    mixed[..., 2:stop:3] = values[2, ..., 2:stop:3]
    return mixed


@reference("npu_mrope", source=DOCS.format("npu_mrope"))
def npu_mrope(given: ReferenceArguments) -> tuple[Tensor, Tensor]:
    """Rope by a table of cos and sin; positions are [T], or [m, T] for m axes."""
    table = working(given.cos_sin_cache)[given.positions.long()]
    cos, sin = _sections(table, given.mrope_section, given.cache_mode or "default")
    neox = (given.rotary_mode or "half") == "half"
    double = (torch.cat((t, t), -1) if neox else t.repeat_interleave(2, -1) for t in (cos, sin))
    wide_cos, wide_sin = (t.unsqueeze(-2) for t in double)
    turned = []
    for tensor in (given.query, given.key):
        heads = working(tensor).reshape(tensor.shape[0], -1, given.head_size)
        found = rope(heads, wide_cos, wide_sin, "half" if neox else "interleave")
        turned.append(found.reshape(tensor.shape).to(tensor.dtype))
    return turned[0], turned[1]
