"""Delta rule, detector encodings, overflow flags and written outputs against formulas."""

from __future__ import annotations

import math

import pytest
import torch

from tests.run.rehearse.refs import all_samples
from tests.run.rehearse.refs.formulas import REGISTRY, call, near, numbers


@pytest.mark.parametrize("gated", [False, True])
def test_the_delta_rule_is_its_matrix_recurrence(gated: bool) -> None:
    q, k, v = numbers(5, 2, 4), numbers(5, 2, 4, seed=1), numbers(5, 4, 3, seed=2)
    state, beta = numbers(6, 4, 3, 4, seed=3), numbers(5, 4, seed=4).sigmoid()
    g = -numbers(5, 4, seed=5).abs() if gated else None
    gk = -numbers(5, 4, 4, seed=6).abs() if gated else None
    blocks, lengths, accepted = [5, 0, 3, 1, 2], [2, 3], [2, 1]
    given = state.clone()
    found = call(
        "npu_recurrent_gated_delta_rule",
        *(q, k, v, given),
        beta=beta,
        scale=0.7,
        actual_seq_lengths=torch.tensor(lengths),
        ssm_state_indices=torch.tensor(blocks),
        num_accepted_tokens=torch.tensor(accepted),
        g=g,
        gk=gk,
    )
    wide = state.double().clone()
    for head in range(4):
        at = 0
        for length, count in zip(lengths, accepted, strict=True):
            s = state[blocks[at + count - 1], head].double()
            for t in range(at, at + length):
                key, b = k[t, head // 2].double(), float(beta[t, head])
                a = math.exp(float(g[t, head])) if g is not None else 1.0
                rows = gk[t, head].double().exp() if gk is not None else torch.ones(4).double()
                forget = torch.diag(rows) @ (torch.eye(4).double() - b * torch.outer(key, key))
                s = a * s @ forget + b * torch.outer(v[t, head].double(), key)
                near(found[t, head], s @ q[t, head // 2].double() * 0.7)
                wide[blocks[t], head] = s
            at += length
    near(given, wide)


def test_written_outputs_are_those_of_the_functional_form() -> None:
    for name in (
        "npu::npu_fusion_attention_v3",
        "npu::npu_fusion_attention_grad_v3",
        "npu::npu_fused_infer_attention_score",
        "npu::npu_fused_infer_attention_score_v2",
    ):
        args, kwargs = all_samples()[f"{name}.out"][0]
        targets = [part.clone() for part in kwargs["out"]]
        plain = {key: value for key, value in kwargs.items() if key != "out"}
        expected = REGISTRY[name].function(*args, **plain)
        found = REGISTRY[f"{name}.out"].function(*args, **{**plain, "out": targets})
        assert all(a is b for a, b in zip(found, targets, strict=True))
        assert torch.equal(targets[0], expected[0])
        assert bool(targets[0].any())


def test_overflow_flags_are_down_and_gradients_are_looked_at() -> None:
    assert not call("npu_get_float_status", torch.zeros(8)).any()
    assert call("npu_alloc_float_status", torch.zeros(8)).shape == (8,)
    assert call("_amp_foreach_non_finite_check", [torch.ones(2), torch.tensor([math.inf])])
    assert not call("_amp_foreach_non_finite_check", [torch.ones(2)])


def test_detector_encodings() -> None:
    box, truth = torch.tensor([[2.0, 4, 6, 12]]), torch.tensor([[3.0, 5, 5, 13]])
    found = call("npu_yolo_boxes_encode", box, truth, torch.tensor([8]))
    expected = [0.5 + (4 - 4) / 8, 0.5 + (9 - 8) / 8, math.log(2 / 4), math.log(8 / 8)]
    near(found[0], torch.tensor(expected).double())
    flags = call("npu_anchor_response_flags", box, [4, 3], [4, 4], 2)
    assert flags.view(4, 3, 2)[2, 1].tolist() == [1, 1]
    assert int(flags.sum()) == 2


def test_padded_features_are_normalised_by_what_is_there() -> None:
    x = numbers(2, 3, 6)
    found = call("npu_normalize_batch", x, torch.tensor([4, 6]), 0)
    for row, channel in ((0, 1), (1, 2)):
        values = x[row, channel, : (4, 6)[row]].double()
        mean = values.mean()
        deviation = ((values - mean) ** 2).sum() / (len(values) - 1)
        near(found[row, channel], (x[row, channel].double() - mean) / (deviation.sqrt() + 1e-5))
    found = call("npu_normalize_batch", x, torch.tensor([4, 6]), 1)
    values = x[0, :, :4].double()
    near(found[0], (x[0].double() - values.mean()) / (values.std() + 1e-5))
