"""npu_fusion_attention, _v2 and _v3 with their backward operators."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.attention_training import (
    SOURCE,
    AttentionCall,
    AttentionInputs,
    Dropout,
    Lengths,
    Maybe,
    draw_dropout,
    dropout_length,
    fusion_attention,
    gradients,
    plan,
    redraw_dropout,
)
from joymigrate.run.rehearse.refs.declaration import reference

Forward = tuple[Tensor, Tensor, Tensor, Tensor]


def _forward(plan: AttentionCall, inputs: AttentionInputs, dropout: Dropout) -> Forward:
    output, maximum, total = fusion_attention(plan, inputs, dropout.keep)
    dtype = inputs.query.dtype
    return output.to(dtype), maximum, total, inputs.query.new_empty(0)


@reference("npu_fusion_attention", source=SOURCE)
def npu_fusion_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    pse: Maybe,
    atten_mask: Maybe,
    scale: float,
    keep_prob: float,
    pre_tockens: int,
    next_tockens: int,
    inner_precise: int,
    prefix: Lengths,
    actual_seq_qlen: Lengths,
    actual_seq_kvlen: Lengths,
    sparse_mode: int,
    softmax_layout: str,
    sink: Maybe,
    dropout_mask: Maybe,
    seed: int,
    offset: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """Attention, softmax maximum and sum, an unused tensor, and dropout's seed, offset, length."""
    call = plan(
        input_layout,
        head_num,
        scale,
        keep_prob,
        (pre_tockens, next_tockens),
        inner_precise,
        prefix,
        actual_seq_qlen,
        actual_seq_kvlen,
        sparse_mode,
        softmax_layout,
    )
    dropout = draw_dropout(call, query, key, dropout_mask, seed, offset)
    inputs = AttentionInputs(query, key, value, pse, sink, mask=atten_mask)
    return (*_forward(call, inputs, dropout), dropout.seed, dropout.offset, dropout.length)


@reference("npu_fusion_attention_v2", source=SOURCE)
def npu_fusion_attention_v2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    pse: Maybe,
    atten_mask: Maybe,
    query_rope: Maybe,
    key_rope: Maybe,
    scale: float,
    keep_prob: float,
    pre_tokens: int,
    next_tokens: int,
    inner_precise: int,
    prefix: Lengths,
    actual_seq_qlen: Lengths,
    actual_seq_kvlen: Lengths,
    sparse_mode: int,
    pse_type: int,
    q_start_idx: Lengths,
    kv_start_idx: Lengths,
    softmax_layout: str,
    sink: Maybe,
    dropout_mask: Maybe,
    seed: int,
    offset: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """As npu_fusion_attention, with rope parts and four ways to make the pse."""
    call = plan(
        input_layout,
        head_num,
        scale,
        keep_prob,
        (pre_tokens, next_tokens),
        inner_precise,
        prefix,
        actual_seq_qlen,
        actual_seq_kvlen,
        sparse_mode,
        softmax_layout,
    )
    call = replace(call, pse_type=pse_type, shift=_first(q_start_idx) - _first(kv_start_idx))
    dropout = draw_dropout(call, query, key, dropout_mask, seed, offset)
    inputs = AttentionInputs(query, key, value, pse, sink, query_rope, key_rope, atten_mask)
    return (*_forward(call, inputs, dropout), dropout.seed, dropout.offset, dropout.length)


def _first(index: Lengths) -> int:
    return int(index[0]) if index is not None and len(index) else 0


@reference("npu_fusion_attention_v3", source=SOURCE)
def npu_fusion_attention_v3(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    pse: Maybe,
    padding_mask: Maybe,
    atten_mask: Maybe,
    scale: float,
    keep_prob: float,
    pre_tockens: int,
    next_tockens: int,
    inner_precise: int,
    prefix: Lengths,
    actual_seq_qlen: Lengths,
    actual_seq_kvlen: Lengths,
    sparse_mode: int,
    gen_mask_parallel: bool,
    sync: bool,
    softmax_layout: str,
    sink: Maybe,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As npu_fusion_attention; seed and offset are tensors (the version for graph mode)."""
    *outputs, seed, offset, _ = npu_fusion_attention(
        query,
        key,
        value,
        head_num,
        input_layout,
        pse,
        padding_mask,
        atten_mask,
        scale,
        keep_prob,
        pre_tockens,
        next_tockens,
        inner_precise,
        prefix,
        actual_seq_qlen,
        actual_seq_kvlen,
        sparse_mode,
        gen_mask_parallel,
        sync,
        softmax_layout,
        sink,
    )
    attention, maximum, total, unused = outputs
    return attention, maximum, total, unused, torch.tensor([seed]), torch.tensor([offset])


@reference("npu_fusion_attention_grad", source=SOURCE)
def npu_fusion_attention_grad(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    head_num: int,
    input_layout: str,
    pse: Maybe,
    atten_mask: Maybe,
    scale_value: float,
    keep_prob: float,
    pre_tockens: int,
    next_tockens: int,
    inner_precise: int,
    seed: int,
    offset: int,
    numels: int,
    prefix: Lengths,
    actual_seq_qlen: Lengths,
    actual_seq_kvlen: Lengths,
    sparse_mode: int,
    softmax_layout: str,
    sink: Maybe,
) -> tuple[Tensor, Tensor, Tensor, Maybe, Tensor]:
    """dq, dk, dv, dpse, dsink."""
    call = plan(
        input_layout,
        head_num,
        scale_value,
        keep_prob,
        (pre_tockens, next_tockens),
        inner_precise,
        prefix,
        actual_seq_qlen,
        actual_seq_kvlen,
        sparse_mode,
        softmax_layout,
    )
    dropout = redraw_dropout(call, seed, offset, numels)
    inputs = AttentionInputs(query, key, value, pse, sink, mask=atten_mask)
    dq, dk, dv, dpse, _, _, dsink = gradients(call, inputs, dy, dropout.keep)
    return dq, dk, dv, None if pse is None else dpse, dsink


@reference("npu_fusion_attention_grad_v2", source=SOURCE)
def npu_fusion_attention_grad_v2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    head_num: int,
    input_layout: str,
    pse: Maybe,
    atten_mask: Maybe,
    query_rope: Maybe,
    key_rope: Maybe,
    scale_value: float,
    keep_prob: float,
    pre_tokens: int,
    next_tokens: int,
    inner_precise: int,
    seed: int,
    offset: int,
    numels: int,
    prefix: Lengths,
    actual_seq_qlen: Lengths,
    actual_seq_kvlen: Lengths,
    sparse_mode: int,
    pse_type: int,
    q_start_idx: Lengths,
    kv_start_idx: Lengths,
    softmax_layout: str,
    sink: Maybe,
) -> tuple[Tensor, ...]:
    """dq, dk, dv, dpse, dquery_rope, dkey_rope, dsink."""
    call = plan(
        input_layout,
        head_num,
        scale_value,
        keep_prob,
        (pre_tokens, next_tokens),
        inner_precise,
        prefix,
        actual_seq_qlen,
        actual_seq_kvlen,
        sparse_mode,
        softmax_layout,
    )
    call = replace(call, pse_type=pse_type, shift=_first(q_start_idx) - _first(kv_start_idx))
    dropout = redraw_dropout(call, seed, offset, numels)
    inputs = AttentionInputs(query, key, value, pse, sink, query_rope, key_rope, atten_mask)
    return gradients(call, inputs, dy, dropout.keep)


@reference("npu_fusion_attention_grad_v3", source=SOURCE)
def npu_fusion_attention_grad_v3(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    head_num: int,
    input_layout: str,
    pse: Maybe,
    atten_mask: Maybe,
    scale_value: float,
    keep_prob: float,
    pre_tockens: int,
    next_tockens: int,
    inner_precise: int,
    seed: Maybe,
    offset: Maybe,
    prefix: Lengths,
    actual_seq_qlen: Lengths,
    actual_seq_kvlen: Lengths,
    sparse_mode: int,
    softmax_layout: str,
    sink: Maybe,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv, dpse, dsink; the length of the dropout mask follows from the shapes."""
    call = plan(
        input_layout,
        head_num,
        scale_value,
        keep_prob,
        (pre_tockens, next_tockens),
        inner_precise,
        prefix,
        actual_seq_qlen,
        actual_seq_kvlen,
        sparse_mode,
        softmax_layout,
    )
    drawn = 0 if seed is None else int(seed), 0 if offset is None else int(offset)
    dropout = redraw_dropout(call, *drawn, dropout_length(call, query, key))
    inputs = AttentionInputs(query, key, value, pse, sink, mask=atten_mask)
    dq, dk, dv, dpse, _, _, dsink = gradients(call, inputs, dy, dropout.keep)
    return dq, dk, dv, dpse, dsink
