"""Block formats, rotations, sparse attention, latent attention, kernels over ranks, workspaces.

Groups have one rank here: without a rehearsal there is nobody to talk to.
"""

from __future__ import annotations

import torch

from tests.run.rehearse.refs.samples import BF16, HALF, add, i, p, r

i8, i32 = torch.int8, torch.int32
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2

for code in (296, 297, 291, 292):
    add("npu_dynamic_mx_quant", r(3, 80, dtype=BF16), dst_type=code)
add("npu_dynamic_mx_quant", r(40, 6, dtype=HALF), axis=0, dst_type=292, scale_alg=1)
add("npu_dynamic_mx_quant", r(2, 64, dtype=BF16), dst_type=296, round_mode="floor")
add("npu_dynamic_mx_quant_with_dual_axis", r(70, 36, dtype=BF16), dst_type=24)
add("npu_anti_mx_quant", r(3, 64).to(E4M3), i(130, 3, 1, 2, dtype=torch.uint8, low=120))
add("npu_rms_norm_dynamic_mx_quant", r(3, 64, dtype=BF16), p(64, dtype=BF16), dst_type=292)
add(
    "npu_add_rms_norm_dynamic_mx_quant",
    *(r(3, 64, dtype=BF16), r(3, 64, dtype=BF16), p(64, dtype=BF16)),
    beta=r(64, dtype=BF16),
)
add("npu_swiglu_mx_quant", r(3, 128, dtype=BF16), dst_type=24)
add("npu_swiglu_mx_quant", r(3, 128, dtype=BF16), swiglu_mode=1)
add("npu_kronecker_quant", r(3, 4, 16, dtype=HALF), r(4, 4, dtype=HALF), r(16, 16, dtype=HALF), 0.9)
add("npu_rotate_quant", r(3, 32, dtype=BF16), r(16, 16, dtype=BF16))

SPARSE = torch.tensor([[[[0, 2, -1]], [[1, 0, 3]], [[4, 2, 0]]]], dtype=i32)
add(
    "npu_sparse_flash_attention",
    *(r(1, 3, 4, 16, dtype=BF16), r(1, 5, 1, 16, dtype=BF16), r(1, 5, 1, 16, dtype=BF16)),
    *(SPARSE, 0.3),
    query_rope=r(1, 3, 4, 8, dtype=BF16),
    key_rope=r(1, 5, 1, 8, dtype=BF16),
    return_softmax_lse=True,
)
PAGES = torch.tensor([[1, 0]], dtype=i32)
add(
    "npu_sparse_flash_attention",
    *(r(3, 4, 16, dtype=HALF), r(2, 4, 1, 16, dtype=HALF), r(2, 4, 1, 16, dtype=HALF)),
    *(SPARSE[0], 0.3),
    block_table=PAGES,
    actual_seq_lengths_query=torch.tensor([3], dtype=i32),
    actual_seq_lengths_kv=torch.tensor([6], dtype=i32),
    layout_query="TND",
    layout_kv="PA_BSND",
)
GRAD = (r(1, 3, 4, 16), r(1, 3, 4, 16), r(1, 1, 3, 4), p(1, 1, 3, 4))
add(
    "npu_sparse_flash_attention_grad",
    *(r(1, 3, 4, 16), r(1, 5, 1, 16), r(1, 5, 1, 16), SPARSE, *GRAD, 0.3, 1),
    query_rope=r(1, 3, 4, 8),
    key_rope=r(1, 5, 1, 8),
)
ROWS = i(127, 1, 5, 1, 64 + 8 + 8, dtype=i8)
ROWS[..., 64:72] = r(1, 5, 1, 4, dtype=BF16).view(i8)
ROWS[..., 72:] = p(1, 5, 1, 2).view(i8)
add(
    "npu_kv_quant_sparse_flash_attention",
    *(r(1, 3, 4, 68, dtype=BF16), ROWS, ROWS, SPARSE, 0.01, 2, 2),
    attention_mode=2,
    tile_size=32,
    rope_head_dim=4,
)
Q8, K8 = i(9, 1, 3, 4, 16, dtype=i8, low=-9), i(9, 1, 5, 1, 16, dtype=i8, low=-9)
add(
    "npu_quant_lightning_indexer",
    *(Q8, K8, p(1, 3, 4, dtype=HALF), p(1, 3, 4, dtype=HALF), p(1, 5, 1, dtype=HALF), 0, 0),
    sparse_count=4,
)

LATENT = {
    "weight_uk": r(2, 6, 16, dtype=BF16),
    "rmsnorm_gamma_cq": p(12, dtype=BF16),
    "rmsnorm_gamma_ckv": p(16, dtype=BF16),
    "rope_sin": r(2, 3, 4, dtype=BF16),
    "rope_cos": r(2, 3, 4, dtype=BF16),
}
SLOTS = torch.tensor([[5, 1, 3], [0, 7, 2]])
FLOATS = (
    *(r(2, 3, 8, dtype=BF16), r(8, 12, dtype=BF16), r(12, 20, dtype=BF16), LATENT["weight_uk"]),
    *(r(8, 20, dtype=BF16), *list(LATENT.values())[1:]),
)
CACHES = (r(4, 2, 1, 16, dtype=BF16), r(4, 2, 1, 4, dtype=BF16))
add("npu_mla_prolog", *FLOATS, SLOTS, *CACHES)
add("npu_mla_prolog_v2", *FLOATS, SLOTS, *CACHES)
for name in ("npu_mla_prolog_v3", "npu_mla_prolog_v3_functional"):
    add(name, *FLOATS, *CACHES, cache_index=SLOTS)
    add(name, *FLOATS, *CACHES, cache_index=SLOTS, query_norm_flag=True, qc_qr_scale=1.5)
WHOLE = (
    *(i(9, 2, 3, 8, dtype=i8), i(9, 8, 12, dtype=i8), i(9, 12, 20, dtype=i8), LATENT["weight_uk"]),
    *(i(9, 8, 20, dtype=i8), *list(LATENT.values())[1:]),
)
SCALES = {
    "dequant_scale_x": p(6, 1),
    "dequant_scale_w_dq": p(1, 12),
    "dequant_scale_w_uq_qr": p(1, 20),
    "dequant_scale_w_dkv_kr": p(1, 20),
    "smooth_scales_cq": p(1, 12),
}
BYTES = (i(9, 4, 2, 1, 16, dtype=i8), CACHES[1])
add("npu_mla_prolog_v2", *WHOLE, SLOTS, *BYTES, **SCALES, quant_scale_ckv=p(1, 16))
add(
    "npu_mla_prolog_v3",
    *(*WHOLE, *BYTES),
    cache_index=SLOTS,
    weight_quant_mode=2,
    kv_cache_quant_mode=1,
    query_quant_mode=1,
    quant_scale_ckv=p(1),
    **SCALES,
)

X, IDS = r(5, 6, dtype=HALF), torch.tensor([[0, 2], [3, 1], [2, 3], [1, 0], [2, 0]], dtype=i32)
ONE = ("", 1, 0, 4)  # one rank, four experts
for quant_mode in (0, 2):
    add("npu_moe_distribute_dispatch", X, IDS, *ONE, expert_scales=p(5, 2), quant_mode=quant_mode)
    add(
        "npu_moe_distribute_dispatch_v2", X, IDS, *ONE, expert_scales=p(5, 2), quant_mode=quant_mode
    )
ENDS = torch.tensor([3, 5, 8, 10], dtype=i32)
ORDER = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2, 2], dtype=i32)
add("npu_moe_distribute_combine", r(10, 6, dtype=HALF), IDS, ORDER, ENDS, p(5, 2), *ONE)
NOTES = torch.zeros(10, 128, dtype=i32)
PLACES = [(0, 0), (3, 1), (4, 1), (1, 1), (3, 0), (0, 1), (2, 0), (4, 0), (1, 0), (2, 1)]
NOTES[:, 1:3] = torch.tensor(PLACES, dtype=i32)
COMBINE = (r(10, 6, dtype=HALF), IDS, NOTES.reshape(-1), ENDS, p(5, 2))
add("npu_moe_distribute_combine_v2", *COMBINE, *ONE)
add(
    "npu_moe_distribute_combine_add_rms_norm",
    *(*COMBINE, r(5, 1, 6, dtype=HALF), p(6, dtype=HALF), *ONE),
)
add("npu_mm_all_reduce_base", r(4, 8, dtype=HALF), r(8, 6, dtype=HALF), "", x3=r(4, 6, dtype=HALF))
add("npu_mm_reduce_scatter_base", r(4, 8, dtype=HALF), r(8, 6, dtype=HALF), "", 1)
add(
    "npu_all_gather_base_mm", r(4, 8, dtype=HALF), r(8, 6, dtype=HALF), "", 1, bias=r(6, dtype=HALF)
)
GMM = (r(5, 6, dtype=HALF), r(2, 6, 4, dtype=HALF), "", 1, [2, 3], [2, 3])
SHARED = {"mm_x": r(3, 6, dtype=HALF), "mm_weight": r(6, 4, dtype=HALF)}
add("npu_alltoallv_gmm", *GMM, **SHARED, permute_out_flag=True)
add("npu_gmm_alltoallv", *GMM, **SHARED)

GROUPS = torch.tensor([2, 2, 7])
add(
    "npu_grouped_matmul_swiglu_quant_v2",
    *(i(9, 7, 6, dtype=i8), [i(9, 3, 6, 8, dtype=i8)], [p(3, 8)], p(7), GROUPS),
)
add("npu_quant_matmul_dequant", r(4, 16, dtype=HALF), i(9, 8, 16, dtype=i8), p(8))
add(
    "npu_quant_grouped_matmul_dequant",
    *(r(7, 16, dtype=HALF), i(9, 3, 8, 16, dtype=i8), p(3, 8), GROUPS),
)
add(
    "npu_transpose_quant_batchmatmul",
    *(r(4, 2, 16).to(E4M3), r(2, 16, 8).to(E4M3), 15),
    x1_scale=p(4),
    x2_scale=p(8),
    perm_x1=[1, 0, 2],
    perm_x2=[0, 1, 2],
    perm_y=[1, 0, 2],
)

QKV = (r(1, 3, 16, dtype=HALF), r(1, 3, 16, dtype=HALF), r(1, 3, 16, dtype=HALF))
add("_npu_fused_infer_attention_score_get_max_workspace", *QKV, num_heads=2)
add("_npu_fused_infer_attention_score_v2_get_max_workspace", *QKV, num_query_heads=2)
PACKED = tuple(r(6, 2, 16, dtype=HALF) for _ in range(4))
PACKED_ENDS = {"actual_seq_qlen": torch.tensor([2, 6]), "actual_seq_kvlen": torch.tensor([2, 6])}
add("_npu_fusion_attention_v3_get_max_workspace", *PACKED[:3], 2, "TND", **PACKED_ENDS)
add("_npu_fusion_attention_grad_v3_get_max_workspace", *PACKED, 2, "TND", **PACKED_ENDS)
PAGED = (r(2, 2, 16, dtype=HALF), r(3, 4, 2, 16, dtype=HALF))
LENGTHS = torch.tensor([3, 5], dtype=i32)
TABLES = torch.tensor([[0, 1], [2, 0]], dtype=i32)
OUT = torch.zeros(2, 2, 16, dtype=HALF)
add("atb::_npu_paged_attention_get_workspace", *PAGED, PAGED[1], 2, 2, 0.2, TABLES, LENGTHS, OUT)
add("atb::_npu_paged_attention_v2_get_workspace", *PAGED, TABLES, [3, 5], out=OUT)
ROPE = (r(2, 2, 8, dtype=HALF), r(3, 4, 1, 8, dtype=HALF))
add(
    "atb::_npu_multi_head_latent_attention_get_workspace.lse",
    *(PAGED[0], ROPE[0], r(3, 4, 1, 16, dtype=HALF), ROPE[1], TABLES, [3, 5], 2, 0.2, 1, True),
)
