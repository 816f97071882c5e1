"""Experts as physical copies, and tokens sorted by expert and quantised on the way."""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import reference
from joymigrate.run.rehearse.refs.gradients import working
from joymigrate.run.rehearse.refs.moe_routing import npu_moe_init_routing_v2

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md, test_{}.py"
Maybe = Tensor | None


@reference(
    "npu_moe_update_expert", source=DOCS.format("npu_moe_update_expert", "moe_update_expert")
)
def npu_moe_update_expert(
    expert_ids: Tensor,
    eplb_table: Tensor,
    expert_scales: Maybe,
    pruning_threshold: Maybe,
    active_mask: Maybe,
    local_rank_id: int,
    world_size: int,
    balance_mode: int,
) -> tuple[Tensor, Tensor]:
    """The copy of each token's experts [tokens, k], and which of them still take part.

    A row of the table is the number of copies, then the copies; the rank (mode 0) or the token (1)
    says which. Experts with a weight below the threshold's share of the token's sum are left out.
    """
    logical = expert_ids.long()
    copies = eplb_table[:, 0].long()[logical]
    if balance_mode == 0:
        place = local_rank_id // (-(-world_size // copies))
    else:
        place = torch.arange(len(expert_ids)).unsqueeze(1) % copies
    place = torch.where(copies == 1, 0, place)
    found = eplb_table.long()[logical, place + 1].to(expert_ids.dtype)
    used = torch.ones(expert_ids.shape, dtype=torch.bool)
    if active_mask is not None:
        used &= active_mask.bool().unsqueeze(1)
    if expert_scales is not None and pruning_threshold is not None:
        weights = working(expert_scales)
        used &= weights >= weights.sum(-1, keepdim=True) * working(pruning_threshold).reshape(1, -1)
    return found, used


@reference(
    "npu_moe_init_routing_quant",
    source="ops-transformer aclnnMoeInitRoutingQuantV2.md, MoeInitRoutingQuantKernelNpuOpApi.cpp",
)
def npu_moe_init_routing_quant(
    x: Tensor,
    expert_idx: Tensor,
    scale: Maybe,
    offset: Maybe,
    active_num: int,
    expert_capacity: int,
    expert_num: int,
    drop_pad_mode: int,
    expert_tokens_num_mode: int,
    expert_tokens_before_capacity_flag: bool,
    quant_mode: int,
) -> tuple[Tensor, Tensor, Maybe, Maybe, Maybe]:
    """int8 rows by expert, their index, tokens by expert (mode 1: summed up), their scales."""
    rows, index, counts, scales = npu_moe_init_routing_v2(
        x,
        expert_idx,
        scale=scale,
        offset=offset,
        active_num=active_num,
        expert_capacity=expert_capacity,
        expert_num=expert_num,
        drop_pad_mode=drop_pad_mode,
        expert_tokens_num_type=1,
        expert_tokens_num_flag=True,
        quant_mode=quant_mode,
    )
    tokens = before = None
    if drop_pad_mode == 0 and expert_tokens_num_mode > 0:
        tokens = counts.cumsum(0) if expert_tokens_num_mode == 1 else counts
        tokens = tokens.to(torch.int32)
    if drop_pad_mode == 1 and expert_tokens_before_capacity_flag:
        before = counts.to(torch.int32)
    return rows, index.to(expert_idx.dtype), tokens, before, scales if quant_mode == 1 else None
