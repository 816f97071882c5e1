"""Mixture of experts: choosing experts, and bringing tokens into expert order and back."""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated, saturate
from joymigrate.run.rehearse.refs.gradients import vjp, working

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md"
Maybe = Tensor | None
Three = tuple[Tensor, Tensor, Tensor]
NONE, STATIC, DYNAMIC = -1, 0, 1  # quant_mode of npu_moe_init_routing_v2


def top(values: Tensor, k: int) -> Tensor:
    """Indices of the k largest of the last axis; of equals the lower index first."""
    found: Tensor = values.sort(dim=-1, descending=True, stable=True).indices
    return found[..., :k]


def _route_finished(index: Tensor, finished: Maybe, experts: int) -> Tensor:
    """Rows that are finished go to an expert that does not exist."""
    if finished is None:
        return index
    return torch.where(finished.reshape(*index.shape[:-1], 1), experts, index)


@reference("npu_moe_gating_top_k_softmax", source=DOCS.format("npu_moe_gating_top_k_softmax"))
def npu_moe_gating_top_k_softmax(x: Tensor, finished: Maybe, k: int) -> Three:
    """Weights, experts, and row numbers counted column by column."""
    softmax = working(x).softmax(-1)
    index = top(softmax, k)
    rows = index[..., 0].numel()
    row_index = torch.arange(rows * k, dtype=torch.int32).reshape(k, rows).T.contiguous()
    experts = _route_finished(index, finished, x.shape[-1]).to(torch.int32)
    return softmax.gather(-1, index).to(x.dtype), experts, row_index.reshape(index.shape)


@reference(
    "npu_moe_gating_top_k_softmax_v2", source="op-plugin MoeGatingTopKSoftmaxV2KernelNpuOpApi.cpp"
)
def npu_moe_gating_top_k_softmax_v2(
    x: Tensor, k: int, finished: Maybe, renorm: int | None, output_softmax: bool | None
) -> Three:
    """renorm 1: softmax over the chosen logits alone. Third: all probabilities when asked for."""
    wide = working(x)
    softmax = wide.softmax(-1)
    index = top(wide if renorm == 1 else softmax, k)
    chosen = wide.gather(-1, index).softmax(-1) if renorm == 1 else softmax.gather(-1, index)
    experts = _route_finished(index, finished, x.shape[-1]).to(torch.int32)
    wanted = output_softmax and not renorm
    return chosen.to(x.dtype), experts, softmax.float() if wanted else torch.empty(0)


def _within_groups(scores: Tensor, groups: int, kept: int, by_two: bool) -> Tensor:
    """Scores with everything outside the best groups at -inf."""
    parts = scores.reshape(len(scores), groups, -1)
    best = parts.topk(2, -1).values.sum(-1) if by_two else parts.amax(-1)
    chosen = torch.zeros_like(best, dtype=torch.bool).scatter(1, top(best, kept), True)
    return parts.masked_fill(~chosen.unsqueeze(-1), -torch.inf).reshape(scores.shape)


def _weights(chosen: Tensor, norm_type: int, factor: float, eps: float) -> Tensor:
    if norm_type == 1:
        chosen = chosen / (chosen.sum(-1, keepdim=True) + eps)
    return chosen * factor


@reference(
    "npu_moe_gating_top_k", source=DOCS.format("npu_moe_gating_top_k"), without="renorm tid2eid"
)
def npu_moe_gating_top_k(given: ReferenceArguments) -> Three:
    """norm_type 0 softmax, 1 sigmoid (then normalised over the chosen); groups first, then k.

    The third output is what the norm gives for every expert, in float32.
    """
    normal = working(given.x).softmax(-1) if given.norm_type == 0 else working(given.x).sigmoid()
    scores = normal if given.bias is None else normal + working(given.bias)
    if given.group_count > 1:
        scores = _within_groups(
            scores, given.group_count, given.k_group, given.group_select_mode == 1
        )
    index = top(scores, given.k)
    y = _weights(normal.gather(-1, index), given.norm_type, given.routed_scaling_factor, given.eps)
    return y.to(given.x.dtype), index.to(torch.int32), normal.float()


@reference("npu_moe_gating_top_k_backward", source="op-plugin derivatives.yaml")
def npu_moe_gating_top_k_backward(
    x_norm: Tensor,
    grad_y: Tensor,
    expertIdx: Tensor,
    norm_type: int,
    routed_scaling_factor: float,
    eps: float,
) -> Tensor:
    """Gradient of the logits, from the norm's result and the chosen experts."""
    index = expertIdx.long()
    (grad,) = vjp(
        lambda n: _weights(n.gather(-1, index), norm_type, routed_scaling_factor, eps),
        (working(x_norm),),
        grad_y,
    )
    assert grad is not None
    normal = working(x_norm)
    if norm_type == 0:
        found = normal * (grad - (grad * normal).sum(-1, keepdim=True))
    else:
        found = grad * normal * (1 - normal)
    return found.to(grad_y.dtype)


@reference("npu_moe_compute_expert_tokens", source=DOCS.format("npu_moe_compute_expert_tokens"))
def npu_moe_compute_expert_tokens(sorted_expert_for_source_row: Tensor, num_expert: int) -> Tensor:
    """For every expert the number of rows of it and of all before it."""
    experts = torch.arange(num_expert, dtype=sorted_expert_for_source_row.dtype)
    found = torch.searchsorted(sorted_expert_for_source_row, experts, right=True)
    return found.to(torch.int32)


@reference("npu_moe_init_routing", source=DOCS.format("npu_moe_init_routing"))
def npu_moe_init_routing(x: Tensor, row_idx: Tensor, expert_idx: Tensor, active_num: int) -> Three:
    """Rows in expert order, where every row went, and the sorted experts."""
    rows, k = expert_idx.shape
    experts, order = expert_idx.reshape(-1).sort(stable=True)
    source = row_idx.reshape(-1)[order]
    place = torch.empty_like(source)
    place[source.long()] = torch.arange(rows * k, dtype=source.dtype)
    active = min(active_num, rows) * k
    return x[source[:active].long() % rows], place, experts


@reference("npu_moe_finalize_routing", source=DOCS.format("npu_moe_finalize_routing"))
def npu_moe_finalize_routing(given: ReferenceArguments) -> Tensor:
    """skip1 + skip2 + Σ scale·(expert row + expert bias); -1 in the index is a dropped row.

    The index counts expert by expert (modes 0 and 1) or token by token (modes 2 and 3).
    """
    rows = working(given.expanded_permuted_rows).reshape(-1, given.expanded_permuted_rows.shape[-1])
    count = given.scales.shape[1] if given.scales is not None else max(1, given.k or 1)
    tokens = given.expanded_src_to_dst_row.numel() // count
    index = given.expanded_src_to_dst_row.long()
    table = (
        index.reshape(count, tokens).T
        if (given.drop_pad_mode or 0) < 2
        else index.reshape(-1, count)
    )
    chosen: Tensor = rows[table.clamp(min=0)] * (table >= 0).unsqueeze(-1)
    if given.bias is not None and given.export_for_source_row is not None:
        chosen = chosen + working(given.bias)[given.export_for_source_row.long()]
    if given.scales is not None:
        chosen = chosen * working(given.scales).unsqueeze(-1)
    total = chosen.sum(1)
    for skip in (given.skip1, given.skip2):
        total = total if skip is None else total + working(skip)
    return total.to(given.expanded_permuted_rows.dtype)


def _counts(experts: Tensor, low: int, high: int, kind: int, flag: bool) -> Tensor:
    """Tokens by expert: cumulative (0), counted (1), or (expert, count) pairs (2), int64."""
    if not flag:
        return torch.zeros((), dtype=torch.int64)
    found = torch.bincount(experts[(experts >= low) & (experts < high)] - low, minlength=high - low)
    if kind == 0:
        return found.cumsum(0)
    if kind == 1:
        return found
    used = found.nonzero().reshape(-1)
    pairs = torch.zeros(high, 2, dtype=torch.int64)
    pairs[: len(used)] = torch.stack((used + low, found[used]), 1)
    return pairs


def _quantise(
    rows: Tensor, experts: Tensor, scale: Maybe, offset: Maybe, mode: int
) -> tuple[Tensor, Tensor]:
    """Expanded rows and their scales; `experts` are counted from the first active one."""
    if mode == STATIC:
        assert scale is not None
        shift = 0.0 if offset is None else working(offset)
        return saturate(working(rows) * working(scale) + shift, torch.int8), torch.zeros(())
    wide = working(rows)
    if scale is not None:
        smooth = working(scale)
        wide = wide * (smooth if len(smooth) == 1 else smooth[experts])
    limit = wide.abs().amax(-1, keepdim=True)
    safe = torch.where(limit > 0, limit, torch.ones_like(limit))
    return saturate(wide * (127.0 / safe), torch.int8), (limit / 127.0).squeeze(-1).float()


@reference("npu_moe_init_routing_v2", source=DOCS.format("npu_moe_init_routing_v2"))
def npu_moe_init_routing_v2(given: ReferenceArguments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows in expert order, the row index (0 gather, 1 scatter), tokens by expert, scales.

    Rows of experts outside the active range come last, with index -1.
    """
    if given.quant_mode not in (NONE, STATIC, DYNAMIC) or given.x_dtype is not None:
        raise Unsimulated("npu_moe_init_routing_v2", f"quant_mode {given.quant_mode}")
    low, high = given.active_expert_range or (0, given.expert_num)
    k, flat = given.expert_idx.shape[1], given.expert_idx.reshape(-1).long()
    outside = (flat < low) | (flat >= high)
    order = torch.where(outside, torch.iinfo(torch.int64).max, flat).sort(stable=True).indices
    active = int((~outside).sum())
    counts = _counts(flat, low, high, given.expert_tokens_num_type, given.expert_tokens_num_flag)
    chosen, total = order[:active], flat.numel()
    experts = flat[chosen] - low
    if given.drop_pad_mode == 1:
        slots, size = (
            _slots(experts, given.expert_capacity),
            given.expert_num * given.expert_capacity,
        )
    else:
        size = min(given.active_num, total) if given.active_num > 0 else total
        slots = torch.arange(active)
        slots = torch.where(slots < size, slots, -1)
    index = torch.full((total,), -1, dtype=torch.int32)
    if given.row_idx_type == 1:
        index[:active] = chosen.to(torch.int32)
    else:
        index[chosen] = slots.to(torch.int32)
    used = slots >= 0
    rows = given.x[chosen[used] // k]
    if given.quant_mode == NONE:
        sources = chosen[used] // k
        scales = torch.zeros(len(sources)) if given.scale is None else given.scale[sources].float()
    else:
        rows, scales = _quantise(rows, experts[used], given.scale, given.offset, given.quant_mode)
    expanded = torch.zeros(size, given.x.shape[1], dtype=rows.dtype)
    expanded[slots[used]] = rows
    if scales.dim():
        wide = torch.zeros(size, *scales.shape[1:])
        wide[slots[used]] = scales
        scales = wide
    if given.drop_pad_mode == 1:
        expanded = expanded.reshape(given.expert_num, given.expert_capacity, -1)
    return expanded, index, counts, scales


def _slots(experts: Tensor, capacity: int) -> Tensor:
    """Place of every row in [expert, capacity], row by row of sorted experts; -1 when full."""
    first = torch.searchsorted(experts, experts)
    turn = torch.arange(len(experts)) - first
    return torch.where(turn < capacity, experts * capacity + turn, -1)


@reference("npu_moe_re_routing", source=DOCS.format("npu_moe_re_routing"))
def npu_moe_re_routing(
    tokens: Tensor,
    expert_token_num_per_rank: Tensor,
    per_token_scales: Maybe,
    expert_token_num_type: int,
    idx_type: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens that came rank by rank, brought into expert order; index is where each came from."""
    counts = expert_token_num_per_rank.long()
    ranks, experts = counts.shape
    starts = counts.reshape(-1).cumsum(0) - counts.reshape(-1)
    pieces = [
        torch.arange(int(counts[rank, expert])) + int(starts[rank * experts + expert])
        for expert in range(experts)
        for rank in range(ranks)
    ]
    order = torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.int64)
    scales = torch.zeros(len(tokens)) if per_token_scales is None else per_token_scales[order]
    total = expert_token_num_per_rank.sum(0).to(expert_token_num_per_rank.dtype)
    number = total.cumsum(0).to(total.dtype) if expert_token_num_type == 0 else total
    index = order.argsort() if idx_type == 1 else order
    return tokens[order], scales, index.to(torch.int32), number
