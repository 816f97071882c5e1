"""Operators against independent definitions: loops, torch's own modules, complex numbers."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run import kernels
from joymigrate.run.kernels.ops import matmul_add_fp32 as gradients
from joymigrate.run.kernels.weights import DenseWeight, Int4Weight, Int8Weight

sizes = st.integers(0, 7)
FEW = settings(max_examples=40, deadline=None)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_rms_norm_is_what_its_formula_says() -> None:
    x, weight = random(3, 5), random(5, seed=1)
    got = kernels.op("rms_norm").reference(x, weight, 0.1)
    for row, y in zip(x.tolist(), got.tolist(), strict=True):
        factor = math.sqrt(sum(v * v for v in row) / 5 + 0.1)
        assert y == pytest.approx(
            [v / factor * w for v, w in zip(row, weight.tolist(), strict=True)]
        )


def test_rotary_by_halves_is_a_rotation_of_pairs() -> None:
    x, angle = random(2, 3, 4, 6), random(4, 3, seed=1)
    cos, sin = (torch.cat((t, t), -1) for t in (angle.cos(), angle.sin()))
    turned = torch.complex(x[..., :3], x[..., 3:]) * torch.polar(torch.ones(4, 3).double(), angle)
    want = torch.cat((turned.real, turned.imag), -1)
    torch.testing.assert_close(kernels.op("rotary").reference(x, cos, sin), want)


def test_rotary_interleaved_is_a_rotation_of_neighbours() -> None:
    x, angle = random(2, 3, 4, 6), random(4, 3, seed=1)
    cos, sin = (t.repeat_interleave(2, -1) for t in (angle.cos(), angle.sin()))
    turned = torch.view_as_complex(x.view(2, 3, 4, 3, 2)) * torch.polar(
        torch.ones(4, 3).double(), angle
    )
    want = torch.view_as_real(turned).flatten(-2)
    got = kernels.op("rotary").reference(x, cos, sin, interleaved=True)
    torch.testing.assert_close(got, want)


def test_an_argument_that_an_operator_lacks_is_a_type_error() -> None:
    op, logits, target = kernels.op("cross_entropy"), torch.randn(2, 3), torch.tensor([0, 1])
    with pytest.raises(TypeError, match="label_smothing"):
        op(logits, target, label_smothing=0.5)
    with pytest.raises(TypeError, match="too many"):
        op(logits, target, -100, 0.0, "sum", 7, 8)
    with pytest.raises(TypeError, match="target"):
        op(logits)


@pytest.mark.parametrize("request_", ["reference", "torch"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_is_torchs(request_: str, reduction: str, smoothing: float) -> None:
    logits, target = random(9, 5), torch.tensor([0, 1, 2, 3, 4, -100, 0, -100, 2])
    options = {"reduction": reduction, "label_smoothing": smoothing}
    got = kernels.op("cross_entropy")(logits, target, request=request_, **options)
    want = F.cross_entropy(logits, target, **options)  # type: ignore[arg-type]
    torch.testing.assert_close(got, want)


def test_a_mean_over_no_position_is_zero_with_zero_gradients() -> None:
    hidden, weight = (t.requires_grad_() for t in (random(3, 4), random(5, 4)))
    nobody = torch.full((3,), -100)
    loss = kernels.op("fused_linear_cross_entropy")(hidden, weight, nobody)
    loss.backward()
    assert loss.item() == 0.0
    assert weight.grad is not None
    assert float(weight.grad.abs().sum()) == 0.0


def test_the_chunked_loss_is_the_same_in_many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    from joymigrate.run.kernels.ops import fused_linear_cross_entropy as fused

    monkeypatch.setattr(fused, "CHUNK_ELEMENTS", 3 * 11)
    inputs = [random(10, 4).requires_grad_(), random(11, 4, seed=1).requires_grad_()]
    bias = random(11, seed=2).requires_grad_()
    target = torch.tensor([0, 10, 3, -100, 5, 6, -100, 8, 9, 1])
    losses, grads = [], []
    for run in (fused.run_chunked, fused.reference):
        loss = run(*inputs, target, bias, label_smoothing=0.1)
        losses.append(loss)
        grads.append(torch.autograd.grad(loss * 3, [*inputs, bias]))
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*grads)


def test_the_gradient_of_a_weight_is_added_without_rounding_the_product() -> None:
    x, dy = (t.bfloat16() for t in (random(512, 8), random(512, 6, seed=1)))
    exact = dy.double().T @ x.double()
    got = kernels.op("matmul_add_fp32")(x, dy, torch.zeros(6, 8))
    rounded = (dy.T @ x).float()
    assert float((got - exact).abs().max()) < 1e-4
    assert float((rounded - exact).abs().max()) > 1e-2  # what torch's own backward would add


def test_a_layer_that_accumulates_its_gradient_equals_an_ordinary_one() -> None:
    x, weight = random(5, 4).float().requires_grad_(), random(3, 4, seed=1).float()
    total = torch.ones(3, 4)
    y = gradients.linear(x, weight, total)
    y.square().sum().backward()
    plain = weight.clone().requires_grad_()
    again = x.detach().clone().requires_grad_()
    (again @ plain.T).square().sum().backward()
    torch.testing.assert_close(total - 1, plain.grad)
    torch.testing.assert_close(x.grad, again.grad)


@pytest.mark.parametrize("request_", ["reference", "torch"])
def test_the_optimiser_follows_torchs_adamw(request_: str) -> None:
    def trained(made: type, **options: object) -> tuple[Tensor, dict[str, object]]:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        optimiser = made(model.parameters(), lr=0.1, weight_decay=0.3, **options)
        for seed in range(5):
            optimiser.zero_grad()
            model(random(8, 4, seed=seed).float()).square().sum().backward()
            optimiser.step()
        return model.weight.detach(), optimiser.state_dict()

    mine, state = trained(kernels.AdamW, request=request_)
    theirs, reference_state = trained(torch.optim.AdamW)
    torch.testing.assert_close(mine, theirs)
    other = torch.optim.AdamW(torch.nn.Linear(4, 3).parameters())
    other.load_state_dict(state)
    assert {*reference_state["state"][0]} == {*state["state"][0]}  # type: ignore[index]


def test_sub_mul_concat_repeats_one_target_over_its_history() -> None:
    q, k = random(2, 1, 3), random(2, 4, 3, seed=1)
    y = kernels.op("sub_mul_concat")(q, k)
    for b in range(2):
        for n in range(4):
            parts = (q[b, 0], k[b, n], q[b, 0] - k[b, n], q[b, 0] * k[b, n])
            torch.testing.assert_close(y[b, n], torch.cat(parts))


@FEW
@given(st.lists(sizes, max_size=5), st.integers(1, 4))
def test_padding_and_packing_undo_each_other(lengths: list[int], width: int) -> None:
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    values = random(sum(lengths), width)
    longest = max([1, *lengths])
    padded = kernels.op("jagged_to_padded")(values, offsets, longest, fill=-7.0)
    back = kernels.op("padded_to_jagged")(padded, offsets, len(values))
    assert padded.shape == (len(lengths), longest, width)
    assert int((padded == -7.0).sum()) == (len(lengths) * longest - sum(lengths)) * width
    torch.testing.assert_close(back, values)


@FEW
@given(st.lists(st.integers(0, 9), max_size=30), st.sampled_from(["reference", "torch", "unique"]))
def test_a_lookup_gives_each_row_the_sum_of_its_gradients(ids: list[int], request_: str) -> None:
    table = random(10, 3).requires_grad_()
    index = torch.tensor(ids, dtype=torch.long)
    rows = kernels.op("unique_lookup")(table, index, request=request_)
    torch.testing.assert_close(rows, table[index])
    (grad,) = torch.autograd.grad(rows.sum(), table, allow_unused=True)
    counts = torch.bincount(index, minlength=10).double()
    torch.testing.assert_close(grad[:, 0], counts)


@FEW
@given(st.integers(1, 5), st.integers(1, 4))
def test_four_bit_codes_survive_packing(rows: int, words: int) -> None:
    codes = torch.randint(0, 16, (rows, 8 * words))
    packed = Int4Weight.pack(codes)
    weight = Int4Weight(packed, torch.ones(rows, 1))
    assert packed.shape == (rows, words)
    assert torch.equal(weight.codes().long(), codes)
    torch.testing.assert_close(weight.dense(torch.float32), (codes - 8).float())


def test_four_bit_weights_take_their_group_and_zero_point() -> None:
    codes = torch.arange(16).repeat(2, 1)
    scale = torch.tensor([[1.0, 10.0], [2.0, 20.0]])
    zero = torch.tensor([[0.0, 8.0], [1.0, 9.0]])
    dense = Int4Weight(Int4Weight.pack(codes), scale, zero).dense(torch.float32)
    assert dense[0].tolist() == [*range(8), *(10.0 * (n - 8) for n in range(8, 16))]
    assert dense[1, 8].item() == -20.0


def test_quantised_products_are_near_the_real_ones() -> None:
    x, real = random(16, 256).float(), random(64, 256, seed=1).float()
    scale = real.abs().amax(1) / 127
    weight = Int8Weight((real / scale.unsqueeze(1)).round().to(torch.int8), scale)
    got = kernels.op("quant_matmul")(x, weight)
    want = x @ real.T
    assert float((got - want).norm() / want.norm()) < 0.02


@pytest.mark.parametrize("offset", [None, torch.tensor([-30.0])])
def test_static_codes_saturate_instead_of_wrapping(offset: Tensor | None) -> None:
    x = torch.tensor([[1e4, -1e4, 0.0, 1.0]])
    weight = Int8Weight(
        torch.eye(4).to(torch.int8), torch.ones(4), x_scale=torch.tensor([0.1]), x_offset=offset
    )
    high, low = (12.7, -12.8) if offset is None else (15.7, -9.8)
    want = torch.tensor([[high, low, 0, 1]])
    operator = kernels.op("quant_matmul")
    torch.testing.assert_close(operator(x, weight, request="reference"), want)
    if onednn_saturates_sums():
        pytest.skip("oneDNN saturates sums of two products to 16 bits on this processor")
    torch.testing.assert_close(operator(x, weight, request="onednn"), want)


def onednn_saturates_sums() -> bool:
    """Whether torch's own product of u8 by s8 is short of 255·127 + 255·127 = 64770.

    Without VNNI oneDNN adds two products in 16 bits (vpmaddubsw), at most 32767: oneDNN's
    developer guide, "Nuances of int8 Computations".
    """
    ones = torch.full((1, 64), 255, dtype=torch.uint8)
    values = torch.full((16, 64), 127, dtype=torch.int8)
    zeros = torch.zeros(16, dtype=torch.int32)
    got = torch.ops.onednn.qlinear_pointwise(
        ones, 1.0, 0, torch.ops.onednn.qlinear_prepack(values, None), torch.ones(16), zeros,
        None, 1.0, 0, torch.float32, "none", [], "",
    )  # fmt: skip
    return bool((got < 64 * 255 * 127).all())


def test_a_weight_given_up_after_packing_is_held_once() -> None:
    if (
        reason := dict(kernels.op("linear").choose(shape=(8, 64, 64), variant="packable").left)
    ) and ("onednn" in reason):
        pytest.skip(reason["onednn"])
    x, values = random(8, 64).float(), random(64, 64, seed=1).float()
    weight = DenseWeight(values.clone(), drop=True)
    with torch.no_grad():
        y = kernels.op("linear")(x, weight)
    torch.testing.assert_close(y, x @ values.T, rtol=1e-4, atol=1e-4)
    with pytest.raises(JoyError, match="given up"):
        weight.dense()
