"""Matrix products fused with a collective: all_reduce, reduce_scatter, all_gather, all_to_all.

Every rank's part is computed as the plain product would be, and rounded once, at the end.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.between_ranks import RankGroup
from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.dtypes import torch_dtype
from joymigrate.run.rehearse.refs.gradients import working
from joymigrate.run.rehearse.refs.quant_matmul import antiquantise, dequantise, exact_product

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md"
Maybe = Tensor | None


def product(x1: Tensor, x2: Tensor, bias: Maybe, token: Maybe, channel: Maybe) -> Tensor:
    """x1 @ x2 + bias; int8 operands dequantised by their scales."""
    if channel is not None:
        scale = channel if channel.numel() == 1 else channel.reshape(-1)
        return dequantise(
            exact_product(x1, x2), scale, None if token is None else token.reshape(-1), bias, None
        ).float()
    found = working(x1) @ working(x2)
    return found if bias is None else found + working(bias)


def output_of(x: Tensor, scale: Maybe, wanted: torch.dtype | None) -> torch.dtype:
    """The result's dtype: the operands', or what dequantisation gives."""
    if scale is None:
        return x.dtype
    if scale.dtype == torch.int64:
        return torch.float16
    return wanted or torch.bfloat16


@reference(
    "npu_mm_all_reduce_base",
    source=DOCS.format("npu_mm_all_reduce_base"),
    without="comm_quant_mode comm_quant_scale_1 group_sizes x1_dtype",
)
def npu_mm_all_reduce_base(given: ReferenceArguments) -> Tensor:
    """The sum over ranks of x1 @ x2 + bias + x3."""
    operator = "npu_mm_all_reduce_base"
    weight = given.x2
    if given.antiquant_scale is not None:
        weight = antiquantise(
            given.x2, given.antiquant_scale, given.antiquant_offset, given.antiquant_group_size
        )
    rows = given.x1.reshape(-1, given.x1.shape[-1])
    found = product(rows, weight, given.bias, given.pertoken_scale, given.dequant_scale)
    if given.x3 is not None:
        found = found + working(given.x3).reshape(found.shape)
    dtype = given.x1.dtype
    if given.dequant_scale is not None:
        half = torch.bfloat16 if given.dequant_scale.dtype == torch.bfloat16 else torch.float16
        dtype = torch_dtype(given.y_dtype, half, operator)
    return RankGroup(given.hcom).summed(found).to(dtype).reshape(*given.x1.shape[:-1], -1)


@reference("npu_mm_reduce_scatter_base", source=DOCS.format("npu_mm_reduce_scatter_base"))
def npu_mm_reduce_scatter_base(given: ReferenceArguments) -> Tensor:
    """This rank's rows [M / ranks, N] of the sum of x @ x2 + bias."""
    group = RankGroup(given.hcom, given.world_size)
    total = group.summed(product(given.x, given.x2, given.bias, given.x1_scale, given.x2_scale))
    rows = total.shape[0] // group.ranks
    mine = total[group.rank * rows : (group.rank + 1) * rows]
    return mine.to(output_of(given.x, given.x2_scale, given.output_dtype))


@reference(
    "npu_all_gather_base_mm",
    source="torch_npu _op_plugin_docs.py npu_all_gather_base_mm",
    without="gather_index",
)
def npu_all_gather_base_mm(given: ReferenceArguments) -> tuple[Tensor, Tensor]:
    """Everybody's rows times x2, and those rows (empty unless asked for)."""
    group = RankGroup(given.hcom, given.world_size)
    rows = torch.cat(group.gathered(given.x))
    scales = (
        None if given.x1_scale is None else torch.cat(group.gathered(given.x1_scale.reshape(-1)))
    )
    found = product(rows, given.x2, given.bias, scales, given.x2_scale).to(
        output_of(given.x, given.x2_scale, given.output_dtype)
    )
    return found, rows if given.gather_output else rows.new_empty(0)


def by_expert(weight: Tensor, rows: Tensor, counts: Sequence[int], turned: bool) -> Tensor:
    """Rows in expert order times the weights [e, K, N] of each expert."""
    parts = torch.split_with_sizes(rows, list(counts))
    matrices = weight.mT if turned else weight
    found = [working(part) @ working(one) for part, one in zip(parts, matrices, strict=True)]
    return torch.cat(found).to(rows.dtype)


def multiply_shared(x: Maybe, weight: Maybe, turned: bool) -> Maybe:
    """The shared expert's product, if there is one."""
    if x is None or weight is None:
        return None
    return (working(x) @ working(weight.mT if turned else weight)).to(x.dtype)


def exchange(group: RankGroup, rows: Tensor, send: Sequence[int]) -> list[Tensor]:
    """From every rank the pieces [one per expert of this rank] that it sends here."""
    table = group.gathered(torch.tensor(list(send)).reshape(1, -1))
    everything = group.gathered(rows)
    found: list[Tensor] = []
    for counts, part in zip(table, everything, strict=True):
        pieces = torch.split_with_sizes(part, counts.reshape(-1).tolist())
        each = len(pieces) // group.ranks
        found += pieces[group.rank * each : (group.rank + 1) * each]
    return found


@reference("npu_alltoallv_gmm", source=DOCS.format("npu_alltoallv_gmm"))
def npu_alltoallv_gmm(given: ReferenceArguments) -> tuple[Tensor, Maybe, Maybe]:
    """Tokens of all ranks for this rank's experts, in expert order, times their weights."""
    group = RankGroup(given.hcom, given.ep_world_size)
    experts = len(given.gmm_weight)
    pieces = exchange(group, given.gmm_x, given.send_counts)  # by rank, then by expert
    ordered = [pieces[rank * experts + e] for e in range(experts) for rank in range(group.ranks)]
    rows = torch.cat(ordered)
    if len(rows) != sum(given.recv_counts):
        raise RuntimeError(
            f"npu_alltoallv_gmm: {len(rows)} rows came, not {sum(given.recv_counts)}"
        )
    counts = [sum(given.recv_counts[e::experts]) for e in range(experts)]
    found = by_expert(given.gmm_weight, rows, counts, given.trans_gmm_weight)
    return (
        found,
        multiply_shared(given.mm_x, given.mm_weight, given.trans_mm_weight),
        rows if given.permute_out_flag else None,
    )


@reference("npu_gmm_alltoallv", source=DOCS.format("npu_gmm_alltoallv"))
def npu_gmm_alltoallv(given: ReferenceArguments) -> tuple[Tensor, Maybe]:
    """Rows in expert order times their weights, sent back to the ranks that they came from."""
    group = RankGroup(given.hcom, given.ep_world_size)
    experts = len(given.gmm_weight)
    counts = [sum(given.send_counts[e::experts]) for e in range(experts)]
    product_rows = by_expert(given.gmm_weight, given.gmm_x, counts, given.trans_gmm_weight)
    order = [(e, rank) for e in range(experts) for rank in range(group.ranks)]
    pieces = torch.split_with_sizes(
        product_rows, [given.send_counts[rank * experts + e] for e, rank in order]
    )
    back = dict(zip(order, pieces, strict=True))
    rows = torch.cat([back[e, rank] for rank in range(group.ranks) for e in range(experts)])
    found = torch.cat(exchange(group, rows, given.send_counts))
    return found, multiply_shared(given.mm_x, given.mm_weight, given.trans_mm_weight)
