"""Block formats, rotations, sparse and latent attention, experts over ranks, against float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from joymigrate.run.rehearse.refs import block_formats, moe_between_ranks
from joymigrate.run.rehearse.refs.dtypes import Unsimulated, int4_pairs
from tests.run.rehearse.refs.formulas import call, gradients, near, numbers

HALF, BF16 = torch.float16, torch.bfloat16
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
E1M2 = [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75]


# ── block formats ───────────────────────────────────────────────────────────────────────────────


def nearest(value: float, table: list[float]) -> float:
    """The table's nearest number; of two equally near ones that at an even place."""
    size = abs(value)
    best = min(range(len(table)), key=lambda at: (abs(table[at] - size), at % 2))
    return math.copysign(table[best], value)


def nibbles(packed: Tensor, table: list[float]) -> Tensor:
    both = torch.stack((packed & 15, packed >> 4), -1).flatten(-2)
    return torch.tensor(
        [math.copysign(table[int(n) & 7], 8 - int(n) or -1) for n in both.flatten()]
    )


@pytest.mark.parametrize(
    ("code", "table", "emax"), [(296, E2M1, 2), (297, E1M2, 0)], ids=["e2m1", "e1m2"]
)
def test_blocks_of_float4_share_the_exponent_of_their_largest(
    code: int, table: list[float], emax: int
) -> None:
    x = numbers(2, 70) * torch.logspace(-3, 3, 70)
    elements, scales = call("npu_dynamic_mx_quant", x, dst_type=code)
    assert elements.shape == (2, 35)
    assert scales.shape == (2, 2, 2)
    found = nibbles(elements, table).reshape(2, 70)
    for row in range(2):
        for block in range(3):
            part = x[row, block * 32 : block * 32 + 32]
            exponent = math.floor(math.log2(float(part.abs().max()))) - emax
            assert int(scales[row].flatten()[block]) == exponent + 127
            for place, value in enumerate(part.tolist()):
                expected = nearest(value / 2.0**exponent, table)
                assert float(found[row, block * 32 + place]) == expected, (value, exponent)
        assert int(scales[row].flatten()[3]) == 0  # an odd number of blocks is filled up


@pytest.mark.parametrize(("code", "dtype"), [(292, torch.float8_e4m3fn), (23, torch.float8_e5m2)])
@pytest.mark.parametrize("algorithm", [0, 1])
def test_blocks_of_float8(code: int, dtype: torch.dtype, algorithm: int) -> None:
    x = numbers(65, 3) * 50
    elements, scales = call("npu_dynamic_mx_quant", x, axis=0, dst_type=code, scale_alg=algorithm)
    assert elements.dtype == dtype
    assert scales.shape == (2, 3, 2)
    limit, emax = torch.finfo(dtype).max, {292: 8, 23: 15}[code]
    for column in range(3):
        for block in range(3):
            part = x[block * 32 : block * 32 + 32, column]
            top = float(part.abs().max())
            exponent = (
                math.floor(math.log2(top)) - emax
                if algorithm == 0
                else math.ceil(math.log2(top / limit))
            )
            assert int(scales[block // 2, column, block % 2]) == exponent + 127
            scaled = (part.double() / 2.0**exponent).clamp(-limit, limit).float().to(dtype)
            got = elements[block * 32 : block * 32 + 32, column]
            assert torch.equal(got.float(), scaled.float())
    back = call("npu_anti_mx_quant", elements, scales, axis=0, dst_type=6)
    assert (back - x).abs().max() <= x.abs().max() / (8 if code == 292 else 4)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 70), st.sampled_from([291, 292, 296, 297]), st.integers(0, 9))
def test_what_is_on_the_grid_stays(length: int, code: int, seed: int) -> None:
    """Quantised numbers are quantised to themselves."""
    x = numbers(2, length * 2, seed=seed)
    element = block_formats.ELEMENTS[code]
    first = call("npu_dynamic_mx_quant", x, dst_type=code)
    values = block_formats.mx_dequantised(*first, element, -1)
    again = call("npu_dynamic_mx_quant", values, dst_type=code)
    assert torch.equal(block_formats.mx_dequantised(*again, element, -1), values)


def test_zeros_keep_a_scale_of_zero_and_modes_are_refused() -> None:
    elements, scales = call("npu_dynamic_mx_quant", torch.zeros(1, 32), dst_type=292)
    assert not elements.float().any()
    assert not scales.any()
    up = call("npu_dynamic_mx_quant", torch.full((1, 32), 2.5), round_mode="round")[0]
    down = call("npu_dynamic_mx_quant", torch.full((1, 32), 2.5), round_mode="floor")[0]
    assert nibbles(up, E2M1)[0] * 0.5 == 3  # 2.5 is 5 at this scale: between 4 and 6
    assert nibbles(down, E2M1)[0] * 0.5 == 2
    with pytest.raises(Unsimulated, match="scale_alg 2"):
        call("npu_dynamic_mx_quant", torch.ones(1, 32), scale_alg=2)


def test_norms_in_front_of_blocks() -> None:
    x, other, gamma, beta = numbers(3, 64), numbers(3, 64, seed=1), numbers(64), numbers(64, seed=1)
    elements, scales, rstd = call("npu_rms_norm_dynamic_mx_quant", x, gamma, beta=beta, dst_type=24)
    expected = x.double().square().mean(-1, keepdim=True).add(1e-6).rsqrt()
    near(rstd, expected)
    y = (x.double() * expected * gamma.double() + beta.double()).float()
    wanted = call("npu_dynamic_mx_quant", y, dst_type=24)
    assert torch.equal(scales, wanted[1])
    assert (elements.float() != wanted[0].float()).sum() <= 1  # a tie may round either way
    found = call("npu_add_rms_norm_dynamic_mx_quant", x, other, gamma, beta=beta, dst_type=24)
    near(found[1], x.double() + other.double())


# ── rotations ───────────────────────────────────────────────────────────────────────────────────


def test_a_kronecker_product_is_quantised_per_matrix() -> None:
    x, p1, p2 = numbers(3, 4, 16), numbers(4, 4), numbers(16, 16)
    out, scale = call("npu_kronecker_quant", x, p1, p2, 0.8)
    turned = torch.einsum("ab,kbc,cd->kad", p1.double(), x.double(), p2.double())
    expected = turned.abs().amax((1, 2)) / (7 * 0.8)
    near(scale, expected)
    values = (turned / expected[:, None, None]).round().clamp(-8, 7)
    assert torch.equal(int4_pairs(out).double(), values)


def test_a_rotation_turns_columns_block_by_block() -> None:
    x, rotation = numbers(3, 32), numbers(2, 16, 16)
    values, scale = call("npu_rotate_quant", x, rotation)
    parts = [x[:, :16].double() @ rotation[0].double(), x[:, 16:].double() @ rotation[1].double()]
    turned = torch.cat(parts, 1)
    near(scale, turned.abs().amax(1) / 127)
    assert (values.double() * scale.double()[:, None] - turned).abs().max() <= scale.max() * 0.51


# ── sparse attention ────────────────────────────────────────────────────────────────────────────


def attended(q: Tensor, k: Tensor, v: Tensor, indices: Tensor, block: int, causal: bool) -> Tensor:
    """One sequence, loop by loop, float64: q [S1, N1, D], k, v [S2, 1, D], indices [S1, 1, n]."""
    rows = []
    for at in range(len(q)):
        keys = sorted(
            {
                first * block + step
                for first in indices[at, 0].tolist()
                if first >= 0
                for step in range(block)
                if first * block + step < len(k)
                and (not causal or first * block + step <= at + len(k) - len(q))
            }
        )
        if not keys:
            rows.append(q.new_zeros(q.shape[1], v.shape[-1]))
            continue
        weight = (q[at] @ k[keys, 0].T * 0.4).softmax(-1)
        rows.append(weight @ v[keys, 0])
    return torch.stack(rows)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("block", [1, 2])
def test_sparse_attention_sees_the_chosen_keys(block: int, causal: bool) -> None:
    q, k, v = numbers(2, 3, 4, 8), numbers(2, 6, 1, 8), numbers(2, 6, 1, 8, seed=1)
    chosen = torch.tensor(
        [[[[0, 2, -1]], [[1, 0, 5]], [[2, -1, -1]]], [[[-1, -1, -1]], [[3, 1, 0]], [[0, 4, 2]]]],
        dtype=torch.int32,
    )
    mode = {"sparse_block_size": block, "sparse_mode": 3 if causal else 0}
    found = call("npu_sparse_flash_attention", q, k, v, chosen, 0.4, **mode)[0]
    for number in range(2):
        parts = [part[number].double() for part in (q, k, v)]
        near(found[number], attended(*parts, chosen[number], block, causal))
    packed = call(
        "npu_sparse_flash_attention",
        *(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), chosen.flatten(0, 1), 0.4),
        actual_seq_lengths_query=torch.tensor([3, 6]),
        actual_seq_lengths_kv=torch.tensor([6, 12]),
        layout_query="TND",
        layout_kv="TND",
        **mode,
    )[0]
    assert torch.equal(packed, found.flatten(0, 1))
    pages, table = torch.zeros(4, 4, 1, 8), torch.tensor([[2, 0], [3, 1]])
    values = pages.clone()
    for number in range(2):
        for at in range(6):
            pages[table[number, at // 4], at % 4] = k[number, at]
            values[table[number, at // 4], at % 4] = v[number, at]
    paged = call(
        "npu_sparse_flash_attention",
        *(q, pages, values, chosen, 0.4),
        block_table=table,
        actual_seq_lengths_kv=torch.tensor([6, 6]),
        layout_kv="PA_BSND",
        **mode,
    )[0]
    assert torch.equal(paged, found)


def test_rope_parts_sinks_and_statistics_of_sparse_attention() -> None:
    q, k, v = numbers(1, 2, 4, 8), numbers(1, 5, 1, 8), numbers(1, 5, 1, 8, seed=1)
    q_rope, k_rope, sinks = numbers(1, 2, 4, 2), numbers(1, 5, 1, 2), numbers(4)
    chosen = torch.tensor([[[[0, 2]], [[1, 4]]]], dtype=torch.int32)
    out, top, total = call(
        "npu_sparse_flash_attention",
        *(q, k, v, chosen, 0.4),
        query_rope=q_rope,
        key_rope=k_rope,
        sinks=sinks,
        return_softmax_lse=True,
    )
    whole_q, whole_k = torch.cat((q, q_rope), -1).double(), torch.cat((k, k_rope), -1).double()
    assert top.shape == total.shape == (1, 1, 2, 4)
    for at, keys in enumerate(([0, 2], [1, 4])):
        score = whole_q[0, at] @ whole_k[0, keys, 0].T * 0.4
        weight = torch.cat((score, sinks.double()[:, None]), 1).softmax(1)[:, :2]
        near(out[0, at], weight @ v[0, keys, 0].double())
        near(top[0, 0, at], torch.maximum(score.amax(1), sinks.double()))
        near(total[0, 0, at], (score - top[0, 0, at].double()[:, None]).exp().sum(1))


def test_gradients_of_sparse_attention() -> None:
    q, k, v = numbers(1, 3, 2, 8), numbers(1, 5, 1, 8), numbers(1, 5, 1, 8, seed=1)
    chosen = torch.tensor([[[[0, 2]], [[1, -1]], [[4, 0]]]], dtype=torch.int32)
    grad = numbers(1, 3, 2, 8, seed=3)
    found = call(
        "npu_sparse_flash_attention_grad",
        *(q, k, v, chosen, grad, grad, grad, grad, 0.4, 1),
    )
    expected = gradients(
        lambda a, b, c: attended(a[0], b[0], c[0], chosen[0], 1, True)[None], (q, k, v), grad
    )
    for ours, theirs in zip(found[:3], expected, strict=True):
        near(ours, theirs)
    assert [one.numel() for one in found[3:]] == [0, 0]


def test_an_indexer_of_bytes_orders_keys_as_real_numbers() -> None:
    q = torch.randint(-99, 99, (2, 3, 4, 16), dtype=torch.int8)
    k = torch.randint(-99, 99, (2, 6, 1, 16), dtype=torch.int8)
    weights, qs, ks = numbers(2, 3, 4).abs(), numbers(2, 3, 4).abs(), numbers(2, 6, 1).abs()
    found = call("npu_quant_lightning_indexer", q, k, weights, qs, ks, 0, 0, sparse_count=4)
    assert found.shape == (2, 3, 1, 4)
    for b in range(2):
        for s in range(3):
            visible = s + 6 - 3 + 1
            dots = (q[b, s].double() @ k[b, :visible, 0].double().T).clamp(min=0)
            score = (
                (weights[b, s].double() * qs[b, s].double()) @ dots * ks[b, :visible, 0].double()
            )
            best = score.topk(min(4, visible)).values
            taken = [int(at) for at in found[b, s, 0] if at >= 0]
            near(score[taken].float().sort(descending=True).values, best)


# ── latent attention ────────────────────────────────────────────────────────────────────────────


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.cat((even, odd), -1) * cos + torch.cat((-odd, even), -1) * sin


def normed(x: Tensor, gamma: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * gamma


def latent_inputs() -> dict[str, Tensor]:
    return {
        "token_x": numbers(2, 3, 8),
        "weight_dq": numbers(8, 12),
        "weight_uq_qr": numbers(12, 2 * 10),
        "weight_uk": numbers(2, 6, 16),
        "weight_dkv_kr": numbers(8, 20),
        "rmsnorm_gamma_cq": numbers(12),
        "rmsnorm_gamma_ckv": numbers(16),
        "rope_sin": numbers(2, 3, 4),
        "rope_cos": numbers(2, 3, 4, seed=1),
    }


def latent_formula(given: dict[str, Tensor], alpha: float = 1.0) -> tuple[Tensor, ...]:
    """query, its rope part, latent key, key's rope part, normed query; float64."""
    x, dq, uq, uk, dkv, gq, gkv, sin, cos = (part.double() for part in given.values())
    norm = normed(x @ dq, gq) * alpha
    up = (norm @ uq).reshape(2, 3, 2, 10)
    query = torch.stack([up[:, :, n, :6] @ uk[n] for n in range(2)], 2)
    kv = x @ dkv
    return (
        query,
        turned(up[..., 6:], cos[:, :, None], sin[:, :, None]),
        normed(kv[..., :16], gkv),
        turned(kv[..., 16:], cos, sin),
        norm,
    )


@pytest.mark.parametrize("mode", ["PA_BSND", "PA_BLK_BSND", "BSND"])
def test_latent_attention_prepares_query_key_and_caches(mode: str) -> None:
    given = latent_inputs()
    query, query_rope, latent, key_rope, norm = latent_formula(given, alpha=1.5)
    slots = torch.tensor([[5, 1, 3], [0, 7, 2]])
    shape, index = (4, 2, 1), slots
    if mode == "BSND":
        shape, index = (2, 3, 1), None
    if mode == "PA_BLK_BSND":
        index = torch.tensor([[2, 0], [3, 1]])
        slots = torch.tensor([[4, 5, 0], [6, 7, 2]])
    caches = torch.zeros(*shape, 16), torch.zeros(*shape, 4)
    found = call(
        "npu_mla_prolog_v3",
        *(*given.values(), *caches),
        cache_index=index,
        cache_mode=mode,
        query_norm_flag=True,
        qc_qr_scale=1.5,
    )
    near(found[0], query)
    near(found[1], query_rope)
    near(found[3], norm)
    for cache, expected in zip(caches, (latent, key_rope), strict=True):
        flat = cache.reshape(-1, cache.shape[-1])
        order = torch.arange(6).reshape(2, 3) if mode == "BSND" else slots
        near(flat[order], expected)
        assert int(flat.any(1).sum()) == 6
    if mode == "PA_BSND":
        first = torch.zeros(*shape, 16), torch.zeros(*shape, 4)
        older = call("npu_mla_prolog", *given.values(), index, *first)
        near(older[0], latent_formula(given)[0])
        assert older[2] is first[0]


def test_latent_attention_with_weights_of_bytes() -> None:
    given = latent_inputs()
    scales = {}
    for name, short in (
        ("weight_dq", "dequant_scale_w_dq"),
        ("weight_uq_qr", "dequant_scale_w_uq_qr"),
        ("weight_dkv_kr", "dequant_scale_w_dkv_kr"),
    ):
        scale = given[name].abs().amax(0, keepdim=True) / 127
        given[name], scales[short] = (given[name] / scale).round().to(torch.int8), scale
    token = given["token_x"].abs().amax(-1).reshape(6, 1) / 127
    rows = given["token_x"].reshape(6, 8)
    given["token_x"] = (rows / token).round().to(torch.int8).reshape(2, 3, 8)
    real = dict(given)
    real["token_x"] = (given["token_x"].reshape(6, 8) * token).reshape(2, 3, 8)
    for name, short in zip(("weight_dq", "weight_uq_qr", "weight_dkv_kr"), scales, strict=True):
        real[name] = given[name] * scales[short]
    query, query_rope, latent, _, _ = latent_formula(real)
    cache = torch.zeros(4, 2, 1, 16, dtype=torch.int8), torch.zeros(4, 2, 1, 4)
    factor = torch.full((1, 16), 20.0)
    found = call(
        "npu_mla_prolog_v2",
        *(*given.values(), torch.arange(6).reshape(2, 3), *cache),
        dequant_scale_x=token,
        quant_scale_ckv=factor,
        **scales,
    )
    scale = found[4].double().reshape(2, 3, 2, 1)
    size = query.abs().max()
    assert (found[0].double() * scale - query).abs().max() <= size * 0.02
    assert (
        found[1].double() * scale / 20 - query_rope
    ).abs().max() <= query_rope.abs().max() * 0.02
    stored = cache[0].reshape(8, 16)[:6].double() / 20
    assert (stored - latent.reshape(6, 16)).abs().max() <= 0.5 / 20 + 1e-5


def test_a_cache_of_tiles_is_read_as_it_was_written() -> None:
    """Values, rope part and scales in one row of bytes."""
    given = latent_inputs()
    _, _, latent, key_rope, _ = latent_formula(given)
    row = 16 + 4 * 4 + 4 * 2  # int8 values, rope in float32, a scale for each of two tiles
    cache = torch.zeros(2, 3, 1, row, dtype=torch.int8), torch.zeros(2, 3, 1, 4)
    call(
        "npu_mla_prolog_v3",
        *(*given.values(), *cache),
        cache_mode="BSND",
        kv_cache_quant_mode=3,
        tile_size=8,
    )
    values = cache[0][..., :16].double()
    scale = cache[0][..., 32:].contiguous().view(torch.float32).double().repeat_interleave(8, -1)
    near((values * scale).float(), latent.unsqueeze(2), factor=1e3)
    near(cache[0][..., 16:32].contiguous().view(torch.float32), key_rope.unsqueeze(2))


def test_attention_over_a_cache_of_tiles() -> None:
    k = numbers(1, 5, 1, 64)
    scale = k.abs().reshape(1, 5, 1, 2, 32).amax(-1) / 127
    values = (k / scale.repeat_interleave(32, -1)).round().to(torch.int8)
    rope = numbers(1, 5, 1, 4).to(BF16)
    rows = torch.cat((values, rope.view(torch.int8), scale.view(torch.int8)), -1)
    q = numbers(1, 3, 4, 68).to(BF16)
    chosen = torch.tensor([[[[0, 2]], [[1, 3]], [[4, 0]]]], dtype=torch.int32)
    found = call(
        "npu_kv_quant_sparse_flash_attention",
        *(q, rows, rows, chosen, 0.4, 2, 2),
        attention_mode=2,
        tile_size=32,
        rope_head_dim=4,
    )
    plain = values.double() * scale.double().repeat_interleave(32, -1)
    key = torch.cat((plain, rope.double()), -1)
    near(found[0], attended(q[0].double(), key[0], plain[0], chosen[0], 1, True))


# ── experts over ranks ──────────────────────────────────────────────────────────────────────────


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(0, 2), st.integers(1, 4), st.integers(0, 99)
)
def test_tokens_come_back_weighted_from_their_experts(
    moe_ranks: int, each: int, shared_ranks: int, tokens: int, seed: int
) -> None:
    """Every expert multiplies by a number of its own: what comes back is known."""
    ranks, experts = moe_ranks + shared_ranks, moe_ranks * each
    places = moe_between_ranks.ExpertPlaces(ranks, experts, shared_ranks, 1)
    k = min(2, experts)
    draw = torch.Generator().manual_seed(seed)
    x = [torch.randn(tokens, 4, generator=draw) for _ in range(ranks)]
    ids = [
        torch.stack([torch.randperm(experts, generator=draw)[:k] for _ in range(tokens)])
        for _ in range(ranks)
    ]
    active = [torch.rand(tokens, k, generator=draw) < 0.8 for _ in range(ranks)]
    weights = [torch.rand(tokens, k, generator=draw) for _ in range(ranks)]
    rows, notes, used = [], [], []
    for rank in range(ranks):
        room = places.longest(rank, tokens * ranks, k)
        got = moe_between_ranks.dispatch_to(places, rank, x, ids, active, room)
        assert int(got.counts[-1]) == int(got.tokens.sum())
        out, start = got.rows.clone(), 0
        for local, count in enumerate(got.tokens.tolist()):
            expert = (rank - shared_ranks) * each + local
            out[start : start + count] *= 100.0 if rank < shared_ranks else expert + 1.0
            start += count
        rows.append(out)
        notes.append(got.notes)
        used.append(int(got.counts[-1]))
    for rank in range(ranks):
        found = moe_between_ranks.collect(rank, tokens, rows, notes, used, weights[rank])
        factor = (weights[rank] * active[rank] * (ids[rank] + 1)).sum(1)
        if shared_ranks:
            factor = factor + 100.0 * active[rank].any(1)
        near(found, x[rank].double() * factor.double()[:, None])


def test_one_rank_of_dispatch_and_combine_is_the_plain_sum() -> None:
    x, ids = numbers(5, 6), torch.tensor([[0, 2], [3, 1], [2, 3], [1, 0], [2, 0]])
    weights = numbers(5, 2).abs()
    for version in ("", "_v2"):
        rows, _, note, counted, ends, _, _ = call(
            f"npu_moe_distribute_dispatch{version}", x, ids, "", 1, 0, 4
        )
        assert counted.tolist() == [3, 2, 3, 2]
        assert ends.tolist() == [3, 5, 8, 10]
        assert torch.equal(rows[:3], x[[0, 3, 4]])
        found = call(
            f"npu_moe_distribute_combine{version}", rows, ids, note, ends, weights, "", 1, 0, 4
        )
        near(found, x.double() * weights.double().sum(1, keepdim=True))


def test_experts_that_copy_or_are_constant() -> None:
    x, weights = numbers(3, 4), numbers(3, 2).abs()
    ids = torch.tensor([[0, 4], [5, 1], [6, 3]])  # four experts, then one of zero, copy, constant
    rows, _, note, _, ends, _, _ = call(
        "npu_moe_distribute_dispatch_v2",
        *(x, ids, "", 1, 0, 4),
        zero_expert_num=1,
        copy_expert_num=1,
        const_expert_num=1,
    )
    alpha1, alpha2, v = numbers(1, 4), numbers(1, 4, seed=1), numbers(1, 4, seed=2)
    found = call(
        "npu_moe_distribute_combine_v2",
        *(rows, ids, note, ends, weights, "", 1, 0, 4),
        ori_x=x,
        const_expert_alpha_1=alpha1,
        const_expert_alpha_2=alpha2,
        const_expert_v=v,
        zero_expert_num=1,
        copy_expert_num=1,
        const_expert_num=1,
    )
    w, d = weights.double(), x.double()
    near(found[0], w[0, 0] * d[0])
    near(found[1], (w[1, 0] + w[1, 1]) * d[1])
    constant = alpha1[0].double() * d[2] + alpha2[0].double() * v[0].double()
    near(found[2], w[2, 0] * constant + w[2, 1] * d[2])


def test_dispatch_quantises_each_token_for_its_expert() -> None:
    x, ids, smooth = numbers(2, 8), torch.tensor([[0], [1]]), numbers(2, 8).abs()
    rows, scales, *_ = call(
        "npu_moe_distribute_dispatch_v2", x, ids, "", 1, 0, 2, scales=smooth, quant_mode=2
    )
    wide = x.double() * smooth.double()
    near(scales, wide.abs().amax(1) / 127)
    assert torch.equal(rows.double(), (wide / (wide.abs().amax(1, keepdim=True) / 127)).round())


# ── products ────────────────────────────────────────────────────────────────────────────────────


def test_int8_by_int4_is_the_product_that_its_helper_makes_up_for() -> None:
    x = torch.randint(-128, 128, (5, 16), dtype=torch.int8)
    values = torch.randint(-8, 8, (2, 16, 8))
    packed = torch.stack([call("npu_convert_weight_to_int4pack", one.int()) for one in values])
    scale, token = numbers(2, 8).abs() / 50, numbers(5).abs() / 50
    assist = 8 * values.double().sum(1) * scale.double()
    ends = torch.tensor([2, 5])
    found, scales = call(
        "npu_grouped_matmul_swiglu_quant_v2",
        *(x, [packed], [scale], token, ends),
        weight_assist_matrix=[assist.float()],
    )
    wide = torch.cat(
        [
            x[:2].double() @ values[0].double() * scale[0].double(),
            x[2:].double() @ values[1].double() * scale[1].double(),
        ]
    )
    wide = wide * token.double()[:, None]
    gated = torch.nn.functional.silu(wide[:, :4]) * wide[:, 4:]
    near(scales, gated.abs().amax(1) / 127)
    assert (found.double() * scales.double()[:, None] - gated).abs().max() <= scales.max() * 0.51


def test_products_that_quantise_their_input() -> None:
    x, w, scale = numbers(7, 16).to(HALF), torch.randint(-9, 9, (3, 8, 16)), numbers(3, 8).abs()
    token = x.double().abs().amax(1, keepdim=True) / 127
    rounded = (x.double() / token).round()
    ends = [2, 2, 7]
    found = call("npu_quant_grouped_matmul_dequant", x, w.to(torch.int8), scale, torch.tensor(ends))
    for group, (start, stop) in enumerate(zip([0, *ends], ends, strict=False)):
        part = rounded[start:stop] @ w[group].double().T * scale[group].double()
        near(found[start:stop], part * token[start:stop], factor=2)
    one = call("npu_quant_matmul_dequant", x, w[0].to(torch.int8), scale[0])
    near(one, rounded @ w[0].double().T * scale[0].double() * token, factor=2)


def test_batches_of_float8_with_block_scales() -> None:
    x1, x2 = numbers(4, 2, 64), numbers(2, 64, 8)
    left = call("npu_dynamic_mx_quant", x1, dst_type=292)
    right = call("npu_dynamic_mx_quant", x2, axis=1, dst_type=292)
    found = call(
        "npu_transpose_quant_batchmatmul",
        *(left[0], right[0], 15),
        x1_scale=left[1],
        x2_scale=right[1],
        group_sizes=[0, 0, 32],
    )
    a = block_formats.mx_dequantised(*left, block_formats.E4M3, -1).double()
    b = block_formats.mx_dequantised(*right, block_formats.E4M3, 1).double()
    near(found, torch.einsum("mbk,bkn->mbn", a, b))
