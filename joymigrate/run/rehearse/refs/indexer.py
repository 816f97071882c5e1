"""Which keys a query attends to: the lightning indexer of sparse attention."""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
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
def npu_lightning_indexer(given: ReferenceArguments) -> tuple[Tensor, Tensor]:
    """Positions (int32, -1 where there are none left) and, where asked for, values of the keys with
    the highest `sum over heads of weight * relu(query . key)`, per query [.., N2, sparse_count].

    Positions come in falling order of their values; a chip promises no order.
    """
    lengths_q = (
        None if given.actual_seq_lengths_query is None else given.actual_seq_lengths_query.tolist()
    )
    lengths_k = (
        None if given.actual_seq_lengths_key is None else given.actual_seq_lengths_key.tolist()
    )
    queries = rows(given.query, given.layout_query, lengths_q)
    strengths = rows(given.weights, given.layout_query, lengths_q)
    if given.layout_key == "PA_BSND":
        assert given.block_table is not None
        keys = read_pages(given.key, given.block_table, lengths_k or [])
    else:
        keys = rows(given.key, given.layout_key, lengths_k)
    shape = (*given.query.shape[:-2], given.key.shape[-2], given.sparse_count)
    positions = torch.full(shape, -1, dtype=torch.int32)
    values = torch.zeros(shape, dtype=given.query.dtype)
    start = 0
    for number, (q, k, w) in enumerate(zip(queries, keys, strengths, strict=True)):
        best, scores = best_keys(q, k, w, given.sparse_count, causal=given.sparse_mode == CAUSAL)
        count = best.shape[-1]
        if given.layout_query == "TND":
            place = (slice(start, start + len(q)), slice(None), slice(count))
            start += len(q)
            positions[place], values[place] = best, scores
        else:
            positions[number, : len(q), :, :count] = best
            values[number, : len(q), :, :count] = scores
    return positions, values if given.return_value else values.new_empty(0)


@reference(
    "npu_quant_lightning_indexer",
    source="op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-npu_quant_lightning_indexer.md",
)
def npu_quant_lightning_indexer(given: ReferenceArguments) -> Tensor:
    """As npu_lightning_indexer, of quantised queries and keys with a scale per token and head.

    The scales are not negative, so they may be applied before the relu.
    """
    for tensor, code in ((given.query, given.query_dtype), (given.key, given.key_dtype)):
        if code is not None or tensor.dtype not in (torch.int8, torch.float8_e4m3fn):
            raise Unsimulated("npu_quant_lightning_indexer", f"{tensor.dtype} as {code}")
    return npu_lightning_indexer(
        given.query.float() * given.query_dequant_scale.float().unsqueeze(-1),
        given.key.float() * given.key_dequant_scale.float().unsqueeze(-1),
        given.weights.float(),
        actual_seq_lengths_query=given.actual_seq_lengths_query,
        actual_seq_lengths_key=given.actual_seq_lengths_key,
        block_table=given.block_table,
        layout_query=given.layout_query,
        layout_key=given.layout_key,
        sparse_count=given.sparse_count,
        sparse_mode=given.sparse_mode,
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
