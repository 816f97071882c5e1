"""Caches, scatters, dropout, quantised and grouped products, experts."""

from __future__ import annotations

import torch

from tests.run.rehearse.refs.samples import BF16, HALF, add, i, p, r

i8, i32 = torch.int8, torch.int32
SLOTS = torch.tensor([3, -1, 18, 0], dtype=i32)
ND = (r(4, 2, 8), r(4, 2, 8), r(3, 8, 2, 8), r(3, 8, 2, 8), SLOTS)
add("npu_scatter_pa_kv_cache", *ND, cache_mode="Norm")
add("npu_scatter_pa_kv_cache", r(4, 2, 32), r(4, 2, 16), r(3, 4, 8, 16), r(3, 2, 8, 16), SLOTS)
add("npu_scatter_pa_kv_cache_functional", *ND, cache_mode="Norm")
add("npu_scatter_pa_cache.value", r(4, 2, 8), SLOTS, key_cache=r(3, 8, 2, 8))
add("atb::_npu_reshape_and_cache", *ND)
add("atb::_npu_reshape_and_cache_siso", r(4, 2, 8), r(3, 8, 2, 8), SLOTS)
TABLES = torch.tensor([[2, 0], [1, 2]], dtype=i32)
GATHER = (r(3, 8, 2, 8), r(3, 8, 2, 8), TABLES, torch.tensor([5, 10], dtype=i32))
add("npu_gather_pa_kv_cache", *GATHER, r(15, 2, 8), r(15, 2, 8))
add("npu_gather_pa_kv_cache_functional", *GATHER, r(15, 2, 8), r(15, 2, 8))
add("atb::npu_paged_cache_load", *GATHER)
for mode, index, cache in (
    ("Norm", torch.tensor([[0, 3], [1, -1]]), (2, 1, 6)),
    ("PA_BNSD", torch.tensor([0, 3, -1, 9]), (3, 4, 1)),
    ("PA_NZ", torch.tensor([0, 3, 5, 9]), (3, 4, 1)),
    ("PA_BLK_BNSD", torch.tensor([4, 0]), (3, 4, 1)),
):
    add(
        "npu_kv_rmsnorm_rope_cache",
        *(r(2, 1, 2, 48), p(32), r(2, 1, 2, 16), r(2, 1, 2, 16), index),
        *(r(*cache, 16), r(*cache, 32)),
        cache_mode=mode,
    )

for name in ("scatter_update", "scatter_update_"):
    add(name, r(2, 3, 6, 4), torch.tensor([1, 4]), r(2, 3, 2, 4), -2)
for name in ("npu_scatter_nd_update", "npu_scatter_nd_update_"):
    add(name, r(4, 5, 6), torch.tensor([[0, 1], [3, 4]]), r(2, 6))
add("npu_scatter", r(3, 4), torch.tensor([1, 0, 3]), r(3), 1)
for name in ("npu_scatter_list", "npu_scatter_list_"):
    add(name, [r(3, 6, 4), r(3, 6, 4)], torch.tensor([1, 4]), r(2, 3, 2, 4), torch.tensor([1, 0]))
for name in ("npu_quant_scatter", "npu_quant_scatter_"):
    add(name, i(9, 2, 6, 4, dtype=i8), torch.tensor([1, 4]), r(2, 2, 4), p(4), None, -2, -1)
for name in ("_npu_index_add", "_npu_index_add_"):
    add(name, r(5, 4), torch.tensor([0, 2, 2]), r(3, 4), alpha=2)
add("npu_gather_sparse_index", r(5, 4), i(5, 2, 3))
add("npu_gather_sparse_index_backward", r(2, 3, 4), [5, 4], i(5, 2, 3))
add("npu_gather_backward", r(2, 3), [4, 3], 0, i(4, 2, 3), False)

ONES = torch.full((16,), 255, dtype=torch.uint8)
add("_npu_dropout", r(4, 40), 0.25)
add("npu_dropout_backward", r(4, 8), ONES, 0.25)
add("npu_dropout_do_mask", r(4, 8), ONES, 0.25)
add("npu_dropout_gen_mask", [4, 8], 0.25)
add("_npu_dropout_gen_mask.Tensor", r(1), [4, 40], 0.25, 7, 0)
add("_dropout_with_byte_mask", r(4, 8), 0.25)
add("_dropout_with_byte_mask_backward", r(4, 8), torch.ones(32, dtype=torch.uint8), 0.25)
add("dropout_with_byte_mask", r(4, 8), 0.25, True)

A8, B8 = i(128, 4, 16, dtype=i8, low=-128), i(128, 16, 8, dtype=i8, low=-128)
add("npu_quant_matmul", A8, B8, p(8), pertoken_scale=p(4), bias=r(8), output_dtype=15)
add("npu_quant_matmul", A8, B8, p(1), bias=i(9, 8, dtype=i32), output_dtype=5)
add("npu_quant_matmul", A8, B8, p(8) / 1000, offset=r(8))
add("npu_quant_matmul_gelu", A8, B8, p(4) / 1000, p(8) / 100)
B3 = i(9, 2, 16, 8, dtype=i8)
add(
    "npu_quant_matmul_reduce_sum",
    i(9, 2, 4, 16, dtype=i8),
    B3,
    x1_scale=p(2, 4),
    x2_scale=p(8, dtype=BF16),
)
add("npu_weight_quant_batchmatmul", r(4, 16, dtype=HALF), B8, p(8, dtype=HALF) / 100)
add(
    "npu_weight_quant_batchmatmul",
    *(r(4, 64, dtype=BF16), i(2**31 - 1, 64, 1, dtype=i32), p(2, 8, dtype=BF16)),
    r(2, 8, dtype=BF16),
    bias=r(8),
    antiquant_group_size=32,
)
add("npu_dequant_bias", i(999, 4, 8, dtype=i32), p(8) / 100, p(4), None, output_dtype=HALF)
for name in ("npu_add_quant_matmul", "npu_add_quant_matmul_"):
    add(name, r(4, 8), A8, B8, p(8) / 100, x1_scale=p(1))

X, W = r(7, 6, dtype=HALF), r(3, 6, 5, dtype=HALF)
ENDS, SIZES = torch.tensor([2, 2, 7]), torch.tensor([2, 0, 5])
for split in (2, 3):
    add("npu_grouped_matmul", [X], [W], group_list=ENDS, split_item=split, group_type=0)
add("npu_grouped_matmul", [X], [W], group_list=SIZES, split_item=3, group_type=0, group_list_type=1)
add(
    "npu_grouped_matmul",
    *([r(2, 6), r(5, 6)], [r(6, 5), r(6, 4)]),
    bias=[r(5), r(4)],
    split_item=0,
    group_type=-1,
)
add("npu_grouped_matmul.List", [X], [r(6, 5, dtype=HALF)] * 3, group_list=[2, 4, 7], split_item=3)
add(
    "npu_grouped_matmul",
    *([i(9, 7, 6, dtype=i8)], [i(9, 3, 6, 5, dtype=i8)]),
    scale=[p(3, 5)],
    per_token_scale=[p(7)],
    group_list=ENDS,
    split_item=3,
    group_type=0,
    output_dtype=15,
)
for name in ("npu_grouped_matmul_add", "npu_grouped_matmul_add_"):
    add(name, r(3, 6, 5), X, r(7, 5, dtype=HALF), ENDS)
add(
    "npu_grouped_matmul_swiglu_quant",
    *(i(9, 7, 6, dtype=i8), i(9, 3, 6, 8, dtype=i8), ENDS, p(3, 8), p(7)),
)
add(
    "npu_grouped_matmul_finalize_routing",
    *(i(9, 7, 6, dtype=i8), i(9, 3, 6, 8, dtype=i8), SIZES),
    scale=p(3, 8),
    pertoken_scale=p(7),
    shared_input=r(2, 8, dtype=BF16),
    logit=p(7),
    row_index=i(4, 7),
    output_bs=4,
)

EXPERTS = i(4, 5, 2, dtype=i32)
add("npu_moe_gating_top_k_softmax", r(5, 8), torch.tensor([0, 1, 0, 0, 1]).bool(), 3)
add("npu_moe_gating_top_k_softmax_v2", r(5, 8), k=3, output_softmax=True)
add("npu_moe_gating_top_k_softmax_v2", r(5, 8), k=3, renorm=1)
add("npu_moe_gating_top_k", r(5, 8), 3, bias=r(8), k_group=2, group_count=4, norm_type=1)
add("npu_moe_gating_top_k", r(5, 8), 3)
add("npu_moe_gating_top_k_backward", p(5, 8), r(5, 3), i(8, 5, 3, dtype=i32), norm_type=1)
add("npu_moe_compute_expert_tokens", torch.tensor([0, 0, 2, 3, 3], dtype=i32), 5)
ROWS = torch.arange(10, dtype=i32).reshape(2, 5).T.contiguous()
add("npu_moe_init_routing", r(5, 8), ROWS, EXPERTS, 4)
for kind in (0, 1, 2):
    add(
        "npu_moe_init_routing_v2",
        *(r(5, 8), EXPERTS),
        active_num=10,
        expert_num=4,
        expert_tokens_num_type=kind,
        expert_tokens_num_flag=True,
        row_idx_type=kind % 2,
    )
add("npu_moe_init_routing_v2", r(5, 8), EXPERTS, expert_num=4, active_expert_range=[1, 3])
add("npu_moe_init_routing_v2", r(5, 8), EXPERTS, expert_num=4, drop_pad_mode=1, expert_capacity=2)
add("npu_moe_init_routing_v2", r(5, 8), EXPERTS, expert_num=4, quant_mode=1, active_num=10)
add(
    "npu_moe_finalize_routing",
    *(r(10, 8), r(5, 8), r(5, 8), r(4, 8), p(5, 2), i(10, 10, dtype=i32), EXPERTS),
)
add("npu_moe_re_routing", r(10, 4), torch.tensor([[1, 2, 1], [3, 1, 2]]), per_token_scales=p(10))
PLACE = torch.tensor([4, 0, 9, 1, 2, 8, 3, 5, 6, 7], dtype=i32)
add("npu_moe_token_permute", r(5, 8), EXPERTS)
add("npu_moe_token_permute", r(5, 8), EXPERTS, 7)
add("npu_moe_token_permute_grad", r(5, 8), r(10, 8), EXPERTS, PLACE)
add("npu_moe_token_permute_grad_v2", r(10, 8), PLACE, 5, torch.float32, 2)
for name in ("npu_moe_token_unpermute", "_npu_moe_token_unpermute"):
    add(name, r(10, 8), PLACE, p(5, 2))
add("npu_moe_token_unpermute", r(10, 8), PLACE)
add("npu_moe_token_unpermute_grad", r(10, 8), r(5, 8), PLACE, p(5, 2))
add(
    "npu_moe_token_unpermute_grad_v2",
    *(r(5, 8), PLACE, 10, torch.float32, p(5, 2)),
    permuted_tokens=r(10, 8),
)
MAP = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]], dtype=torch.bool)
INVERSE = torch.tensor([0, 3, 4, 6, 1, 7, 2, 5], dtype=i32)
add("npu_moe_token_permute_with_routing_map", r(4, 8), MAP, probs=p(4, 3), num_out_tokens=8)
add(
    "npu_moe_token_permute_with_routing_map",
    *(r(4, 8), MAP),
    probs=p(4, 3),
    num_out_tokens=6,
    drop_and_pad=True,
)
add("npu_moe_token_permute_with_routing_map_grad", r(8, 8), r(8), INVERSE, MAP, 3, 4, False)
for name in (
    "npu_moe_token_unpermute_with_routing_map",
    "_npu_moe_token_unpermute_with_routing_map",
):
    add(name, r(8, 8), INVERSE, [4, 8], probs=p(4, 3), routing_map=MAP)
    add(
        name, r(6, 8), i(4, 6, dtype=i32), [4, 8], probs=p(4, 3), routing_map=MAP, drop_and_pad=True
    )
add(
    "npu_moe_token_unpermute_with_routing_map_grad",
    *(r(4, 8), INVERSE, INVERSE, MAP, r(8, 8), p(4, 3), False, [4, 8]),
)
