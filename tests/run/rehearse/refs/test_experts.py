"""Caches, scatters, quantised and grouped products, and expert routing against loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from joymigrate.run.rehearse.refs.dtypes import Unsimulated
from joymigrate.run.rehearse.refs.quantise import pack_int4
from tests.run.rehearse.refs.formulas import DTYPES, call, gradients, near, numbers

# ── caches ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", ["Norm", "PA_NZ"])
def test_tokens_land_in_their_slots_and_nowhere_else(form: str) -> None:
    key, value = numbers(5, 2, 32), numbers(5, 2, 16, seed=1)
    slots = torch.tensor([3, -1, 18, 0, 23], dtype=torch.int32)
    shapes = {
        "Norm": [(3, 8, 2, 32), (3, 8, 2, 16)],
        "PA_NZ": [(3, 4, 8, 16), (3, 2, 8, 16)],
    }[form]
    caches = [numbers(*shape, seed=2) for shape in shapes]
    before = [cache.clone() for cache in caches]
    call("npu_scatter_pa_kv_cache", key, value, *caches, slots, cache_mode=form)
    for rows, cache, old in zip((key, value), caches, before, strict=True):
        expected = old.clone()
        for token, slot in enumerate(slots.tolist()):
            if slot < 0:
                continue
            block, place = slot // 8, slot % 8
            if form == "Norm":
                expected[block, place] = rows[token]
            else:
                for lane in range(cache.shape[1]):
                    part = rows[token].reshape(-1)[lane * 16 : lane * 16 + 16]
                    expected[block, lane, place] = part
        assert torch.equal(cache, expected)
    copies = call("npu_scatter_pa_kv_cache_functional", key, value, *before, slots, cache_mode=form)
    assert all(torch.equal(a, b) for a, b in zip(copies, caches, strict=True))


def test_sequences_come_back_out_of_a_paged_cache() -> None:
    keys, values = numbers(4, 3, 2, 4), numbers(4, 3, 1, 4, seed=1)
    table = torch.tensor([[2, 0, 3], [1, 3, 0]], dtype=torch.int32)
    lengths, offsets = torch.tensor([4, 2]), torch.tensor([3, 0])
    key, value = torch.zeros(6, 2, 4), torch.zeros(6, 1, 4)
    call("npu_gather_pa_kv_cache", keys, values, table, lengths, key, value, seq_offset=offsets)
    at = 0
    for number in range(2):
        for step in range(int(lengths[number])):
            place = step + int(offsets[number])
            block = int(table[number, place // 3])
            assert torch.equal(key[at], keys[block, place % 3])
            assert torch.equal(value[at], values[block, place % 3])
            at += 1
    ends = torch.tensor([0, 4, 6])
    again = call(
        "npu_gather_pa_kv_cache_functional",
        *(keys, values, table, ends, key, value),
        seq_offset=offsets,
        is_seq_lens_cumsum=True,
    )
    assert torch.equal(again[0], key)


@pytest.mark.parametrize("mode", ["Norm", "PA", "PA_BNSD", "PA_NZ", "PA_BLK_BNSD"])
def test_latent_cache_holds_the_norm_and_the_rope(mode: str) -> None:
    kv, gamma = numbers(2, 1, 3, 48), numbers(32)
    cos, sin = numbers(2, 1, 3, 16), numbers(2, 1, 3, 16, seed=1)
    paged = mode != "Norm"
    k_cache = torch.zeros((4, 4, 1, 16) if paged else (2, 1, 8, 16))
    c_cache = torch.zeros((4, 4, 1, 32) if paged else (2, 1, 8, 32))
    index = (
        torch.tensor([[5, 1, -1], [0, 7, 2]]) if not paged else torch.tensor([5, 1, -1, 9, 7, 2])
    )
    if "BLK" in mode:
        index = torch.tensor([4, 8])
    k_out, c_out, k_embed, latent = call(
        "npu_kv_rmsnorm_rope_cache",
        *(kv, gamma, cos, sin, index, k_cache, c_cache),
        cache_mode=mode,
    )
    assert k_out is k_cache
    assert c_out is c_cache
    x = kv[..., :32].double()
    near(latent, x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * gamma.double())
    turned = kv[..., 32:].double()[..., [*range(0, 16, 2), *range(1, 16, 2)]]
    swapped = torch.cat((-turned[..., 8:], turned[..., :8]), -1)
    near(k_embed, turned * cos.double() + swapped * sin.double())
    for b in range(2):
        for s in range(3):
            slot = int(index[b]) + s if "BLK" in mode else int(index.reshape(2, 3)[b, s])
            if slot < 0:
                continue
            if not paged:
                assert torch.equal(k_cache[b, 0, slot], k_embed[b, 0, s])
            elif mode.endswith("NZ"):
                lanes = k_cache.view(4, 1, 4, 16)
                assert torch.equal(lanes[slot // 4, 0, slot % 4], k_embed[b, 0, s])
            else:
                assert torch.equal(k_cache.view(16, 16)[slot], k_embed[b, 0, s])
                assert torch.equal(c_cache.view(16, 32)[slot], latent[b, 0, s])


# ── scatters ────────────────────────────────────────────────────────────────────────────────────


def test_scatter_update_writes_each_batch_at_its_own_position() -> None:
    data, updates = numbers(2, 3, 6, 4), numbers(2, 3, 2, 4, seed=1)
    found = call("scatter_update", data, torch.tensor([1, 4]), updates, -2)
    expected = data.clone()
    expected[0, :, 1:3], expected[1, :, 4:6] = updates[0], updates[1]
    assert torch.equal(found, expected)
    pairs = torch.tensor([[1, 0], [0, 3]])
    found = call("scatter_update", data, pairs, updates, 2)
    expected = data.clone()
    expected[1, :, 0:2], expected[0, :, 3:5] = updates[0], updates[1]
    assert torch.equal(found, expected)
    written = data.clone()
    assert call("scatter_update_", written, pairs, updates, 2) is written
    assert torch.equal(written, expected)


def test_scatter_nd_and_lists() -> None:
    data, updates = numbers(4, 5, 6), numbers(2, 6, seed=1)
    index = torch.tensor([[0, 1], [3, 4]])
    found = call("npu_scatter_nd_update", data, index, updates)
    expected = data.clone()
    expected[0, 1], expected[3, 4] = updates[0], updates[1]
    assert torch.equal(found, expected)
    items, parts = [numbers(3, 6, 4), numbers(3, 6, 4, seed=1)], numbers(2, 3, 2, 4)
    found = call("npu_scatter_list", items, torch.tensor([1, 4]), parts, torch.tensor([1, 0]))
    expected = items[0].clone()
    expected[:, 1:3] = parts[0]
    assert torch.equal(found[0], expected)
    assert torch.equal(found[1], items[1])
    call("npu_scatter_list_", items, torch.tensor([1, 4]), parts)
    assert torch.equal(items[0], expected)
    assert torch.equal(items[1][:, 4:6], parts[1])


def test_quantised_scatter_rounds_and_saturates() -> None:
    data, updates = torch.zeros(2, 6, 4, dtype=torch.int8), numbers(2, 2, 4) * 100
    scale = torch.tensor([0.5, 1.0, 2.0, 1.0])
    found = call("npu_quant_scatter", data, torch.tensor([1, 4]), updates, scale)
    right = (updates / scale).round().clamp(-128, 127).to(torch.int8)
    assert torch.equal(found[0, 1:3], right[0])
    assert torch.equal(found[1, 4:6], right[1])


def test_gathers_with_gradients() -> None:
    x, index, grad = numbers(5, 4), torch.randint(0, 5, (2, 3)), numbers(2, 3, 4)
    assert torch.equal(call("npu_gather_sparse_index", x, index), x[index])
    found = call("npu_gather_sparse_index_backward", grad, [5, 4], index)
    near(found, gradients(lambda a: a[index], (x,), grad)[0])
    places, g = torch.randint(0, 5, (2, 4)), numbers(2, 4)
    found = call("npu_gather_backward", g, [5, 4], 0, places, False)
    near(found, gradients(lambda a: a.gather(0, places), (x,), g)[0])
    added = call("_npu_index_add", x, torch.tensor([0, 2, 2]), numbers(3, 4), alpha=2)
    near(added[2], x[2].double() + 2 * numbers(3, 4)[1:].double().sum(0))


# ── quantised products ──────────────────────────────────────────────────────────────────────────


def int8(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(-128, 128, shape, generator=generator).to(torch.int8)


def product(a: Tensor, b: Tensor) -> Tensor:
    """Integer product by loops."""
    rows = [[sum(int(x) * int(y) for x, y in zip(r, c, strict=True)) for c in b.T] for r in a]
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("bias", ["none", "int32", "float32"])
def test_quantised_products(bias: str) -> None:
    x1, x2 = int8(3, 16), int8(16, 5, seed=1)
    scale, token = numbers(5).abs() / 100, numbers(3).abs()
    shift = {
        "none": None,
        "int32": torch.randint(-99, 99, (5,), dtype=torch.int32),
        "float32": numbers(5),
    }[bias]
    found = call(
        "npu_quant_matmul",
        *(x1, x2, scale),
        pertoken_scale=token,
        bias=shift,
        output_dtype=15,
    )
    whole = product(x1, x2)
    if bias == "int32":
        assert shift is not None
        whole = whole + shift
    whole = whole * scale.double() * token.double().unsqueeze(1)
    near(found, whole + shift.double() if bias == "float32" and shift is not None else whole)


def test_quantised_product_with_packed_scale_and_int8_output() -> None:
    x1, x2, scale, offset = int8(3, 16), int8(16, 5), torch.tensor([0.0078125]), numbers(5) * 20
    packed = call("npu_trans_quant_param", scale, offset)
    found = call("npu_quant_matmul", x1, x2, packed)
    right = (product(x1, x2) / 128 + offset.double().round()).round().clamp(-128, 127)
    assert torch.equal(found.double(), right)


def test_int4_product_from_packed_operands() -> None:
    a, b = int8(3, 16).clamp(-8, 7), int8(16, 8).clamp(-8, 7)
    scale = numbers(8).abs()
    right = product(a, b) * scale.double()
    near(call("npu_quant_matmul", pack_int4(a), pack_int4(b), scale, output_dtype=5), right)
    turned = pack_int4(b.T.contiguous()).T
    near(call("npu_quant_matmul", pack_int4(a), turned, scale, output_dtype=5), right)


@pytest.mark.parametrize("group", [0, 8])
@pytest.mark.parametrize("packed", [False, True])
def test_products_with_quantised_weights(group: int, packed: bool) -> None:
    x, weight = numbers(3, 16, dtype=torch.float16), int8(16, 8).clamp(-8, 7)
    shape = (2, 8) if group else (1, 8)
    scale, offset = numbers(*shape, dtype=torch.float16), numbers(*shape, dtype=torch.float16)
    real = torch.empty(16, 8, dtype=torch.float64)
    for i in range(16):
        g = i // group if group else 0
        real[i] = (weight[i].double() + offset[g].double()) * scale[g].double()
    found = call(
        "npu_weight_quant_batchmatmul",
        *(x, pack_int4(weight) if packed else weight, scale, offset),
        bias=numbers(8),
        antiquant_group_size=group,
    )
    near(found, x.double() @ real + numbers(8).double())


def test_a_use_without_reference_says_so() -> None:
    with pytest.raises(Unsimulated, match="rehearsal device: npu_quant_matmul has no reference"):
        call("npu_quant_matmul", int8(3, 16), int8(16, 5), numbers(5), group_sizes=[1, 128, 128])


# ── grouped products ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("stacked", [True, False])
def test_groups_along_the_rows(dtype: torch.dtype, kind: int, stacked: bool) -> None:
    x, weight = numbers(9, 6, dtype=dtype), numbers(3, 6, 5, dtype=dtype)
    sizes = [2, 0, 5]
    listed = {
        0: torch.tensor([2, 2, 7]),
        1: torch.tensor(sizes),
        2: torch.tensor([[0, 2], [1, 0], [2, 5]]),
    }[kind]
    options: dict[str, Any] = {"group_list": listed, "group_list_type": kind, "group_type": 0}
    weights = [weight] if stacked else list(weight)
    (found,) = call("npu_grouped_matmul", [x], weights, split_item=3, **options)
    expected, at = torch.zeros(9, 5, dtype=torch.float64), 0
    for group, size in enumerate(sizes):
        for row in range(at, at + size):
            expected[row] = torch.einsum("k,kn->n", x[row].double(), weight[group].double())
        at += size
    near(found[:7], expected[:7])
    assert bool(found[7:].isnan().all())  # rows of no group are never written
    parts = call("npu_grouped_matmul", [x], weights, split_item=0, **options)
    assert [len(part) for part in parts] == sizes
    near(torch.cat(parts), expected[:7])


def test_groups_along_the_inner_axis() -> None:
    x, weight = numbers(4, 9), numbers(9, 5)
    (found,) = call(
        "npu_grouped_matmul",
        *([x], [weight]),
        group_list=torch.tensor([2, 9]),
        split_item=3,
        group_type=2,
    )
    near(found[0], x[:, :2].double() @ weight[:2].double())
    near(found[1], x[:, 2:].double() @ weight[2:].double())


@pytest.mark.parametrize("act", [0, 1, 2, 4, 5])
def test_groups_of_lists_with_bias_and_activation(act: int) -> None:
    x, weight = [numbers(2, 6), numbers(5, 6)], [numbers(6, 5), numbers(6, 4)]
    bias = [numbers(5), numbers(4)]
    found = call(
        "npu_grouped_matmul", x, weight, bias=bias, split_item=0, group_type=-1, act_type=act
    )
    formulas = {
        0: lambda z: z,
        1: lambda z: z.clamp(min=0),
        2: lambda z: torch.nn.functional.gelu(z, approximate="tanh"),
        4: lambda z: z / (1 + (-1.702 * z).exp()),
        5: lambda z: z / (1 + (-z).exp()),
    }
    for number, part in enumerate(found):
        plain = x[number].double() @ weight[number].double() + bias[number].double()
        near(part, formulas[act](plain))
    ends = call("npu_grouped_matmul.List", [torch.cat(x)], weight[:1] * 2, group_list=[2, 7])
    near(ends[1], x[1].double() @ weight[0].double())


def test_quantised_groups() -> None:
    x, weight = int8(7, 6), int8(3, 6, 5)
    scale, token = numbers(3, 5).abs() / 100, numbers(7).abs()
    (found,) = call(
        "npu_grouped_matmul",
        *([x], [weight]),
        scale=[scale],
        per_token_scale=[token],
        group_list=torch.tensor([2, 2, 7]),
        split_item=3,
        group_type=0,
        output_dtype=15,
    )
    for row in range(7):
        group = 0 if row < 2 else 2
        right = product(x[row : row + 1], weight[group])[0]
        near(found[row], right * scale[group].double() * token[row].double())


def test_gradient_accumulation_of_experts() -> None:
    grads, x, dy = numbers(2, 6, 5), numbers(7, 6), numbers(7, 5)
    ends = torch.tensor([3, 7])
    found = call("npu_grouped_matmul_add", grads, x, dy, ends)
    for group, (start, stop) in enumerate(((0, 3), (3, 7))):
        right = torch.einsum("tm,tn->mn", x[start:stop].double(), dy[start:stop].double())
        near(found[group], grads[group].double() + right)
    call("npu_grouped_matmul_add_", grads, x, dy, ends)
    assert torch.equal(grads, found)


def test_grouped_product_combined_into_tokens() -> None:
    x, w = int8(6, 4), int8(2, 4, 3)
    scale, token, logit = numbers(2, 3).abs(), numbers(6).abs() / 99, numbers(6)
    shared = numbers(2, 3, dtype=torch.bfloat16)
    row = torch.tensor([0, 2, 1, 0, 3, 2])
    found = call(
        "npu_grouped_matmul_finalize_routing",
        *(x, w, torch.tensor([2, 4])),
        scale=scale,
        pertoken_scale=token,
        shared_input=shared,
        shared_input_weight=0.5,
        shared_input_offset=1,
        logit=logit,
        row_index=row,
        output_bs=4,
    )
    expected = torch.zeros(4, 3, dtype=torch.float64)
    expected[1:3] = shared.double() * 0.5
    for i in range(6):
        group = 0 if i < 2 else 1
        part = product(x[i : i + 1], w[group])[0] * scale[group].double() * token[i].double()
        expected[row[i]] += part * logit[i].double()
    near(found, expected)


# ── choosing and routing ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", DTYPES)
def test_top_experts_by_softmax(dtype: torch.dtype) -> None:
    x, finished = numbers(5, 8, dtype=dtype), torch.tensor([0, 1, 0, 0, 0]).bool()
    y, experts, rows = call("npu_moe_gating_top_k_softmax", x, finished, 3)
    assert (y.dtype, experts.dtype, rows.dtype) == (dtype, torch.int32, torch.int32)
    for i in range(5):
        weights = (x[i].double() - x[i].double().logsumexp(0)).exp()
        order = sorted(range(8), key=lambda e: (-float(x[i, e]), e))[:3]
        near(y[i], weights[order])
        assert experts[i].tolist() == ([8, 8, 8] if i == 1 else order)
        assert rows[i].tolist() == [i, 5 + i, 10 + i]


def test_grouped_experts_by_sigmoid_with_gradient() -> None:
    x, bias = numbers(6, 12), numbers(12)
    y, experts, normal = call(
        "npu_moe_gating_top_k",
        *(x, 3),
        bias=bias,
        k_group=2,
        group_count=4,
        group_select_mode=1,
        norm_type=1,
        routed_scaling_factor=2.5,
    )
    for i in range(6):
        sigmoid = 1 / (1 + (-x[i].double()).exp())
        near(normal[i], sigmoid)
        score = sigmoid + bias.double()
        best = [sum(sorted(score[g * 3 : g * 3 + 3].tolist())[-2:]) for g in range(4)]
        groups = sorted(range(4), key=lambda g: -best[g])[:2]
        allowed = [e for e in range(12) if e // 3 in groups]
        order = sorted(allowed, key=lambda e: -float(score[e]))[:3]
        assert experts[i].tolist() == order
        near(y[i], sigmoid[order] / sigmoid[order].sum() * 2.5)
    dy = numbers(6, 3, seed=3)
    found = call(
        "npu_moe_gating_top_k_backward",
        *(normal, dy, experts),
        norm_type=1,
        routed_scaling_factor=2.5,
    )

    def formula(a: Tensor) -> Tensor:
        chosen = a.sigmoid().gather(1, experts.long())
        return chosen / chosen.sum(1, keepdim=True) * 2.5

    near(found, gradients(formula, (x,), dy)[0])
    plain = call("npu_moe_gating_top_k", x, 3)
    found = call("npu_moe_gating_top_k_backward", plain[2], dy, plain[1])
    near(
        found,
        gradients(lambda a: a.softmax(1).gather(1, plain[1].long()), (x,), dy)[0],
    )


@given(st.lists(st.integers(0, 5), max_size=30))
@settings(max_examples=30, deadline=None)
def test_expert_counts_are_cumulative(experts: list[int]) -> None:
    found = call(
        "npu_moe_compute_expert_tokens", torch.tensor(sorted(experts), dtype=torch.int32), 6
    )
    assert found.tolist() == [sum(e <= i for e in experts) for i in range(6)]


def test_old_routing_sorts_rows_by_expert() -> None:
    x, experts = numbers(5, 4), torch.randint(0, 4, (5, 2), dtype=torch.int32)
    rows = torch.arange(10, dtype=torch.int32).reshape(2, 5).T.contiguous()
    expanded, place, ordered = call("npu_moe_init_routing", x, rows, experts, 4)
    copies = sorted(
        (int(experts[t, j]), t * 2 + j, int(rows[t, j])) for t in range(5) for j in range(2)
    )
    assert ordered.tolist() == [expert for expert, _, _ in copies]
    for at, (_, _, row) in enumerate(copies):
        assert int(place[row]) == at
        if at < 8:
            assert torch.equal(expanded[at], x[row % 5])
    assert len(expanded) == 8
    scales, bias, skip = numbers(5, 2), numbers(4, 4), numbers(5, 4)
    full, place, _ = call("npu_moe_init_routing", x, rows, experts, 5)
    found = call("npu_moe_finalize_routing", full * 3, skip, skip, bias, scales, place, experts)
    expected = 2 * skip.double()
    for t in range(5):
        for j in range(2):
            part = x[t].double() * 3 + bias[experts[t, j]].double()
            expected[t] += scales[t, j].double() * part
    near(found, expected)


@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("span", [[], [1, 3]])
def test_new_routing_and_back(kind: int, span: list[int]) -> None:
    x, experts = numbers(6, 4), torch.randint(0, 4, (6, 2), dtype=torch.int32)
    low, high = span or (0, 4)
    expanded, index, counts, scales = call(
        "npu_moe_init_routing_v2",
        *(x, experts),
        scale=torch.arange(6.0),
        expert_num=4,
        active_num=12,
        expert_tokens_num_type=kind,
        expert_tokens_num_flag=True,
        active_expert_range=span,
    )
    copies = [(int(experts[t, j]), t * 2 + j) for t in range(6) for j in range(2)]
    inside = sorted(copy for copy in copies if low <= copy[0] < high)
    for at, (_, copy) in enumerate(inside):
        assert torch.equal(expanded[at], x[copy // 2])
        assert int(index[copy]) == at
        assert float(scales[at]) == copy // 2
    outside = [copy for expert, copy in copies if not low <= expert < high]
    assert all(int(index[copy]) == -1 for copy in outside)
    number = [sum(expert == e for expert, _ in copies) for e in range(low, high)]
    if kind == 0:
        assert counts.tolist() == [sum(number[: e + 1]) for e in range(len(number))]
    elif kind == 1:
        assert counts.tolist() == number
    else:
        used = [[e + low, n] for e, n in enumerate(number) if n]
        assert counts.tolist() == used + [[0, 0]] * (len(counts) - len(used))
    weights = numbers(6, 2)
    found = call("npu_moe_finalize_routing", expanded, None, None, None, weights, index, None, 2)
    expected = torch.zeros(6, 4, dtype=torch.float64)
    for _, copy in inside:
        expected[copy // 2] += weights[copy // 2, copy % 2].double() * x[copy // 2].double()
    near(found, expected)


def test_new_routing_with_capacity_and_quantisation() -> None:
    x, experts = numbers(6, 4), torch.tensor([[0], [0], [0], [1], [1], [3]], dtype=torch.int32)
    expanded, index, _, _ = call(
        "npu_moe_init_routing_v2",
        *(x, experts),
        expert_num=4,
        drop_pad_mode=1,
        expert_capacity=2,
    )
    assert torch.equal(expanded[0], x[:2])
    assert torch.equal(expanded[1], x[3:5])
    assert torch.equal(expanded[3, 0], x[5])
    assert not expanded[2].any()
    assert index.tolist() == [0, 1, -1, 2, 3, 6]
    values, _, _, scales = call(
        "npu_moe_init_routing_v2", x, experts, expert_num=4, quant_mode=1, row_idx_type=1
    )
    near(scales, x.double().abs().amax(1) / 127)
    assert ((values.double() * scales.double().unsqueeze(1) - x).abs() <= scales.max() * 0.51).all()


def test_rank_order_becomes_expert_order() -> None:
    counts = torch.tensor([[1, 2, 1], [3, 1, 2]])
    tokens = torch.tensor(
        [[r * 10.0 + e] for r in range(2) for e in range(3) for _ in range(int(counts[r, e]))]
    )
    found, scales, index, number = call(
        "npu_moe_re_routing", tokens, counts, per_token_scales=tokens[:, 0]
    )
    assert [int(v) % 10 for v in found[:, 0]] == [0] * 4 + [1] * 3 + [2] * 3
    assert torch.equal(tokens[index.long()], found)
    assert torch.equal(scales, found[:, 0])
    assert number.tolist() == [4, 3, 3]


@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
def test_unpermuting_undoes_permuting(tokens: int, k: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, 3, generator=generator)
    indices = torch.randint(0, 5, (tokens, k), generator=generator)
    permuted, place = call("npu_moe_token_permute", x, indices)
    experts = indices.reshape(-1)[place.long().argsort()]
    assert (experts.diff() >= 0).all()
    weights = torch.rand(tokens, k, generator=generator)
    back = call("npu_moe_token_unpermute", permuted, place, weights)
    near(back, x.double() * weights.double().sum(1, keepdim=True), factor=10)


def test_token_permutation_gradients_with_dropped_copies() -> None:
    x, probs = numbers(5, 3), numbers(5, 2).abs()
    indices = torch.tensor([[0, 2], [1, 0], [2, 2], [1, 3], [0, 1]])
    order = sorted(range(10), key=lambda c: (int(indices[c // 2, c % 2]), c))
    permuted, place = call("npu_moe_token_permute", x, indices, 7)
    assert [int(v) for v in place] == [order.index(c) for c in range(10)]
    assert torch.equal(permuted, x[[c // 2 for c in order[:7]]])
    dy = numbers(7, 3, seed=2)
    expected = torch.zeros(5, 3, dtype=torch.float64)
    for at, c in enumerate(order[:7]):
        expected[c // 2] += dy[at].double()
    near(call("npu_moe_token_permute_grad_v2", dy, place, 5, torch.float32, 2), expected)
    near(call("npu_moe_token_permute_grad", x, dy, indices, place), expected)

    def formula(rows: Tensor, weights: Tensor) -> Tensor:
        out = [torch.zeros(3, dtype=torch.float64) for _ in range(5)]
        for at, c in enumerate(order[:7]):
            out[c // 2] = out[c // 2] + rows[at] * weights[c // 2, c % 2]
        return torch.stack(out)

    near(call("npu_moe_token_unpermute", permuted, place, probs), formula(permuted, probs))
    dout = numbers(5, 3, seed=3)
    right = gradients(formula, (permuted, probs), dout)
    for name in ("npu_moe_token_unpermute_grad", "npu_moe_token_unpermute_grad_v2"):
        found = (
            call(name, permuted, dout, place, probs)
            if name.endswith("grad")
            else call(name, dout, place, 7, torch.float32, probs, permuted_tokens=permuted)
        )
        for grad, wanted in zip(found, right, strict=True):
            near(grad, wanted)


@pytest.mark.parametrize("padded", [False, True])
def test_routing_maps_there_and_back_with_gradients(padded: bool) -> None:
    x, probs = numbers(4, 3), numbers(4, 3).abs()
    chosen = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]]).bool()
    count = 6 if padded else 8
    permuted, weights, index = call(
        "npu_moe_token_permute_with_routing_map",
        *(x, chosen),
        probs=probs,
        num_out_tokens=count,
        drop_and_pad=padded,
    )
    pairs = [(t, e) for e in range(3) for t in range(4) if chosen[t, e]]
    if padded:
        pairs = [p for e in range(3) for p in [q for q in pairs if q[1] == e][:2]]
    assert torch.equal(permuted, x[[t for t, _ in pairs]])
    assert torch.equal(weights, torch.stack([probs[t, e] for t, e in pairs]))

    def formula(rows: Tensor, p: Tensor) -> Tensor:
        out = [torch.zeros(3, dtype=torch.float64) for _ in range(4)]
        for at, (t, e) in enumerate(pairs):
            out[t] = out[t] + rows[at] * p[t, e]
        return torch.stack(out)

    options = {"probs": probs, "routing_map": chosen, "drop_and_pad": padded}
    name = "npu_moe_token_unpermute_with_routing_map"
    found, order, tokens, _ = call(f"_{name}", permuted, index, [4, 3], **options)
    near(found, formula(permuted, probs))
    dout = numbers(4, 3, seed=5)
    grads = call(f"{name}_grad", dout, order, tokens, chosen, permuted, probs, padded, [4, 3])
    for grad, wanted in zip(grads, gradients(formula, (permuted, probs), dout), strict=True):
        near(grad, wanted)
    dy, dp = numbers(len(pairs), 3, seed=6), numbers(len(pairs), seed=7)
    dx, dprobs = call(
        "npu_moe_token_permute_with_routing_map_grad", dy, dp, index, chosen, 3, 4, padded
    )
    right, wrong = torch.zeros(4, 3, dtype=torch.float64), torch.zeros(4, 3)
    for at, (t, e) in enumerate(pairs):
        right[t] += dy[at].double()
        wrong[t, e] += dp[at]
    near(dx, right)
    assert torch.equal(dprobs, wrong)
