"""npu_scatter_pa_kv_cache and npu_fused_infer_attention_score over a block table.

Packed tokens are the layout TND: `actual_seq_lengths` are running ends, `actual_seq_lengths_kv` the
lengths themselves where a block table is given. Sparse mode 3 is causal from the lower right
corner, 4 a band, both with the compressed mask of 2048 x 2048. A block is 16 to 512 tokens in steps
of 16 (the operators' documents); a head of packed tokens is 64, 128 or 192 wide (its tiling:
ops-transformer c29bc10, fused_infer_attention_score_tiling; vllm-ascend 9632).
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch_npu
from torch import Tensor

from joymigrate.run.kernels.operator import Call
from joymigrate.run.kernels.ops.paged_attention import Numbers, Result, numbers

COMPRESSED = 2048
CAUSAL, BAND = 3, 4
SIZES = (64, 128, 192)
UNLIMITED = 2147483647


def when(call: Call) -> str | None:
    """What the operators' documents and tiling exclude."""
    if call.variant:
        return f"has no {call.variant}"
    if call.shape:
        heads, kv_heads, size = call.shape
        if size not in SIZES:
            return f"heads of packed tokens are {', '.join(map(str, SIZES))} wide, not {size}"
        if heads % kv_heads or heads // kv_heads > 64:
            return f"{heads} query heads for {kv_heads} key heads"
    return None


@functools.cache
def mask(device: torch.device) -> Tensor:
    """True where a token is not seen."""
    ones = torch.ones(COMPRESSED, COMPRESSED, dtype=torch.bool, device=device)
    return torch.triu(ones, diagonal=1)


def paged_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    table: Tensor,
    starts: Numbers,
    lengths: Numbers,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    memo: dict[Any, Any] | None = None,
) -> Result:
    """The cache is written by one operator and read by another, for all sequences at once."""
    memo = {} if memo is None else memo
    prepared = memo.get("vendor")
    if prepared is None:
        ends = [int(end) for end in numbers(starts)[1:]]
        prepared = (ends, [int(n) for n in numbers(lengths)], table.int(), slots.int())
        memo["vendor"] = prepared
    ends, sizes, pages, places = prepared
    torch_npu.npu_scatter_pa_kv_cache(
        key.contiguous(), value.contiguous(), key_cache, value_cache, places, cache_mode="Norm"
    )
    output = torch_npu.npu_fused_infer_attention_score(
        query.contiguous(),
        key_cache.flatten(2),
        value_cache.flatten(2),
        num_heads=query.shape[1],
        num_key_value_heads=key.shape[1],
        input_layout="TND",
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        atten_mask=mask(query.device),
        sparse_mode=CAUSAL if window is None else BAND,
        pre_tokens=UNLIMITED if window is None else window - 1,
        next_tokens=0 if window is not None else UNLIMITED,
        block_table=pages,
        block_size=key_cache.shape[1],
        actual_seq_lengths=ends,
        actual_seq_lengths_kv=sizes,
    )[0]
    return output, key_cache, value_cache
