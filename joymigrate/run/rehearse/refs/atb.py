"""Operators of the Ascend Transformer Boost library (`atb::`), which older engines call.

`out` arguments are written in place. A mask hides every position where it is not zero: the
library takes additive masks (-inf, -10000) and flags (1) alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.attention_core import UNLIMITED, attend, outside_band
from joymigrate.run.rehearse.refs.declaration import reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated, saturate
from joymigrate.run.rehearse.refs.gradients import working
from joymigrate.run.rehearse.refs.kv_cache import read_sequence
from joymigrate.run.rehearse.refs.norms import rms_of
from joymigrate.run.rehearse.refs.rotary import rope

SOURCE = "op-plugin op_plugin/ops/atb/{}, op_plugin/python/atb/_atb_ops.py"
Maybe = Tensor | None
CAUSAL_MASKS = (2, 3, 5)  # mask_type of splitfuse and v2/v3: compressed or plain causal


@reference("atb::_npu_matmul_add_fp32", source=SOURCE.format("LinearAtb.cpp"))
def _npu_matmul_add_fp32(x: Tensor, weight: Tensor, C: Tensor) -> None:
    """C += xᵀ @ weight with the product kept in float32: gradient accumulation."""
    C.add_(working(x).T @ working(weight))


@reference("atb::_npu_quantize_per_tensor", source=SOURCE.format("QuantPerTensorAtb.cpp"))
def _npu_quantize_per_tensor(x: Tensor, scale: Tensor, zero_point: Tensor, y: Tensor) -> None:
    """y = clamp(round(x / scale) + zero_point)."""
    shift = zero_point.float() if zero_point.numel() else 0.0
    y.copy_(saturate((working(x) / working(scale)).round() + shift, y.dtype))


@reference("atb::_npu_quant_rms_norm", source=SOURCE.format("QuantRmsNormAtb.cpp"))
def _npu_quant_rms_norm(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    scale: Tensor,
    offset: Tensor,
    output: Tensor,
    eps: float,
) -> None:
    """output = int8(round((rms norm + beta)·(1 / scale) + offset))."""
    normal = rms_of(x, gamma.reshape(-1), eps)[0] + working(beta).reshape(-1)
    output.copy_(saturate(normal / working(scale) + working(offset), output.dtype))


@reference("atb::_npu_rotary_embedding", source=SOURCE.format("RopeAtb.cpp"))
def _npu_rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
) -> None:
    """Rotates query and key in place; the table holds cos and sin of every position."""
    cos, sin = working(cos_sin_cache)[positions.reshape(-1).long()].chunk(2, -1)
    if is_neox_style:
        cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
    else:
        cos, sin = cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
    mode = "half" if is_neox_style else "interleave"
    for tensor in (query, key):
        heads = working(tensor).reshape(len(cos), -1, head_size)
        turned = rope(heads, cos.unsqueeze(1), sin.unsqueeze(1), mode)
        tensor.copy_(turned.reshape(tensor.shape))


@reference("atb::_npu_group_topk", source=SOURCE.format("GroupTopkAtb.cpp"))
def _npu_group_topk(x: Tensor, k: int, group_num: int, n: int) -> None:
    """Keeps the k groups with the largest sum of their n best scores; zeroes the others."""
    groups = working(x).reshape(len(x), group_num, -1)
    best = groups.topk(n, -1).values.sum(-1)
    order = best.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    keep = torch.zeros_like(best, dtype=torch.bool).scatter(1, order, True)
    x.copy_((groups * keep.unsqueeze(-1)).reshape(x.shape))


def _sequence(query: Tensor, key: Tensor, value: Tensor, scale: float, hide: Maybe) -> Tensor:
    """Attention of one sequence; query [S, N, D], key and value [S', N', D]."""
    q, k, v = (part.transpose(0, 1).unsqueeze(0) for part in (query, key, value))
    return attend(q, k, v, scale, hide=hide).output[0].transpose(0, 1)


def _heads(tensor: Tensor, heads: int) -> Tensor:
    """[T, N·D] or [T, N, D] as [T, N, D]; leading batch axes are joined to T."""
    if tensor.dim() == 3 and tensor.shape[1] == heads:
        return tensor
    return tensor.reshape(-1, heads, tensor.shape[-1] // heads)


def _pack(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Sequence[int],
    scale: float,
    heads: tuple[int, int],
    out: Tensor,
    mask: Maybe = None,
    causal: bool = False,
) -> Tensor:
    """Sequences one behind the other in all three tensors."""
    q, k, v = _heads(query, heads[0]), _heads(key, heads[1]), _heads(value, heads[1])
    target, at = out.view(len(q), heads[0], -1), 0
    for number, length in enumerate(int(value) for value in lengths):
        span = slice(at, at + length)
        hide = _hide(mask, number, length, length, causal)
        target[span] = _sequence(q[span], k[span], v[span], scale, hide).to(out.dtype)
        at += length
    return out


def _hide(mask: Maybe, number: int, rows: int, columns: int, causal: bool) -> Maybe:
    if causal:
        return outside_band(rows, columns, UNLIMITED, 0, bottom_right=True)
    if mask is None or not mask.numel():
        return None
    own = (
        mask
        if mask.dim() == 2
        else mask[number if mask.shape[0] > 1 else 0].reshape(mask.shape[-2], mask.shape[-1])
    )
    return own[:rows, :columns] != 0


@reference("atb::_npu_flash_attention", source=SOURCE.format("SelfAttentionAtb.cpp"))
def _npu_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    seq_len: Tensor,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    out: Tensor,
) -> None:
    lengths = seq_len.tolist()
    _pack(query, key, value, lengths, scale_value, (num_heads, num_kv_heads), out, mask)


@reference("atb::_npu_flash_attention_v3", source=SOURCE.format("SelfAttentionAtbV3.cpp"))
def _npu_flash_attention_v3(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    seq_len: Tensor,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    mask_type: int | None,
    out: Tensor,
) -> None:
    """mask_type 3: the mask is a compressed causal constant."""
    causal = mask_type == 3
    heads = num_heads, num_kv_heads
    _pack(query, key, value, seq_len.tolist(), scale_value, heads, out, mask, causal)


@reference("atb::_npu_flash_attention_unpad", source=SOURCE.format("SelfAttentionUnpadAtb.cpp"))
def _npu_flash_attention_unpad(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seq_len: Tensor,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    out: Tensor,
) -> None:
    """Without a mask."""
    heads = num_heads, num_kv_heads
    _pack(query, key, value, seq_len.tolist(), scale_value, heads, out)


@reference(
    "atb::_npu_flash_attention_unpad_v2", source=SOURCE.format("SelfAttentionUnpadAtbV2.cpp")
)
def _npu_flash_attention_unpad_v2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seq_len: Tensor,
    scale_value: float,
    num_heads: int,
    num_kv_heads: int,
    out: Tensor,
) -> None:
    heads = num_heads, num_kv_heads
    _pack(query, key, value, seq_len.tolist(), scale_value, heads, out)


@reference("atb::_npu_paged_attention", source=SOURCE.format("PagedAttentionAtb.cpp"))
def _npu_paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    num_heads: int,
    scale_value: float,
    block_table: Tensor,
    context_lens: Tensor,
    out: Tensor,
) -> None:
    """One query token per sequence over ND caches [blocks, size, N, D]."""
    _attend_paged(
        query, key_cache, value_cache, scale_value, block_table, context_lens, out, num_heads
    )


@reference("atb::_npu_paged_attention_mla", source=SOURCE.format("PagedAttentionMlaAtb.cpp"))
def _npu_paged_attention_mla(
    query: Tensor,
    key_cache: Tensor,
    num_heads: int,
    scale_value: float,
    block_table: Tensor,
    context_lens: Tensor,
    mla_vheadsize: int,
    out: Tensor,
) -> None:
    """The values are the first `mla_vheadsize` entries of the keys."""
    values = key_cache[..., :mla_vheadsize]
    _attend_paged(query, key_cache, values, scale_value, block_table, context_lens, out, num_heads)


def _attend_paged(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    scale: float,
    table: Tensor,
    lengths: Tensor,
    out: Tensor,
    heads: int,
) -> None:
    if key_cache.dim() != 4:
        raise Unsimulated("_npu_paged_attention", f"a cache of {key_cache.dim()} dimensions")
    rows, target = _heads(query, heads), out.view(len(query), heads, -1)
    for number, length in enumerate(int(value) for value in lengths):
        key = read_sequence(key_cache, table[number], 0, length)
        value = read_sequence(value_cache, table[number], 0, length)
        target[number] = _sequence(rows[number : number + 1], key, value, scale, None)[0].to(
            out.dtype
        )


def _splitfuse(
    query: Tensor,
    caches: tuple[Tensor, Tensor],
    table: Tensor,
    context_lens: Tensor,
    seq_len: Tensor,
    heads: int,
    scale: float,
    out: Tensor,
) -> None:
    """Chunks of prompts and single tokens together; query s sees its own past in the cache."""
    rows, target, at = _heads(query, heads), out.view(len(query), heads, -1), 0
    pairs = zip(seq_len.tolist(), context_lens.tolist(), strict=True)
    for number, (count, length) in enumerate(pairs):
        key, value = (read_sequence(cache, table[number], 0, length) for cache in caches)
        hide = outside_band(count, length, UNLIMITED, 0, bottom_right=True)
        span = slice(at, at + count)
        target[span] = _sequence(rows[span], key, value, scale, hide).to(out.dtype)
        at += count


@reference(
    "atb::_npu_paged_attention_splitfuse", source=SOURCE.format("PagedAttentionSplitfuse.cpp")
)
def _npu_paged_attention_splitfuse(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    seq_len: Tensor,
    num_heads: int,
    scale_value: float,
    out: Tensor,
) -> None:
    caches = key_cache, value_cache
    _splitfuse(query, caches, block_table, context_lens, seq_len, num_heads, scale_value, out)


@reference(
    "atb::_npu_paged_attention_splitfuse_v2", source=SOURCE.format("PagedAttentionSplitfuseV2.cpp")
)
def _npu_paged_attention_splitfuse_v2(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    seq_len: Tensor,
    num_heads: int,
    scale_value: float,
    mask_type: int | None,
    out: Tensor,
) -> None:
    if mask_type not in CAUSAL_MASKS:
        raise Unsimulated("_npu_paged_attention_splitfuse_v2", f"mask_type {mask_type}")
    caches = key_cache, value_cache
    _splitfuse(query, caches, block_table, context_lens, seq_len, num_heads, scale_value, out)


@reference("atb::_npu_flash_attention_qlens", source=SOURCE.format("SelfAttentionQlensAtb.cpp"))
def _npu_flash_attention_qlens(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_len: Tensor,
    context_lens: Tensor,
    num_heads: int,
    scale_value: float,
    out: Tensor,
) -> None:
    """Prefixes in a paged cache: seq_len are the queries', context_lens the keys' lengths."""
    caches = key_cache, value_cache
    _splitfuse(query, caches, block_table, context_lens, seq_len, num_heads, scale_value, out)
