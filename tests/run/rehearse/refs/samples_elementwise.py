"""Norms, activations, softmax, rotary embeddings, quantisation of activations."""

from __future__ import annotations

import torch

from tests.run.rehearse.refs.samples import BF16, HALF, add, b, i, p, r

for dtype in (HALF, BF16, torch.float32):
    x, g = r(2, 3, 8, dtype=dtype), p(8, dtype=dtype)
    for name in ("npu_rms_norm", "npu_gemma_rms_norm"):
        add(name, x, g, 1e-5)
    for name in ("npu_add_rms_norm", "npu_add_rms_norm_v2_functional", "npu_add_rms_norm_cast"):
        add(name, x, r(2, 3, 8, dtype=dtype), g)
    add("npu_add_layer_norm", x, r(2, 3, 8, dtype=dtype), g, r(8, dtype=dtype))
    add("npu_deep_norm", x, r(2, 3, 8, dtype=dtype), r(8, dtype=dtype), g)
    for name in ("npu_gelu", "npu_gelu_mul", "npu_fast_gelu", "npu_silu", "npu_mish", "npu_swiglu"):
        add(name, x)
    add("npu_geglu", x)
    add("npu_clipped_swiglu", x)
    add("npu_dynamic_quant", x)
    add("npu_dynamic_quant_asymmetric", x)
add("npu_rms_norm", r(2, 3, 4, 8), p(4, 8))
add("npu_add_rms_norm_v2", r(2, 8), r(2, 8), p(8))
add("npu_rms_norm_backward", r(2, 3, 8), r(2, 3, 8), p(8), p(2, 3, 1))
add(
    "npu_add_layer_norm_backward",
    *(r(2, 3, 8), r(2, 3, 8), r(2, 3, 8), p(2, 3, 1), r(2, 3, 1), p(8), None),
)
add("npu_deep_norm_backward", r(2, 8), r(2, 8), r(2, 8), p(8), r(2, 1), p(2, 1), 0.3)
add("npu_layer_norm_eval", r(2, 3, 8), [8], p(8), r(8))
add("npu_layernorm_grad", r(2, 8), r(2, 8), [8], r(2, 1), p(2, 1), p(8), r(8))
add("npu_group_norm_silu", r(2, 6, 4, 4), p(6), r(6), 3)
add("npu_group_norm_silu", r(2, 6, 4, 4), None, None, 3)
add("npu_group_norm_swish", r(2, 6, 4, 4), 3, p(6), r(6))
add(
    "npu_group_norm_swish_grad",
    *(r(2, 6, 4), r(2, 6, 4), 3, p(6), r(6), r(2, 3), p(2, 3), [True, True, True]),
)
add("npu_gelu_backward", r(2, 8), r(2, 8), approximate="tanh")
add("fast_gelu", r(2, 8))
add("npu_silu_", r(2, 8))
for name in ("npu_fast_gelu_backward", "npu_mish_backward"):
    add(name, r(2, 8), r(2, 8))
add("npu_silu_backward", r(2, 8), r(2, 8), r(2, 8))
add("npu_swiglu_backward", r(2, 4), r(2, 8))
add("npu_swiglu", r(2, 6, 4), 1)
add("npu_geglu_grad", r(2, 4), r(2, 8), r(2, 4))
add("npu_clipped_swiglu", r(5, 8), group_index=torch.tensor([1, 2]), interleaved=False)
add("npu_scaled_masked_softmax", r(2, 3, 4, 4), b(2, 1, 4, 4), 0.5)
add("npu_scaled_masked_softmax_backward", r(2, 3, 4, 4), p(2, 3, 4, 4), b(2, 1, 4, 4), 0.5, False)
add("npu_masked_softmax_with_rel_pos_bias", r(2, 3, 2, 4, 4), r(1, 3, 1, 4, 4), r(1, 1, 2, 4, 4))
add("npu_attn_softmax_", r(2, 8))
add("npu_attn_softmax_backward_", p(2, 3, 4), r(2, 3, 5), r(2, 4, 5))
add("npu_dropout_with_add_softmax", r(2, 128), r(2, 128), 0.5, 0.0, -1)
add(
    "npu_dropout_with_add_softmax_backward",
    *(r(2, 64), torch.full((16,), 255, dtype=torch.uint8), p(2, 64), 0.5, 0.0, -1),
)
add("npu_rotary_mul", r(2, 3, 4, 8), r(1, 1, 4, 8), r(1, 1, 4, 8))
add("npu_rotary_mul", r(2, 3, 4, 8, dtype=BF16), r(1, 1, 4, 8), r(1, 1, 4, 8), "interleave")
add("npu_rotary_mul_backward", r(2, 3, 4, 8), r(2, 3, 4, 8), r(1, 1, 4, 8), r(1, 1, 4, 8))
add("npu_apply_rotary_pos_emb", r(2, 3, 4, 8), r(2, 3, 2, 8), r(2, 3, 1, 8), r(2, 3, 1, 8))
add(
    "npu_interleave_rope",
    *(r(2, 3, 4, 64, dtype=HALF), r(2, 1, 4, 64, dtype=HALF)),
    r(2, 1, 4, 64, dtype=HALF),
)
add("npu_mrope", i(10, 5), r(5, 32), r(5, 16), r(10, 8), 8, mrope_section=[0, 0, 0])
add("npu_mrope", i(10, 3, 5), r(5, 32), r(5, 16), r(10, 8), 8, mrope_section=[2, 1, 1])
add("npu_dynamic_quant", r(6, 8), smooth_scales=p(2, 8), group_index=torch.tensor([2, 6]))
add("npu_dynamic_quant", r(6, 16, dtype=HALF), dst_type=16)
add("npu_quantize", r(4, 8), p(8), None, 12, 1)
add("npu_quantize", r(4, 8), p(1), r(1), 1, -1, False)
add("npu_anti_quant", i(127, 4, 8, dtype=torch.int8), p(8), offset=r(8))
add("npu_anti_quant", i(2**31 - 1, 4, 2, dtype=torch.int32), p(16), dst_dtype=15)
add("npu_group_quant", r(6, 8), p(2, 8), torch.tensor([2, 6]))
add("npu_gelu_quant", r(4, 8), dst_type=1)
add("npu_trans_quant_param", p(4))
add("npu_trans_quant_param", p(1), r(4))
add("npu_convert_weight_to_int4pack", i(8, 16, 32, dtype=torch.int32, low=-8))
