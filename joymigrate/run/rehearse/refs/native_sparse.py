"""Native sparse attention: compressed keys, the blocks they choose, and attention over those.

Paper: arXiv 2502.11089. Packed sequences [T, N, D] with the ends of the sequences. Ties among
equal scores go to the lower block, as in a stable sort; a chip promises no order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated
from joymigrate.run.rehearse.refs.gradients import gradients_of, working
from joymigrate.run.rehearse.refs.indexer import read_pages
from joymigrate.run.rehearse.refs.sparse_attention import AttendedBlocks, attend

DOCS = "ops-transformer attention/{}/docs; op-plugin test_npu_{}.py"
STATISTICS = 8  # each maximum and sum is written eight times
FORCED = 23333.0  # the score of a block that has to be chosen
Maybe = Tensor | None
Lengths = Sequence[int] | None


def parts(ends: Lengths, total: int) -> list[slice]:
    """The places of the packed sequences."""
    stops = [int(end) for end in ends or [total]]
    return [slice(a, b) for a, b in zip([0, *stops[:-1]], stops, strict=True)]


def windows(keys: Tensor, weight: Tensor, size: int, stride: int) -> Tensor:
    """[S, N, D] → the weighted sums of windows of `size`, [(S - size) // stride + 1, N, D]."""
    if len(keys) < size:
        return keys.new_zeros((0, *keys.shape[1:]))
    return torch.einsum("cndw,wn->cnd", keys.unfold(0, size, stride), weight)


def compress(x: Tensor, weight: Tensor, size: int, stride: int, ends: Lengths) -> Tensor:
    each = [windows(x[where], weight, size, stride) for where in parts(ends, len(x))]
    return torch.cat(each)


@reference("npu_nsa_compress", source=DOCS.format("nsa_compress", "nsa_compress"))
def npu_nsa_compress(
    input: Tensor,
    weight: Tensor,
    compress_block_size: int,
    compress_stride: int,
    actual_seq_len: Lengths,
) -> Tensor:
    """Sequences shorter than a window give nothing."""
    given = working(input), working(weight)
    found = compress(*given, compress_block_size, compress_stride, actual_seq_len)
    return found.to(input.dtype)


@reference("npu_nsa_compress_grad", source="the vjp of npu_nsa_compress")
def npu_nsa_compress_grad(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    compress_block_size: int,
    compress_stride: int,
    actual_seq_len: Lengths,
) -> tuple[Tensor, Tensor]:
    """Gradients of the keys and of the weights of a window."""

    def forward(x: Tensor, w: Tensor) -> Tensor:
        return compress(x, w, compress_block_size, compress_stride, actual_seq_len)

    dx, dw = gradients_of(forward, [input, weight], grad)
    return dx, dw


@reference(
    "npu_nsa_compress_infer.cache",
    source=DOCS.format("nsa_compress_with_cache", "nsa_compress_infer"),
)
def npu_nsa_compress_infer(
    input: Tensor,
    weight: Tensor,
    slot_mapping: Tensor,
    compress_block_size: int,
    compress_stride: int,
    block_table: Maybe,
    actual_seq_len: Lengths,
    cache: Tensor,
) -> Tensor:
    """The window that each sequence has just completed, into its slot of the cache."""
    if block_table is None:
        raise Unsimulated("npu_nsa_compress_infer", "keys without a block table")
    for batch, length in enumerate(actual_seq_len or []):
        over = int(length) - compress_block_size
        if over < 0 or over % compress_stride:
            continue
        keys = read_pages(input, block_table[batch : batch + 1], [int(length)])[0][over:]
        window = torch.einsum("wnd,wn->nd", working(keys), working(weight))
        cache[int(slot_mapping[batch])] = window.to(cache.dtype)
    return cache


@dataclass(frozen=True, slots=True)
class CompressedBlocks:
    """How compressed keys and chosen blocks lie over each other, in tokens."""

    window: int
    stride: int
    block: int

    def importance(self, share: Tensor, count: int) -> Tensor:
        """Shares of compressed keys [.., S2] → of blocks [.., count]; overlaps count twice."""
        each, over = self.block // self.stride, self.window // self.stride
        found = share.new_zeros((*share.shape[:-1], count))
        for block in range(count):
            for m in range(each):
                for n in range(over):
                    at = each * (block + 1) - m - n
                    if 0 <= at < share.shape[-1]:
                        found[..., block] += share[..., at]
        return found


def dense(
    q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Maybe
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output [S1, N1, D], shares [N2, G, S1, S2], maxima and sums [S1, N1]; `mask` hides."""
    heads = k.shape[1]
    grouped = working(q).unflatten(1, (heads, -1))  # type: ignore[no-untyped-call]
    score = torch.einsum("sngd,tnd->ngst", grouped, working(k)) * scale
    if mask is not None:
        score = score + mask.bool() * -40000.0  # added, so that a row with nothing left is even
    top = score.amax(-1)
    weight = (score - top.unsqueeze(-1)).exp()
    total = weight.sum(-1)
    share = weight / total.unsqueeze(-1)
    out = torch.einsum("ngst,tnd->sngd", share, working(v)).flatten(1, 2)
    order = (2, 0, 1)
    return out, share, top.permute(order).flatten(1), total.permute(order).flatten(1)


@reference(
    "npu_nsa_compress_attention",
    source=DOCS.format("nsa_compress_attention", "nsa_compress_attention"),
)
def npu_nsa_compress_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale_value: float,
    compress_block_size: int,
    compress_stride: int,
    select_block_size: int,
    select_block_count: int,
    topk_mask: Maybe,
    atten_mask: Maybe,
    actual_seq_qlen: Lengths,
    actual_cmp_seq_kvlen: Lengths,
    actual_sel_seq_kvlen: Lengths,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attention over compressed keys, and the blocks [T, N2, count] with the largest shares.

    Blocks that `topk_mask` names are always chosen. Also row maxima and sums [T, N1, 8].
    """
    how = CompressedBlocks(compress_block_size, compress_stride, select_block_size)
    queries, keys = parts(actual_seq_qlen, len(query)), parts(actual_cmp_seq_kvlen, len(key))
    selected = parts(actual_sel_seq_kvlen, 0)
    outs, chosen, tops, totals = [], [], [], []
    for at, of, blocks in zip(queries, keys, selected, strict=True):
        q, k, v = query[at], key[of], value[of]
        count = blocks.stop - blocks.start
        mask = None if atten_mask is None else atten_mask[: len(q), : len(k)]
        out, share, top, total = dense(q, k, v, scale_value, mask)
        score = how.importance(share, count).sum(1).transpose(0, 1)  # [S1, N2, count]
        if topk_mask is not None:
            forced = topk_mask[: len(q), :count].bool().unsqueeze(1)
            score = score.masked_fill(forced, FORCED)
        order = score.sort(dim=-1, descending=True, stable=True).indices[..., :select_block_count]
        chosen.append(pad_choice(order, select_block_count))
        outs.append(out)
        tops.append(top)
        totals.append(total)
    return (
        torch.cat(outs).to(query.dtype),
        torch.cat(chosen).to(torch.int32),
        eightfold(torch.cat(tops)),
        eightfold(torch.cat(totals)),
    )


def pad_choice(order: Tensor, count: int) -> Tensor:
    """-1 where there were fewer blocks than asked for."""
    missing = order.new_full((*order.shape[:-1], count - order.shape[-1]), -1)
    return torch.cat((order, missing), -1)


def eightfold(values: Tensor) -> Tensor:
    return values.float().unsqueeze(-1).expand(*values.shape, STATISTICS).contiguous()


@reference(
    "npu_nsa_compress_attention_infer",
    source=DOCS.format("nsa_compress_attention_infer", "nsa_compress_attention_infer"),
)
def npu_nsa_compress_attention_infer(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale_value: float,
    key_value_head_num: int,
    select_block_size: int,
    select_block_count: int,
    compress_block_size: int,
    compress_stride: int,
    layout: str,
    atten_mask: Maybe,
    block_table: Maybe,
    topk_mask: Maybe,
    actual_seq_qlen: Lengths,
    actual_cmp_seq_kvlen: Lengths,
) -> tuple[Tensor, Tensor]:
    """Of paged compressed keys; the first and the last two blocks are always chosen, and lead.

    query [T, N, D] or [B, S, N, D]; key and value [blocks, page, N2 * D].
    """
    if atten_mask is not None or topk_mask is not None or block_table is None:
        raise Unsimulated("npu_nsa_compress_attention_infer", "masks, or keys without a table")
    how = CompressedBlocks(compress_block_size, compress_stride, select_block_size)
    packed = query if layout == "TND" else query.flatten(0, 1)
    lengths = [int(one) for one in actual_cmp_seq_kvlen or []]
    each = len(packed) // len(lengths)
    ends = actual_seq_qlen or [each * (k + 1) for k in range(len(lengths))]
    keys, values = (of_heads(one, block_table, lengths, key_value_head_num) for one in (key, value))
    outs, chosen = [], []
    for at, k, v in zip(parts(ends, len(packed)), keys, values, strict=True):
        out, share, _, _ = dense(packed[at], k, v, scale_value, None)
        count = -(-((len(k) - 1) * compress_stride + compress_block_size) // select_block_size)
        score = how.importance(share, count).sum(1).transpose(0, 1)
        fixed = sorted({0, max(count - 2, 0), count - 1})
        score[..., fixed] = float("-inf")
        rest = score.sort(dim=-1, descending=True, stable=True).indices[..., : count - len(fixed)]
        first = torch.tensor(fixed).expand(*rest.shape[:-1], len(fixed))
        order = torch.cat((first, rest), -1)[..., :select_block_count]
        chosen.append(pad_choice(order, select_block_count))
        outs.append(out)
    shape = query.shape[:-2]
    out, order = torch.cat(outs).to(query.dtype), torch.cat(chosen).to(torch.int32)
    return out.reshape(*shape, *out.shape[1:]), order.reshape(*shape, *order.shape[1:])


def of_heads(pages: Tensor, table: Tensor, lengths: list[int], heads: int) -> list[Tensor]:
    """Pages [blocks, size, N * D] or [blocks, size, N, D] as keys [S, N, D] of each sequence."""
    apart = pages if pages.ndim == 4 else pages.unflatten(-1, (heads, -1))  # type: ignore[no-untyped-call]
    return read_pages(apart, table, lengths)


def attend_selected(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    indices: Tensor,
    how: AttendedBlocks,
    ends: tuple[Lengths, Lengths],
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention over the chosen blocks of each packed sequence: output, maxima and sums [T, N1]."""
    found = []
    for at, of in zip(parts(ends[0], len(q)), parts(ends[1], len(k)), strict=True):
        if how.causal and at.stop - at.start != of.stop - of.start:
            raise Unsimulated("npu_nsa_select_attention", "a mask over other lengths than its own")
        found.append(attend(q[at], k[of], v[of], indices[at], how))
    out = torch.cat([one[0] for one in found])
    order = (1, 0, 2)  # [N2, S, G] → [S, N2, G]
    top = torch.cat([one[1].permute(order).flatten(1) for one in found])
    total = torch.cat([one[2].permute(order).flatten(1) for one in found])
    return out, top, total


@reference(
    "npu_nsa_select_attention",
    source=DOCS.format("nsa_selected_attention", "nsa_select_attention"),
)
def npu_nsa_select_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    topk_indices: Tensor,
    scale_value: float,
    select_block_size: int,
    atten_mask: Maybe,
    actual_seq_qlen: Lengths,
    actual_seq_kvlen: Lengths,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention over blocks [T, N2, count] of each query; a mask means below the diagonal."""
    how = AttendedBlocks(scale_value, select_block_size, atten_mask is not None)
    ends = (actual_seq_qlen, actual_seq_kvlen)
    out, top, total = attend_selected(query, key, value, topk_indices, how, ends)
    return out.to(query.dtype), eightfold(top), eightfold(total)


@reference("npu_nsa_select_attention_grad", source="the vjp of npu_nsa_select_attention")
def npu_nsa_select_attention_grad(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    topk_indices: Tensor,
    scale_value: float,
    select_block_size: int,
    atten_mask: Maybe,
    actual_seq_qlen: Lengths,
    actual_seq_kvlen: Lengths,
) -> tuple[Tensor, Tensor, Tensor]:
    how = AttendedBlocks(scale_value, select_block_size, atten_mask is not None)
    ends = (actual_seq_qlen, actual_seq_kvlen)

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend_selected(q, k, v, topk_indices, how, ends)[0]

    dq, dk, dv = gradients_of(forward, [query, key, value], grad)
    return dq, dk, dv


@reference(
    "npu_nsa_select_attention_infer",
    source=DOCS.format("nsa_selected_attention_infer", "nsa_select_attention_infer"),
)
def npu_nsa_select_attention_infer(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    topk_indices: Tensor,
    scale_value: float,
    head_num: int,
    key_value_head_num: int,
    select_block_size: int,
    layout: str,
    block_table: Maybe,
    actual_seq_qlen: Lengths,
    actual_seq_kvlen: Lengths,
) -> Tensor:
    """Of paged keys; -1 ends a query's blocks. query [B, S, N, D], [B, S, N * D] or [T, N, D]."""
    if block_table is None:
        raise Unsimulated("npu_nsa_select_attention_infer", "keys without a table")
    lengths = [int(one) for one in actual_seq_kvlen or []]
    rows = query.unflatten(-1, (head_num, -1)) if layout == "BSH" else query  # type: ignore[no-untyped-call]
    rows = rows if layout == "TND" else rows.flatten(0, 1)
    blocks = topk_indices.reshape(len(rows), key_value_head_num, -1)
    ends = list(actual_seq_qlen) if layout == "TND" and actual_seq_qlen else None
    each = len(rows) // len(lengths)
    ends = ends or [each * (k + 1) for k in range(len(lengths))]
    keys, values = (of_heads(one, block_table, lengths, key_value_head_num) for one in (key, value))
    how = AttendedBlocks(scale_value, select_block_size, False)
    outs = [
        attend(rows[at], k, v, blocks[at], how)[0]
        for at, k, v in zip(parts(ends, len(rows)), keys, values, strict=True)
    ]
    out = torch.cat(outs).to(query.dtype)
    if layout == "BSH":
        return out.reshape(*query.shape[:2], -1)
    return out.reshape(*query.shape[:-1], -1)
