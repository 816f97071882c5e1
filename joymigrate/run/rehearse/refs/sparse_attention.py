"""Attention over the keys that an indexer chose: one sequence at a time, in working precision."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated
from joymigrate.run.rehearse.refs.gradients import vjp, working
from joymigrate.run.rehearse.refs.indexer import CAUSAL, read_pages, rows

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md"
Maybe = Tensor | None


@dataclass(frozen=True, slots=True)
class AttendedBlocks:
    """What is attended to: `block` keys for each index, below the diagonal or not."""

    scale: float
    block: int
    causal: bool


def positions(indices: Tensor, block: int, keys: int) -> Tensor:
    """Indices of blocks [S1, n] (-1 for none) → which of `keys` each query sees, [S1, keys]."""
    at = indices.long().unsqueeze(-1) * block + torch.arange(block)
    at = torch.where((indices.unsqueeze(-1) >= 0) & (at < keys), at, keys).flatten(1)
    seen = torch.zeros(len(indices), keys + 1, dtype=torch.bool).scatter(1, at, True)
    return seen[:, :keys]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    indices: Tensor,
    how: AttendedBlocks,
    sinks: Maybe = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """[S1, N1, D] over [S2, N2, D] and [S2, N2, Dv]: output, row maxima and sums [N2, S1, N1/N2].

    `indices` [S1, N2, n]. A query that sees no key gets zeros.
    """
    heads = key.shape[1]
    grouped = working(query).unflatten(1, (heads, -1))  # type: ignore[no-untyped-call]
    score = torch.einsum("sngd,tnd->nsgt", grouped, working(key)) * how.scale
    seen = torch.stack([positions(indices[:, n], how.block, len(key)) for n in range(heads)])
    if how.causal:
        last = torch.arange(len(query)) + len(key) - len(query)
        seen = seen & (torch.arange(len(key)) <= last[:, None])
    score = score.masked_fill(~seen.unsqueeze(2), float("-inf"))
    top = score.amax(-1) if len(key) else score.new_full(score.shape[:-1], float("-inf"))
    if sinks is not None:
        sink = working(sinks).reshape(heads, 1, -1)
        top = torch.maximum(top, sink)
    safe = top.masked_fill(top == float("-inf"), 0.0)
    weight = (score - safe.unsqueeze(-1)).exp()
    total = weight.sum(-1)
    whole = total if sinks is None else total + (sink - safe).exp()
    share = weight / whole.clamp(min=torch.finfo(weight.dtype).tiny).unsqueeze(-1)
    out = torch.einsum("nsgt,tnd->sngd", share, working(value)).flatten(1, 2)
    return out, safe, total


def sequences(tensor: Tensor, layout: str, lengths: list[int] | None, table: Maybe) -> list[Tensor]:
    """Keys or queries as one tensor a sequence."""
    if layout == "PA_BSND":
        assert table is not None
        return read_pages(tensor, table, lengths or [])
    if layout not in ("BSND", "TND"):
        raise Unsimulated("npu_sparse_flash_attention", f"layout {layout}")
    return rows(tensor, layout, lengths)


def numbers(lengths: Maybe) -> list[int] | None:
    return None if lengths is None else [int(one) for one in lengths]


def join_sequences(parts: list[Tensor], like: Tensor, layout: str, axis: int) -> Tensor:
    """Results of the sequences where their queries lie; places without a query are zero."""
    if layout == "TND":
        whole = torch.cat(parts, axis)
        missing = like.shape[0] - whole.shape[axis]
        if missing:
            shape = [*whole.shape]
            shape[axis] = missing
            whole = torch.cat((whole, whole.new_zeros(shape)), axis)
        return whole
    padded = []
    for part in parts:
        shape = [*part.shape]
        shape[axis] = like.shape[1] - part.shape[axis]
        padded.append(torch.cat((part, part.new_zeros(shape)), axis))
    return torch.stack(padded)


def sparse(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    indices: Tensor,
    how: AttendedBlocks,
    *,
    lengths: tuple[Maybe, Maybe],
    layouts: tuple[str, str],
    table: Maybe = None,
    sinks: Maybe = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`attend` for every sequence: output like the query, maxima and sums [(B,) N2, S1, N1/N2]."""
    own, theirs = numbers(lengths[0]), numbers(lengths[1])
    queries = sequences(query, layouts[0], own, None)
    chosen = sequences(indices, layouts[0], own, None)
    keys = sequences(key, layouts[1], theirs, table)
    values = sequences(value, layouts[1], theirs, table)
    found = [
        attend(q, k, v, at, how, sinks)
        for q, k, v, at in zip(queries, keys, values, chosen, strict=True)
    ]
    out = join_sequences([one[0] for one in found], query, layouts[0], 0)
    top = join_sequences([one[1] for one in found], query, layouts[0], 1)
    total = join_sequences([one[2] for one in found], query, layouts[0], 1)
    return out, top, total


@reference("npu_sparse_flash_attention", source=DOCS.format("npu_sparse_flash_attention"))
def npu_sparse_flash_attention(given: ReferenceArguments) -> tuple[Tensor, Tensor, Tensor]:
    """softmax(q·kᵀ·scale)·v over the chosen keys; query and key take their rope parts at the end.

    Row maxima and sums where asked for, else empty.
    """
    whole_q = (
        given.query if given.query_rope is None else torch.cat((given.query, given.query_rope), -1)
    )
    whole_k = given.key if given.key_rope is None else torch.cat((given.key, given.key_rope), -1)
    out, top, total = sparse(
        whole_q,
        whole_k,
        given.key if given.value is None else given.value,
        given.sparse_indices,
        AttendedBlocks(given.scale_value, given.sparse_block_size, given.sparse_mode == CAUSAL),
        lengths=(given.actual_seq_lengths_query, given.actual_seq_lengths_kv),
        layouts=(given.layout_query, given.layout_kv),
        table=given.block_table,
        sinks=given.sinks,
    )
    nothing = torch.empty(0, dtype=torch.float32)
    if not given.return_softmax_lse:
        return out.to(given.query.dtype), nothing, nothing
    return out.to(given.query.dtype), top.float(), total.float()


@reference("npu_sparse_flash_attention_grad", source="the vjp of npu_sparse_flash_attention")
def npu_sparse_flash_attention_grad(
    given: ReferenceArguments,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """dquery, dkey, dvalue, dquery_rope, dkey_rope; empty for what was not given."""

    def forward(q: Tensor, k: Tensor, v: Maybe, q_rope: Maybe, k_rope: Maybe) -> Tensor:
        where = given.layout or "BSND"
        return npu_sparse_flash_attention(
            q,
            k,
            v,
            given.sparse_indices,
            given.scale_value,
            actual_seq_lengths_query=given.actual_seq_qlen,
            actual_seq_lengths_kv=given.actual_seq_kvlen,
            query_rope=q_rope,
            key_rope=k_rope,
            sparse_block_size=given.sparse_block_size,
            layout_query=where,
            layout_kv=where,
            sparse_mode=CAUSAL if given.sparse_mode is None else given.sparse_mode,
        )[0]

    found = vjp(
        forward,
        (given.query, given.key, given.value, given.query_rope, given.key_rope),
        given.d_out,
    )
    empty = given.query.new_empty(0)
    return tuple(empty if one is None else one for one in found)  # type: ignore[return-value]


def unpacked_cache(key: Tensor, rope: int, tile: int, like: torch.dtype) -> Tensor:
    """A row of bytes [.., D + 2·rope + 4·D/tile] (values of a byte, the rope part in `like`, a
    float32 scale for each tile) as numbers [.., D + rope]."""
    data = key.contiguous().view(torch.uint8)
    width = (data.shape[-1] - 2 * rope) * tile // (tile + 4)
    values = data[..., :width].contiguous().view(key.dtype).float()
    turned = data[..., width : width + 2 * rope].contiguous().view(like).float()
    scale = data[..., width + 2 * rope :].contiguous().view(torch.float32)
    return torch.cat((values * scale.repeat_interleave(tile, -1)[..., :width], turned), -1)


@reference(
    "npu_kv_quant_sparse_flash_attention", source=DOCS.format("npu_kv_quant_sparse_flash_attention")
)
def npu_kv_quant_sparse_flash_attention(given: ReferenceArguments) -> Tensor:
    """The same over a cache that holds quantised values, rope part and scales in one row of bytes.

    The value is the key without its rope part: both lie in the same cache.
    """
    if given.key_dtype is not None or given.key.dtype not in (torch.int8, torch.float8_e4m3fn):
        raise Unsimulated("npu_kv_quant_sparse_flash_attention", f"keys of {given.key.dtype}")
    keys = unpacked_cache(given.key, given.rope_head_dim, given.tile_size, given.query.dtype)
    values = unpacked_cache(given.value, given.rope_head_dim, given.tile_size, given.query.dtype)
    out, _, _ = sparse(
        given.query,
        keys,
        values[..., : values.shape[-1] - given.rope_head_dim],
        given.sparse_indices,
        AttendedBlocks(given.scale_value, given.sparse_block_size, given.sparse_mode == CAUSAL),
        lengths=(given.actual_seq_lengths_query, given.actual_seq_lengths_kv),
        layouts=(given.layout_query, given.layout_kv),
        table=given.block_table,
    )
    return out.to(given.query.dtype)
