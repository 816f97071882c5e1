"""Experts as physical copies, and tokens sorted by expert and quantised on the way."""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.gradients import working
from joymigrate.run.rehearse.refs.moe_routing import npu_moe_init_routing_v2

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md, test_{}.py"
Maybe = Tensor | None


@reference(
    "npu_moe_update_expert", source=DOCS.format("npu_moe_update_expert", "moe_update_expert")
)
def npu_moe_update_expert(given: ReferenceArguments) -> tuple[Tensor, Tensor]:
    """The copy of each token's experts [tokens, k], and which of them still take part.

    A row of the table is the number of copies, then the copies; the rank (mode 0) or the token (1)
    says which. Experts with a weight below the threshold's share of the token's sum are left out.
    """
    logical = given.expert_ids.long()
    copies = given.eplb_table[:, 0].long()[logical]
    if given.balance_mode == 0:
        place = given.local_rank_id // (-(-given.world_size // copies))
    else:
        place = torch.arange(len(given.expert_ids)).unsqueeze(1) % copies
    place = torch.where(copies == 1, 0, place)
    found = given.eplb_table.long()[logical, place + 1].to(given.expert_ids.dtype)
    used = torch.ones(given.expert_ids.shape, dtype=torch.bool)
    if given.active_mask is not None:
        used &= given.active_mask.bool().unsqueeze(1)
    if given.expert_scales is not None and given.pruning_threshold is not None:
        weights = working(given.expert_scales)
        used &= weights >= weights.sum(-1, keepdim=True) * working(given.pruning_threshold).reshape(
            1, -1
        )
    return found, used


@reference(
    "npu_moe_init_routing_quant",
    source="ops-transformer aclnnMoeInitRoutingQuantV2.md, MoeInitRoutingQuantKernelNpuOpApi.cpp",
)
def npu_moe_init_routing_quant(
    given: ReferenceArguments,
) -> tuple[Tensor, Tensor, Maybe, Maybe, Maybe]:
    """int8 rows by expert, their index, tokens by expert (mode 1: summed up), their scales."""
    rows, index, counts, scales = npu_moe_init_routing_v2(
        given.x,
        given.expert_idx,
        scale=given.scale,
        offset=given.offset,
        active_num=given.active_num,
        expert_capacity=given.expert_capacity,
        expert_num=given.expert_num,
        drop_pad_mode=given.drop_pad_mode,
        expert_tokens_num_type=1,
        expert_tokens_num_flag=True,
        quant_mode=given.quant_mode,
    )
    tokens = before = None
    if given.drop_pad_mode == 0 and given.expert_tokens_num_mode > 0:
        tokens = counts.cumsum(0) if given.expert_tokens_num_mode == 1 else counts
        tokens = tokens.to(torch.int32)
    if given.drop_pad_mode == 1 and given.expert_tokens_before_capacity_flag:
        before = counts.to(torch.int32)
    return (
        rows,
        index.to(given.expert_idx.dtype),
        tokens,
        before,
        scales if given.quant_mode == 1 else None,
    )
