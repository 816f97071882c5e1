"""Native sparse, blockwise, latent attention and the indexer's training against float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.dtypes import Unsimulated
from tests.run.rehearse.refs.formulas import call, gradients, near, numbers


def softmaxed(q: Tensor, k: Tensor, v: Tensor, scale: float, seen: Tensor | None = None) -> Tensor:
    """One query [D] over keys [S, D] that are seen: the output [Dv]."""
    score = (k.double() @ q.double()) * scale
    if seen is not None:
        score = score.masked_fill(~seen, -math.inf)
    return score.softmax(0) @ v.double()


# ── native sparse attention ─────────────────────────────────────────────────────────────────────


def compressed(x: Tensor, w: Tensor) -> Tensor:
    """Windows of 4 by 2 of two sequences, 3 and 8 tokens long."""
    rows = []
    for begin in (3, 5, 7):
        rows.append(sum(w[k][:, None] * x[begin + k] for k in range(4)))
    return torch.stack(rows)


def test_windows_of_keys_become_their_weighted_sums() -> None:
    x, w, grad = numbers(11, 2, 6), numbers(4, 2, seed=1), numbers(3, 2, 6, seed=2)
    ends = {"actual_seq_len": [3, 11]}
    near(call("npu_nsa_compress", x, w, 4, 2, **ends), compressed(x.double(), w.double()))
    found = call("npu_nsa_compress_grad", grad, x, w, 4, 2, **ends)
    for one, other in zip(found, gradients(compressed, [x, w], grad), strict=True):
        near(one, other)


def test_a_window_that_is_full_goes_into_the_cache() -> None:
    pages, w = numbers(4, 4, 2, 6), numbers(4, 2, seed=1)
    cache = torch.zeros(3, 2, 6)
    table = torch.tensor([[3, 1], [0, 2]])
    given = (pages, w, torch.tensor([2, 0]), 4, 2, 4)
    call(
        "npu_nsa_compress_infer.cache",
        *given,
        block_table=table,
        actual_seq_len=[6, 5],
        cache=cache,
    )
    tokens = torch.cat((pages[3, 2:], pages[1, :2]))  # the last four of six
    near(cache[2], sum(w[k].double()[:, None] * tokens[k].double() for k in range(4)))
    assert not cache[:2].any()  # five tokens complete no window


def test_the_blocks_with_the_largest_shares_are_chosen() -> None:
    q, k, v = numbers(5, 4, 6), numbers(7, 2, 6, seed=1), numbers(7, 2, 3, seed=2)
    mask = torch.zeros(3, 5, dtype=torch.bool)
    mask[0, 2:] = True
    forced = torch.zeros(3, 3, dtype=torch.bool)
    forced[:, 0] = True
    out, chosen, top, total = call(
        "npu_nsa_compress_attention",
        *(q, k, v, 0.4, 4, 32, 16, 64, 2),
        topk_mask=forced,
        atten_mask=mask,
        actual_seq_qlen=[2, 5],
        actual_cmp_seq_kvlen=[2, 7],
        actual_sel_seq_kvlen=[1, 4],
    )
    for t, (first, last, begin) in enumerate(
        [(0, 2, 0), (0, 2, 0), (2, 7, 2), (2, 7, 2), (2, 7, 2)]
    ):
        keys, row = slice(first, last), t - begin
        blocks = 1 if t < 2 else 3
        seen = ~mask[row, : last - first]
        for group in range(2):
            scores = torch.zeros(blocks, dtype=torch.float64)
            for head in (2 * group, 2 * group + 1):
                near(out[t, head], softmaxed(q[t, head], k[keys, group], v[keys, group], 0.4, seen))
                score = (k[keys, group].double() @ q[t, head].double() * 0.4).masked_fill(
                    ~seen, -math.inf
                )
                near(top[t, head], score.max().expand(8))
                near(total[t, head], (score - score.max()).exp().sum().expand(8))
                share = score.softmax(0)
                for block in range(blocks):
                    for m in range(4):
                        for n in range(2):
                            if 0 <= (at := 4 * (block + 1) - m - n) < len(share):
                                scores[block] += share[at]
            scores[0] = math.inf
            expected = [*scores.argsort(descending=True, stable=True).tolist(), -1][:2]
            assert chosen[t, group].tolist() == expected


def test_at_inference_the_first_and_the_last_two_blocks_lead() -> None:
    q, k, v = numbers(2, 4, 6), numbers(4, 16, 12, seed=1), numbers(4, 16, 6, seed=2)
    table = torch.tensor([[2, 0], [1, 3]])
    out, chosen = call(
        "npu_nsa_compress_attention_infer",
        *(q, k, v, 0.4, 4, 2, 64, 4, 16, 32, 16),
        block_table=table,
        actual_cmp_seq_kvlen=[20, 31],
    )
    for t, length in enumerate([20, 31]):
        keys = torch.cat([k[page] for page in table[t].tolist()])[:length].reshape(length, 2, 6)
        values = torch.cat([v[page] for page in table[t].tolist()])[:length].reshape(length, 2, 3)
        count = math.ceil(((length - 1) * 16 + 32) / 64)
        for head in range(4):
            group = head // 2
            near(out[t, head], softmaxed(q[t, head], keys[:, group], values[:, group], 0.4))
            assert chosen[t, group, :3].tolist() == [0, count - 2, count - 1]
            assert 0 < int(chosen[t, group, 3]) < count - 2


@pytest.mark.parametrize("causal", [False, True])
def test_a_query_sees_the_blocks_that_it_chose(causal: bool) -> None:
    q, k, v = numbers(12, 4, 6), numbers(12, 2, 6, seed=1), numbers(12, 2, 3, seed=2)
    chosen = torch.tensor([[0, 2], [0, 1]], dtype=torch.int32).repeat(12, 1, 1)
    ends = {"actual_seq_qlen": [12], "actual_seq_kvlen": [12]}
    mask = torch.ones(12, 12, dtype=torch.bool).triu(1) if causal else None

    def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = []
        for t in range(12):
            for head in range(4):
                seen = torch.zeros(12, dtype=torch.bool)
                for block in chosen[t, head // 2].tolist():
                    seen[block * 4 : block * 4 + 4] = True
                if causal:
                    seen &= torch.arange(12) <= t
                score = (k[:, head // 2] @ q[t, head] * 0.4).masked_fill(~seen, -math.inf)
                rows.append(score.softmax(0) @ v[:, head // 2])
        return torch.stack(rows).reshape(12, 4, 3)

    out, top, total = call(
        "npu_nsa_select_attention", q, k, v, chosen, 0.4, 4, 4, 2, atten_mask=mask, **ends
    )
    near(out, formula(q.double(), k.double(), v.double()))
    grad = numbers(12, 4, 3, seed=5)
    found = call(
        "npu_nsa_select_attention_grad",
        *(grad, q, k, v, out, top, total, chosen, 0.4, 4, 4, 2),
        atten_mask=mask,
        **ends,
    )
    for one, other in zip(found, gradients(formula, [q, k, v], grad), strict=True):
        near(one, other)
    if not causal:
        table = torch.tensor([[1, 0, 2]])
        pages = [part.reshape(3, 4, 2, -1)[[1, 0, 2]] for part in (k, v)]
        served = call(
            "npu_nsa_select_attention_infer",
            *(q[5:6].unsqueeze(0), *pages, chosen[5:6], 0.4, 4, 2, 4, 2, 4),
            block_table=table,
            actual_seq_kvlen=[12],
        )
        near(served[0, 0], out[5].double())


# ── blocks and pairs ────────────────────────────────────────────────────────────────────────────


def test_a_mask_says_which_blocks_meet() -> None:
    q, k, v = numbers(5, 4, 6), numbers(9, 2, 6, seed=1), numbers(9, 2, 3, seed=2)
    chosen = torch.tensor([[[[1, 0]], [[0, 1]], [[1, 1]], [[0, 0]]]] * 2, dtype=torch.int8)
    lengths = {"actual_seq_lengths": [2, 3], "actual_seq_lengths_kv": [4, 5]}

    def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = []
        for t in range(5):
            begin, size = (0, 4) if t < 2 else (4, 5)
            for head in range(4):
                blocks = chosen[int(t >= 2), head, 0].bool()
                seen = blocks[torch.arange(size) // 3]
                if not seen.any():
                    rows.append(torch.zeros(3, dtype=torch.float64))
                    continue
                keys = slice(begin, begin + size)
                score = (k[keys, head // 2] @ q[t, head] * 0.3).masked_fill(~seen, -math.inf)
                rows.append(score.softmax(0) @ v[keys, head // 2])
        return torch.stack(rows).reshape(5, 4, 3)

    out, lse = call(
        "npu_block_sparse_attention", q, k, v, chosen, [4, 3], scale_value=0.3, **lengths
    )
    near(out, formula(q.double(), k.double(), v.double()))
    near(lse[0, 0, 0], ((k[:3, 0].double() @ q[0, 0].double()) * 0.3).logsumexp(0))
    grad = numbers(5, 4, 3, seed=4)
    found = call(
        "npu_block_sparse_attention_backward",
        *(grad, q, k, v, out, lse, chosen, [4, 3], [2, 3], [4, 5], "TND", "TND", 2, 0.3),
    )
    for one, other in zip(found, gradients(formula, [q, k, v], grad), strict=True):
        near(one, other)


def test_pairs_attend_over_a_third_node() -> None:
    q, k1, v1 = (
        numbers(1, 1, 2, 3, 4),
        numbers(1, 1, 2, 5, 4, seed=1),
        numbers(1, 1, 2, 5, 4, seed=2),
    )
    k2, v2 = numbers(1, 1, 5, 3, 4, seed=3), numbers(1, 1, 5, 3, 4, seed=4)
    mask = torch.zeros(1, 1, 2, 1, 5, dtype=torch.bool)
    mask[..., 0, 0, 1] = True

    def formula(q: Tensor, k1: Tensor, v1: Tensor, k2: Tensor, v2: Tensor) -> Tensor:
        rows = []
        for i in range(2):
            for m in range(3):
                pairs = torch.stack([k1[0, 0, i, j] + k2[0, 0, j, m] for j in range(5)])
                score = (pairs @ q[0, 0, i, m] * 0.5).masked_fill(mask[0, 0, i, 0], -math.inf)
                both = torch.stack([v1[0, 0, i, j] + v2[0, 0, j, m] for j in range(5)])
                rows.append(score.softmax(0) @ both)
        return torch.stack(rows).reshape(1, 1, 2, 3, 4)

    given = [q, k1, v1, k2, v2]
    top, total, out = call("npu_fused_floyd_attention", *given, atten_mask=mask, scale_value=0.5)
    near(out, formula(*(part.double() for part in given)))
    assert top.shape == total.shape == (1, 1, 2, 3, 8)
    grad = numbers(1, 1, 2, 3, 4, seed=5)
    found = call(
        "npu_fused_floyd_attention_backward",
        *(grad, *given, out, top, total),
        atten_mask=mask,
        scale_value=0.5,
    )
    for one, other in zip(found, gradients(formula, given, grad), strict=True):
        near(one, other)


# ── the indexer's training ──────────────────────────────────────────────────────────────────────


def index_score(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
    """[S1, N, D], [S2, 1, D], [S1, N] → [S1, S2], head by head."""
    return sum(  # type: ignore[return-value]
        w[:, n, None] * (q[:, n] @ k[:, 0].T).clamp(min=0) for n in range(q.shape[1])
    )


def test_gradients_of_the_chosen_scores() -> None:
    q, k, w = numbers(4, 3, 5), numbers(6, 1, 5, seed=1), numbers(4, 3, seed=2)
    chosen = torch.tensor([[0, 3], [5, -1], [2, 1], [4, 0]])
    dy = numbers(4, 2, seed=3)

    def formula(q: Tensor, k: Tensor, w: Tensor) -> Tensor:
        return index_score(q, k, w).gather(1, chosen.clamp(min=0)) * (chosen >= 0)

    found = call("npu_lightning_indexer_grad", *(x.unsqueeze(0) for x in (q, k, dy, chosen, w)))
    for one, other in zip(found, gradients(formula, [q, k, w], dy), strict=True):
        near(one[0], other)


@pytest.mark.parametrize("sparse", [False, True])
def test_the_divergence_from_the_attention_and_its_gradients(sparse: bool) -> None:
    q, k = numbers(3, 4, 6), numbers(5, 2, 6, seed=1)
    qi, ki, wi = numbers(3, 2, 6, seed=2), numbers(5, 1, 6, seed=3), numbers(3, 2, seed=4)
    seen = torch.arange(5) <= torch.arange(3)[:, None] + 2
    chosen = torch.tensor([[0, 2, -1], [3, 1, 0], [4, 2, 1]], dtype=torch.int32)
    if sparse:
        listed = torch.zeros(3, 6, dtype=torch.bool).scatter(1, chosen.long() % 6, True)
        seen &= listed[:, :5]
    score = torch.einsum("sngd,tnd->nsgt", q.double().unflatten(1, (2, 2)), k.double()) * 0.4
    score = score.masked_fill(~seen[None, :, None], -math.inf)
    top = score.amax(-1)
    total = (score - top.unsqueeze(-1)).exp().sum(-1)  # [N2, S1, G]
    shares = score.softmax(-1).sum((0, 2)) / 4

    def loss(qi: Tensor, ki: Tensor, wi: Tensor) -> Tensor:
        guess = index_score(qi, ki, wi).masked_fill(~seen, -math.inf).log_softmax(-1)
        parts = shares * (shares.clamp(min=1e-8).log() - guess.clamp(min=math.log(1e-8)))
        return parts.sum().reshape(1)

    given = [part.unsqueeze(0) for part in (q, k, qi, ki, wi)]
    statistics = [top.float().unsqueeze(0), total.float().unsqueeze(0)]
    if sparse:
        found = call(
            "npu_sparse_lightning_indexer_grad_kl_loss",
            *(*given, chosen[None, :, None], *statistics, 0.4),
        )
    else:
        first, second = call("npu_dense_lightning_indexer_softmax_lse", *given[2:])
        own = index_score(qi.double(), ki.double(), wi.double()).masked_fill(~seen, -math.inf)
        near(first[0, 0], own.amax(-1))
        near(second[0, 0], (own - own.amax(-1, keepdim=True)).exp().sum(-1))
        found = call(
            "npu_dense_lightning_indexer_grad_kl_loss",
            *(*given, *statistics, first, second, 0.4),
        )
    near(found[3], loss(qi.double(), ki.double(), wi.double()), factor=10)
    for one, other in zip(found, gradients(loss, [qi, ki, wi], torch.ones(1)), strict=False):
        near(one[0], other, factor=10)


# ── the older library ───────────────────────────────────────────────────────────────────────────


def test_masks_are_added_and_prefixes_are_seen() -> None:
    q, k, v = numbers(5, 4, 6), numbers(5, 2, 6, seed=1), numbers(5, 2, 6, seed=2)
    bias, out = numbers(4, 3, 3, seed=3), torch.zeros(5, 4, 6)
    how: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2, "scale_value": 0.4}
    call("atb::_npu_flash_attention_v2.out", q, k, v, [2, 3], mask=bias, **how, out=out)
    for t, (begin, length) in enumerate([(0, 2), (0, 2), (2, 3), (2, 3), (2, 3)]):
        for head in range(4):
            keys = slice(begin, begin + length)
            score = k[keys, head // 2].double() @ q[t, head].double() * 0.4
            share = (score + bias[head, t - begin, :length].double()).softmax(0)
            near(out[t, head], share @ v[keys, head // 2].double())
    with pytest.raises(Unsimulated, match="mask_type 4"):
        call("atb::_npu_flash_attention_v2.out", q, k, v, [2, 3], mask_type=4, out=out)
    pages = numbers(4, 4, 2, 6, seed=5), numbers(4, 4, 2, 6, seed=6)
    table = torch.tensor([[2, 0], [1, 3]])
    given = (q, *pages, table, [2, 3], [6, 5], 4, 0.4, 2)
    found = call("atb::npu_self_attention_prefix_encoder", *given)
    written = torch.zeros_like(q)
    call("atb::npu_self_attention_prefix_encoder.out", *given, output=written)
    older = torch.zeros_like(q)
    mask = torch.ones(128, 128)
    call(
        "atb::_npu_flash_attention_prefix_v2.out",
        *(q, *pages, table, mask, [2, 3], [6, 5]),
        **how,
        out=older,
    )
    for t, (row, sequence) in enumerate([(0, 0), (1, 0), (0, 1), (1, 1), (2, 1)]):
        count, length = ((2, 6), (3, 5))[sequence]
        held = [torch.cat([page[p] for p in table[sequence].tolist()]) for page in pages]
        visible = length - count + row + 1
        for head in range(4):
            keys, values = (one[:visible, head // 2] for one in held)
            expected = softmaxed(q[t, head], keys, values, 0.4)
            for result in (found, written, older):
                near(result[t, head], expected)


def test_paged_tokens_with_masks_and_int8_caches() -> None:
    q, table = numbers(2, 4, 6), torch.tensor([[2, 0], [1, 3]])
    pages = numbers(4, 4, 2, 6, seed=5), numbers(4, 4, 2, 6, seed=6)
    bias, out = numbers(2, 4, 1, 8, seed=7), torch.zeros(2, 4, 6)
    how: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2, "scale_value": 0.4}
    call(
        "atb::_npu_paged_attention_v2.out",
        *(q, pages[0], table, [6, 5]),
        value_cache=pages[1],
        mask=bias,
        mask_type=2,
        **how,
        out=out,
    )
    stored = [(page * 20).round().to(torch.int8) for page in pages]
    scales = numbers(12, seed=8).abs() / 20, numbers(12, seed=9).abs() / 20
    read = torch.zeros(2, 4, 6)
    given = (2, 4, 0.4, table, torch.tensor([6, 5]), 1, 6, *scales)
    call("atb::_npu_paged_attention_quant", q, *stored, *given, read)
    for t, length in enumerate((6, 5)):
        for head in range(4):
            group = head // 2
            held = [
                torch.cat([page[p] for p in table[t].tolist()])[:length, group] for page in pages
            ]
            score = (
                held[0].double() @ q[t, head].double() * 0.4 + bias[t, head, 0, :length].double()
            )
            near(out[t, head], score.softmax(0) @ held[1].double())
            kept = [
                torch.cat([page[p] for p in table[t].tolist()])[:length, group].double()
                * scale.reshape(2, 6)[group].double()
                for page, scale in zip(stored, scales, strict=True)
            ]
            near(read[t, head], softmaxed(q[t, head], *kept, 0.4))


def test_latents_are_keys_and_values_at_once() -> None:
    nope, rope = numbers(3, 4, 16), numbers(3, 4, 8, seed=1)
    latents, turned = numbers(4, 4, 1, 16, seed=2), numbers(4, 4, 1, 8, seed=3)
    table, mask = torch.tensor([[2, 0], [1, 3]]), numbers(3, 8, seed=4)
    given = (nope, rope, latents, turned, table, [6, 5], 4, 0.3, 1)
    how = {"mask": mask, "qseqlen": [1, 2], "calc_type": "calc_type_spec"}
    found, lse = call("atb::npu_multi_head_latent_attention.lse", *given, True, **how)
    for t, sequence in enumerate((0, 1, 1)):
        length = (6, 5)[sequence]
        held = torch.cat([latents[p, :, 0] for p in table[sequence].tolist()])[:length].double()
        keys = torch.cat([turned[p, :, 0] for p in table[sequence].tolist()])[:length].double()
        for head in range(4):
            score = held @ nope[t, head].double() + keys @ rope[t, head].double()
            score = score * 0.3 + mask[t, :length].double()
            near(found[t, head], score.softmax(0) @ held)
            near(lse[t, head, 0], score.logsumexp(0))
    near(call("atb::npu_multi_head_latent_attention", *given, **how), found.double())
    out, written = torch.zeros_like(found), torch.zeros_like(lse)
    call("atb::npu_multi_head_latent_attention.out", *given, **how, output=out)
    assert torch.equal(out, found)
    call(
        "atb::npu_multi_head_latent_attention.lse_out", *given, True, **how, output=out, lse=written
    )
    assert torch.equal(written, lse)


def test_a_ring_of_two_parts_is_one_attention() -> None:
    parts = {"q": numbers(5, 4, 12), "k": numbers(5, 4, 12, seed=1), "v": numbers(5, 4, 8, seed=2)}
    nope, rope = parts["q"][..., :8], parts["q"][..., 8:]
    near_keys = parts["k"][..., :8], parts["k"][..., 8:]
    mask = torch.zeros(512, 512)
    lengths = torch.tensor([[2, 3], [2, 3]], dtype=torch.int32)
    first, lse = call(
        "atb::npu_ring_mla",
        *(nope, rope, *near_keys, parts["v"], mask, lengths, 4, 4),
        qk_scale=0.3,
        mask_type="mask_type_triu",
    )
    far, values = numbers(7, 4, 12, seed=3), numbers(7, 4, 8, seed=4)
    both = torch.tensor([[2, 3], [4, 3]], dtype=torch.int32)
    out, total = call(
        "atb::npu_ring_mla",
        *(nope, rope, far[..., :8], far[..., 8:], values, mask, both, 4, 4),
        pre_out=first,
        prev_lse=lse,
        qk_scale=0.3,
        calc_type="calc_type_default",
    )
    for t, (sequence, row) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]):
        own = slice((0, 2)[sequence], (0, 2)[sequence] + row + 1)
        other = slice((0, 4)[sequence], (4, 7)[sequence])
        for head in range(4):
            keys = torch.cat((parts["k"][own, head], far[other, head]))
            kept = torch.cat((parts["v"][own, head], values[other, head]))
            near(out[t, head], softmaxed(parts["q"][t, head], keys, kept, 0.3))
            score = keys.double() @ parts["q"][t, head].double() * 0.3
            near(total[head, t], score.logsumexp(0))
    target, sums = torch.zeros_like(first), torch.zeros_like(lse)
    call(
        "atb::npu_ring_mla.out",
        *(nope, rope, *near_keys, parts["v"], mask, lengths, 4, 4),
        qk_scale=0.3,
        mask_type="mask_type_triu",
        output=target,
        softmax_lse=sums,
    )
    assert torch.equal(target, first)
    assert torch.equal(sums, lse)


def test_experts_are_chosen_with_a_bias_and_weighted_without() -> None:
    x, bias = numbers(6, 12), numbers(12, seed=1)
    count = torch.tensor([1, 2] * 6)
    copies = torch.arange(24).reshape(12, 2)
    how = {"group_num": 3, "group_topk": 2, "n": 2, "k": 3, "scale": 2.0}
    mapping = {"mapping_num": count, "mapping_table": copies, "enable_expert_mapping": True}
    y, chosen = call("atb::npu_fused_add_topk_div", x, bias, **how, **mapping)
    weights, plain = torch.zeros(6, 3), torch.zeros(6, 3, dtype=torch.int32)
    call("atb::npu_fused_add_topk_div.out", x, bias, **how, y=weights, indices=plain)
    for row in range(6):
        share = 1 / (1 + (-x[row].double()).exp())
        score = (share + bias.double()).reshape(3, 4)
        best = sorted(range(3), key=lambda g: -float(score[g].topk(2).values.sum()))
        score[best[2]] = 0.0
        order = score.flatten().argsort(descending=True, stable=True)[:3]
        near(y[row], share[order] / share[order].sum() * 2)
        expected = [int(copies[e, row % int(count[e])]) for e in order]
        assert chosen[row].tolist() == expected
        assert plain[row].tolist() == order.tolist()
    near(weights, y.double())


def test_paged_rows_are_loaded_into_given_tensors() -> None:
    pages = numbers(4, 4, 2, 6), numbers(4, 4, 2, 6, seed=1)
    key, value = torch.zeros(7, 2, 6), torch.zeros(7, 2, 6)
    table, lengths = torch.tensor([[2, 0], [1, 3]]), torch.tensor([5, 2])
    call("atb::npu_paged_cache_load.out", *pages, table, lengths, key=key, value=value)
    for page, found in zip(pages, (key, value), strict=True):
        near(found, torch.cat((page[2], page[0, :1], page[1, :2])).double())
