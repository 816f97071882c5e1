"""Losses, optimisers, casts, products, recurrence, indexing, convolutions, boxes, ATB."""

from __future__ import annotations

import torch

from tests.run.rehearse.refs.samples import BF16, HALF, add, b, i, p, r

i32 = torch.int32
add("l1_loss_backward", r(2, 3), r(2, 3), r(2, 3), 0)
for name in ("kl_div_backward", "kl_div_target_backward"):
    add(name, r(), r(2, 3), p(2, 3), 2)
add("npu_binary_cross_entropy_with_logits_backward", r(), r(2, 3), p(2, 3), p(3), p(3), 1)
add("npu_softmax_cross_entropy_with_logits", r(4, 5), p(4, 5).softmax(-1))
add("npu_softmax_cross_entropy_with_logits_backward", r(4), r(4, 5), p(4, 5).softmax(-1))
add("npu_cross_entropy_loss", r(4, 5), i(5, 4))
add("npu_cross_entropy_loss", r(4, 5), i(5, 4), p(5), "none", 2, 0.1)
add("npu_cross_entropy_loss_backward", r(1), r(4, 5).log_softmax(-1), i(5, 4))
MASKED = (torch.tensor([0b01010000], dtype=torch.uint8), i(6, 4))
add(
    "npu_fused_linear_online_max_sum",
    r(4, 3, dtype=BF16),
    r(6, 3, dtype=BF16),
    i(12, 4),
    3,
    8,
    True,
)
add("npu_fused_cross_entropy_loss_with_max_sum", r(4), p(4), r(4), vocab_parallel_logits=r(4, 6))
add(
    "npu_fused_linear_cross_entropy_loss_with_max_sum_backward",
    *(r(4), r(4, 3, dtype=BF16), r(6, 3, dtype=BF16), *MASKED),
    softmax=p(4, 6).softmax(-1),
)

adam = {"out": [r(6), r(6), p(6)]}
add("npu_apply_adam.out", 0.81, 0.99, 0.1, 0.9, 0.995, 1e-8, r(6), None, False, **adam)
add(
    "npu_apply_adam_w.out",
    0.81,
    0.99,
    0.1,
    0.01,
    0.9,
    0.995,
    1e-8,
    r(6),
    None,
    False,
    False,
    **adam,
)
add("npu_apply_adam_w.out", 0.81, 0.99, 0.1, 0.01, 0.9, 0.9, 1e-8, r(6), p(6), True, True, **adam)
add("npu_bert_apply_adam.out", 0.1, 0.9, 0.99, 1e-6, r(6), 1.0, 2.0, 0.01, **adam)

add("_npu_dtype_cast", r(2, 3), HALF)
add("_npu_dtype_cast_backward", r(2, 3, dtype=HALF), torch.float32)
add("npu_dtype_cast", r(2, 3), 15)
add("npu_dtype_cast", r(2, 3), 15, 6)
add("npu_dtype_cast_backward", r(2, 3, dtype=BF16), torch.float32)
add("npu_dtype_cast_", r(2, 3), r(2, 3, dtype=HALF))
add("npu_view_copy", r(2, 3), r(2, 3), False)
add("one_", r(2, 3))

add("aten::matmul_backward", r(2, 4, 5), r(2, 4, 3), r(3, 5), [True, True])
add("aten::matmul_backward", r(2, 4), r(2, 4, 3), r(3), [True, False])
add("matmul_double_backward", r(4, 3), r(3, 5), r(4, 5), r(4, 3), r(3, 5), [True, True, True])
add("npu_linear", r(4, 3), r(5, 3), r(5))
add("npu_linear_backward", r(4, 5), r(4, 3), r(5, 3))
add("npu_bmmV2", r(2, 4, 3), r(2, 3, 5), [])
for name, size in (
    ("npu_bmm_v2_mat1_backward", [2, 4, 3]),
    ("npu_bmm_v2_mat2_backward", [2, 3, 5]),
):
    add(name, r(2, 4, 5), r(2, 4, 3), r(2, 3, 5), size)
add("npu_transpose_batchmatmul", r(2, 4, 3), r(2, 3, 5))
add("npu_transpose_batchmatmul", r(4, 2, 3), r(2, 3, 5), perm_x1=[1, 0, 2])
add("npu_fused_matmul", r(4, 3), r(3, 5), x3=r(4, 5), fused_op_type="add")
add("npu_ffn", r(4, 3), r(3, 6), r(6, 3), "gelu", bias1=r(6))
add("npu_ffn", r(4, 3), r(2, 3, 6), r(2, 3, 3), "swiglu", expert_tokens=[1, 3])
add("aten::mm.dtype", r(4, 3, dtype=BF16), r(3, 5, dtype=BF16), torch.float32)
add("aten::bmm.dtype", r(2, 4, 3, dtype=BF16), r(2, 3, 5, dtype=BF16), torch.float32)
add("aten::mm.dtype_out", r(4, 3, dtype=BF16), r(3, 5, dtype=BF16), torch.float32, out=r(4, 5))
add("aten::bmm.dtype_out", r(2, 4, 3), r(2, 3, 5), torch.float32, out=r(2, 4, 5))
add("aten::addmm.dtype", r(5), r(4, 3, dtype=BF16), r(3, 5, dtype=BF16), torch.float32)
add("aten::baddbmm.dtype", r(5), r(2, 4, 3), r(2, 3, 5), torch.float32, beta=0.5, alpha=2)
add("aten::addmm.dtype_out", r(5), r(4, 3), r(3, 5), torch.float32, out=r(4, 5))
add("aten::baddbmm.dtype_out", r(5), r(2, 4, 3), r(2, 3, 5), torch.float32, out=r(2, 4, 5))

T, B, N, H = 3, 2, 4, 5
LAYER = (r(T, B, N), r(N + H, 4 * H), r(4 * H))
STATE = (r(1, B, H), r(1, B, H))
FLAGS = (True, 1, 0.0, True, False, False)
add("npu_lstm", *LAYER, torch.empty(0), *STATE, *FLAGS, False, False)
STEPS = [r(T, B, H) for _ in range(8)]
add("npu_lstm_backward", r(T, B, H), None, r(T, B, H), *LAYER, *STATE, *STEPS)
SIZES = torch.tensor([2, 2, 1])
add("npu_lstm_data", LAYER[0], SIZES, *LAYER[1:], r(T, B, H), *STATE, *FLAGS, True, True)
add(
    "npu_lstm_data_backward",
    *(r(T, B, H), r(T, B, H), None, LAYER[0], SIZES, *LAYER[1:], *STATE, *STEPS, False),
)
CELL = (r(B, N), r(N, 4 * H), r(H, 4 * H), r(B, H), r(B, H))
add("npu_lstm_cell", *CELL, r(4 * H), r(4 * H))
add("npu_lstm_cell_backward", r(1, B, H), None, r(B, H), *CELL, *[r(1, B, H) for _ in range(8)])
GATES = (r(N, 3 * H), r(H, 3 * H), r(3 * H), r(3 * H))
add("npu_gru", r(T, B, N), r(1, B, H), *GATES, torch.empty(0), *FLAGS)
add(
    "npu_gru_backward",
    *(r(T, B, H), r(T, B, H), r(T, B, N), *GATES, torch.empty(0), r(1, B, H)),
    *[r(T, B, H) for _ in range(6)],
)


def params(gates: int, directions: int = 1) -> list[torch.Tensor]:
    one = [(gates * H, N), (gates * H, H), (gates * H,), (gates * H,)]
    return [r(*shape) for _ in range(directions) for shape in one]


for directions in (1, 2):
    flags = (True, 1, 0.0, True, directions == 2)
    hx = [r(directions, B, H), r(directions, B, H)]
    wide = r(B, T, directions * H)
    network = (r(B, T, N), hx, params(4, directions))
    add("_lstm_npu", *network, *flags, batch_first=True)
    saved = [r(directions, T, B, H) for _ in range(7)]
    add(
        "_lstm_npu_backward",
        wide,
        r(*hx[0].shape),
        None,
        *network,
        *saved,
        *flags,
        batch_first=True,
    )
    network = (r(B, T, N), hx[0], params(3, directions))
    add("_gru_npu", *network, *flags, batch_first=True)
    add("_gru_npu_backward", wide, r(*hx[0].shape), *network, *saved[:5], *flags, batch_first=True)

add("npu_confusion_transpose", r(2, 3, 4), [0, 2, 1], [2, 12], True)
add("npu_confusion_transpose", r(2, 12), [0, 2, 1], [2, 3, 4], False)
add("npu_confusion_transpose_backward", r(2, 12), [0, 2, 1], [2, 3, 4], False)
add("npu_transpose", r(2, 3, 4), [2, 0, 1])
add("npu_transpose.out", r(2, 3, 4), [2, 0, 1], out=r(4, 2, 3))
add("npu_broadcast", r(1, 3), [2, 3])
add("npu_broadcast.out", r(1, 3), [2, 3], out=r(2, 3))
add("npu_reshape", r(2, 6), [3, 4])
add("npu_reshape.out", r(2, 6), [3, 4], out=r(3, 4))
add("npu_slice", r(4, 5), [1, 0], [2, 4])
add("npu_slice.out", r(4, 5), [1, 0], [2, 5], out=r(2, 5))
add("npu_indexing", r(4, 5), [1, 2], [3, 0], [1, 2], 0, 2)
add("npu_indexing.out", r(4, 5), [1, 0], [3, 5], [1, 2], out=r(2, 3))
add("npu_pad", r(2, 3), [1, 1, 2, 0])
add("npu_one_hot", i(5, 2, 3), -1, 5, 2, -1)
for name in ("npu_max.dim", "npu_min.dim"):
    add(name, r(2, 3, 4), 1)
for name in ("npu_max_backward", "npu_min_backward"):
    add(name, r(2, 4), 1, i(3, 2, 4, dtype=i32), [2, 3, 4], False)
add("npu_sort_v2", r(2, 5))
add("npu_sort_v2.out", r(2, 5), -1, True, out=r(2, 5))
add("npu_stride_copy", r(3, 4), [2, 2], [4, 1], 1)
add("npu_stride_copy.out", r(3, 4), [2, 2], [4, 1], 1, out=r(2, 2))
add("repeat_interleave_backward_int", r(2, 6), r(2, 3), 2, 1)
add("repeat_interleave_backward_tensor", r(2, 6), r(2, 3), torch.tensor([1, 3, 2]), 1)
add("npu_renorm_backward", r(3, 4), r(3, 4), 2, 0, 1.0)
add(
    "npu_masked_fill_range",
    r(3, 8),
    torch.tensor([[0, 2, 3]], dtype=torch.int32),
    torch.tensor([[2, 2, 8]], dtype=torch.int32),
    torch.ones(1),
)
add("npu_sign_bits_pack", r(20), 1)
add("npu_sign_bits_unpack", i(256, 4, dtype=torch.uint8), 1, torch.float32)

CONV = ([2, 1], [1, 0], [1, 1], 1)
for name in ("npu_conv2d", "npu_convolution"):
    add(name, r(2, 3, 6, 6), r(4, 3, 3, 3), r(4), *CONV)
add("npu_conv2d.out", r(2, 3, 6, 6), r(4, 3, 3, 3), r(4), *CONV, out=r(2, 4, 3, 4))
for name in ("npu_conv2d_backward", "npu_convolution_backward"):
    add(name, r(2, 3, 6, 6), r(2, 4, 3, 4), r(4, 3, 3, 3), *CONV, [True] * 3)
DEEP = ([1, 1, 1], [0, 0, 0], [1, 1, 1], 1)
add("npu_conv3d", r(1, 2, 4, 4, 4), r(3, 2, 2, 2, 2), None, *DEEP)
add("npu_conv3d.out", r(1, 2, 4, 4, 4), r(3, 2, 2, 2, 2), None, *DEEP, out=r(1, 3, 3, 3, 3))
add(
    "npu_conv3d_backward",
    *(r(1, 2, 4, 4, 4), r(1, 3, 3, 3, 3), r(3, 2, 2, 2, 2), *DEEP, [True, True, False]),
)
UP = ([1, 1], [0, 0], [2, 2], [1, 1], 1)
for name in ("npu_conv_transpose2d", "npu_convolution_transpose"):
    add(name, r(2, 3, 4, 4), r(3, 4, 3, 3), r(4), *UP)
for name in ("npu_conv_transpose2d_backward", "npu_convolution_transpose_backward"):
    add(name, r(2, 3, 4, 4), r(2, 4, 7, 7), r(3, 4, 3, 3), *UP, [True] * 3)
UP3 = ([0, 0, 0], [0, 0, 0], [1, 1, 1], [1, 1, 1], 1)
add(
    "npu_conv_transpose3d_backward",
    *(r(1, 2, 3, 3, 3), r(1, 3, 4, 4, 4), r(2, 3, 2, 2, 2), *UP3, [True] * 3),
)
add(
    "slow_conv_transpose2d_backward",
    *(
        r(2, 4, 7, 7),
        r(2, 3, 4, 4),
        r(3, 4, 3, 3),
        [3, 3],
        [2, 2],
        [1, 1],
        [0, 0],
        [1, 1],
        [True] * 3,
    ),
)
add(
    "slow_conv_dilated2d_backward",
    *(r(2, 4, 2, 2), r(2, 3, 6, 6), r(4, 3, 3, 3), [3, 3], [1, 1], [0, 0], [2, 2], [True] * 3),
)
WISE = ([3, 3], [1, 1], [1, 1], [1, 1])
add("aten::_conv_depthwise2d", r(2, 3, 5, 5), r(3, 1, 3, 3), WISE[0], r(3), *WISE[1:])
add(
    "aten::_conv_depthwise2d.out",
    *(r(2, 3, 5, 5), r(3, 1, 3, 3), WISE[0], r(3), *WISE[1:]),
    out=r(2, 3, 5, 5),
)
add("_conv_depthwise2d_backward", r(2, 3, 5, 5), r(2, 3, 5, 5), r(3, 1, 3, 3), *WISE, [True, True])
MOVED = ([3, 3], [1, 1, 1, 1], [1, 1, 1, 1])
add("npu_deformable_conv2d", r(1, 2, 5, 5), r(4, 2, 3, 3), r(1, 27, 5, 5), r(4), *MOVED)
add(
    "npu_deformable_conv2dbk",
    *(r(1, 2, 5, 5), r(1, 4, 5, 5), r(1, 2, 15, 15), r(4, 2, 3, 3), r(1, 27, 5, 5), *MOVED),
)
add("npu_masked_causal_conv1d", r(5, 2, 4), r(3, 4), mask=b(2, 5))
add("npu_masked_causal_conv1d_backward", r(5, 2, 4), r(5, 2, 4), r(3, 4), mask=b(2, 5))

CORNERS = torch.tensor([[0.0, 0, 10, 10], [5, 5, 15, 15], [20, 20, 30, 40], [0, 1, 9, 10]])
TRUTHS = torch.tensor([[0.0, 0, 10, 20], [6, 5, 15, 18], [21, 22, 31, 39]])
for name in ("npu_iou", "npu_ptiou"):
    for mode in (0, 1):
        add(name, CORNERS, TRUTHS, mode)
add("npu_nms_v4", CORNERS, p(4), 3, torch.tensor(0.5), torch.tensor(0.1))
add("npu_nms_with_mask", torch.cat((CORNERS, p(4, 1)), 1), 0.5)
NORMS = (0.0, 0.0, 0.0, 0.0, 0.1, 0.1, 0.2, 0.2)
add("npu_bounding_box_encode", CORNERS[:3], TRUTHS, *NORMS)
add("npu_bounding_box_decode", CORNERS, r(4, 4), *NORMS, [50, 60], 0.016)
A4, B4 = CORNERS[:3].T.contiguous(), TRUTHS.T.contiguous()
add("npu_giou", A4, B4, True)
add("npu_giou_backward", r(3, 1), A4, B4, True)
add("npu_diou", A4, B4)
add("npu_diou_backward", r(1, 3), A4, B4)
for name in ("npu_ciou", "_npu_ciou"):
    add(name, A4, B4, False, False, 0, True)
add("npu_ciou_backward", r(1, 3), A4, B4, r(1, 3), False, False)
ROIS = torch.tensor([[0.0, 1, 1, 6, 5], [1, 0, 2, 7, 7]])
add("npu_roi_align", r(2, 3, 8, 8), ROIS, 1.0, 2, 3, 2, 0)
add("npu_roi_alignbk", r(2, 3, 2, 3), ROIS, [2, 3, 8, 8], 3, 2, 1.0, 2, 0)

add("atb::_npu_matmul_add_fp32", r(4, 3, dtype=HALF), r(4, 5, dtype=HALF), r(3, 5))
i8 = torch.int8
add(
    "atb::_npu_quantize_per_tensor",
    r(4, 3),
    p(1),
    torch.tensor([2], dtype=i8),
    i(9, 4, 3, dtype=i8),
)
add("atb::_npu_quant_rms_norm", r(4, 8), p(8), r(8), p(1), r(1), i(9, 4, 8, dtype=i8))
add("atb::_npu_rotary_embedding", i(10, 5), r(5, 32), r(5, 16), 8, r(10, 8), True)
add("atb::_npu_group_topk", p(3, 8), 2, 4, 2)
LENGTHS = torch.tensor([2, 3], dtype=i32)
PACK = (r(5, 4, 8), r(5, 2, 8), r(5, 2, 8))
FAR = torch.full((3, 3), -1e4).triu(1)
add("atb::_npu_flash_attention", *PACK, FAR, LENGTHS, 0.3, 4, 2, r(5, 4, 8))
add("atb::_npu_flash_attention_v3", *PACK, FAR, LENGTHS, 0.3, 4, 2, out=r(5, 4, 8))
add("atb::_npu_flash_attention_unpad", *PACK, LENGTHS, 0.3, 4, 2, r(5, 4, 8))
add("atb::_npu_flash_attention_unpad_v2", *PACK, LENGTHS, 0.3, 4, 2, out=r(5, 4, 8))
CACHES = (r(4, 4, 2, 8), r(4, 4, 2, 8))
TABLE, SEEN = torch.tensor([[3, 1], [0, 2]], dtype=i32), torch.tensor([5, 8], dtype=i32)
add("atb::_npu_paged_attention", r(2, 4, 8), *CACHES, 2, 4, 0.3, TABLE, SEEN, r(2, 4, 8))
add(
    "atb::_npu_paged_attention_mla",
    r(2, 4, 8),
    r(4, 4, 1, 8),
    1,
    4,
    0.3,
    TABLE,
    SEEN,
    6,
    r(2, 4, 6),
)
FUSE = (r(5, 4, 8), *CACHES, TABLE, SEEN, FAR, LENGTHS, 2, 4, 0.3)
add("atb::_npu_paged_attention_splitfuse", *FUSE, r(5, 4, 8))
add("atb::_npu_paged_attention_splitfuse_v2", *FUSE, out=r(5, 4, 8))
add(
    "atb::_npu_flash_attention_qlens",
    *(r(5, 4, 8), *CACHES, TABLE, FAR, LENGTHS, SEEN, 2, 4, 0.3, r(5, 4, 8)),
)
