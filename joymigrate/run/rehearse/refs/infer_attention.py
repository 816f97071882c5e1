"""npu_prompt_flash_attention, npu_incre_flash_attention, npu_fused_infer_attention_score(_v2)."""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.attention_inference import (
    CacheSide,
    Maybe,
    call_of,
    infer,
    quantise_output,
)
from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md"


@reference("npu_prompt_flash_attention", source=DOCS.format("npu_prompt_flash_attention"))
def npu_prompt_flash_attention(given: ReferenceArguments) -> Tensor:
    """Attention of whole prompts; next_tokens is 0 by default, but counts only with a mask."""
    call = call_of(
        "npu_prompt_flash_attention",
        given.input_layout,
        given.num_heads,
        given.num_key_value_heads,
        given.scale_value,
        before=given.pre_tokens,
        after=given.next_tokens,
        sparse_mode=given.sparse_mode,
    )
    output, _ = infer(
        call,
        given.query,
        CacheSide(given.key),
        CacheSide(given.value),
        mask=given.atten_mask,
        pse=given.pse_shift,
        lengths=given.actual_seq_lengths,
        kv_lengths=given.actual_seq_lengths_kv,
    )
    return quantise_output(output, given.quant_scale2, given.quant_offset2, given.query)


@reference("npu_incre_flash_attention", source=DOCS.format("npu_incre_flash_attention"))
def npu_incre_flash_attention(given: ReferenceArguments) -> Tensor:
    """Attention of one new token per sequence; actual_seq_lengths are those of the keys."""
    call = call_of(
        "npu_incre_flash_attention",
        given.input_layout,
        given.num_heads,
        given.num_key_value_heads,
        given.scale_value,
        block_size=given.block_size,
    )
    output, _ = infer(
        call,
        given.query,
        CacheSide(given.key, _half(given.antiquant_scale, 0), _half(given.antiquant_offset, 0)),
        CacheSide(given.value, _half(given.antiquant_scale, 1), _half(given.antiquant_offset, 1)),
        mask=given.atten_mask,
        pse=given.pse_shift,
        kv_lengths=given.actual_seq_lengths,
        table=given.block_table,
        kv_padding=given.kv_padding_size,
    )
    return quantise_output(output, given.quant_scale2, given.quant_offset2, given.query)


def _half(pair: Maybe, which: int) -> Maybe:
    """antiquant_scale holds the key's factor at 0 and the value's at 1."""
    return None if pair is None else pair[which]


@reference("npu_fused_infer_attention_score", source=DOCS.format("npu_fused_infer_attention_score"))
def npu_fused_infer_attention_score(given: ReferenceArguments) -> tuple[Tensor, Tensor]:
    """Prompt and incremental attention in one; the second output is the log-sum-exp, or empty."""
    key_antiquant_scale = given.key_antiquant_scale
    key_antiquant_offset = given.key_antiquant_offset
    value_antiquant_scale = given.value_antiquant_scale
    value_antiquant_offset = given.value_antiquant_offset
    key_antiquant_mode = given.key_antiquant_mode
    value_antiquant_mode = given.value_antiquant_mode
    call = call_of(
        "npu_fused_infer_attention_score",
        given.input_layout,
        given.num_heads,
        given.num_key_value_heads,
        given.scale,
        before=given.pre_tokens,
        after=given.next_tokens,
        sparse_mode=given.sparse_mode,
        inner_precise=given.inner_precise,
        block_size=given.block_size,
    )
    if key_antiquant_scale is None and given.antiquant_scale is not None:
        key_antiquant_scale, value_antiquant_scale = (
            given.antiquant_scale[0],
            given.antiquant_scale[1],
        )
        key_antiquant_offset = _half(given.antiquant_offset, 0)
        value_antiquant_offset = _half(given.antiquant_offset, 1)
        key_antiquant_mode = value_antiquant_mode = given.antiquant_mode
    output, lse = infer(
        call,
        given.query,
        CacheSide(
            given.key,
            key_antiquant_scale,
            key_antiquant_offset,
            key_antiquant_mode,
            given.key_rope,
            given.key_shared_prefix,
        ),
        CacheSide(
            given.value,
            value_antiquant_scale,
            value_antiquant_offset,
            value_antiquant_mode,
            prefix=given.value_shared_prefix,
        ),
        query_rope=given.query_rope,
        mask=given.atten_mask,
        pse=given.pse_shift,
        lengths=given.actual_seq_lengths,
        kv_lengths=given.actual_seq_lengths_kv,
        table=given.block_table,
        query_padding=given.query_padding_size,
        kv_padding=given.kv_padding_size,
        prefix_length=int(given.actual_shared_prefix_len[0])
        if given.actual_shared_prefix_len
        else None,
    )
    result = quantise_output(output, given.quant_scale2, given.quant_offset2, given.query)
    return result, lse if given.softmax_lse_flag else torch.empty(0)


@reference(
    "npu_fused_infer_attention_score_v2",
    source=DOCS.format("npu_fused_infer_attention_score_v2"),
    without="query_dtype quant_scale_p",
)
def npu_fused_infer_attention_score_v2(given: ReferenceArguments) -> tuple[Tensor, Tensor]:
    """The second version: other names, a learnable sink, and 8-bit queries (no reference)."""
    call = call_of(
        "npu_fused_infer_attention_score_v2",
        given.input_layout,
        given.num_query_heads,
        given.num_key_value_heads,
        given.softmax_scale,
        before=given.pre_tokens,
        after=given.next_tokens,
        sparse_mode=given.sparse_mode,
        inner_precise=given.inner_precise,
        block_size=given.block_size,
    )
    output, lse = infer(
        call,
        given.query,
        CacheSide(
            given.key,
            given.dequant_scale_key,
            given.dequant_offset_key,
            given.key_quant_mode,
            given.key_rope,
        ),
        CacheSide(
            given.value,
            given.dequant_scale_value,
            given.dequant_offset_value,
            given.value_quant_mode,
        ),
        query_rope=given.query_rope,
        mask=given.atten_mask,
        pse=given.pse_shift,
        sink=given.learnable_sink,
        lengths=given.actual_seq_qlen,
        kv_lengths=given.actual_seq_kvlen,
        table=given.block_table,
    )
    result = quantise_output(output, given.quant_scale_out, given.quant_offset_out, given.query)
    return result, lse if given.return_softmax_lse else torch.empty(0)
