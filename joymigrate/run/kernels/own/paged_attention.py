"""Paged attention by gathering blocks (any device), and by torch's own varlen kernel (CUDA).

The legend of the shapes is in `ops/paged_attention.py`. For `gather` the cache lies as
[heads, blocks, tokens · size] in memory, so that the blocks of a sequence are copied as wholes:
for 32 sequences of 192 tokens a third of the time of gathering tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from joymigrate.run.kernels.ops.paged_attention import Numbers, Result, attend, numbers, visible

# Padded tokens that are worth another product: one costs about what 1,000 gathered tokens cost.
SPLIT = 1024


@dataclass(frozen=True, slots=True)
class SequenceGroup:
    """Sequences with one new token each and about the same length: rows of one product."""

    rows: slice
    blocks: Tensor  # [B · blocks], of all its sequences
    mask: Tensor | None  # [1, B, 1, L], added to the scores; None for a single sequence
    count: int
    length: int  # L; of a single sequence its own length


@dataclass(frozen=True, slots=True)
class Prompt:
    """A sequence with several new tokens. `blocks` None: they are all it has."""

    rows: slice
    blocks: Tensor | None
    seen: Tensor | None  # [new, length]; None: causal
    length: int


@dataclass(frozen=True, slots=True)
class SequenceLayout:
    """How a step's sequences are computed."""

    prompts: tuple[Prompt, ...]
    groups: tuple[SequenceGroup, ...]


def gather(
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
    """Copies each sequence's blocks together and multiplies."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    write(key_cache, key, slots)
    write(value_cache, value, slots)
    k_NPX, v_NPX = by_head(key_cache), by_head(value_cache)
    memo = {} if memo is None else memo
    plan = memo.get(("gather", window))
    if plan is None:
        plan = lay_out(table, numbers(starts), numbers(lengths), key_cache, query, window)
        memo["gather", window] = plan
    output = query.new_empty(*query.shape[:2], value.shape[-1])
    for prompt in plan.prompts:
        output[prompt.rows] = attend_prompt(
            prompt, query, key, value, k_NPX, v_NPX, scale, softcap, sinks
        )
    for group in plan.groups:
        output[group.rows] = attend_group(group, query, k_NPX, v_NPX, scale, softcap, sinks)
    return output, key_cache, value_cache


def by_head(cache: Tensor) -> Tensor:
    """[N, P, B · D]; without a copy when the cache lies so in memory."""
    return cache.permute(2, 0, 1, 3).flatten(2)


def write(cache: Tensor, new: Tensor, slots: Tensor) -> None:
    """Put the new tokens into their places."""
    if cache.stride(0) == cache.shape[1] * cache.stride(1):
        tokens = (
            cache.permute(2, 0, 1, 3).flatten(1, 2)
            if cache.stride(2) > cache.stride(0)
            else (cache.flatten(0, 1).transpose(0, 1))
        )
        tokens.index_copy_(1, slots, new.transpose(0, 1))
        return
    size = cache.shape[1]
    cache[slots // size, slots % size] = new


def lay_out(
    table: Tensor, starts: Any, lengths: Any, cache: Tensor, query: Tensor, window: int | None
) -> SequenceLayout:
    """Which sequences go together, with their masks."""
    size = cache.shape[1]
    prompts, singles = [], []
    for i, length in enumerate(lengths):
        new = starts[i + 1] - starts[i]
        if new == 1:
            singles.append((i, length))
        elif new > 1:
            prompts.append(prompt(i, new, length, starts[i], table, size, window))
    groups = []
    for run in runs(singles, starts, size):
        groups.append(group(run, starts, table, size, query, window))
    return SequenceLayout(tuple(prompts), tuple(groups))


def prompt(
    i: int, new: int, length: int, start: int, table: Tensor, size: int, window: int | None
) -> Prompt:
    """Sequence i, which has several new tokens."""
    narrow = window is not None and window < length
    seen = visible(new, length, window, table.device) if narrow or new < length else None
    blocks = None if new == length else table[i, : -(-length // size)]
    return Prompt(slice(start, start + new), blocks, seen, length)


def runs(singles: list[tuple[int, int]], starts: Any, size: int) -> list[list[tuple[int, int]]]:
    """Neighbours in the batch that are padded to one length without too much waste."""
    found: list[list[tuple[int, int]]] = []
    real = 0
    for i, length in singles:
        padded = -(-length // size) * size
        if found:
            last = found[-1]
            longest = max(padded, max(-(-one // size) * size for _, one in last))
            adjacent = starts[i] == starts[last[-1][0]] + 1
            if adjacent and longest * (len(last) + 1) - real - padded <= SPLIT:
                last.append((i, length))
                real += padded
                continue
        found.append([(i, length)])
        real = padded
    return found


def group(
    run: list[tuple[int, int]],
    starts: Any,
    table: Tensor,
    size: int,
    query: Tensor,
    window: int | None,
) -> SequenceGroup:
    """The blocks and the mask of sequences that go together."""
    first = run[0][0]
    rows = slice(starts[first], starts[first] + len(run))
    length = max(one for _, one in run)
    width = -(-length // size)
    if len(run) == 1:
        skip = 0 if window is None else max(0, length - window)
        mask = None
        if skip:
            mask = query.new_zeros(1, 1, 1, length)
            mask[..., :skip] = float("-inf")
        return SequenceGroup(rows, table[first, :width], mask, 1, length)
    picked = table[[i for i, _ in run], :width]
    ends = torch.tensor([one for _, one in run], device=table.device)[:, None]
    places = torch.arange(width * size, device=table.device)[None]
    seen = places < ends
    if window is not None:
        seen &= places >= ends - window
    mask = query.new_zeros(seen.shape).masked_fill_(~seen, float("-inf"))
    return SequenceGroup(rows, picked.reshape(-1), mask[None, :, None], len(run), width * size)


def attend_prompt(
    prompt: Prompt,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    k_NPX: Tensor,
    v_NPX: Tensor,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """One sequence with several new tokens: [new, H, E]."""
    q = query[prompt.rows]
    if prompt.blocks is None:
        k_NLD, v_NLE = key[prompt.rows].transpose(0, 1), value[prompt.rows].transpose(0, 1)
    else:
        heads, length = k_NPX.shape[0], prompt.length
        k_NLD = k_NPX.index_select(1, prompt.blocks).view(heads, -1, query.shape[-1])[:, :length]
        v_NLE = v_NPX.index_select(1, prompt.blocks).view(heads, -1, value.shape[-1])[:, :length]
    if softcap is not None or sinks is not None:
        seen = prompt.seen
        if seen is None:
            seen = visible(q.shape[0], prompt.length, None, q.device)
        return attend(q, k_NLD.transpose(0, 1), v_NLE.transpose(0, 1), seen, scale, softcap, sinks)
    attended = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k_NLD[None],
        v_NLE[None],
        attn_mask=prompt.seen,
        is_causal=prompt.seen is None,
        scale=scale,
        enable_gqa=q.shape[1] != k_NLD.shape[0],
    )
    return attended[0].transpose(0, 1)


def attend_group(
    group: SequenceGroup,
    query: Tensor,
    k_NPX: Tensor,
    v_NPX: Tensor,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Sequences with one new token each: [B, H, E]; query heads of a key head are rows."""
    q = query[group.rows]
    count, heads, size = q.shape
    kv_heads = k_NPX.shape[0]
    k_NBLD = k_NPX.index_select(1, group.blocks).view(kv_heads, count, -1, size)
    v_NBLE = v_NPX.index_select(1, group.blocks).view(kv_heads, count, k_NBLD.shape[2], -1)
    if count == 1:
        k_NBLD, v_NBLE = k_NBLD[:, :, : group.length], v_NBLE[:, :, : group.length]
    q_NBGD = q.view(count, kv_heads, -1, size).transpose(0, 1)
    if count == 1 and softcap is None and sinks is None:
        attended = F.scaled_dot_product_attention(
            q_NBGD, k_NBLD, v_NBLE, attn_mask=group.mask, scale=scale
        )
        return attended.transpose(0, 1).reshape(count, heads, -1)
    scores = torch.matmul(q_NBGD * scale, k_NBLD.transpose(2, 3))
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if group.mask is not None:
        scores = scores + group.mask
    if sinks is not None:
        column = sinks.to(scores.dtype).view(kv_heads, 1, -1, 1).expand(-1, count, -1, 1)
        scores = torch.cat((scores, column), -1)
    if scores.dtype is torch.float64:
        shares = torch.softmax(scores, -1)
    else:
        shares = torch.softmax(scores, -1, dtype=torch.float32).to(scores.dtype)
    if sinks is not None:
        shares = shares[..., :-1]
    return torch.matmul(shares, v_NBLE).transpose(0, 1).reshape(count, heads, -1)


def varlen(
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
    """torch's variable-length flash attention, which reads the block table itself."""
    from torch.nn.attention.varlen import varlen_attn

    memo = {} if memo is None else memo
    sizes = memo.get("varlen")
    if sizes is None:
        sizes = memo["varlen"] = on_device(table, starts, lengths, key_cache.shape[1])
    bounds, used, pages, longest_query, longest = sizes
    key_cache.flatten(0, 1).index_copy_(0, slots, key)
    value_cache.flatten(0, 1).index_copy_(0, slots, value)
    output = varlen_attn(
        query,
        key_cache,
        value_cache,
        bounds,
        None,
        longest_query,
        longest,
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
        seqused_k=used,
        block_table=pages,
    )
    assert isinstance(output, Tensor)  # a pair only with return_aux
    return output, key_cache, value_cache


def on_device(
    table: Tensor, starts: Numbers, lengths: Numbers, size: int
) -> tuple[Tensor, Tensor, Tensor, int, int]:
    """int32 tensors beside the table, and the longest query and sequence.

    Tensors already there (those of a captured step of single tokens) are taken as they are, with
    the table's width as the longest sequence: reading them would wait for the device.
    """
    if isinstance(lengths, Tensor) and lengths.device == table.device:
        assert isinstance(starts, Tensor)
        return starts, lengths, table.int(), 1, table.shape[1] * size
    bounds, sizes = numbers(starts), numbers(lengths)
    longest_query = max(b - a for a, b in pairwise(bounds))
    return (
        torch.tensor(bounds, dtype=torch.int32, device=table.device),
        torch.tensor(sizes, dtype=torch.int32, device=table.device),
        table.int(),
        longest_query,
        max(sizes),
    )
