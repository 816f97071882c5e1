"""Quantised norms, merged attentions, transforms, batch norm in parts, cells, sampling."""

from __future__ import annotations

import torch

from tests.run.rehearse.refs.samples import BF16, HALF, add, b, i, p, r

add("npu_rms_norm_quant", r(4, 8, dtype=HALF), p(8, dtype=HALF), r(8, dtype=HALF), p(1), i(9, 1))
add("npu_rms_norm_quant_v2", r(4, 8), p(8), p(8), offset=r(8), beta=r(8))
X = (r(4, 8, dtype=HALF), r(4, 8, dtype=HALF), p(8, dtype=HALF))
add("npu_add_rms_norm_quant", *X, p(8), i(9, 8, dtype=torch.int32))
add("npu_add_rms_norm_quant", *X, p(8), None, None, p(8), None, div_mode=False)
add("npu_add_rms_norm_dynamic_quant", *X)
add("npu_add_rms_norm_dynamic_quant", *X, smooth_scale1=p(8), smooth_scale2=p(8), beta=r(8))
for mode in (0, 1):
    add(
        "npu_swiglu_quant",
        r(6, 16),
        smooth_scales=p(2, 8),
        offsets=None if mode else r(2, 8),
        group_index=torch.tensor([2, 6], dtype=torch.int32),
        quant_mode=mode,
        dst_type=torch.int8,
    )
add(
    "npu_dequant_swiglu_quant",
    i(999, 6, 16, dtype=torch.int32),
    weight_scale=p(1, 16) / 1000,
    activation_scale=p(6, 1),
    quant_scale=p(1, 8),
    quant_mode=1,
    activate_left=True,
)
add("npu_dequant_swiglu_quant", r(6, 16), swiglu_mode=1, quant_mode=1)

add("npu_attention_update", [r(6), r(6)], [r(6, 8, dtype=HALF), r(6, 8, dtype=HALF)], 1)


def stats(*shape: int) -> list[torch.Tensor]:
    return [part.unsqueeze(-1).repeat_interleave(8, -1) for part in (r(*shape), p(*shape))]


OLD, NEW = stats(2, 4, 5), stats(2, 4, 5)
add("npu_ring_attention_update", r(5, 2, 32, dtype=HALF), *OLD, r(5, 2, 32, dtype=HALF), *NEW)
OLD, NEW = stats(5, 4), stats(5, 4)
add(
    "npu_ring_attention_update",
    *(r(5, 4, 8), *OLD, r(5, 4, 8), *NEW),
    actual_seq_qlen=torch.tensor([2, 5]),
    input_layout="TND",
)


def c(*shape: int) -> torch.Tensor:
    return torch.complex(r(*shape), r(*shape))


add("fft_r2c_backward", c(3, 4), [1], 0, True, 6)
add("fft_r2c_backward", c(3, 6), [1], 0, False, 6)
add("fft_c2r_backward", r(3, 6), [1], 0)
add("stft_backward", c(5, 4), r(20), 8, 4, None, torch.hann_window(8), return_complex=True)

BN = (r(4, 3, 5), r(3), p(3))
add("aten::batch_norm_stats", BN[0], 1e-5)
add("aten::batch_norm_elemt", BN[0], p(3), r(3), *BN[1:], 1e-5)
add("aten::batch_norm_elemt.out", BN[0], p(3), r(3), *BN[1:], 1e-5, out=r(4, 3, 5))
add("aten::batch_norm_backward_reduce", r(4, 3, 5), *BN, p(3), True, True, True)
COUNT = torch.tensor([20, 20], dtype=torch.int32)
add("aten::batch_norm_backward_elemt", r(4, 3, 5), *BN, p(3), r(3), r(3), COUNT)
RANKS = (BN[0], r(2, 3), p(2, 3), None, None, 0.1, 1e-5, torch.tensor([20.0, 12.0]))
add("aten::batch_norm_gather_stats_with_counts", *RANKS)
add("batch_norm_reduce", BN[0], 1e-5)
SUMS = (BN[0], r(2, 3), p(2, 3) * 100, None, None, 0.1, 1e-5, torch.tensor([20.0, 12.0]))
add("batch_norm_gather_stats_update", *SUMS)

add("aten::_thnn_fused_lstm_cell", r(2, 20), r(2, 20), r(2, 5), r(20), r(20))
add(
    "aten::_thnn_fused_lstm_cell_backward_impl", r(2, 5), None, r(2, 5), r(2, 5), p(2, 20) / 2, True
)
add("aten::_thnn_fused_gru_cell", r(2, 15), r(2, 15), r(2, 5), r(15), r(15))
add("aten::_masked_scale", r(2, 5), b(2, 5), 2.0)

add("npu_top_k_top_p", r(3, 8), p(3) / 2, i(8, 3, low=1))
add("npu_sim_exponential_", r(2, 3))
add(
    "npu_advance_step_flashattn",
    *(i(9, 3), i(9, 3, 1), i(9, 3), torch.tensor([5, 7, 2]), i(9, 3), i(9, 3, 4), 3, 3, 4),
)

Q4 = (r(2, 4, 5, 8), r(2, 4, 5, 8), r(2, 4, 5, 8))
ZERO = torch.zeros
TND = (r(5, 4, 8), r(5, 4, 8), r(5, 4, 8))
ENDS = {"actual_seq_qlen": torch.tensor([2, 5]), "actual_seq_kvlen": torch.tensor([2, 5])}
add(
    "npu_fusion_attention_v3.out",
    *(*TND, 4, "TND"),
    scale=0.3,
    **ENDS,
    out=[ZERO(5, 4, 8), ZERO(5, 4, 8), ZERO(5, 4, 8), ZERO(0)]
    + [ZERO(1, dtype=torch.int64) for _ in range(2)],
)
add(
    "npu_fusion_attention_grad_v3.out",
    *(*TND, r(5, 4, 8), 4, "TND"),
    softmax_max=r(5, 4, 8),
    softmax_sum=p(5, 4, 8),
    attention_in=r(5, 4, 8),
    **ENDS,
    out=[ZERO(5, 4, 8) for _ in range(3)] + [ZERO(0), ZERO(0)],
)
HALVES = tuple(part.to(HALF) for part in Q4)
OUT = [ZERO(2, 4, 5, 8, dtype=HALF), ZERO(1)]
add("npu_fused_infer_attention_score.out", *HALVES, num_heads=4, input_layout="BNSD", out=list(OUT))
add(
    "npu_fused_infer_attention_score_v2.out",
    *HALVES,
    num_query_heads=4,
    input_layout="BNSD",
    out=list(OUT),
)
add("npu_alloc_float_status", r(8))
add("npu_get_float_status", r(8))
add("npu_clear_float_status", r(8))
add("_amp_foreach_non_finite_check", [r(3), r(2, 2)])
CORNERS4 = torch.tensor([[1.0, 2, 5, 7], [0, 0, 3, 3], [2, 2, 6, 5]])
add("npu_yolo_boxes_encode", CORNERS4, CORNERS4 + 1, torch.tensor([2, 4, 8], dtype=torch.int32))
add("npu_anchor_response_flags", CORNERS4, [4, 6], [2, 2], 3)
for kind in (0, 1):
    add("npu_normalize_batch", r(2, 3, 6), torch.tensor([4, 6], dtype=torch.int32), kind)
for name in ("npu_recurrent_gated_delta_rule", "npu_recurrent_gated_delta_rule_functional"):
    add(
        name,
        *(r(5, 2, 8, dtype=BF16), r(5, 2, 8, dtype=BF16), r(5, 4, 6, dtype=BF16)),
        r(7, 4, 6, 8, dtype=BF16),
        beta=p(5, 4, dtype=BF16),
        scale=0.3,
        actual_seq_lengths=torch.tensor([2, 3], dtype=torch.int32),
        ssm_state_indices=torch.tensor([6, 1, 3, 0, 2], dtype=torch.int32),
        num_accepted_tokens=torch.tensor([1, 2], dtype=torch.int32),
        g=-p(5, 4),
    )
add(
    "npu_chunk_gated_delta_rule",
    *(r(5, 2, 8, dtype=BF16), r(5, 2, 8, dtype=BF16), r(5, 4, 6, dtype=BF16)),
    beta=p(5, 4, dtype=BF16),
    initial_state=r(2, 4, 6, 8, dtype=BF16),
    actual_seq_lengths=torch.tensor([2, 3], dtype=torch.int32),
    scale=0.3,
    g=-p(5, 4),
)
add(
    "npu_lightning_indexer",
    *(r(2, 3, 4, 8, dtype=BF16), r(2, 6, 1, 8, dtype=BF16), r(2, 3, 4, dtype=BF16)),
    actual_seq_lengths_query=torch.tensor([3, 2], dtype=torch.int32),
    actual_seq_lengths_key=torch.tensor([6, 4], dtype=torch.int32),
    sparse_count=4,
)
add("npu_dynamic_block_quant", r(3, 200, dtype=HALF))
