"""Inference attention: sequences of a batch cut out of any layout or of a paged cache, and joined.

Every sequence is computed on its own ([N, S, D]), so that lengths, left padding, block tables and
shared prefixes are questions of cutting alone. int8 queries (quantised first matmul) and int4 or
per-block quantised caches have no reference and say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.attention_core import (
    UNLIMITED,
    attend,
    from_bnsd,
    mask_of_mode,
    spans,
    split_last,
    to_bnsd,
)
from joymigrate.run.rehearse.refs.dtypes import Unsimulated, saturate

Maybe = Tensor | None
Lengths = Sequence[int] | Tensor | None
PACKED = ("TND", "NTD")
NZ_LANES = 5  # dimensions of a cache in the fractal form [blocks, N, D/16, size, 16]


@dataclass(frozen=True, slots=True)
class AttentionScalars:
    """The scalars of one inference attention."""

    operator: str
    layout: str  # of the inputs
    output_layout: str
    heads: int
    kv_heads: int
    scale: float
    before: int = UNLIMITED
    after: int = UNLIMITED
    sparse_mode: int = 0
    inner_precise: int = 0
    block_size: int = 0


@dataclass(frozen=True, slots=True)
class CacheSide:
    """Keys or values: the tensor, and how to get real numbers and sequences out of it."""

    tensor: Tensor
    scale: Maybe = None  # antiquantisation: (int8 + offset) * scale
    offset: Maybe = None
    mode: int = 0  # 0 per channel or tensor, 1 per token
    rope: Maybe = None
    prefix: Maybe = None


def call_of(
    operator: str, layout: str, heads: int, kv_heads: int, scale: float, **rest: int
) -> AttentionScalars:
    """A call; "BNSD_BSND" reads BNSD and writes BSND."""
    given, _, wanted = layout.partition("_")
    return AttentionScalars(
        operator, given, wanted or given, heads, kv_heads or heads, scale, **rest
    )


def _lengths(lengths: Lengths, count: int, default: int) -> list[int]:
    """Per-sequence lengths; one value holds for all, None means all of S."""
    if lengths is None or len(lengths) == 0:
        return [default] * count
    values = [int(length) for length in lengths]
    return values * count if len(values) == 1 else values[:count]


def _cut(
    call: AttentionScalars, tensor: Tensor, heads: int, lengths: Lengths, padding: Maybe
) -> list[Tensor]:
    """The sequences of a tensor that is not paged, each [N, S, D]."""
    if call.layout in PACKED:
        if lengths is None:
            raise RuntimeError(f"{call.operator}: layout {call.layout} needs sequence lengths")
        rows = tensor if call.layout == "NTD" else tensor.transpose(0, 1)
        return [rows[:, span] for span in spans([int(end) for end in lengths])]
    rows = to_bnsd(tensor, call.layout, heads)
    size = rows.shape[2]
    behind = 0 if padding is None or lengths is None else max(0, int(padding))
    cut = []
    for sequence, length in zip(rows, _lengths(lengths, len(rows), size), strict=True):
        start = size - behind - length if padding is not None and lengths is not None else 0
        cut.append(sequence[:, max(0, start) : max(0, start) + length])
    return cut


def _blocks(call: AttentionScalars, cache: Tensor) -> Tensor:
    """A paged cache in any of its forms as [blocks, size, N, D]."""
    if cache.dim() == NZ_LANES:
        return cache.permute(0, 3, 1, 2, 4).flatten(3)
    if cache.dim() == 3:
        return split_last(cache, call.kv_heads)
    if cache.shape[1] == call.kv_heads and cache.shape[2] == (call.block_size or cache.shape[2]):
        return cache.transpose(1, 2)
    return cache


def _read_pages(
    call: AttentionScalars, cache: Tensor, table: Tensor, lengths: Lengths
) -> list[Tensor]:
    """The sequences that a block table describes, each [N, S, D]."""
    if lengths is None:
        raise RuntimeError(f"{call.operator}: a block table needs the lengths of the keys")
    blocks = _blocks(call, cache)
    size = blocks.shape[1]
    found = []
    for row, length in zip(table, _lengths(lengths, len(table), 0), strict=True):
        used = row[: (length + size - 1) // size].long()
        found.append(blocks[used].flatten(0, 1)[:length].transpose(0, 1))
    return found


def _real(call: AttentionScalars, side: CacheSide, sequences: list[Tensor]) -> list[Tensor]:
    """int8 sequences as real numbers."""
    if side.tensor.dtype.is_floating_point:
        return sequences
    if side.tensor.dtype != torch.int8 or side.scale is None or side.mode not in (0, 1):
        raise Unsimulated(call.operator, f"keys of {side.tensor.dtype}, mode {side.mode}")
    return [
        (sequence.float() + _spread(side, side.offset, number, sequence, 0.0))
        * _spread(side, side.scale, number, sequence, 1.0)
        for number, sequence in enumerate(sequences)
    ]


def _spread(side: CacheSide, factor: Maybe, number: int, like: Tensor, default: float) -> Tensor:
    """A scale or offset of sequence `number`, broadcastable to its [N, S, D]."""
    if factor is None:
        return torch.tensor(default)
    factor = factor.float()
    if factor.numel() == 1:
        return factor.reshape(())
    if side.mode == 1:
        return factor.reshape(-1, factor.shape[-1])[number, : like.shape[1]].view(1, -1, 1)
    return factor.reshape(like.shape[0], 1, like.shape[2])


def sequences_of(
    call: AttentionScalars,
    side: CacheSide,
    table: Maybe,
    lengths: Lengths,
    padding: Maybe,
    prefix_length: int | None,
) -> list[Tensor]:
    """Keys or values of every sequence, in real numbers, prefix before and rope behind."""

    def cut(tensor: Tensor) -> list[Tensor]:
        if table is not None:
            return _read_pages(call, tensor, table, lengths)
        return _cut(call, tensor, call.kv_heads, lengths, padding)

    found = _real(call, side, cut(side.tensor))
    if side.rope is not None:
        pairs = zip(found, cut(side.rope), strict=True)
        found = [torch.cat((sequence, rope), -1) for sequence, rope in pairs]
    if side.prefix is not None:
        shared = to_bnsd(side.prefix, call.layout, call.kv_heads)[0][:, :prefix_length]
        found = [torch.cat((shared.to(sequence.dtype), sequence), 1) for sequence in found]
    return found


def _row_of(mask: Maybe, number: int, single: bool) -> Maybe:
    """The mask of one sequence as [rows, columns]; `single`: one query row per sequence."""
    if mask is None:
        return None
    if mask.dim() == 2:
        return mask[number if mask.shape[0] > 1 else 0].unsqueeze(0) if single else mask
    own = mask[number if mask.shape[0] > 1 else 0]
    return own.reshape(own.shape[-2], own.shape[-1])


def infer(
    call: AttentionScalars,
    query: Tensor,
    key: CacheSide,
    value: CacheSide,
    *,
    query_rope: Maybe = None,
    mask: Maybe = None,
    pse: Maybe = None,
    sink: Maybe = None,
    lengths: Lengths = None,
    kv_lengths: Lengths = None,
    table: Maybe = None,
    query_padding: Maybe = None,
    kv_padding: Maybe = None,
    prefix_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention in the output layout (float32), and the log-sum-exp of every row.

    Log-sum-exp is [B, N, Sq, 1], or [T, N, 1] for packed layouts; +inf where nothing was computed.
    """
    if not query.dtype.is_floating_point:
        raise Unsimulated(call.operator, f"queries of {query.dtype}")
    queries = _cut(call, query, call.heads, lengths, query_padding)
    if query_rope is not None:
        ropes = _cut(call, query_rope, call.heads, lengths, query_padding)
        queries = [torch.cat(pair, -1) for pair in zip(queries, ropes, strict=True)]
    keys = sequences_of(call, key, table, kv_lengths, kv_padding, prefix_length)
    values = sequences_of(call, value, table, kv_lengths, kv_padding, prefix_length)
    single = call.layout not in PACKED and to_bnsd(query, call.layout, call.heads).shape[2] == 1
    outputs, sums = [], []
    for number, (q, k, v) in enumerate(zip(queries, keys, values, strict=True)):
        plain = single and query_rope is None
        hide = mask_of_mode(
            0 if plain else call.sparse_mode,
            q.shape[1],
            k.shape[1],
            _row_of(mask, number, single),
            before=UNLIMITED if plain else call.before,
            after=UNLIMITED if plain else call.after,
        )
        bias = None if pse is None else pse[number if pse.shape[0] > 1 else 0].unsqueeze(0)
        found = attend(
            q.unsqueeze(0),
            k.unsqueeze(0),
            v.unsqueeze(0),
            call.scale,
            bias=None if bias is None else bias[..., : q.shape[1], : k.shape[1]],
            bias_first=False,
            hide=hide,
            sink=sink,
            empty_rows_zero=call.inner_precise >= 2 or call.sparse_mode not in (0, 1),
        )
        outputs.append(found.output[0])
        sums.append((found.maximum + found.total.log())[0])
    return _join(call, query, outputs, sums, lengths, query_padding)


def _join(
    call: AttentionScalars,
    query: Tensor,
    outputs: list[Tensor],
    sums: list[Tensor],
    lengths: Lengths,
    padding: Maybe,
) -> tuple[Tensor, Tensor]:
    """Put the sequences back where their queries were."""
    size = outputs[0].shape[-1] if outputs else 0
    if call.layout in PACKED:
        tokens = query.shape[1 if call.layout == "NTD" else 0]
        joined = torch.zeros(call.heads, tokens, size)
        lse = torch.full((call.heads, tokens, 1), torch.inf)
        total = sum(output.shape[1] for output in outputs)
        if outputs:
            joined[:, :total] = torch.cat(outputs, 1)
            lse[:, :total] = torch.cat(sums, 1)
        by_token = joined if call.output_layout == "NTD" else joined.transpose(0, 1)
        return by_token.contiguous(), lse.transpose(0, 1).contiguous()
    rows = to_bnsd(query, call.layout, call.heads)
    batch, heads, steps, _ = rows.shape
    joined = torch.zeros(batch, heads, steps, size)
    lse = torch.full((batch, heads, steps, 1), torch.inf)
    for number, (output, own) in enumerate(zip(outputs, sums, strict=True)):
        length = output.shape[1]
        left = padding is not None and lengths is not None
        start = max(0, steps - max(0, int(padding)) - length) if left and padding is not None else 0
        joined[number, :, start : start + length] = output
        lse[number, :, start : start + length] = own
    return from_bnsd(joined, call.output_layout), lse


def quantise_output(output: Tensor, scale: Maybe, offset: Maybe, like: Tensor) -> Tensor:
    """The output in the query's dtype, or int8 when an output scale is given."""
    if scale is None:
        return output.to(like.dtype)
    factor, shift = scale.float(), torch.tensor(0.0) if offset is None else offset.float()
    if factor.numel() > 1 and factor.numel() == output.shape[-1] and output.dim() == 3:
        factor, shift = factor.reshape(-1), shift.reshape(-1)
    return saturate(output * factor + shift, torch.int8)
