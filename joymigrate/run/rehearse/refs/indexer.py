"""Which keys a query attends to: the lightning indexer of sparse attention."""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated
from joymigrate.run.rehearse.refs.gradients import working

Maybe = Tensor | None
EVERYTHING = 9223372036854775807
CAUSAL = 3  # sparse_mode: a triangle that ends at the last query and the last key


def rows(tensor: Tensor, layout: str, lengths: list[int] | None) -> list[Tensor]:
    """[B, S, ...] or, packed, [T, ...] with the ends of its sequences, as one tensor a sequence."""
    if layout == "TND":
        ends = lengths or [tensor.shape[0]]
        starts = [0, *ends[:-1]]
        return [tensor[start:end] for start, end in zip(starts, ends, strict=True)]
    lengths = lengths or [tensor.shape[1]] * tensor.shape[0]
    return [one[:length] for one, length in zip(tensor, lengths, strict=True)]


def read_pages(key: Tensor, table: Tensor, lengths: list[int]) -> list[Tensor]:
    """The keys [S2, N2, D] of each sequence from their blocks [blocks, block size, N2, D]."""
    size = key.shape[1]
    found = []
    for blocks, length in zip(table.tolist(), lengths, strict=True):
        used = blocks[: -(-length // size)]
        found.append(key[used].flatten(0, 1)[:length])
    return found


@reference(
    "npu_lightning_indexer", source="torch_npu _op_plugin_docs.py; op-plugin npu_lightning_indexer"
)
def npu_lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    actual_seq_lengths_query: Maybe,
    actual_seq_lengths_key: Maybe,
    block_table: Maybe,
    layout_query: str,
    layout_key: str,
    sparse_count: int,
    sparse_mode: int,
    return_value: bool,
) -> tuple[Tensor, Tensor]:
    """Positions (int32, -1 where there are none left) and, where asked for, values of the keys with
    the highest `sum over heads of weight * relu(query . key)`, per query [.., N2, sparse_count].

    Positions come in falling order of their values; a chip promises no order.
    """
    lengths_q = None if actual_seq_lengths_query is None else actual_seq_lengths_query.tolist()
    lengths_k = None if actual_seq_lengths_key is None else actual_seq_lengths_key.tolist()
    queries = rows(query, layout_query, lengths_q)
    strengths = rows(weights, layout_query, lengths_q)
    if layout_key == "PA_BSND":
        assert block_table is not None
        keys = read_pages(key, block_table, lengths_k or [])
    else:
        keys = rows(key, layout_key, lengths_k)
    shape = (*query.shape[:-2], key.shape[-2], sparse_count)
    positions = torch.full(shape, -1, dtype=torch.int32)
    values = torch.zeros(shape, dtype=query.dtype)
    start = 0
    for number, (q, k, w) in enumerate(zip(queries, keys, strengths, strict=True)):
        best, scores = best_keys(q, k, w, sparse_count, causal=sparse_mode == CAUSAL)
        count = best.shape[-1]
        if layout_query == "TND":
            place = (slice(start, start + len(q)), slice(None), slice(count))
            start += len(q)
            positions[place], values[place] = best, scores
        else:
            positions[number, : len(q), :, :count] = best
            values[number, : len(q), :, :count] = scores
    return positions, values if return_value else values.new_empty(0)


@reference(
    "npu_quant_lightning_indexer",
    source="op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-npu_quant_lightning_indexer.md",
)
def npu_quant_lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    query_dequant_scale: Tensor,
    key_dequant_scale: Tensor,
    actual_seq_lengths_query: Maybe,
    actual_seq_lengths_key: Maybe,
    block_table: Maybe,
    layout_query: str,
    layout_key: str,
    sparse_count: int,
    sparse_mode: int,
    query_dtype: int | None,
    key_dtype: int | None,
) -> Tensor:
    """As npu_lightning_indexer, of quantised queries and keys with a scale per token and head.

    The scales are not negative, so they may be applied before the relu.
    """
    for tensor, code in ((query, query_dtype), (key, key_dtype)):
        if code is not None or tensor.dtype not in (torch.int8, torch.float8_e4m3fn):
            raise Unsimulated("npu_quant_lightning_indexer", f"{tensor.dtype} as {code}")
    return npu_lightning_indexer(
        query.float() * query_dequant_scale.float().unsqueeze(-1),
        key.float() * key_dequant_scale.float().unsqueeze(-1),
        weights.float(),
        actual_seq_lengths_query=actual_seq_lengths_query,
        actual_seq_lengths_key=actual_seq_lengths_key,
        block_table=block_table,
        layout_query=layout_query,
        layout_key=layout_key,
        sparse_count=sparse_count,
        sparse_mode=sparse_mode,
    )[0]


def best_keys(
    query: Tensor, key: Tensor, weights: Tensor, count: int, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """Positions and values [S1, N2, at most `count`] of one sequence; -1 behind the last key."""
    heads = key.shape[1]
    grouped = working(query).unflatten(1, (heads, -1))  # type: ignore[no-untyped-call]
    score = torch.einsum("sngd,tnd->sngt", grouped, working(key)).relu()
    strength = working(weights).unflatten(1, (heads, -1))  # type: ignore[no-untyped-call]
    score = (score * strength[..., None]).sum(2)
    if causal:
        last = torch.arange(len(query)) + len(key) - len(query)
        hidden = torch.arange(len(key))[None, :] > last[:, None]
        score = score.masked_fill(hidden[:, None, :], float("-inf"))
    value, position = score.topk(min(count, len(key)), dim=-1)
    nothing = value == float("-inf")
    return position.masked_fill(nothing, -1).to(torch.int32), value.masked_fill(nothing, 0)
