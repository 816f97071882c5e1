"""The vendor's operators over `moe_between_ranks`: dispatch and combine, in their three forms."""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.between_ranks import RankGroup
from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated
from joymigrate.run.rehearse.refs.gradients import working
from joymigrate.run.rehearse.refs.moe_between_ranks import (
    DYNAMIC,
    NOTE,
    PLAIN,
    Dispatched,
    ExpertPlaces,
    active_of,
    collect,
    dispatch_to,
    rows_of,
)
from joymigrate.run.rehearse.refs.norms import rms_of

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md"
Maybe = Tensor | None
Seven = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
SERVER = 8  # ranks of a server, in the longer counts of the two-step algorithm


def places_of(ranks: int, experts: int, shared_ranks: int, shared_experts: int) -> ExpertPlaces:
    if experts % (ranks - shared_ranks):
        raise RuntimeError(
            f"npu_moe_distribute: {experts} experts don't divide over {ranks - shared_ranks} ranks"
        )
    return ExpertPlaces(ranks, experts, shared_ranks, shared_experts)


def dispatch(
    group: RankGroup,
    places: ExpertPlaces,
    room: int,
    x: Tensor,
    expert_ids: Tensor,
    scales: Maybe,
    mask: Maybe,
    expert_scales: Maybe,
    quant_mode: int,
) -> Dispatched:
    """What this rank receives."""
    if quant_mode not in (PLAIN, DYNAMIC) or x.dtype == torch.int32:
        raise Unsimulated("npu_moe_distribute_dispatch", f"quant_mode {quant_mode} of {x.dtype}")
    return dispatch_to(
        places,
        group.rank,
        group.gathered(x),
        group.gathered(expert_ids),
        group.gathered(active_of(expert_ids, mask)),
        room,
        scales=None if scales is None else group.gathered(scales),
        weights=None if expert_scales is None else group.gathered(expert_scales),
        quant_mode=quant_mode,
    )


def counts_of(found: Dispatched, expert_scales: Maybe, tokens: int, k: int, ranks: int) -> Tensor:
    """The counts that combine takes; longer, filled with zeros, where weights travel along."""
    if expert_scales is None:
        return found.counts
    more = 2 * tokens * k * (ranks // SERVER)
    return torch.cat((found.counts, found.counts.new_zeros(more)))


def numbers_of(found: Dispatched, kind: int) -> Tensor:
    """Rows of each expert: counted (1), or summed up (0)."""
    return found.tokens if kind == 1 else found.tokens.cumsum(0)


@reference("npu_moe_distribute_dispatch", source=DOCS.format("npu_moe_distribute_dispatch"))
def npu_moe_distribute_dispatch(
    x: Tensor,
    expert_ids: Tensor,
    group_ep: str,
    ep_world_size: int,
    ep_rank_id: int,
    moe_expert_num: int,
    scales: Maybe,
    x_active_mask: Maybe,
    expert_scales: Maybe,
    tp_world_size: int,
    shared_expert_num: int,
    shared_expert_rank_num: int,
    quant_mode: int,
    global_bs: int,
    expert_token_nums_type: int,
) -> Seven:
    """Rows, their scales, each pair's place among this rank's rows for that expert, rows of each
    expert, summed counts by (expert, source), tp counts, and the rows' weights."""
    if tp_world_size > 1:
        raise Unsimulated("npu_moe_distribute_dispatch", "tensor parallel groups")
    places = places_of(ep_world_size, moe_expert_num, shared_expert_rank_num, shared_expert_num)
    tokens = global_bs or len(x) * ep_world_size
    k = expert_ids.shape[1]
    room = places.longest(ep_rank_id, tokens, k)
    if ep_rank_id < shared_expert_rank_num:
        room = tokens // shared_expert_rank_num
    found = dispatch(
        RankGroup(group_ep, ep_world_size, ep_rank_id),
        *(places, room, x, expert_ids, scales, x_active_mask, expert_scales),
        quant_mode,
    )
    used = active_of(expert_ids, x_active_mask)
    same = torch.nn.functional.one_hot(expert_ids.long().reshape(-1)) * used.reshape(-1, 1)
    before = same.cumsum(0).gather(1, expert_ids.long().reshape(-1, 1)) - 1
    return (
        found.rows,
        found.scales,
        before.clamp(min=0).reshape(-1).to(torch.int32),
        numbers_of(found, expert_token_nums_type),
        counts_of(found, expert_scales, tokens, k, ep_world_size),
        torch.zeros(tp_world_size, dtype=torch.int32),
        found.weights,
    )


@reference("npu_moe_distribute_dispatch_v2", source=DOCS.format("npu_moe_distribute_dispatch_v2"))
def npu_moe_distribute_dispatch_v2(given: ReferenceArguments) -> Seven:
    """As the first form; the third result holds a note of 128 numbers for each row."""
    if given.tp_world_size > 1 or given.elastic_info is not None or given.y_dtype is not None:
        raise Unsimulated("npu_moe_distribute_dispatch_v2", "tp groups, elastic_info or y_dtype")
    places = find_places(given)
    tokens = given.global_bs or len(given.x) * given.ep_world_size
    k = given.expert_ids.shape[1]
    room = places.longest(given.ep_rank_id, tokens, k)
    found = dispatch(
        RankGroup(given.group_ep, given.ep_world_size, given.ep_rank_id),
        *(
            places,
            room,
            given.x,
            given.expert_ids,
            given.scales,
            given.x_active_mask,
            given.expert_scales,
        ),
        given.quant_mode,
    )
    notes = torch.zeros(max(len(given.x) * k, room * NOTE), dtype=torch.int32)
    notes[: room * NOTE].view(room, NOTE)[:, :3] = found.notes
    return (
        found.rows,
        found.scales,
        notes,
        numbers_of(found, given.expert_token_nums_type),
        counts_of(found, given.expert_scales, tokens, k, given.ep_world_size),
        torch.zeros(given.tp_world_size, dtype=torch.int32),
        found.weights,
    )


def find_places(given: ReferenceArguments) -> ExpertPlaces:
    return places_of(
        given.ep_world_size,
        given.moe_expert_num,
        given.shared_expert_rank_num,
        given.shared_expert_num,
    )


def plain_only(operator: str, comm_quant_mode: int, *others: Maybe) -> None:
    if comm_quant_mode or any(one is not None for one in others):
        raise Unsimulated(operator, "quantised communication, or scales of the rows")


@reference("npu_moe_distribute_combine", source=DOCS.format("npu_moe_distribute_combine"))
def npu_moe_distribute_combine(
    expand_x: Tensor,
    expert_ids: Tensor,
    ep_send_counts: Tensor,
    expert_scales: Tensor,
    group_ep: str,
    ep_world_size: int,
    ep_rank_id: int,
    moe_expert_num: int,
    x_active_mask: Maybe,
    activation_scale: Maybe,
    weight_scale: Maybe,
    group_list: Maybe,
    shared_expert_x: Maybe,
    shared_expert_num: int,
    shared_expert_rank_num: int,
    comm_quant_mode: int,
) -> Tensor:
    """The tokens' rows back, weighted and summed; their places follow from the counts."""
    plain_only(
        "npu_moe_distribute_combine", comm_quant_mode, activation_scale, weight_scale, group_list
    )
    places = places_of(ep_world_size, moe_expert_num, shared_expert_rank_num, shared_expert_num)
    group = RankGroup(group_ep, ep_world_size, ep_rank_id)
    nobody = expert_ids.new_empty(0, expert_ids.shape[1])
    ids = [expert_ids if rank == group.rank else nobody for rank in range(group.ranks)]
    used = [active_of(one, x_active_mask if len(one) else None) for one in ids]
    rows = group.gathered(expand_x)
    counts = group.gathered(ep_send_counts)
    notes = []
    for rank, (part, ends) in enumerate(zip(rows, counts, strict=True)):
        note = torch.full((len(part), 3), -1, dtype=torch.int32)
        for local, chosen in enumerate(rows_of(places, rank, ids, used)):
            pair = local * group.ranks + group.rank
            start = int(ends[pair - 1]) if pair else 0
            for number, one in enumerate(chosen):
                note[start + number] = torch.tensor([one.source, one.token, one.slot])
        notes.append(note)
    total = collect(
        group.rank, len(expert_ids), rows, notes, [len(part) for part in rows], expert_scales
    )
    if shared_expert_x is not None:
        total = total + shared_expert_x.float().reshape(total.shape)
    return total.to(expand_x.dtype)


def combine_rows(operator: str, given: ReferenceArguments, notes: Tensor) -> Tensor:
    """The second form, float32: rows back by their notes; then experts that are no ranks'."""
    group, places = (
        RankGroup(given.group_ep, given.ep_world_size, given.ep_rank_id),
        find_places(given),
    )
    expert_ids, expert_scales = given.expert_ids, given.expert_scales
    local = places.local(group.rank)
    rows = group.gathered(given.expand_x)
    flat = notes[: len(given.expand_x) * NOTE].view(-1, NOTE)[:, :3].contiguous()
    used = given.ep_send_counts[local * group.ranks - 1].reshape(1)
    total = collect(
        group.rank,
        len(expert_ids),
        rows,
        group.gathered(flat),
        [int(one) for one in torch.cat(group.gathered(used))],
        expert_scales,
    )
    if given.shared_expert_x is not None:
        total = total + given.shared_expert_x.float().reshape(total.shape)
    copy, const = given.copy_expert_num, given.const_expert_num
    if copy or const:
        active = active_of(expert_ids, given.x_active_mask)
        first = places.experts + given.zero_expert_num
        if given.ori_x is None:
            raise RuntimeError(f"{operator}: ori_x is needed for copy and const experts")
        x, weight = working(given.ori_x), expert_scales.float() * active
        copies = (expert_ids >= first) & (expert_ids < first + copy)
        total = total + x * (weight * copies).sum(1, keepdim=True)
        alpha1, alpha2 = given.const_expert_alpha_1, given.const_expert_alpha_2
        v = given.const_expert_v
        for number in range(const):
            assert alpha1 is not None and alpha2 is not None and v is not None  # noqa: PT018
            share = (weight * (expert_ids == first + copy + number)).sum(1, keepdim=True)
            constant = working(alpha1[number]) * x + working(alpha2[number]) * working(v[number])
            total = total + share * constant
    return total


@reference("npu_moe_distribute_combine_v2", source=DOCS.format("npu_moe_distribute_combine_v2"))
def npu_moe_distribute_combine_v2(given: ReferenceArguments) -> Tensor:
    """The tokens' rows back, weighted and summed, with experts that copy or are constant."""
    operator = "npu_moe_distribute_combine_v2"
    plain_only(operator, given.comm_quant_mode, given.elastic_info)
    total = combine_rows(operator, given, given.assist_info_for_combine)
    return total.to(given.expand_x.dtype)


@reference(
    "npu_moe_distribute_combine_add_rms_norm",
    source=DOCS.format("npu_moe_distribute_combine_add_rms_norm"),
)
def npu_moe_distribute_combine_add_rms_norm(
    given: ReferenceArguments,
) -> tuple[Tensor, Tensor, Tensor]:
    """combine + residual [BS, 1, H]: its rms norm, the reciprocal rms, and the sum itself."""
    operator = "npu_moe_distribute_combine_add_rms_norm"
    plain_only(
        operator,
        given.comm_quant_mode,
        given.elastic_info,
        given.activation_scale,
        given.weight_scale,
        given.group_list,
    )
    total = combine_rows(operator, given, given.expand_idx)
    x = total.unsqueeze(1) + working(given.residual_x).reshape(len(total), 1, -1)
    y, rstd = rms_of(x, given.gamma, given.norm_eps)
    return y.to(given.expand_x.dtype), rstd.float(), x.to(given.expand_x.dtype)
