"""Norms, activations, softmax, rotary embeddings, dropout and quantisation against formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from joymigrate.run.rehearse.refs.dtypes import int4_pairs
from joymigrate.run.rehearse.refs.quantise import pack_int4, packed_offset, real_scale
from joymigrate.run.rehearse.refs.randomness import unpack_bits
from tests.run.rehearse.refs.formulas import DTYPES, call, gradients, near, numbers

EPS = 1e-5


def rms_rows(x: Tensor, gamma: Tensor, eps: float = EPS) -> tuple[Tensor, Tensor]:
    """RMS norm row by row over the last axes that gamma has."""
    x, gamma = x.double(), gamma.double()
    flat = x.reshape(-1, gamma.numel())
    rstd = torch.stack([1 / (sum(v * v for v in row) / len(row) + eps).sqrt() for row in flat])
    y = torch.stack([row * r * gamma.reshape(-1) for row, r in zip(flat, rstd, strict=True)])
    shape = [*x.shape[: x.dim() - gamma.dim()], *[1] * gamma.dim()]
    return y.reshape(x.shape), rstd.reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 7), (2, 3, 4, 5)])
def test_rms_norms(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, x2 = numbers(*shape, dtype=dtype), numbers(*shape, dtype=dtype, seed=1)
    gamma = numbers(shape[-1], dtype=dtype)
    y, rstd = call("npu_rms_norm", x, gamma, EPS)
    right, factor = rms_rows(x, gamma)
    near(y, right)
    near(rstd, factor)
    assert (y.dtype, rstd.dtype) == (dtype, torch.float32)
    near(call("npu_gemma_rms_norm", x, gamma, EPS)[0], rms_rows(x, gamma.double() + 1)[0])
    total = x.double() + x2.double()
    y, rstd, sums = call("npu_add_rms_norm", x, x2, gamma, EPS)
    near(y, rms_rows(total, gamma)[0])
    near(sums, total)
    wide, narrow, *_ = call("npu_add_rms_norm_cast", x, x2, gamma, EPS)
    assert wide.dtype == torch.float32
    assert torch.equal(wide.to(dtype), narrow)
    first, second = x.clone(), x2.clone()
    assert torch.equal(call("npu_add_rms_norm_v2", first, second, gamma, EPS), rstd)
    assert torch.equal(first, y)
    assert torch.equal(second, sums)


def test_rms_norm_over_two_axes_and_of_nothing() -> None:
    x, gamma = numbers(2, 3, 4), numbers(3, 4)
    y, rstd = call("npu_rms_norm", x, gamma, EPS)
    near(y, rms_rows(x, gamma)[0])
    assert rstd.shape == (2, 1, 1)
    assert call("npu_rms_norm", torch.empty(0, 4), torch.ones(4))[0].shape == (0, 4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_gradients(dtype: torch.dtype) -> None:
    x, gamma, dy = numbers(2, 3, 6, dtype=dtype), numbers(6, dtype=dtype), numbers(2, 3, 6, seed=4)
    dy = dy.to(dtype)
    rstd = call("npu_rms_norm", x, gamma, EPS)[1]
    dx, dgamma = call("npu_rms_norm_backward", dy, x, gamma, rstd)

    def formula(a: Tensor, g: Tensor) -> Tensor:
        return a / (a.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * g

    right = gradients(formula, (x, gamma), dy)
    near(dx, right[0])
    near(dgamma, right[1])
    assert dgamma.dtype == torch.float32


def layer(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, gamma.shape, gamma, beta, EPS)


def test_layer_norms_of_sums_with_gradients() -> None:
    x1, x2, gamma, beta = numbers(2, 3, 6), numbers(2, 3, 6, seed=1), numbers(6), numbers(6, seed=2)
    y, mean, rstd, total = call("npu_add_layer_norm", x1, x2, gamma, beta, EPS)
    near(y, layer((x1 + x2).double(), gamma.double(), beta.double()))
    near(mean, (x1 + x2).double().mean(-1, keepdim=True))
    near(total, (x1 + x2).double())
    dy, dsum = numbers(2, 3, 6, seed=5), numbers(2, 3, 6, seed=6)

    def formula(a: Tensor, b: Tensor, g: Tensor, s: Tensor) -> list[Tensor]:
        return [layer(a + b, g, s), a + b]

    right = gradients(formula, (x1, x2, gamma, beta), (dy, dsum))
    found = call("npu_add_layer_norm_backward", dy, x1, x2, rstd, mean, gamma, dsum)
    for grad, wanted in zip(found, right, strict=True):
        near(grad, wanted)
    mean, rstd, y = call("npu_deep_norm", x1, x2, beta, gamma, 0.3, EPS)
    near(y, layer(0.3 * x1.double() + x2.double(), gamma.double(), beta.double()))
    dx, dgx, dbeta, dgamma = call("npu_deep_norm_backward", dy, x1, x2, gamma, mean, rstd, 0.3)
    right = gradients(lambda a, b, g, s: layer(0.3 * a + b, g, s), (x1, x2, gamma, beta), dy)
    for grad, wanted in zip((dx, dgx, dgamma, dbeta), right, strict=True):
        near(grad, wanted)
    near(
        call("npu_layer_norm_eval", x1, [6], gamma, beta, EPS),
        layer(x1.double(), gamma.double(), beta.double()),
    )
    statistics = x1.mean(-1), (x1.var(-1, unbiased=False) + EPS).rsqrt()
    found = call("npu_layernorm_grad", dy, x1, [6], *statistics, gamma, beta)
    right = gradients(layer, (x1, gamma, beta), dy)
    for grad, wanted in zip(found, right, strict=True):
        near(grad, wanted)


def test_group_norms_with_silu_and_swish() -> None:
    x, weight, bias, dy = numbers(2, 6, 3, 4), numbers(6), numbers(6, seed=1), numbers(2, 6, 3, 4)

    def formula(a: Tensor, w: Tensor, b: Tensor, scale: float) -> Tensor:
        groups = a.reshape(2, 3, -1)
        centred = groups - groups.mean(-1, keepdim=True)
        normal = centred / (centred.pow(2).mean(-1, keepdim=True) + EPS).sqrt()
        z = normal.reshape(a.shape) * w.view(1, 6, 1, 1) + b.view(1, 6, 1, 1)
        return z / (1 + (-scale * z).exp())

    y, mean, rstd = call("npu_group_norm_silu", x, weight, bias, 3, EPS)
    near(y, formula(x.double(), weight.double(), bias.double(), 1.0))
    near(mean, x.double().reshape(2, 3, -1).mean(-1))
    y, mean, rstd = call("npu_group_norm_swish", x, 3, weight, bias, EPS, 1.5)
    near(y, formula(x.double(), weight.double(), bias.double(), 1.5))
    found = call(
        "npu_group_norm_swish_grad", dy, x, 3, weight, bias, mean, rstd, [True, True, False], 1.5
    )
    right = gradients(lambda a, w, b: formula(a, w, b, 1.5), (x, weight, bias), dy)
    near(found[0], right[0])
    near(found[1], right[1])
    assert found[2] is None


def erf_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def tanh_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def swish(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


UNARY: list[tuple[str, str, dict[str, Any], Any]] = [
    ("npu_gelu", "npu_gelu_backward", {"approximate": "none"}, erf_gelu),
    ("npu_gelu", "npu_gelu_backward", {"approximate": "tanh"}, tanh_gelu),
    ("npu_fast_gelu", "npu_fast_gelu_backward", {}, lambda x: x / (1 + (-1.702 * x).exp())),
    ("npu_mish", "npu_mish_backward", {}, lambda x: x * torch.tanh(torch.log1p(x.exp()))),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "backward", "options", "formula"), UNARY)
def test_activations(
    name: str, backward: str, options: dict[str, Any], formula: Any, dtype: torch.dtype
) -> None:
    x, dy = numbers(3, 7, dtype=dtype), numbers(3, 7, dtype=dtype, seed=2)
    y = call(name, x, **options)
    assert y.dtype == dtype
    near(y, formula(x.double()))
    near(call(backward, dy, x, **options), gradients(formula, (x,), dy)[0])


def test_fast_gelu_of_the_910a_is_the_same_function() -> None:
    x = numbers(50).double()
    other = x / (1 + (-1.702 * x.abs()).exp()) * (0.851 * (x - x.abs())).exp()
    near(call("npu_fast_gelu", x.float()), other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [-1, 1, 0])
def test_gated_units(dtype: torch.dtype, dim: int) -> None:
    x = numbers(4, 6, 8, dtype=dtype)
    half = list(x.shape)
    half[dim] //= 2
    dy = numbers(*half, dtype=dtype, seed=9)

    def cut(a: Tensor) -> tuple[Tensor, Tensor]:
        size = a.shape[dim] // 2
        return a.narrow(dim, 0, size), a.narrow(dim, size, size)

    def swiglu(a: Tensor) -> Tensor:
        gate, up = cut(a)
        return swish(gate) * up

    near(call("npu_swiglu", x, dim), swiglu(x.double()))
    near(call("npu_swiglu_backward", dy, x, dim), gradients(swiglu, (x,), dy)[0])
    for left in (False, True):
        for code, gelu in ((0, erf_gelu), (1, tanh_gelu)):

            def geglu(a: Tensor, left: bool = left, gelu: Any = gelu) -> Tensor:
                first, second = cut(a)
                return gelu(first) * second if left else first * gelu(second)

            y, activated = call("npu_geglu", x, dim, code, left)
            near(y, geglu(x.double()))
            near(activated, gelu(cut(x.double())[0 if left else 1]))
            near(
                call("npu_geglu_grad", dy, x, activated, dim, code, left),
                gradients(geglu, (x,), dy)[0],
            )


def test_silu_in_place_and_gelu_mul() -> None:
    x = numbers(3, 8)
    y = x.clone()
    assert call("npu_silu_", y) is y
    near(y, swish(x.double()))
    near(call("npu_silu_backward", x, x, y), gradients(swish, (x,), x)[0])
    near(call("npu_gelu_mul", x), erf_gelu(x[:, :4].double()) * x[:, 4:].double())


def test_clipped_swiglu_by_axis_and_group() -> None:
    x = numbers(3, 4, 6) * 5
    for interleaved in (True, False):
        y = call("npu_clipped_swiglu", x, dim=1, interleaved=interleaved)
        flat = x.double().reshape(3, 24)
        parts = (flat[:, ::2], flat[:, 1::2]) if interleaved else (flat[:, :12], flat[:, 12:])
        gate, linear = parts[0].clamp(max=7), parts[1].clamp(-7, 7)
        near(y, (gate / (1 + (-1.702 * gate).exp()) * (linear + 1)).reshape(3, 2, 6))
    y = call("npu_clipped_swiglu", x, group_index=torch.tensor([3, 4]))
    assert torch.equal(y.reshape(12, 3)[7:], torch.zeros(5, 3))


@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_softmaxes(dtype: torch.dtype) -> None:
    x, mask = numbers(2, 3, 4, 5, dtype=dtype), numbers(2, 1, 4, 5, seed=3) > 0.5
    y = call("npu_scaled_masked_softmax", x, mask, 0.5)
    logits = torch.where(mask, -10000.0, x.double() * 0.5)
    near(y, logits.exp() / logits.exp().sum(-1, keepdim=True))
    dy = numbers(2, 3, 4, 5, dtype=dtype, seed=8)

    def formula(a: Tensor) -> Tensor:
        return torch.where(mask, -10000.0, a * 0.5).softmax(-1)

    found = call("npu_scaled_masked_softmax_backward", dy, y, mask, 0.5, False)
    near(found, gradients(formula, (x,), dy)[0], factor=2)


def test_window_attention_softmax() -> None:
    x, mask, bias = numbers(2, 3, 2, 4, 4), numbers(3, 4, 4), numbers(2, 4, 4)
    y = call("npu_masked_softmax_with_rel_pos_bias", x, mask, bias, 0.5)
    for b in range(2):
        for w in range(3):
            for n in range(2):
                logits = (x[b, w, n] * 0.5 + mask[w] + bias[n]).double()
                near(y[b, w, n], logits.softmax(-1))


def test_attention_softmax_in_place_with_its_gradient() -> None:
    x, values, dy = numbers(2, 3, 4), numbers(2, 4, 5), numbers(2, 3, 5)
    y = x.clone()
    assert call("npu_attn_softmax_", y) is y
    near(y, x.double().softmax(-1))
    found = call("npu_attn_softmax_backward_", y.clone(), dy, values)
    right = gradients(lambda a: a.softmax(-1) @ values.double(), (x,), dy)[0]
    near(found, right)


def test_dropout_keeps_what_its_mask_says() -> None:
    torch.manual_seed(5)
    x = numbers(40, 50)
    y, mask = call("_npu_dropout", x, 0.25)
    kept = unpack_bits(mask, 2000).view(40, 50)
    near(y, torch.where(kept, x.double() / 0.75, 0.0))
    assert 0.7 < kept.double().mean() < 0.8  # 2,000 draws: five deviations are 0.048
    near(call("npu_dropout_backward", x, mask, 0.25), torch.where(kept, x.double() / 0.75, 0.0))
    again = call("npu_dropout_do_mask", x, mask, 0.25)
    assert torch.equal(again[0], y)
    torch.manual_seed(5)
    assert torch.equal(call("_npu_dropout", x, 0.25)[0], y)
    y, flags = call("_dropout_with_byte_mask", x, 0.5)
    assert torch.equal(call("_dropout_with_byte_mask_backward", x, flags, 0.5), y)
    assert torch.equal(call("dropout_with_byte_mask", x, 0.5, False), x)
    assert not call("_npu_dropout", x, 1.0)[0].any()


def test_dropout_after_softmax_with_its_gradient() -> None:
    torch.manual_seed(6)
    x, x1, dy = numbers(4, 32), numbers(4, 32, seed=1), numbers(4, 32, seed=2)
    mask, softmax, dropped = call("npu_dropout_with_add_softmax", x, x1, 0.5, 0.25, -1)
    kept = unpack_bits(mask, 128).view(4, 32)
    near(softmax, (x.double() * 0.5 + x1.double()).softmax(-1))
    near(dropped, torch.where(kept, softmax.double() / 0.75, 0.0))
    found, _ = call("npu_dropout_with_add_softmax_backward", dy, mask, softmax, 0.5, 0.25, -1)
    right = gradients(lambda a: (a * 0.5 + x1.double()).softmax(-1) * kept / 0.75, (x,), dy)[0]
    near(found, right)


def turned(x: Tensor, cos: Tensor, sin: Tensor, mode: str) -> Tensor:
    """Rotation element by element."""
    size = x.shape[-1]
    partner = {
        "half": [(i + size // 2) % size for i in range(size)],
        "interleave": [i + 1 if i % 2 == 0 else i - 1 for i in range(size)],
    }[mode]
    first = [i < size // 2 if mode == "half" else i % 2 == 0 for i in range(size)]
    sign = torch.tensor([-1.0 if f else 1.0 for f in first], dtype=x.dtype)
    return x * cos + x[..., partner] * sign * sin


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["half", "interleave"])
def test_rotary_embeddings(dtype: torch.dtype, mode: str) -> None:
    x, dy = numbers(2, 3, 4, 8, dtype=dtype), numbers(2, 3, 4, 8, dtype=dtype, seed=1)
    cos, sin = numbers(1, 1, 4, 8, dtype=dtype, seed=2), numbers(1, 1, 4, 8, dtype=dtype, seed=3)
    near(
        call("npu_rotary_mul", x, cos, sin, mode),
        turned(x.double(), cos.double(), sin.double(), mode),
    )
    found = call("npu_rotary_mul_backward", dy, x, cos, sin, mode)
    right = gradients(lambda a, c, s: turned(a, c, s, mode), (x, cos, sin), dy)
    for grad, wanted in zip(found, right, strict=True):
        near(grad, wanted)


def test_rotary_embedding_by_a_matrix() -> None:
    x, cos, sin = numbers(1, 2, 3, 4), numbers(1, 1, 3, 4), numbers(1, 1, 3, 4, seed=1)
    matrix = torch.zeros(4, 4)
    for i, j, sign in ((2, 0, -1), (3, 1, -1), (0, 2, 1), (1, 3, 1)):
        matrix[i, j] = sign
    by_matrix = call("npu_rotary_mul", x, cos, sin, "half", matrix)
    torch.testing.assert_close(by_matrix, call("npu_rotary_mul", x, cos, sin, "half"))


def test_query_and_key_are_rotated_in_place() -> None:
    q, k, cos, sin = (
        numbers(2, 3, 4, 8),
        numbers(2, 3, 2, 8),
        numbers(2, 3, 1, 8),
        numbers(2, 3, 1, 8),
    )
    q2, k2 = q.clone(), k.clone()
    found = call("npu_apply_rotary_pos_emb", q2, k2, cos, sin)
    assert found[0] is q2
    assert found[1] is k2
    near(q2, turned(q.double(), cos.double(), sin.double(), "half"))
    near(k2, turned(k.double(), cos.double(), sin.double(), "half"))


def test_interleaved_rope_puts_pairs_apart_first() -> None:
    x, cos, sin = numbers(1, 2, 3, 64), numbers(1, 1, 3, 64), numbers(1, 1, 3, 64, seed=1)
    order = [*range(0, 64, 2), *range(1, 64, 2)]
    near(
        call("npu_interleave_rope", x, cos, sin),
        turned(x[..., order].double(), cos.double(), sin.double(), "half"),
    )


@pytest.mark.parametrize("section", [None, [2, 1, 1]])
def test_mrope_takes_each_angle_from_its_axis(section: list[int] | None) -> None:
    query, key, cache = numbers(5, 16), numbers(5, 8), numbers(10, 8, seed=1)
    positions = torch.randint(0, 10, (3, 5) if section else (5,))
    found, _ = call("npu_mrope", positions, query, key, cache, 8, mrope_section=section)
    for t in range(5):
        for n in range(2):
            x = query[t, n * 8 : n * 8 + 8].double()
            for i in range(4):
                axis = 0 if not section else [0, 0, 1, 2][i]
                place = positions[axis, t] if section else positions[t]
                cos, sin = cache[place, i].double(), cache[place, 4 + i].double()
                near(found[t, n * 8 + i], x[i] * cos - x[i + 4] * sin)
                near(found[t, n * 8 + 4 + i], x[i + 4] * cos + x[i] * sin)


# ── quantisation ────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.integers(-8, 7), min_size=8, max_size=64))
@settings(max_examples=50, deadline=None)
def test_packed_int4_comes_back(values: list[int]) -> None:
    values = values[: len(values) // 8 * 8]
    packed = pack_int4(torch.tensor(values))
    assert packed.dtype == torch.int32
    assert int4_pairs(packed).tolist() == values
    word = sum((value & 0xF) << 4 * place for place, value in enumerate(values[:8]))
    assert int(packed[0]) & 0xFFFFFFFF == word


@pytest.mark.parametrize("dtype", DTYPES)
def test_dynamic_quantisation_row_by_row(dtype: torch.dtype) -> None:
    x = numbers(5, 9, dtype=dtype)
    x[2] = 0
    values, scale = call("npu_dynamic_quant", x)
    assert (values.dtype, scale.dtype) == (torch.int8, torch.float32)
    for row, quantised, s in zip(x.double(), values.double(), scale.double(), strict=True):
        near(s.float(), row.abs().max() / 127)
        error = (quantised * s - row).abs().max()
        assert error <= s / 2 * (1 + 1e-5)
    assert not values[2].any()


def test_dynamic_quantisation_with_smoothing_by_group() -> None:
    x, smooth = numbers(6, 8), numbers(2, 8).abs() + 0.5
    index = torch.tensor([2, 6], dtype=torch.int32)
    values, scale = call("npu_dynamic_quant", x, smooth_scales=smooth, group_index=index)
    plain = call("npu_dynamic_quant", x * smooth[[0, 0, 1, 1, 1, 1]])
    assert torch.equal(values, plain[0])
    assert torch.equal(scale, plain[1])


def test_asymmetric_quantisation_uses_the_whole_range() -> None:
    x = numbers(4, 9)
    values, scale, offset = call("npu_dynamic_quant_asymmetric", x)
    back = (values.double() - offset.double().unsqueeze(1)) * scale.double().unsqueeze(1)
    assert ((back - x.double()).abs() <= scale.double().unsqueeze(1) * 0.51).all()
    assert (values.amax(1) == 127).all()


@pytest.mark.parametrize("divide", [True, False])
def test_static_quantisation_and_back(divide: bool) -> None:
    x, scale = numbers(4, 8), numbers(8).abs() + 0.1
    zero = torch.randint(-5, 5, (8,)).float()
    values = call("npu_quantize", x, scale, zero, 12, 1 if divide else -1, divide)
    for i in range(4):
        for j in range(8):
            ratio = float(x[i, j]) / float(scale[j]) if divide else float(x[i, j] * scale[j])
            assert int(values[i, j]) == max(-128, min(127, round(ratio + float(zero[j]))))
    back = call("npu_anti_quant", values, scale, offset=-zero, dst_dtype=6)
    near(back, (values.double() - zero.double()) * scale.double())


def test_scales_in_the_packed_form_of_the_matmuls() -> None:
    scale, offset = torch.tensor([0.37, 2.5]), torch.tensor([-3.0, 300.0])
    packed = call("npu_trans_quant_param", scale, offset)
    near(real_scale(packed), scale.double(), factor=2**10)  # ten bits of mantissa stay
    shifts = packed_offset(packed)
    assert isinstance(shifts, Tensor)
    assert shifts.tolist() == [-3.0, 255.0]
    assert all(int(value) >> 46 & 1 for value in packed)


def test_int4_weights_are_packed_along_the_columns() -> None:
    weight = torch.randint(-8, 8, (3, 16), dtype=torch.int32)
    packed = call("npu_convert_weight_to_int4pack", weight)
    assert packed.shape == (3, 2)
    assert torch.equal(int4_pairs(packed).int(), weight)


def test_norms_that_quantise() -> None:
    x1, x2, gamma = numbers(3, 8), numbers(3, 8, seed=1), numbers(8)
    scale = numbers(8).abs() + 0.1
    y1, y2, total = call("npu_add_rms_norm_quant", x1, x2, gamma, scale, None, epsilon=EPS)
    right = (rms_rows(x1 + x2, gamma)[0] / scale.double()).round().clamp(-128, 127)
    assert (y1.double() - right).abs().max() <= 1  # at a tie the last bit decides
    assert not y2.any()
    near(total, (x1 + x2).double())
    first, second, _, s1, s2 = call(
        "npu_add_rms_norm_dynamic_quant", x1, x2, gamma, smooth_scale1=scale, epsilon=EPS
    )
    smoothed = rms_rows(x1 + x2, gamma)[0] * scale.double()
    near(s1, smoothed.abs().amax(-1) / 127)
    assert second.numel() == s2.numel() == 0
    assert ((first.double() * s1.double().unsqueeze(1) - smoothed).abs() <= s1.max() * 0.51).all()


def test_gated_units_that_quantise() -> None:
    x = torch.randint(-999, 999, (4, 8), dtype=torch.int32)
    weight, activation = numbers(1, 8).abs() / 100, numbers(4, 1).abs()
    values, scale = call(
        "npu_dequant_swiglu_quant",
        x,
        weight_scale=weight,
        activation_scale=activation,
        activate_left=True,
        quant_mode=1,
    )
    wide = x.double() * weight.double() * activation.double()
    y = swish(wide[:, :4]) * wide[:, 4:]
    near(scale, y.abs().amax(1) / 127)
    assert ((values.double() * scale.double().unsqueeze(1) - y).abs() <= scale.max() * 0.51).all()
    z = numbers(4, 8)
    values, inverse = call("npu_swiglu_quant", z, quant_mode=1)
    y = z[:, :4].double() * swish(z[:, 4:].double())
    near(inverse, 127 / y.abs().amax(1))
