"""Hyper-connections, native sparse attention, rotated boxes, latent caches, quantised exchanges."""

from __future__ import annotations

import torch

from tests.run.rehearse.refs.samples import BF16, HALF, add, b, i, p, r

FP8 = torch.float8_e4m3fn
INT32 = torch.int32

# ── hyper-connections ───────────────────────────────────────────────────────────────────────────
STREAMS = (r(2, 3, 4, 16, dtype=BF16), p(2, 3, 4, 4), r(2, 3, 16, dtype=BF16), p(2, 3, 4))
add("npu_mhc_post", *STREAMS)
add("npu_mhc_post", STREAMS[0], None, *STREAMS[2:])
add("npu_mhc_post_backward", r(2, 3, 4, 16, dtype=BF16), *STREAMS)
add("npu_mhc_post_backward", r(2, 3, 4, 16, dtype=BF16), STREAMS[0], None, *STREAMS[2:])
PRE = (r(5, 4, 16, dtype=BF16), r(24, 64), r(3), r(24))
add("npu_mhc_pre", *PRE, gamma=p(4, 16), out_flag=1)
add("npu_mhc_pre", PRE[0], r(8, 64), r(2), r(8), inner_precise=1)
add(
    "npu_mhc_pre_backward",
    *(PRE[0], PRE[1], PRE[2], r(5, 16, dtype=BF16), r(5, 4), r(5, 4, 4)),
    *(p(5), r(5, 24), p(5, 4) / 2, p(5, 4), p(4, 16)),
)
add("npu_mhc_sinkhorn", r(2, 3, 4, 4), num_iters=3)
add("npu_mhc_sinkhorn", r(5, 4, 4), num_iters=3, out_flag=1)
add("npu_mhc_sinkhorn_backward", r(5, 4, 4), p(6 * 5 * 4 * 8), p(6 * 5 * 8))

# ── native sparse attention ─────────────────────────────────────────────────────────────────────
add(
    "npu_nsa_compress",
    r(70, 2, 16, dtype=HALF),
    r(32, 2, dtype=HALF),
    32,
    16,
    actual_seq_len=[20, 70],
)
add(
    "npu_nsa_compress_grad",
    *(r(2, 2, 16, dtype=HALF), r(70, 2, 16, dtype=HALF), r(32, 2, dtype=HALF), 32, 16),
    actual_seq_len=[20, 70],
)
add(
    "npu_nsa_compress_infer.cache",
    *(
        r(4, 32, 2, 16, dtype=HALF),
        r(32, 2, dtype=HALF),
        torch.tensor([1, 0], dtype=INT32),
        32,
        16,
        32,
    ),
    block_table=torch.tensor([[0, 1], [2, 3]], dtype=INT32),
    actual_seq_len=[48, 40],
    cache=torch.zeros(3, 2, 16, dtype=HALF),
)
PACKED = (r(6, 4, 16, dtype=HALF), r(9, 2, 16, dtype=HALF), r(9, 2, 16, dtype=HALF), 0.3, 4)
add(
    "npu_nsa_compress_attention",
    *(*PACKED, 32, 16, 64, 2),
    topk_mask=torch.eye(3, 3, dtype=torch.bool),
    actual_seq_qlen=[3, 6],
    actual_cmp_seq_kvlen=[5, 9],
    actual_sel_seq_kvlen=[3, 5],
)
PAGES = (r(4, 16, 32, dtype=HALF), r(4, 16, 32, dtype=HALF))
TABLE = torch.tensor([[2, 0], [1, 3]], dtype=INT32)
add(
    "npu_nsa_compress_attention_infer",
    *(r(2, 4, 16, dtype=HALF), *PAGES, 0.3, 4, 2, 64, 4, 16, 32, 16),
    layout="TND",
    block_table=TABLE,
    actual_cmp_seq_kvlen=[20, 24],
)
CHOSEN = torch.stack([torch.stack([torch.randperm(2), torch.randperm(2)]) for _ in range(8)])
SELECTED = (r(8, 4, 16, dtype=HALF), r(16, 2, 16, dtype=HALF), r(16, 2, 16, dtype=HALF))
BLOCKS = CHOSEN.to(INT32)
ENDS = {"actual_seq_qlen": [4, 8], "actual_seq_kvlen": [8, 16]}
add("npu_nsa_select_attention", *SELECTED, BLOCKS, 0.3, 4, 4, 2, **ENDS)
add(
    "npu_nsa_select_attention_grad",
    *(r(8, 4, 16, dtype=HALF), *SELECTED, r(8, 4, 16, dtype=HALF), r(8, 4, 8), p(8, 4, 8)),
    *(BLOCKS, 0.3, 4, 4, 2),
    **ENDS,
)
add(
    "npu_nsa_select_attention_infer",
    *(r(2, 1, 4, 16, dtype=HALF), r(4, 16, 2, 16, dtype=HALF), r(4, 16, 2, 16, dtype=HALF)),
    *(torch.tensor([[[0, 2], [1, -1]], [[2, 0], [0, 1]]], dtype=INT32), 0.3, 4, 2, 8, 2, 16),
    block_table=TABLE,
    actual_seq_kvlen=[20, 24],
)

# ── rotated boxes ───────────────────────────────────────────────────────────────────────────────


def boxes(*shape: int) -> torch.Tensor:
    """Centres near each other, sizes from 1 on, degrees."""
    return torch.cat((r(*shape, 2) * 3 + 20, p(*shape, 2) * 8, r(*shape, 1) * 90), -1)


add("npu_rotated_overlaps", boxes(2, 3), boxes(2, 4))
add("npu_rotated_iou", boxes(2, 3), boxes(2, 4))
add("npu_rotated_iou", boxes(1, 3), boxes(1, 3), False, 1, False)
add("npu_nms_rotated", boxes(6), p(6), 0.2)
CORNERS = torch.cat((r(2, 2, 3), p(2, 2, 3) * 9 + 5, r(2, 1, 3) * 40), 1)
add("npu_rotated_box_encode", CORNERS, CORNERS + 1, p(5))
add("npu_rotated_box_decode", CORNERS, r(2, 5, 3), p(5))

# ── the older library ───────────────────────────────────────────────────────────────────────────
SIX = (r(6, 4, 16, dtype=HALF), r(6, 2, 16, dtype=HALF), r(6, 2, 16, dtype=HALF))
ROOM = torch.zeros(6, 4, 16, dtype=HALF)
add(
    "atb::_npu_flash_attention_v2.out",
    *(*SIX, [2, 4]),
    mask=r(4, 4, 4, dtype=HALF),
    scale_value=0.3,
    num_heads=4,
    num_kv_heads=2,
    out=ROOM.clone(),
)
CACHES = (r(4, 16, 2, 16, dtype=HALF), r(4, 16, 2, 16, dtype=HALF))
add(
    "atb::_npu_paged_attention_v2.out",
    *(r(2, 4, 16, dtype=HALF), CACHES[0], TABLE, [20, 24]),
    value_cache=CACHES[1],
    num_kv_heads=2,
    num_heads=4,
    scale_value=0.3,
    out=torch.zeros(2, 4, 16, dtype=HALF),
)
add(
    "atb::_npu_paged_attention_quant",
    *(
        r(2, 4, 16, dtype=HALF),
        i(9, 4, 16, 2, 16, dtype=torch.int8),
        i(9, 4, 16, 2, 16, dtype=torch.int8),
    ),
    *(2, 4, 0.3, TABLE, torch.tensor([20, 24], dtype=INT32), 1, 1, p(32), p(32)),
    torch.zeros(2, 4, 16, dtype=HALF),
)
MASK = torch.ones(128, 128, dtype=HALF).triu(1)
add(
    "atb::_npu_flash_attention_prefix_v2.out",
    *(r(5, 4, 16, dtype=HALF), *CACHES, TABLE, MASK, [2, 3], [20, 24]),
    num_kv_heads=2,
    num_heads=4,
    scale_value=0.3,
    out=torch.zeros(5, 4, 16, dtype=HALF),
)
PREFIX = (r(5, 4, 16, dtype=HALF), *CACHES, TABLE, [2, 3], [20, 24], 4, 0.3, 2)
add("atb::npu_self_attention_prefix_encoder", *PREFIX, mask=MASK)
add(
    "atb::npu_self_attention_prefix_encoder.out",
    *PREFIX,
    mask=MASK,
    output=torch.zeros(5, 4, 16, dtype=HALF),
)
add(
    "atb::npu_paged_cache_load.out",
    *(*CACHES, TABLE, torch.tensor([3, 5], dtype=INT32)),
    key=torch.zeros(8, 2, 16, dtype=HALF),
    value=torch.zeros(8, 2, 16, dtype=HALF),
)
LATENT = (
    *(r(2, 4, 512, dtype=HALF), r(2, 4, 64, dtype=HALF)),
    *(r(4, 16, 1, 512, dtype=HALF), r(4, 16, 1, 64, dtype=HALF), TABLE, [20, 24], 4, 0.05, 1),
)
add("atb::npu_multi_head_latent_attention", *LATENT)
add("atb::npu_multi_head_latent_attention.out", *LATENT, output=torch.zeros(2, 4, 512, dtype=HALF))
add("atb::npu_multi_head_latent_attention.lse", *LATENT, True)
add(
    "atb::npu_multi_head_latent_attention.lse_out",
    *(*LATENT, True),
    output=torch.zeros(2, 4, 512, dtype=HALF),
    lse=torch.zeros(2, 4, 1, dtype=HALF),
)
RING = (
    *(r(5, 4, 128, dtype=HALF), r(5, 4, 64, dtype=HALF), r(5, 4, 128, dtype=HALF)),
    *(r(5, 4, 64, dtype=HALF), r(5, 4, 128, dtype=HALF), torch.ones(512, 512, dtype=HALF).triu(1)),
    *(torch.tensor([[2, 3], [2, 3]], dtype=INT32), 4, 4),
)
add("atb::npu_ring_mla", *RING, qk_scale=0.05, mask_type="mask_type_triu")
add(
    "atb::npu_ring_mla.out",
    *RING,
    pre_out=r(5, 4, 128, dtype=HALF),
    prev_lse=r(4, 5),
    qk_scale=0.05,
    calc_type="calc_type_default",
    output=torch.zeros(5, 4, 128, dtype=HALF),
    softmax_lse=torch.zeros(4, 5),
)
ROUTED = {"group_num": 4, "group_topk": 2, "n": 2, "k": 3}
add("atb::npu_fused_add_topk_div", r(5, 16, dtype=HALF), r(16, dtype=HALF), **ROUTED)
add(
    "atb::npu_fused_add_topk_div.out",
    *(r(5, 16, dtype=HALF), r(16, dtype=HALF)),
    **ROUTED,
    y=torch.zeros(5, 3),
    indices=torch.zeros(5, 3, dtype=INT32),
)

# ── the indexer's training, blocks, pairs ───────────────────────────────────────────────────────
INDEX = (r(2, 4, 3, 16, dtype=HALF), r(2, 6, 1, 16, dtype=HALF), r(2, 4, 3, dtype=HALF))
MAIN = (r(2, 4, 4, 16, dtype=HALF), r(2, 6, 2, 16, dtype=HALF))
add(
    "npu_lightning_indexer_grad",
    *(INDEX[0], INDEX[1], r(2, 4, 1, 3), i(6, 2, 4, 1, 3, dtype=INT32), INDEX[2]),
)
add("npu_dense_lightning_indexer_softmax_lse", *INDEX)
add(
    "npu_dense_lightning_indexer_softmax_lse",
    *(r(6, 3, 16), r(9, 1, 16), r(6, 3)),
    actual_seq_qlen=[2, 6],
    actual_seq_klen=[4, 9],
    layout="TND",
)
STATS = (p(2, 2, 4, 2) * 20, p(2, 2, 4, 2))
add(
    "npu_dense_lightning_indexer_grad_kl_loss",
    *(*MAIN, *INDEX, *STATS, p(2, 1, 4) * 20, p(2, 1, 4), 0.3),
)
add(
    "npu_sparse_lightning_indexer_grad_kl_loss",
    *(
        *MAIN,
        *INDEX,
        torch.tensor([0, 1, 4, -1], dtype=INT32).expand(2, 4, 1, 4).contiguous(),
        *STATS,
        0.3,
    ),
)
SPARSE = (r(5, 4, 64, dtype=HALF), r(300, 2, 64, dtype=HALF), r(300, 2, 64, dtype=HALF))
WHERE = (
    torch.tensor([[1, 0], [1, 1]], dtype=torch.int8)
    .repeat(2, 4, 2, 1)
    .reshape(2, 4, 4, 2)[:, :, :2]
)
ASKED = {"num_key_value_heads": 2, "scale_value": 0.125}
LENGTHS = {"actual_seq_lengths": [2, 3], "actual_seq_lengths_kv": [140, 160]}
add("npu_block_sparse_attention", *SPARSE, WHERE, [2, 128], **ASKED, **LENGTHS)
add(
    "npu_block_sparse_attention_backward",
    *(r(5, 4, 64, dtype=HALF), *SPARSE, r(5, 4, 64, dtype=HALF), r(5, 4, 1), WHERE, [2, 128]),
    *([2, 3], [140, 160], "TND", "TND", 2, 0.125),
)
PAIRS = (r(1, 2, 3, 4, 8, dtype=HALF), r(1, 2, 3, 5, 8, dtype=HALF), r(1, 2, 3, 5, 8, dtype=HALF))
QUERY_AND_PAIRS = (*PAIRS, r(1, 2, 5, 4, 8, dtype=HALF), r(1, 2, 5, 4, 8, dtype=HALF))
add("npu_fused_floyd_attention", *QUERY_AND_PAIRS, atten_mask=b(1, 1, 3, 1, 5), scale_value=0.3)
add(
    "npu_fused_floyd_attention_backward",
    *(r(1, 2, 3, 4, 8, dtype=HALF), *QUERY_AND_PAIRS, PAIRS[0], p(1, 2, 3, 4, 8), p(1, 2, 3, 4, 8)),
    scale_value=0.3,
)

# ── caches and convolutions ─────────────────────────────────────────────────────────────────────
ROPE = (p(2, 3, 1, 16, dtype=HALF), p(2, 3, 1, 16, dtype=HALF))
KV8 = (torch.zeros(4, 8, 1, 16, dtype=torch.int8), torch.zeros(4, 8, 1, 16, dtype=torch.int8))
STORED = (*KV8, torch.tensor([1, 4], dtype=INT32), p(1, 16) * 9, p(1, 16) * 9, [32, 16, 16])
add("npu_rope_quant_kvcache", r(2, 3, 64, dtype=HALF), *ROPE, *STORED, kv_output=True)
add(
    "npu_dequant_rope_quant_kvcache",
    *(i(99, 2, 3, 64, dtype=INT32), *ROPE, *STORED),
    weight_scale=p(64) / 50,
    activation_scale=p(6),
)
NORMED = (r(4, 128, dtype=HALF), p(32, dtype=HALF), p(32, dtype=HALF), r(4, 32, dtype=HALF))
NORMED_ROWS = (
    *NORMED,
    r(4, 32, dtype=HALF),
    torch.tensor([0, 3, -1, 5]),
    torch.zeros(4, 64, dtype=HALF),
)
INT8S = (torch.zeros(2, 1, 4, 32, dtype=torch.int8), torch.zeros(2, 1, 4, 32, dtype=torch.int8))
SCALED = {"k_scale": p(1, 32) / 40, "v_scale": p(1, 32) / 40}
add("npu_qkv_rms_norm_rope_cache", *NORMED_ROWS, *INT8S, [1, 4, 4, 32], [2, 1, 1], **SCALED)
add(
    "npu_qkv_rms_norm_rope_cache_functional",
    *(*NORMED_ROWS, *INT8S, [1, 4, 4, 32], [2, 1, 1]),
    **SCALED,
    is_output_qkv=True,
)
LATER = (
    *(
        r(2, 1, 1, 24, dtype=HALF),
        p(16, dtype=HALF),
        p(2, 1, 1, 8, dtype=HALF),
        p(2, 1, 1, 8, dtype=HALF),
    ),
    *(
        torch.tensor([[1], [2]]),
        torch.zeros(2, 1, 4, 8, dtype=HALF),
        torch.zeros(2, 1, 4, 16, dtype=HALF),
    ),
)
add("npu_kv_rmsnorm_rope_cache_v2", *LATER)
add("npu_kv_rmsnorm_rope_cache_v2_functional", *LATER)
CONV = {"query_start_loc": torch.tensor([0, 3, 5], dtype=INT32), "residual_connection": 1}
CONV["cache_indices"] = torch.tensor([2, 0], dtype=INT32)
add(
    "npu_fused_causal_conv1d",
    r(5, 16, dtype=HALF),
    r(3, 16, dtype=HALF),
    r(4, 2, 16, dtype=HALF),
    **CONV,
)
add(
    "npu_fused_causal_conv1d_v2",
    r(5, 16, dtype=HALF),
    r(3, 16, dtype=HALF),
    r(4, 2, 16, dtype=HALF),
    **CONV,
)

# ── adapters, experts, quantised results ────────────────────────────────────────────────────────
add(
    "npu_batch_gather_matmul_",
    *(r(3, 32, dtype=HALF), r(3, 16, dtype=HALF), r(2, 1, 32, 16, dtype=HALF)),
    *(torch.tensor([1, 0, 2], dtype=INT32), r(2, 1, 16, 16, dtype=HALF)),
    scale=2.0,
)
COPIES = torch.tensor([[2, 5, 7], [1, 3, 0], [2, 1, 2]], dtype=INT32)
add("npu_moe_update_expert", i(3, 4, 2, dtype=INT32), COPIES, local_rank_id=1, world_size=4)
add(
    "npu_moe_update_expert",
    *(i(3, 4, 2, dtype=INT32), COPIES),
    expert_scales=p(4, 2),
    pruning_threshold=torch.tensor([0.5, 0.5]),
    active_mask=torch.tensor([True, True, True, False]),
    balance_mode=1,
)
add(
    "npu_moe_init_routing_quant",
    *(r(4, 8, dtype=HALF), i(4, 4, 2, dtype=INT32)),
    active_num=0,
    expert_num=4,
    expert_tokens_num_mode=2,
)
add("npu_swiglu_group_quant_backward", r(4, 8), r(4, 16), weight=p(4, 1), y_origin=r(4, 8))
add("npu_swiglu_mx_quant_with_dual_axis", r(64, 128, dtype=BF16))
add("_npu_swiglu_backward_mx_quant_with_dual_axis", r(64, 128, dtype=BF16), r(64, 64, dtype=BF16))
add("_npu_rms_norm_backward_quant", r(4, 8), r(4, 8), p(4), p(8), p(1) / 40)
PACKED_SCALE = p(4).view(torch.int32).long()
add(
    "npu_quant_conv2d",
    i(9, 2, 3, 6, 6, dtype=torch.int8),
    i(9, 4, 3, 3, 3, dtype=torch.int8),
    PACKED_SCALE,
    output_dtype=5,
)
add("npu_dynamic_block_mx_quant", r(40, 100, dtype=BF16), dst_type=292)

# ── between ranks: a group of one ───────────────────────────────────────────────────────────────
FP8S = (r(4, 8).to(FP8), r(8, 6).to(FP8))
add("npu_all_to_all_matmul", r(4, 8, dtype=HALF), r(8, 6, dtype=HALF), "", 1, r(6, dtype=HALF))
add("npu_matmul_all_to_all", r(4, 8, dtype=HALF), r(8, 6, dtype=HALF), "", 1)
add("npu_all_to_all_quant_matmul", r(4, 8, dtype=BF16), FP8S[1], "", 1, x2_scale=p(6))
add("npu_quant_matmul_all_to_all", *FP8S, "", 1, r(6), p(4), p(6))
ONE = {"x1_scale": p(1), "x2_scale": p(1), "y_dtype": 6}
add("npu_all_gather_quant_mm", *FP8S, "", 1, **ONE)
add("npu_quant_mm_reduce_scatter", *FP8S, "", 1, **ONE)
BLOCK_ROWS = torch.full((4, 1, 2), 126, dtype=torch.uint8).view(torch.float8_e8m0fnu)
BLOCK_COLUMNS = torch.full((2, 1, 6, 2), 128, dtype=torch.uint8).view(torch.float8_e8m0fnu)
MODES = {"gmm_x_quant_mode": 6, "gmm_weight_quant_mode": 6}
EXPERTS = (
    r(4, 64).to(FP8),
    r(2, 64, 6).to(FP8),
    BLOCK_ROWS,
    BLOCK_COLUMNS,
    "",
    1,
    [1, 3],
    [1, 3],
    15,
)
SCALES = {"gmm_x_scale_dtype": 293, "gmm_weight_scale_dtype": 293}
add("npu_alltoallv_quant_gmm", *EXPERTS, **MODES, **SCALES, permute_out_flag=True)
add("npu_quant_gmm_alltoallv", *EXPERTS, **MODES, **SCALES)
add("_npu_distribute_barrier", r(3), "", 1)
