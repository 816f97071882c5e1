"""npu_prompt_flash_attention, npu_incre_flash_attention, npu_fused_infer_attention_score(_v2)."""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.attention_inference import (
    CacheSide,
    Lengths,
    Maybe,
    call_of,
    infer,
    quantise_output,
)
from joymigrate.run.rehearse.refs.declaration import reference

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md"


@reference("npu_prompt_flash_attention", source=DOCS.format("npu_prompt_flash_attention"))
def npu_prompt_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    atten_mask: Maybe,
    pse_shift: Maybe,
    actual_seq_lengths: Lengths,
    quant_scale2: Maybe,
    quant_offset2: Maybe,
    num_heads: int,
    scale_value: float,
    pre_tokens: int,
    next_tokens: int,
    input_layout: str,
    num_key_value_heads: int,
    actual_seq_lengths_kv: Lengths,
    sparse_mode: int,
) -> Tensor:
    """Attention of whole prompts; next_tokens is 0 by default, but counts only with a mask."""
    call = call_of(
        "npu_prompt_flash_attention",
        input_layout,
        num_heads,
        num_key_value_heads,
        scale_value,
        before=pre_tokens,
        after=next_tokens,
        sparse_mode=sparse_mode,
    )
    output, _ = infer(
        call,
        query,
        CacheSide(key),
        CacheSide(value),
        mask=atten_mask,
        pse=pse_shift,
        lengths=actual_seq_lengths,
        kv_lengths=actual_seq_lengths_kv,
    )
    return quantise_output(output, quant_scale2, quant_offset2, query)


@reference("npu_incre_flash_attention", source=DOCS.format("npu_incre_flash_attention"))
def npu_incre_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    atten_mask: Maybe,
    pse_shift: Maybe,
    actual_seq_lengths: Lengths,
    antiquant_scale: Maybe,
    antiquant_offset: Maybe,
    block_table: Maybe,
    quant_scale2: Maybe,
    quant_offset2: Maybe,
    kv_padding_size: Maybe,
    num_heads: int,
    scale_value: float,
    input_layout: str,
    num_key_value_heads: int,
    block_size: int,
) -> Tensor:
    """Attention of one new token per sequence; actual_seq_lengths are those of the keys."""
    call = call_of(
        "npu_incre_flash_attention",
        input_layout,
        num_heads,
        num_key_value_heads,
        scale_value,
        block_size=block_size,
    )
    output, _ = infer(
        call,
        query,
        CacheSide(key, _half(antiquant_scale, 0), _half(antiquant_offset, 0)),
        CacheSide(value, _half(antiquant_scale, 1), _half(antiquant_offset, 1)),
        mask=atten_mask,
        pse=pse_shift,
        kv_lengths=actual_seq_lengths,
        table=block_table,
        kv_padding=kv_padding_size,
    )
    return quantise_output(output, quant_scale2, quant_offset2, query)


def _half(pair: Maybe, which: int) -> Maybe:
    """antiquant_scale holds the key's factor at 0 and the value's at 1."""
    return None if pair is None else pair[which]


@reference("npu_fused_infer_attention_score", source=DOCS.format("npu_fused_infer_attention_score"))
def npu_fused_infer_attention_score(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pse_shift: Maybe,
    atten_mask: Maybe,
    actual_seq_lengths: Lengths,
    actual_seq_lengths_kv: Lengths,
    quant_scale2: Maybe,
    quant_offset2: Maybe,
    antiquant_scale: Maybe,
    antiquant_offset: Maybe,
    key_antiquant_scale: Maybe,
    key_antiquant_offset: Maybe,
    value_antiquant_scale: Maybe,
    value_antiquant_offset: Maybe,
    block_table: Maybe,
    query_padding_size: Maybe,
    kv_padding_size: Maybe,
    key_shared_prefix: Maybe,
    value_shared_prefix: Maybe,
    actual_shared_prefix_len: Lengths,
    query_rope: Maybe,
    key_rope: Maybe,
    num_heads: int,
    scale: float,
    pre_tokens: int,
    next_tokens: int,
    input_layout: str,
    num_key_value_heads: int,
    sparse_mode: int,
    inner_precise: int,
    block_size: int,
    antiquant_mode: int,
    key_antiquant_mode: int,
    value_antiquant_mode: int,
    softmax_lse_flag: bool,
) -> tuple[Tensor, Tensor]:
    """Prompt and incremental attention in one; the second output is the log-sum-exp, or empty."""
    call = call_of(
        "npu_fused_infer_attention_score",
        input_layout,
        num_heads,
        num_key_value_heads,
        scale,
        before=pre_tokens,
        after=next_tokens,
        sparse_mode=sparse_mode,
        inner_precise=inner_precise,
        block_size=block_size,
    )
    if key_antiquant_scale is None and antiquant_scale is not None:
        key_antiquant_scale, value_antiquant_scale = antiquant_scale[0], antiquant_scale[1]
        key_antiquant_offset = _half(antiquant_offset, 0)
        value_antiquant_offset = _half(antiquant_offset, 1)
        key_antiquant_mode = value_antiquant_mode = antiquant_mode
    output, lse = infer(
        call,
        query,
        CacheSide(
            key,
            key_antiquant_scale,
            key_antiquant_offset,
            key_antiquant_mode,
            key_rope,
            key_shared_prefix,
        ),
        CacheSide(
            value,
            value_antiquant_scale,
            value_antiquant_offset,
            value_antiquant_mode,
            prefix=value_shared_prefix,
        ),
        query_rope=query_rope,
        mask=atten_mask,
        pse=pse_shift,
        lengths=actual_seq_lengths,
        kv_lengths=actual_seq_lengths_kv,
        table=block_table,
        query_padding=query_padding_size,
        kv_padding=kv_padding_size,
        prefix_length=int(actual_shared_prefix_len[0]) if actual_shared_prefix_len else None,
    )
    result = quantise_output(output, quant_scale2, quant_offset2, query)
    return result, lse if softmax_lse_flag else torch.empty(0)


@reference(
    "npu_fused_infer_attention_score_v2",
    source=DOCS.format("npu_fused_infer_attention_score_v2"),
    without="query_dtype quant_scale_p",
)
def npu_fused_infer_attention_score_v2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_rope: Maybe,
    key_rope: Maybe,
    pse_shift: Maybe,
    atten_mask: Maybe,
    actual_seq_qlen: Lengths,
    actual_seq_kvlen: Lengths,
    block_table: Maybe,
    dequant_scale_key: Maybe,
    dequant_offset_key: Maybe,
    dequant_scale_value: Maybe,
    dequant_offset_value: Maybe,
    quant_scale_out: Maybe,
    quant_offset_out: Maybe,
    learnable_sink: Maybe,
    num_query_heads: int,
    num_key_value_heads: int,
    softmax_scale: float,
    pre_tokens: int,
    next_tokens: int,
    input_layout: str,
    sparse_mode: int,
    block_size: int,
    key_quant_mode: int,
    value_quant_mode: int,
    inner_precise: int,
    return_softmax_lse: bool,
) -> tuple[Tensor, Tensor]:
    """The second version: other names, a learnable sink, and 8-bit queries (no reference)."""
    call = call_of(
        "npu_fused_infer_attention_score_v2",
        input_layout,
        num_query_heads,
        num_key_value_heads,
        softmax_scale,
        before=pre_tokens,
        after=next_tokens,
        sparse_mode=sparse_mode,
        inner_precise=inner_precise,
        block_size=block_size,
    )
    output, lse = infer(
        call,
        query,
        CacheSide(key, dequant_scale_key, dequant_offset_key, key_quant_mode, key_rope),
        CacheSide(value, dequant_scale_value, dequant_offset_value, value_quant_mode),
        query_rope=query_rope,
        mask=atten_mask,
        pse=pse_shift,
        sink=learnable_sink,
        lengths=actual_seq_qlen,
        kv_lengths=actual_seq_kvlen,
        table=block_table,
    )
    result = quantise_output(output, quant_scale_out, quant_offset_out, query)
    return result, lse if return_softmax_lse else torch.empty(0)
