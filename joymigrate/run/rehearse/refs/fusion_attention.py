"""npu_fusion_attention, _v2 and _v3 with their backward operators."""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.attention_training import (
    SOURCE,
    AttentionInputs,
    Dropout,
    Maybe,
    draw_dropout,
    dropout_length,
    fusion_attention,
    gradients,
    plan,
    redraw_dropout,
)
from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference


def _forward(
    given: ReferenceArguments, *, mask: Maybe, seed: int, offset: int
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], Dropout]:
    call, inputs = plan(given), AttentionInputs.of(given)
    dropout = draw_dropout(call, given.query, given.key, mask, seed, offset)
    output, maximum, total = fusion_attention(call, inputs, dropout.keep)
    dtype = inputs.query.dtype
    return (output.to(dtype), maximum, total, inputs.query.new_empty(0)), dropout


def _forward_with_seeds(
    given: ReferenceArguments,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    outputs, dropout = _forward(
        given, mask=given.dropout_mask, seed=given.seed, offset=given.offset
    )
    return (*outputs, dropout.seed, dropout.offset, dropout.length)


@reference("npu_fusion_attention", source=SOURCE)
def npu_fusion_attention(
    given: ReferenceArguments,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """Attention, softmax maximum and sum, an unused tensor, and dropout's seed, offset, length."""
    return _forward_with_seeds(given)


@reference("npu_fusion_attention_v2", source=SOURCE)
def npu_fusion_attention_v2(
    given: ReferenceArguments,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int, int]:
    """As npu_fusion_attention, with rope parts and four ways to make the pse."""
    return _forward_with_seeds(given)


@reference("npu_fusion_attention_v3", source=SOURCE)
def npu_fusion_attention_v3(
    given: ReferenceArguments,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As npu_fusion_attention; seed and offset are tensors (the version for graph mode)."""
    outputs, dropout = _forward(given, mask=None, seed=0, offset=0)
    return (*outputs, torch.tensor([dropout.seed]), torch.tensor([dropout.offset]))


def _gradients(
    given: ReferenceArguments, seed: int, offset: int, length: int
) -> tuple[Tensor, ...]:
    call = plan(given)
    dropout = redraw_dropout(call, seed, offset, length)
    return gradients(call, AttentionInputs.of(given), given.dy, dropout.keep)


@reference("npu_fusion_attention_grad", source=SOURCE)
def npu_fusion_attention_grad(
    given: ReferenceArguments,
) -> tuple[Tensor, Tensor, Tensor, Maybe, Tensor]:
    """dq, dk, dv, dpse, dsink."""
    found = _gradients(given, given.seed, given.offset, given.numels)
    dq, dk, dv, dpse, _, _, dsink = found
    return dq, dk, dv, None if given.pse is None else dpse, dsink


@reference("npu_fusion_attention_grad_v2", source=SOURCE)
def npu_fusion_attention_grad_v2(given: ReferenceArguments) -> tuple[Tensor, ...]:
    """dq, dk, dv, dpse, dquery_rope, dkey_rope, dsink."""
    return _gradients(given, given.seed, given.offset, given.numels)


@reference("npu_fusion_attention_grad_v3", source=SOURCE)
def npu_fusion_attention_grad_v3(
    given: ReferenceArguments,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv, dpse, dsink; the length of the dropout mask follows from the shapes."""
    seed, offset = (0 if one is None else int(one) for one in (given.seed, given.offset))
    length = dropout_length(plan(given), given.query, given.key)
    dq, dk, dv, dpse, _, _, dsink = _gradients(given, seed, offset, length)
    return dq, dk, dv, dpse, dsink
