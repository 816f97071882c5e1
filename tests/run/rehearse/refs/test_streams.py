"""Hyper-connections, short convolutions, adapters and rotated boxes against formulas in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from joymigrate.run.rehearse import numerics
from joymigrate.run.rehearse.refs.dtypes import Unsimulated
from tests.run.rehearse.refs.formulas import call, gradients, near, numbers

HALF = torch.float16


@pytest.mark.parametrize("mixed", [True, False])
def test_streams_after_a_layer(mixed: bool) -> None:
    x, h_out = numbers(2, 4, 8, dtype=HALF), numbers(2, 8, dtype=HALF, seed=1)
    h_res = numbers(2, 4, 4, seed=2) if mixed else None
    h_post, grad = numbers(2, 4, seed=3), numbers(2, 4, 8, dtype=HALF, seed=4)

    def formula(x: Tensor, res: Tensor, out: Tensor, post: Tensor) -> Tensor:
        found = torch.zeros(2, 4, 8, dtype=torch.float64)
        for j in range(4):
            kept = sum(res[:, i, j, None] * x[:, i] for i in range(4))
            found[:, j] = kept + post[:, j, None] * out
        return found

    whole = torch.eye(4).expand(2, 4, 4) if h_res is None else h_res
    expected = formula(x.double(), whole.double(), h_out.double(), h_post.double())
    near(call("npu_mhc_post", x, h_res, h_out, h_post), expected)
    wanted = gradients(formula, [x, whole, h_out, h_post], grad)
    found = call("npu_mhc_post_backward", grad, x, h_res, h_out, h_post)
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        near(one, torch.zeros_like(other) if number == 1 and not mixed else other)


def before(x: Tensor, phi: Tensor, alpha: Tensor, bias: Tensor, gamma: Tensor) -> list[Tensor]:
    """h_in, h_post, h_res by the document's formulas; x [T, 4, D]."""
    flat = x.flatten(1)
    norm = flat / (flat.square().mean(1, keepdim=True) + 1e-6).sqrt() * gamma.flatten()
    mix = torch.einsum("ti,oi->to", norm, phi)
    pre = 1 / (1 + (-(alpha[0] * mix[:, :4] + bias[:4])).exp()) + 1e-6
    post = 2 / (1 + (-(alpha[1] * mix[:, 4:8] + bias[4:8])).exp())
    res = (alpha[2] * mix[:, 8:] + bias[8:]).reshape(-1, 4, 4)
    return [(pre[:, :, None] * x).sum(1), post, res]


def test_streams_before_a_layer() -> None:
    x, phi, bias = numbers(5, 4, 8), numbers(24, 32, seed=1), numbers(24, seed=2)
    alpha, gamma = numbers(3, seed=3), numbers(4, 8, seed=4)
    found = call("npu_mhc_pre", x, phi, alpha, bias, gamma=gamma)
    given = [x, phi, alpha, bias, gamma]
    for one, other in zip(found[:3], before(*(part.double() for part in given)), strict=True):
        near(one, other)
    grads = [numbers(5, 8, seed=5), numbers(5, 4, seed=6), numbers(5, 4, 4, seed=7)]
    inv_rms, mix, pre = found[3:]
    back = call("npu_mhc_pre_backward", x, phi, alpha, *grads, inv_rms, mix, pre, found[1], gamma)
    for one, other in zip(back, gradients(before, given, grads), strict=True):
        near(one, other, factor=20)  # sums over 160 products of float32 mixes
    plain = call("npu_mhc_pre", x, phi[:8], alpha[:2], bias[:8])
    assert plain[2].shape == (1,)


def sinkhorn(x: Tensor) -> Tensor:
    now = x.softmax(-1) + 1e-6
    now = now / (now.sum(-2, keepdim=True) + 1e-6)
    for _ in range(4):
        now = now / (now.sum(-1, keepdim=True) + 1e-6)
        now = now / (now.sum(-2, keepdim=True) + 1e-6)
    return now


def test_a_matrix_becomes_doubly_stochastic_and_back() -> None:
    x, grad = numbers(3, 4, 4), numbers(3, 4, 4, seed=1)
    y, states, totals = call("npu_mhc_sinkhorn", x, num_iters=5, out_flag=1)
    near(y, sinkhorn(x.double()))
    near(y.sum(-1), torch.ones(3, 4).double(), factor=1e3)  # five turns are not all of them
    expected = gradients(sinkhorn, [x], grad)[0]
    near(call("npu_mhc_sinkhorn_backward", grad, states, totals), expected, factor=5)


def test_hf32_drops_the_bits_that_the_vendors_tests_drop() -> None:
    one = torch.tensor([1.0])
    step = 2.0**-11
    assert float(numerics.to_hf32(one + step)) == 1 + step
    assert float(numerics.to_hf32(one + step / 2)) == 1 + step  # a tie, away from zero
    assert float(numerics.to_hf32(-(one + step / 2))) == -(1 + step)
    assert float(numerics.to_hf32(one + step / 2.5)) == 1.0
    dropped = numerics.hf32_dropped_bits("Ascend950PR_9599")
    assert float(numerics.to_hf32(one + step / 1.5, dropped)) == 1.0
    assert float(numerics.to_hf32(one + step, dropped)) == 1 + 2 * step
    assert math.isinf(float(numerics.to_hf32(torch.tensor([math.inf]))))


@pytest.mark.parametrize("drafted", [False, True])
def test_a_convolution_goes_on_from_the_rows_of_its_cache(drafted: bool) -> None:
    x, weight = numbers(7, 3), numbers(3, 3, seed=1)
    states = numbers(4, 4 if drafted else 2, 3, seed=2)
    kept, starts, lines = states.clone(), [0, 3, 5, 7], [2, -1, 0]
    found = call(
        "npu_fused_causal_conv1d",
        *(x, weight, kept),
        query_start_loc=torch.tensor(starts),
        cache_indices=torch.tensor(lines),
        num_accepted_tokens=torch.tensor([2, 1, 1]) if drafted else None,
        residual_connection=1,
    )
    for number, line in enumerate(lines):
        rows = x[starts[number] : starts[number + 1]].double()
        place = slice(starts[number], starts[number + 1])
        if line < 0:
            near(found[place], rows)
            continue
        skip = [1, 0, 0][number] if drafted else 0
        history = states[line, skip : skip + 2].double()
        whole = torch.cat((history, rows))
        for t in range(len(rows)):
            expected = rows[t] + sum(weight[k].double() * whole[t + k] for k in range(3))
            near(found[starts[number] + t], expected)
        near(kept[line, -2:], whole[-2:])
    again, other = x.clone(), states.clone()
    call(
        "npu_fused_causal_conv1d_v2",
        *(again, weight, other),
        query_start_loc=torch.tensor(starts),
        cache_indices=torch.tensor(lines),
        num_accepted_tokens=torch.tensor([2, 1, 1]) if drafted else None,
        residual_connection=1,
    )
    assert torch.equal(again, found)
    assert torch.equal(other, kept)


def test_a_sequence_without_a_past_begins_with_zeros() -> None:
    x, weight = numbers(1, 4, 3), numbers(3, 3, seed=1)
    states = numbers(1, 2, 3, seed=2)
    computed = {"num_computed_tokens": torch.tensor([0])}
    found = call("npu_fused_causal_conv1d", x, weight, states.clone(), **computed)
    near(found[0, 0], weight[2].double() * x[0, 0].double())
    zeroed = call("npu_fused_causal_conv1d", x, weight, states, **computed, conv_mode="pangu")
    assert not zeroed[0, :2].any()
    near(zeroed[0, 2:], found[0, 2:].double())


def test_each_row_has_the_adapter_of_its_index() -> None:
    y, x = numbers(4, 10), numbers(4, 6, seed=1)
    a, b = numbers(2, 3, 5, 6, seed=2), numbers(2, 3, 4, 5, seed=3)
    index = [1, -1, 0, 2]
    found = call("npu_batch_gather_matmul_", y.clone(), x, b, torch.tensor(index), a, 2, 0.5, 3, 4)
    for row, adapter in enumerate(index):
        expected = y[row].double().clone()
        if adapter in (0, 1):
            low = a[adapter, 2].double() @ x[row].double()
            expected[3:7] += 0.5 * (b[adapter, 2].double() @ low)
        near(found[row], expected)


# ── rotated boxes ───────────────────────────────────────────────────────────────────────────────


def inside(box: Tensor, points: Tensor) -> Tensor:
    """Which of the points [.., 2] a rotated box covers."""
    angle = math.radians(float(box[4]))
    moved = points - box[:2].double()
    along = moved[..., 0] * math.cos(angle) + moved[..., 1] * math.sin(angle)
    across = -moved[..., 0] * math.sin(angle) + moved[..., 1] * math.cos(angle)
    return (along.abs() * 2 <= float(box[2])) & (across.abs() * 2 <= float(box[3]))


def counted(a: Tensor, b: Tensor, fine: int = 1201) -> float:
    """The area that two boxes share, by counting points of a grid."""
    low = a[:2].double() - 20
    step = 40.0 / fine
    line = (torch.arange(fine).double() + 0.5) * step
    points = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1) + low
    return float((inside(a, points) & inside(b, points)).sum()) * step * step


@pytest.mark.dear
def test_areas_of_rotated_boxes_are_those_of_a_fine_grid() -> None:
    first = torch.tensor([[[20.0, 20, 10, 6, 30], [22, 19, 4, 12, -70], [60, 60, 3, 3, 0]]])
    second = torch.tensor([[[21.0, 21, 8, 8, 45], [20, 20, 10, 6, 30]]])
    areas = call("npu_rotated_overlaps", first, second)
    iou = call("npu_rotated_iou", first, second)
    share = call("npu_rotated_iou", first, second, False, 1)
    for i in range(3):
        for j in range(2):
            expected = counted(first[0, i], second[0, j])
            assert abs(float(areas[0, i, j]) - expected) < 0.15, (i, j)
            own, other = (float(box[2] * box[3]) for box in (first[0, i], second[0, j]))
            exact = float(areas[0, i, j])
            assert math.isclose(float(iou[0, i, j]), exact / (own + other - exact), rel_tol=1e-5)
            assert math.isclose(float(share[0, i, j]), exact / own, rel_tol=1e-5)
    assert float(iou[0, 0, 1]) == pytest.approx(1.0)
    with pytest.raises(Unsimulated, match="v_threshold"):
        call("npu_rotated_iou", first, second, v_threshold=0.5)


def test_of_boxes_that_overlap_the_best_stays() -> None:
    boxes = torch.tensor([[10.0, 10, 8, 4, 20], [10.5, 10, 8, 4, 25], [40, 40, 5, 5, 0]])
    index, count = call("npu_nms_rotated", boxes, torch.tensor([0.5, 0.9, 0.7]), 0.3)
    assert index.tolist() == [1, 2]
    assert count.tolist() == [2]
    corners = torch.tensor(
        [[6.0, 8, 14, 12, -20], [6.5, 8, 14.5, 12, -25], [37.5, 37.5, 42.5, 42.5, 0]]
    )
    index, _ = call("npu_nms_rotated", corners, torch.tensor([0.5, 0.9, 0.7]), 0.3, 0, 1, 1)
    assert index.tolist() == [1]


def test_rotated_boxes_come_back_from_their_offsets() -> None:
    anchor = torch.tensor([[[44.0], [9.0], [88.0], [26.0], [64.0]]])
    truth = torch.tensor([[[39.0], [1.0], [78.0], [30.0], [52.0]]])
    weight = torch.tensor([2.0, 1, 1, 1, 1])
    offsets = call("npu_rotated_box_encode", anchor, truth, weight)
    expected = [
        2 * ((39 + 78) / 2 - (44 + 88) / 2) / 44,
        ((1 + 30) / 2 - (9 + 26) / 2) / 17,
        math.log(39 / 44),
        math.log(29 / 17),
        math.tan(math.radians(52)) - math.tan(math.radians(64)),
    ]
    near(offsets[0, :, 0], torch.tensor(expected).double())
    near(call("npu_rotated_box_decode", anchor, offsets, weight), truth.double(), factor=5)
