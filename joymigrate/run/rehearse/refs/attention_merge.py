"""Partial attentions put together: ring attention and sequence-parallel decoding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.attention_core import spans
from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.gradients import working


@reference(
    "npu_attention_update",
    source="op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-npu_attention_update.md",
)
def npu_attention_update(
    lse: Sequence[Tensor], local_out: Sequence[Tensor], update_type: int
) -> tuple[Tensor, Tensor | None]:
    """Σ out·exp(lse - total), and the total log-sum-exp for update_type 1."""
    sums = torch.stack([part.float() for part in lse])
    total = sums.logsumexp(0)
    outputs = torch.stack([working(part) for part in local_out])
    merged = (outputs * (sums - total).exp().unsqueeze(-1)).sum(0).to(local_out[0].dtype)
    return merged, total if update_type == 1 else None


def token_major(values: Tensor, ends: Sequence[int]) -> Tensor:
    """[T, N, 8] in the memory order N, T of every sequence → really token by token."""
    heads, lanes = values.shape[1], values.shape[2]
    flat = values.reshape(-1, lanes)
    parts = [
        flat[span.start * heads : span.stop * heads].reshape(heads, -1, lanes).transpose(0, 1)
        for span in spans(list(ends))
    ]
    return torch.cat(parts)


@reference(
    "npu_ring_attention_update", source="torch_npu _op_plugin_docs.py npu_ring_attention_update"
)
def npu_ring_attention_update(given: ReferenceArguments) -> tuple[Tensor, Tensor, Tensor]:
    """Two attentions of the same queries over different keys, as one."""
    maximum = torch.maximum(given.prev_softmax_max, given.cur_softmax_max)
    old = given.prev_softmax_sum * (given.prev_softmax_max - maximum).exp()
    new = given.cur_softmax_sum * (given.cur_softmax_max - maximum).exp()
    total = old + new
    shares = [old / total, new / total]
    if given.input_layout == "TND":
        if given.input_softmax_layout != "TND" and given.actual_seq_qlen is not None:
            ends = [int(end) for end in given.actual_seq_qlen]
            shares = [token_major(share, ends) for share in shares]
        weights = [share[..., :1] for share in shares]
        merged = (
            working(given.prev_attn_out) * weights[0] + working(given.cur_attn_out) * weights[1]
        )
    else:
        rows, batch, hidden = given.prev_attn_out.shape
        heads = given.prev_softmax_max.shape[1]
        weights = [share[..., 0].permute(2, 0, 1).unsqueeze(-1) for share in shares]
        parts = [
            working(part).reshape(rows, batch, heads, hidden // heads)
            for part in (given.prev_attn_out, given.cur_attn_out)
        ]
        merged = (parts[0] * weights[0] + parts[1] * weights[1]).reshape(rows, batch, hidden)
    return merged.to(given.prev_attn_out.dtype), maximum, total
