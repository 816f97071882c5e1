"""Attention over blocks that a mask chooses, and attention of pairs over a third node (Floyd)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated
from joymigrate.run.rehearse.refs.gradients import gradients_of, working
from joymigrate.run.rehearse.refs.native_sparse import eightfold

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md"
HIDDEN = -4e9  # added before the scale, as the vendor's test does
Maybe = Tensor | None
Lengths = Sequence[int] | None


def sequences(tensor: Tensor, layout: str, lengths: Lengths) -> list[Tensor]:
    """[T, N, D] or [B, N, S, D] as [N, S, D] for each sequence; `lengths` are not summed up."""
    if layout == "TND":
        sizes = [int(one) for one in lengths or [len(tensor)]]
        return [part.transpose(0, 1) for part in tensor[: sum(sizes)].split_with_sizes(sizes)]
    if layout != "BNSD":
        raise Unsimulated("npu_block_sparse_attention", f"layout {layout}")
    sizes = [int(one) for one in lengths or [tensor.shape[2]] * len(tensor)]
    return [one[:, :size] for one, size in zip(tensor, sizes, strict=True)]


def back(parts: list[Tensor], like: Tensor, layout: str) -> Tensor:
    """Results [N, S, D] where their queries lie; the rest is zero."""
    whole = like.new_zeros((*like.shape[:-1], parts[0].shape[-1]), dtype=parts[0].dtype)
    at = 0
    for number, part in enumerate(parts):
        if layout == "TND":
            whole[at : at + part.shape[1]] = part.transpose(0, 1)
            at += part.shape[1]
        else:
            whole[number, :, : part.shape[1]] = part
    return whole


def block_sparse(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    chosen: Tensor,
    shape: Sequence[int],
    scale: float,
    layouts: tuple[str, str],
    lengths: tuple[Lengths, Lengths],
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp [.., 1]; a query without a key gets zeros."""
    out, sums = [], []
    queries = sequences(query, layouts[0], lengths[0])
    keys, values = (sequences(one, layouts[1], lengths[1]) for one in (key, value))
    for number, (q, k, v) in enumerate(zip(queries, keys, values, strict=True)):
        groups = q.shape[0] // k.shape[0]
        seen = chosen[number].bool().repeat_interleave(shape[0], 1).repeat_interleave(shape[1], 2)
        seen = seen[:, : q.shape[1], : k.shape[1]]
        score = working(q) @ working(k).repeat_interleave(groups, 0).transpose(1, 2) * scale
        score = score.masked_fill(~seen, float("-inf"))
        total = score.logsumexp(-1, keepdim=True)
        share = (score - total.masked_fill(total == float("-inf"), 0.0)).exp()
        out.append(share @ working(v).repeat_interleave(groups, 0))
        sums.append(total)
    return back(out, query, layouts[0]), back(sums, query, layouts[0])


@reference("npu_block_sparse_attention", source=DOCS.format("npu_block_sparse_attention"))
def npu_block_sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_sparse_mask: Tensor,
    block_shape: Sequence[int],
    q_input_layout: str,
    kv_input_layout: str,
    scale_value: float,
    actual_seq_lengths: Lengths,
    actual_seq_lengths_kv: Lengths,
) -> tuple[Tensor, Tensor]:
    """Where the mask [B, N, blocks of queries, blocks of keys] is 1; log-sum-exp always comes."""
    out, sums = block_sparse(
        *(query, key, value, block_sparse_mask, block_shape, scale_value),
        (q_input_layout, kv_input_layout),
        (actual_seq_lengths, actual_seq_lengths_kv),
    )
    return out.to(query.dtype), sums.float()


@reference("npu_block_sparse_attention_backward", source="the vjp of npu_block_sparse_attention")
def npu_block_sparse_attention_backward(given: ReferenceArguments) -> tuple[Tensor, Tensor, Tensor]:
    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return block_sparse(
            *(q, k, v, given.block_sparse_mask, given.block_shape or [1, 1], given.scale_value),
            (given.q_input_layout, given.kv_input_layout),
            (given.actual_seq_lengths, given.actual_seq_lengths_kv),
        )[0]

    dq, dk, dv = gradients_of(forward, [given.query, given.key, given.value], given.d_out)
    return dq, dk, dv


def floyd(
    query: Tensor,
    keys: tuple[Tensor, Tensor],
    values: tuple[Tensor, Tensor],
    mask: Maybe,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """[B, H, N, M, D] over K others, by their keys to N and to M: output, maxima, sums."""
    score = torch.einsum("bhikc,bhijc->bhikj", query, keys[0])
    score = score + torch.einsum("bhikc,bhjkc->bhikj", query, keys[1])
    if mask is not None:
        score = score + mask.bool() * HIDDEN
    score = score * scale
    top = score.detach().amax(-1)
    weight = (score - top.unsqueeze(-1)).exp()
    total = weight.sum(-1)
    share = weight / total.unsqueeze(-1)
    out = torch.einsum("bhikj,bhijc->bhikc", share, values[0])
    return out + torch.einsum("bhikj,bhjkc->bhikc", share, values[1]), top, total


@reference("npu_fused_floyd_attention", source=DOCS.format("npu_fused_floyd_attention"))
def npu_fused_floyd_attention(
    query_ik: Tensor,
    key_ij: Tensor,
    value_ij: Tensor,
    key_jk: Tensor,
    value_jk: Tensor,
    atten_mask: Maybe,
    scale_value: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Row maxima and sums [B, H, N, M, 8], and the output; true in the mask hides."""
    keys, values = (working(key_ij), working(key_jk)), (working(value_ij), working(value_jk))
    out, top, total = floyd(working(query_ik), keys, values, atten_mask, scale_value)
    return eightfold(top), eightfold(total), out.to(query_ik.dtype)


@reference("npu_fused_floyd_attention_backward", source="the vjp of npu_fused_floyd_attention")
def npu_fused_floyd_attention_backward(
    grad_output: Tensor,
    query_ik: Tensor,
    key_ij: Tensor,
    value_ij: Tensor,
    key_jk: Tensor,
    value_jk: Tensor,
    atten_mask: Maybe,
    scale_value: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the query, and of keys and values to N and to M in turn."""

    def forward(q: Tensor, k1: Tensor, v1: Tensor, k2: Tensor, v2: Tensor) -> Tensor:
        return floyd(q, (k1, k2), (v1, v2), atten_mask, scale_value)[0]

    given = [query_ik, key_ij, value_ij, key_jk, value_jk]
    dq, dk1, dv1, dk2, dv2 = gradients_of(forward, given, grad_output)
    return dq, dk1, dv1, dk2, dv2
