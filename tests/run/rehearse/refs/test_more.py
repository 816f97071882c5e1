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


def test_chunks_of_the_delta_rule_are_its_tokens() -> None:
    q, k, v = numbers(5, 2, 4), numbers(5, 2, 4, seed=1), numbers(5, 4, 3, seed=2)
    state, beta = numbers(2, 4, 3, 4, seed=3), numbers(5, 4, seed=4).sigmoid()
    g = -numbers(5, 4, seed=5).abs()
    before = state.clone()
    output, states = call(
        "npu_chunk_gated_delta_rule",
        *(q, k, v),
        beta=beta,
        initial_state=state,
        actual_seq_lengths=torch.tensor([2, 3]),
        scale=0.7,
        g=g,
    )
    assert torch.equal(state, before)
    for head in range(4):
        for number, (start, end) in enumerate(((0, 2), (2, 5))):
            s = state[number, head].double()
            for t in range(start, end):
                key, b = k[t, head // 2].double(), float(beta[t, head])
                forget = torch.eye(4).double() - b * torch.outer(key, key)
                s = math.exp(float(g[t, head])) * s @ forget
                s = s + b * torch.outer(v[t, head].double(), key)
                near(output[t, head], s @ q[t, head // 2].double() * 0.7)
            near(states[number, head], s)


def test_chunks_of_no_tokens_leave_their_state_alone() -> None:
    q, k, v = numbers(5, 2, 4), numbers(5, 2, 4, seed=1), numbers(5, 4, 3, seed=2)
    state = numbers(3, 4, 3, 4, seed=3)
    given = {"beta": torch.ones(5, 4), "scale": 1.0, "g": None}
    lengths = torch.tensor([2, 0, 2])
    name = "npu_chunk_gated_delta_rule"
    output, states = call(name, q, k, v, initial_state=state, actual_seq_lengths=lengths, **given)
    assert output.shape == v.shape  # a token behind the last sequence has a row as well
    assert torch.equal(states[1], state[1])
    assert not torch.equal(states[2], state[2])


@pytest.mark.parametrize("layout", ["BSND", "TND", "PA_BSND"])
@pytest.mark.parametrize("mode", [0, 3])
def test_the_indexer_names_the_best_keys(layout: str, mode: int) -> None:
    queries, keys = [2, 3], [5, 3]
    q = [numbers(n, 4, 8, seed=n) for n in queries]
    k = [numbers(n, 1, 8, seed=10 + n) for n in keys]
    w = [numbers(n, 4, seed=20 + n) for n in queries]
    wanted = []
    for one, other, weight, n, m in zip(q, k, w, queries, keys, strict=True):
        for s in range(n):
            last = m - n + s if mode == 3 else m - 1
            scores = {
                t: sum(
                    float(weight[s, h]) * max(0.0, float(one[s, h] @ other[t, 0])) for h in range(4)
                )
                for t in range(last + 1)
            }
            wanted.append(scores)
    table = None
    ends = torch.tensor([2, 5], dtype=torch.int32)
    lengths_q, lengths_k = torch.tensor(queries), torch.tensor(keys)
    pad = torch.nn.utils.rnn.pad_sequence
    query, weights = pad(q, batch_first=True), pad(w, batch_first=True)
    if layout == "PA_BSND":  # blocks of two keys; the second sequence's come first
        blocks = torch.zeros(5, 2, 1, 8)
        table = torch.tensor([[4, 0, 2], [1, 3, -1]], dtype=torch.int32)
        for row, one in zip(table.tolist(), k, strict=True):
            for t, value in enumerate(one):
                blocks[row[t // 2], t % 2] = value
        key = blocks
    elif layout == "TND":
        query, weights, key = torch.cat(q), torch.cat(w), torch.cat(k)
        lengths_q, lengths_k = ends, torch.tensor([5, 8], dtype=torch.int32)
    else:
        key = pad(k, batch_first=True)
    positions, values = call(
        "npu_lightning_indexer",
        *(query, key, weights),
        actual_seq_lengths_query=lengths_q,
        actual_seq_lengths_key=lengths_k,
        block_table=table,
        layout_query="TND" if layout == "TND" else "BSND",
        layout_key=layout,
        sparse_count=4,
        sparse_mode=mode,
        return_value=True,
    )
    if layout != "TND":
        positions = torch.cat([positions[i, :n] for i, n in enumerate(queries)])
        values = torch.cat([values[i, :n] for i, n in enumerate(queries)])
    for row, value, scores in zip(positions, values, wanted, strict=True):
        found = [t for t in row[0].tolist() if t >= 0]
        best = torch.tensor(sorted(scores.values(), reverse=True)[:4], dtype=torch.float64)
        assert len(set(found)) == len(best)
        near(torch.tensor([scores[t] for t in found], dtype=torch.float64), best)
        near(value[0, : len(best)], best)


def test_blocks_are_quantised_with_a_scale_each() -> None:
    x = numbers(5, 300).half()
    y, scale = call("npu_dynamic_block_quant", x, row_block_size=2)
    assert (y.dtype, tuple(scale.shape)) == (torch.int8, (3, 3))
    for i in range(3):
        for j in range(3):
            block = x[2 * i : 2 * i + 2, 128 * j : 128 * j + 128].float()
            near(scale[i, j], block.abs().max() / 127)
            ours = y[2 * i : 2 * i + 2, 128 * j : 128 * j + 128].float()
            assert torch.equal(ours, (block / scale[i, j]).round())
    zero, none = call("npu_dynamic_block_quant", torch.zeros(2, 3).half())
    assert not zero.any()
    assert not none.any()
