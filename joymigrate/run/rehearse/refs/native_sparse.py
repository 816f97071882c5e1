"""Native sparse attention: compressed keys, the blocks they choose, and attention over those.

Paper: arXiv 2502.11089. Packed sequences [T, N, D] with the ends of the sequences. Ties among
equal scores go to the lower block, as in a stable sort; a chip promises no order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
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
def npu_nsa_compress_infer(given: ReferenceArguments) -> Tensor:
    """The window that each sequence has just completed, into its slot of the cache."""
    cache: Tensor = given.cache
    if given.block_table is None:
        raise Unsimulated("npu_nsa_compress_infer", "keys without a block table")
    for batch, length in enumerate(given.actual_seq_len or []):
        over = int(length) - given.compress_block_size
        if over < 0 or over % given.compress_stride:
            continue
        keys = read_pages(given.input, given.block_table[batch : batch + 1], [int(length)])[0][
            over:
        ]
        window = torch.einsum("wnd,wn->nd", working(keys), working(given.weight))
        cache[int(given.slot_mapping[batch])] = window.to(cache.dtype)
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
def npu_nsa_compress_attention(given: ReferenceArguments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attention over compressed keys, and the blocks [T, N2, count] with the largest shares.

    Blocks that `topk_mask` names are always chosen. Also row maxima and sums [T, N1, 8].
    """
    how = CompressedBlocks(
        given.compress_block_size, given.compress_stride, given.select_block_size
    )
    queries, keys = (
        parts(given.actual_seq_qlen, len(given.query)),
        parts(given.actual_cmp_seq_kvlen, len(given.key)),
    )
    selected = parts(given.actual_sel_seq_kvlen, 0)
    outs, chosen, tops, totals = [], [], [], []
    for at, of, blocks in zip(queries, keys, selected, strict=True):
        q, k, v = given.query[at], given.key[of], given.value[of]
        count = blocks.stop - blocks.start
        mask = None if given.atten_mask is None else given.atten_mask[: len(q), : len(k)]
        out, share, top, total = dense(q, k, v, given.scale_value, mask)
        score = how.importance(share, count).sum(1).transpose(0, 1)  # [S1, N2, count]
        if given.topk_mask is not None:
            forced = given.topk_mask[: len(q), :count].bool().unsqueeze(1)
            score = score.masked_fill(forced, FORCED)
        order = score.sort(dim=-1, descending=True, stable=True).indices[
            ..., : given.select_block_count
        ]
        chosen.append(pad_choice(order, given.select_block_count))
        outs.append(out)
        tops.append(top)
        totals.append(total)
    return (
        torch.cat(outs).to(given.query.dtype),
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
def npu_nsa_compress_attention_infer(given: ReferenceArguments) -> tuple[Tensor, Tensor]:
    """Of paged compressed keys; the first and the last two blocks are always chosen, and lead.

    query [T, N, D] or [B, S, N, D]; key and value [blocks, page, N2 * D].
    """
    if given.atten_mask is not None or given.topk_mask is not None or given.block_table is None:
        raise Unsimulated("npu_nsa_compress_attention_infer", "masks, or keys without a table")
    how = CompressedBlocks(
        given.compress_block_size, given.compress_stride, given.select_block_size
    )
    packed = given.query if given.layout == "TND" else given.query.flatten(0, 1)
    lengths = [int(one) for one in given.actual_cmp_seq_kvlen or []]
    each = len(packed) // len(lengths)
    ends = given.actual_seq_qlen or [each * (k + 1) for k in range(len(lengths))]
    keys, values = (
        of_heads(one, given.block_table, lengths, given.key_value_head_num)
        for one in (given.key, given.value)
    )
    outs, chosen = [], []
    for at, k, v in zip(parts(ends, len(packed)), keys, values, strict=True):
        out, share, _, _ = dense(packed[at], k, v, given.scale_value, None)
        count = -(
            -((len(k) - 1) * given.compress_stride + given.compress_block_size)
            // given.select_block_size
        )
        score = how.importance(share, count).sum(1).transpose(0, 1)
        fixed = sorted({0, max(count - 2, 0), count - 1})
        score[..., fixed] = float("-inf")
        rest = score.sort(dim=-1, descending=True, stable=True).indices[..., : count - len(fixed)]
        first = torch.tensor(fixed).expand(*rest.shape[:-1], len(fixed))
        order = torch.cat((first, rest), -1)[..., : given.select_block_count]
        chosen.append(pad_choice(order, given.select_block_count))
        outs.append(out)
    shape = given.query.shape[:-2]
    out, order = torch.cat(outs).to(given.query.dtype), torch.cat(chosen).to(torch.int32)
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
def npu_nsa_select_attention(given: ReferenceArguments) -> tuple[Tensor, Tensor, Tensor]:
    """Attention over blocks [T, N2, count] of each query; a mask means below the diagonal."""
    how = AttendedBlocks(given.scale_value, given.select_block_size, given.atten_mask is not None)
    ends = (given.actual_seq_qlen, given.actual_seq_kvlen)
    out, top, total = attend_selected(
        given.query, given.key, given.value, given.topk_indices, how, ends
    )
    return out.to(given.query.dtype), eightfold(top), eightfold(total)


@reference("npu_nsa_select_attention_grad", source="the vjp of npu_nsa_select_attention")
def npu_nsa_select_attention_grad(given: ReferenceArguments) -> tuple[Tensor, Tensor, Tensor]:
    how = AttendedBlocks(given.scale_value, given.select_block_size, given.atten_mask is not None)
    ends = (given.actual_seq_qlen, given.actual_seq_kvlen)

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend_selected(q, k, v, given.topk_indices, how, ends)[0]

    dq, dk, dv = gradients_of(forward, [given.query, given.key, given.value], given.grad)
    return dq, dk, dv


@reference(
    "npu_nsa_select_attention_infer",
    source=DOCS.format("nsa_selected_attention_infer", "nsa_select_attention_infer"),
)
def npu_nsa_select_attention_infer(given: ReferenceArguments) -> Tensor:
    """Of paged keys; -1 ends a query's blocks. query [B, S, N, D], [B, S, N * D] or [T, N, D]."""
    if given.block_table is None:
        raise Unsimulated("npu_nsa_select_attention_infer", "keys without a table")
    lengths = [int(one) for one in given.actual_seq_kvlen or []]
    rows = given.query.unflatten(-1, (given.head_num, -1)) if given.layout == "BSH" else given.query
    rows = rows if given.layout == "TND" else rows.flatten(0, 1)
    blocks = given.topk_indices.reshape(len(rows), given.key_value_head_num, -1)
    ends = list(given.actual_seq_qlen) if given.layout == "TND" and given.actual_seq_qlen else None
    each = len(rows) // len(lengths)
    ends = ends or [each * (k + 1) for k in range(len(lengths))]
    keys, values = (
        of_heads(one, given.block_table, lengths, given.key_value_head_num)
        for one in (given.key, given.value)
    )
    how = AttendedBlocks(given.scale_value, given.select_block_size, False)
    outs = [
        attend(rows[at], k, v, blocks[at], how)[0]
        for at, k, v in zip(parts(ends, len(rows)), keys, values, strict=True)
    ]
    out = torch.cat(outs).to(given.query.dtype)
    if given.layout == "BSH":
        return out.reshape(*given.query.shape[:2], -1)
    return out.reshape(*given.query.shape[:-1], -1)
