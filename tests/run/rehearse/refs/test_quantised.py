"""Caches filled in one step, experts' tables, and quantised results, against float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.dtypes import Unsimulated
from tests.run.rehearse.refs.formulas import call, gradients, near, numbers

HALF, BF16, FP8 = torch.float16, torch.bfloat16, torch.float8_e4m3fn


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotation of halves, number by number."""
    half = x.shape[-1] // 2
    out = torch.zeros_like(x)
    for d in range(x.shape[-1]):
        other = -x[..., d + half] if d < half else x[..., d - half]
        out[..., d] = x[..., d] * cos[..., d] + other * sin[..., d]
    return out


def as_int8(x: Tensor) -> Tensor:
    return x.round().clamp(-128, 127).to(torch.int8)


@pytest.mark.parametrize("paged", [False, True])
def test_rotated_keys_and_values_are_quantised_into_their_caches(paged: bool) -> None:
    sums = torch.arange(2 * 3 * 16).reshape(2, 3, 16).sub(40).to(torch.int32)
    weight, active = numbers(16, seed=1).abs() / 20, numbers(6, seed=2).abs()
    cos, sin = numbers(2, 3, 1, 4, seed=3), numbers(2, 3, 1, 4, seed=4)
    scales = numbers(1, 4, seed=5).abs() * 20, numbers(1, 4, seed=6).abs() * 20
    caches = [torch.zeros(3, 6, 1, 4, dtype=torch.int8) for _ in range(2)]
    index = torch.tensor([5, 0, 7, 9, 11, 2] if paged else [1, 3])
    found = call(
        "npu_dequant_rope_quant_kvcache",
        *(sums, cos, sin, *caches, index, *scales, [8, 4, 4]),
        weight_scale=weight,
        activation_scale=active,
        kv_output=True,
        cache_mode="page" if paged else "contiguous",
    )
    real = sums.double() * weight.double() * active.double().reshape(2, 3, 1)
    angles = cos.double(), sin.double()
    q = turned(real[..., :8].reshape(2, 3, 2, 4), *angles)
    k = turned(real[..., 8:12].reshape(2, 3, 1, 4), *angles)
    near(found[0], q)
    near(found[1], k)
    near(found[2], real[..., 12:].reshape(2, 3, 1, 4))
    for part, cache, scale in (
        (k, caches[0], scales[0]),
        (found[2].double(), caches[1], scales[1]),
    ):
        expected = as_int8(part * scale.double())
        for batch in range(2):
            for t in range(3):
                place = int(index[batch * 3 + t]) if paged else batch * 6 + int(index[batch]) + t
                close = cache.reshape(18, 4)[place].int() - expected[batch, t, 0].int()
                assert int(close.abs().max()) <= 1  # float32 before the rounding
    plain = [torch.zeros(3, 6, 1, 4, dtype=torch.int8) for _ in range(2)]
    again = call(
        "npu_rope_quant_kvcache",
        *(real.float(), cos, sin, *plain, index, *scales, [8, 4, 4]),
        cache_mode="page" if paged else "contiguous",
    )
    near(again[0], q)
    assert torch.equal(plain[1], caches[1])
    assert again[1].numel() == 0


def test_a_projection_is_normed_rotated_and_stored_in_blocks() -> None:
    qkv, gamma = numbers(3, 4 * 32), [numbers(32, seed=1), numbers(32, seed=2)]
    cos, sin = numbers(3, 32, seed=3), numbers(3, 32, seed=4)
    scale = numbers(1, 32, seed=5).abs() + 0.5
    caches = [torch.zeros(2, 1, 4, 32, dtype=torch.int8) for _ in range(2)]
    q_out, index = torch.zeros(3, 64), torch.tensor([5, -1, 2])
    given = (qkv, *gamma, cos, sin, index, q_out, *caches, [1, 3, 4, 32], [2, 1, 1])
    found = call(
        "npu_qkv_rms_norm_rope_cache", *given, k_scale=scale, v_scale=scale, is_output_qkv=True
    )
    heads = qkv.double().reshape(3, 4, 32)
    normed = heads[:, :3] / (heads[:, :3].square().mean(-1, keepdim=True) + 1e-6).sqrt()
    angles = cos.double()[:, None], sin.double()[:, None]
    q = turned(normed[:, :2] * gamma[0].double(), *angles)
    k = turned(normed[:, 2:] * gamma[1].double(), *angles)
    near(q_out, q.flatten(1))
    near(found[1], k.flatten(1))
    near(found[2], heads[:, 3])
    for row, slot in ((0, 5), (2, 2)):
        expected = as_int8(heads[row, 3] / scale[0].double())
        assert int((caches[1][slot // 4, 0, slot % 4].int() - expected.int()).abs().max()) <= 1
    assert not caches[1][0, 0, :2].any()
    copies = [torch.zeros_like(cache) for cache in caches]
    kept = call(
        "npu_qkv_rms_norm_rope_cache_functional",
        *(*given[:7], *copies, *given[9:]),
        k_scale=scale,
        v_scale=scale,
    )
    assert torch.equal(kept[4], caches[0])
    assert not copies[0].any()


def test_the_later_forms_write_the_caches_of_the_first() -> None:
    kv, gamma = numbers(2, 1, 1, 12), numbers(8, seed=1)
    angles = numbers(2, 1, 1, 4, seed=2), numbers(2, 1, 1, 4, seed=3)
    index = torch.tensor([[1], [2]])

    def caches() -> list[Tensor]:
        return [torch.zeros(2, 1, 4, 4), torch.zeros(2, 1, 4, 8)]

    first, later, kept = caches(), caches(), caches()
    expected = call("npu_kv_rmsnorm_rope_cache", kv, gamma, *angles, index, *first)
    found = call("npu_kv_rmsnorm_rope_cache_v2", kv, gamma, *angles, index, *later)
    same = call("npu_kv_rmsnorm_rope_cache_v2_functional", kv, gamma, *angles, index, *kept)
    norm = kv[..., :8].double()
    norm = norm / (norm.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gamma.double()
    near(found[1], norm)
    near(later[1][0, 0, 1], norm[0, 0, 0])
    for one, other in ((found[0], expected[2]), (later[0], first[0]), (same[3], first[1])):
        assert torch.equal(one, other)
    assert not kept[0].any()


def test_copies_of_experts_and_experts_that_weigh_too_little() -> None:
    table = torch.tensor([[2, 5, 7, 0], [1, 3, 0, 0], [3, 1, 2, 4]])
    ids = torch.tensor([[0, 1], [2, 0], [2, 1]])
    found, used = call("npu_moe_update_expert", ids, table, local_rank_id=3, world_size=4)
    assert found.tolist() == [[7, 3], [2, 7], [2, 3]]  # copy 3 // ceil(4 / copies)
    assert used.all()
    scales = torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.6, 0.4]])
    found, used = call(
        "npu_moe_update_expert",
        ids,
        table,
        expert_scales=scales,
        pruning_threshold=torch.tensor([0.2, 0.3]),
        active_mask=torch.tensor([True, True, False]),
        balance_mode=1,
    )
    assert found.tolist() == [[5, 3], [2, 7], [4, 3]]  # copy of the token's number
    assert used.tolist() == [[True, False], [True, True], [False, False]]


def test_tokens_are_sorted_by_expert_and_quantised() -> None:
    x, ids = numbers(3, 8), torch.tensor([[2, 0], [1, 2], [0, 2]], dtype=torch.int32)
    rows, index, counts, before, scales = call(
        "npu_moe_init_routing_quant",
        *(x, ids),
        active_num=0,
        expert_num=3,
        expert_tokens_num_mode=2,
    )
    order = [(0, 1), (2, 0), (1, 0), (0, 0), (1, 1), (2, 1)]  # by expert, then by token
    assert counts.tolist() == [2, 1, 3]
    assert before is None
    for place, (token, slot) in enumerate(order):
        assert int(index[token * 2 + slot]) == place
        scale = x[token].double().abs().max() / 127
        near(scales[place], scale)
        near(rows[place].double() * scale, x[token].double(), factor=1e9)
    capacity = call(
        "npu_moe_init_routing_quant",
        *(x, ids),
        expert_capacity=2,
        expert_num=3,
        drop_pad_mode=1,
        expert_tokens_before_capacity_flag=True,
    )
    assert capacity[0].shape == (3, 2, 8)
    assert capacity[3].tolist() == [2, 1, 3]


def test_gradients_through_a_clamped_gate() -> None:
    x, grad, weight = numbers(4, 12) * 2, numbers(4, 6, seed=1), numbers(4, 1, seed=2)

    def formula(x: Tensor) -> Tensor:
        left, right = x[:, :6].clamp(max=1.5), x[:, 6:].clamp(-1.5, 1.5)
        found = left / (1 + (-left).exp()) * right * weight.double()
        return torch.cat((found[:3], torch.zeros(1, 6)))

    origin = numbers(4, 6, seed=3)
    dx, dw = call(
        "npu_swiglu_group_quant_backward",
        *(grad, x),
        weight=weight,
        y_origin=origin,
        group_index=torch.tensor([1, 2]),
        clamp_limit=1.5,
    )
    near(dx, gradients(formula, [x], grad)[0])
    expected = (grad.double() * origin.double()).sum(1, keepdim=True)
    expected[3] = 0
    near(dw, expected)


def test_a_gate_quantised_along_both_axes() -> None:
    x, grad = numbers(64, 128, dtype=BF16), numbers(64, 64, dtype=BF16, seed=1)
    wide = x.double()
    left = wide[:, :64]
    gate = (left / (1 + (-left).exp()) * wide[:, 64:]).to(BF16)
    found = call("npu_swiglu_mx_quant_with_dual_axis", x)
    expected = call("npu_dynamic_mx_quant_with_dual_axis", gate, dst_type=24, scale_alg=1)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert (one.view(torch.uint8) == other.view(torch.uint8)).float().mean() > 0.97  # rounding

    def formula(x: Tensor) -> Tensor:
        return x[:, :64] * torch.sigmoid(x[:, :64]) * x[:, 64:]

    dx = gradients(formula, [x], grad)[0].to(BF16)
    back = call("_npu_swiglu_backward_mx_quant_with_dual_axis", x, grad)
    for one, other in zip(
        back, call("npu_dynamic_mx_quant_with_dual_axis", dx, dst_type=24, scale_alg=1), strict=True
    ):
        assert (one.view(torch.uint8) == other.view(torch.uint8)).float().mean() > 0.97
    with pytest.raises(Unsimulated, match="groups"):
        call("npu_swiglu_mx_quant_with_dual_axis", x, group_index=torch.tensor([64]))


def test_squares_share_the_exponent_of_their_largest() -> None:
    x = numbers(40, 70) * torch.logspace(-2, 2, 70)
    elements, rows, columns = call("npu_dynamic_block_mx_quant", x, dst_type=292)
    assert rows.shape == (40, 2, 2)
    assert columns.shape == (1, 70, 2)
    for i in range(40):
        for j in range(70):
            square = x[i // 32 * 32 : i // 32 * 32 + 32, j // 32 * 32 : j // 32 * 32 + 32]
            exponent = math.floor(math.log2(float(square.abs().max()))) - 8
            assert int(rows[i].flatten()[j // 32]) == exponent + 127
            assert int(columns[0, j, i // 32]) == exponent + 127
            real = (x[i, j] / 2.0**exponent).clamp(-448, 448).to(FP8)
            assert float(elements[i, j]) == float(real)


def test_the_gradient_of_a_norm_as_int8() -> None:
    dy, x, gamma = numbers(4, 8), numbers(4, 8, seed=1), numbers(8, seed=2)

    def formula(x: Tensor, gamma: Tensor) -> Tensor:
        return x / (x.square().mean(1, keepdim=True) + 1e-6).sqrt() * gamma

    dx, d_gamma = gradients(formula, [x, gamma], dy)
    rstd = 1 / (x.square().mean(1) + 1e-6).sqrt()
    found = call("_npu_rms_norm_backward_quant", dy, x, rstd, gamma, torch.tensor([0.02]))
    assert int((found[0].int() - as_int8(dx / 0.02).int()).abs().max()) <= 1
    near(found[1], d_gamma, factor=5)


def test_a_convolution_of_int8_is_exact_before_its_scale() -> None:
    x = (numbers(1, 2, 5, 5) * 20).round().to(torch.int8)
    w = (numbers(3, 2, 3, 3, seed=1) * 20).round().to(torch.int8)
    scale, bias = numbers(3, seed=2).abs(), torch.tensor([5, -7, 9], dtype=torch.int32)
    packed = scale.view(torch.int32).long()
    found = call("npu_quant_conv2d", x, w, packed, [2, 2], [0, 0], output_dtype=6, bias=bias)
    for o in range(3):
        for i in range(2):
            for j in range(2):
                window = x[0, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3].long()
                total = int((window * w[o].long()).sum()) + int(bias[o])
                near(found[0, o, i, j], torch.tensor(float(total)).double() * scale[o].double())


def test_products_between_ranks_of_one_are_plain_products() -> None:
    a, b, bias = numbers(4, 6).to(FP8), numbers(6, 8, seed=1).to(FP8), numbers(8, seed=2)
    token, channel = numbers(4, seed=3).abs(), numbers(8, seed=4).abs()
    sums = a.double() @ b.double()
    expected = (sums + bias.double()) * token.double()[:, None] * channel.double()
    near(call("npu_quant_matmul_all_to_all", a, b, "", 1, bias, token, channel), expected)
    one = {"x1_scale": token[:1], "x2_scale": channel[:1], "y_dtype": 6}
    scaled = sums * token[0].double() * channel[0].double()
    found = call("npu_all_gather_quant_mm", a, b, "", 1, **one)
    near(found[0], scaled)
    assert torch.equal(found[1].float(), a.float())
    near(call("npu_quant_mm_reduce_scatter", a, b, "", 1, **one)[0], scaled)
    x, w = numbers(4, 6, seed=5), numbers(6, 8, seed=6)
    near(call("npu_matmul_all_to_all", x, w, "", 1, bias), x.double() @ w.double() + bias.double())
    near(call("npu_all_to_all_matmul", x, w, "", 1)[0], x.double() @ w.double())
    rows = x.double().abs().amax(1, keepdim=True) / 448
    exact = (x / rows.float()).to(FP8).double() @ b.double() * rows * channel.double()
    near(call("npu_all_to_all_quant_matmul", x, b, "", 1, x2_scale=channel)[0], exact)
    with pytest.raises(Unsimulated, match="group_sizes"):
        call("npu_all_gather_quant_mm", a, b, "", 1, group_sizes=[1, 1, 32], **one)


def test_experts_between_ranks_of_one() -> None:
    x, w = numbers(4, 64), numbers(2, 64, 8, seed=1)
    rows, row_scales = call("npu_dynamic_mx_quant", x, dst_type=292)
    columns, column_scales = call("npu_dynamic_mx_quant", w, dst_type=292, axis=-2)

    def spread(scales: Tensor) -> Tensor:  # one power of two for each block of 32
        return 2.0 ** (scales.double() - 127)

    wide = rows.double() * spread(row_scales).flatten(1).repeat_interleave(32, 1)
    tall = columns.double() * spread(column_scales)[:, 0].mT.repeat_interleave(32, 1)
    expected = torch.cat((wide[:1] @ tall[0], wide[1:] @ tall[1]))
    modes = {f"{one}_quant_mode": 6 for one in ("gmm_x", "gmm_weight", "mm_x", "mm_weight")}
    given = (rows, columns, row_scales, column_scales, "", 1, [1, 3], [1, 3], 6)
    own = {"mm_x": rows, "mm_weight": columns[0], "mm_x_scale": row_scales}
    own["mm_weight_scale"] = column_scales[0]
    found, shared, came = call(
        "npu_alltoallv_quant_gmm", *given, **own, **modes, permute_out_flag=True
    )
    near(found, expected)
    near(shared, wide @ tall[0])
    assert torch.equal(came.float(), rows.float())
    near(call("npu_quant_gmm_alltoallv", *given, **modes)[0], expected)
    with pytest.raises(Unsimulated, match="hifloat8"):
        call("npu_quant_gmm_alltoallv", *given, gmm_x_quant_mode=1, gmm_weight_quant_mode=1)
    assert torch.equal(call("_npu_distribute_barrier", numbers(3), "", 1), numbers(3))
