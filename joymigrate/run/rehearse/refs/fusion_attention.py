"""npu_fusion_attention, _v2 and _v3 with their backward operators."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.attention_core import UNLIMITED
from joymigrate.run.rehearse.refs.attention_training import (
    SOURCE,
    Dropout,
    Inputs,
    Lengths,
    Maybe,
    Plan,
    draw_dropout,
    dropout_length,
    fusion_attention,
    gradients,
    plan,
    redraw_dropout,
)
from joymigrate.run.rehearse.refs.declaration import reference

Forward = tuple[Tensor, Tensor, Tensor, Tensor]


def _forward(plan: Plan, inputs: Inputs, dropout: Dropout) -> Forward:
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
    pse: Maybe = None,
    padding_mask: Maybe = None,
    atten_mask: Maybe = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = UNLIMITED,
    next_tockens: int = UNLIMITED,
    inner_precise: int = 0,
    prefix: Lengths = None,
    actual_seq_qlen: Lengths = None,
    actual_seq_kvlen: Lengths = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Maybe = None,
    dropout_mask: Maybe = None,
    seed: int = 0,
    offset: int = 0,
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
    inputs = Inputs(query, key, value, pse, sink, mask=atten_mask)
    return (*_forward(call, inputs, dropout), dropout.seed, dropout.offset, dropout.length)


@reference("npu_fusion_attention_v2", source=SOURCE)
def npu_fusion_attention_v2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: Maybe = None,
    padding_mask: Maybe = None,
    atten_mask: Maybe = None,
    query_rope: Maybe = None,
    key_rope: Maybe = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tokens: int = UNLIMITED,
    next_tokens: int = UNLIMITED,
    inner_precise: int = 0,
    prefix: Lengths = None,
    actual_seq_qlen: Lengths = None,
    actual_seq_kvlen: Lengths = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    pse_type: int = 1,
    q_start_idx: Lengths = None,
    kv_start_idx: Lengths = None,
    softmax_layout: str = "",
    sink: Maybe = None,
    dropout_mask: Maybe = None,
    seed: int = 0,
    offset: int = 0,
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
    inputs = Inputs(query, key, value, pse, sink, query_rope, key_rope, atten_mask)
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
    pse: Maybe = None,
    padding_mask: Maybe = None,
    atten_mask: Maybe = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = UNLIMITED,
    next_tockens: int = UNLIMITED,
    inner_precise: int = 0,
    prefix: Lengths = None,
    actual_seq_qlen: Lengths = None,
    actual_seq_kvlen: Lengths = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Maybe = None,
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
    *,
    pse: Maybe = None,
    padding_mask: Maybe = None,
    atten_mask: Maybe = None,
    softmax_max: Maybe = None,
    softmax_sum: Maybe = None,
    softmax_in: Maybe = None,
    attention_in: Maybe = None,
    scale_value: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = UNLIMITED,
    next_tockens: int = UNLIMITED,
    inner_precise: int = 0,
    seed: int = 0,
    offset: int = 0,
    numels: int = 0,
    prefix: Lengths = None,
    actual_seq_qlen: Lengths = None,
    actual_seq_kvlen: Lengths = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Maybe = None,
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
    inputs = Inputs(query, key, value, pse, sink, mask=atten_mask)
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
    *,
    pse: Maybe = None,
    padding_mask: Maybe = None,
    atten_mask: Maybe = None,
    softmax_max: Maybe = None,
    softmax_sum: Maybe = None,
    softmax_in: Maybe = None,
    attention_in: Maybe = None,
    query_rope: Maybe = None,
    key_rope: Maybe = None,
    scale_value: float = 1.0,
    keep_prob: float = 1.0,
    pre_tokens: int = UNLIMITED,
    next_tokens: int = UNLIMITED,
    inner_precise: int = 0,
    seed: int = 0,
    offset: int = 0,
    numels: int = 0,
    prefix: Lengths = None,
    actual_seq_qlen: Lengths = None,
    actual_seq_kvlen: Lengths = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    pse_type: int = 1,
    q_start_idx: Lengths = None,
    kv_start_idx: Lengths = None,
    softmax_layout: str = "",
    sink: Maybe = None,
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
    inputs = Inputs(query, key, value, pse, sink, query_rope, key_rope, atten_mask)
    return gradients(call, inputs, dy, dropout.keep)


@reference("npu_fusion_attention_grad_v3", source=SOURCE)
def npu_fusion_attention_grad_v3(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: Maybe = None,
    padding_mask: Maybe = None,
    atten_mask: Maybe = None,
    softmax_max: Maybe = None,
    softmax_sum: Maybe = None,
    softmax_in: Maybe = None,
    attention_in: Maybe = None,
    scale_value: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = UNLIMITED,
    next_tockens: int = UNLIMITED,
    inner_precise: int = 0,
    seed: Maybe = None,
    offset: Maybe = None,
    prefix: Lengths = None,
    actual_seq_qlen: Lengths = None,
    actual_seq_kvlen: Lengths = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Maybe = None,
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
    inputs = Inputs(query, key, value, pse, sink, mask=atten_mask)
    dq, dk, dv, dpse, _, _, dsink = gradients(call, inputs, dy, dropout.keep)
    return dq, dk, dv, dpse, dsink
