"""Attention against a formula written row by row in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from joymigrate.run.rehearse.refs import registry
from joymigrate.run.rehearse.refs.randomness import keep_mask, pack_bits, unpack_bits

REGISTRY = registry()
CAUSAL = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
PREFIX = torch.zeros(3072, 2048, dtype=torch.bool)
SCALE = 0.37
# float32 against float64, both rounding once per operation.
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}


def call(name: str, *args: Any, **kwargs: Any) -> Any:
    return REGISTRY[f"npu::{name}"].function(*args, **kwargs)


def rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Any,
    *,
    scale: float = SCALE,
    bias: Any = None,
    sink: Tensor | None = None,
    keep: Tensor | None = None,
    keep_prob: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Attention of one sequence [N, S, D] by loops over heads and rows, and its log-sum-exp.

    `visible(i, j)` says what row i sees; `bias(n, i, j, score)` gives the final logit.
    """
    q, k, v = q.double(), k.double(), v.double()
    heads, length = q.shape[:2]
    share = heads // k.shape[0]
    out, sums = [], []
    for n in range(heads):
        for i in range(length):
            seen = [j for j in range(k.shape[1]) if visible(i, j)]
            if not seen:
                out.append(v.new_zeros(v.shape[2]))
                sums.append(v.new_tensor(-math.inf))
                continue
            keys, values = k[n // share, seen], v[n // share, seen]
            logits = torch.einsum("jd,d->j", keys, q[n, i])
            if bias is None:
                logits = logits * scale
            else:
                logits = torch.stack(
                    [bias(n, i, j, logit) for j, logit in zip(seen, logits, strict=True)]
                )
            everything = logits if sink is None else torch.cat((logits, sink[n : n + 1].double()))
            total = everything.logsumexp(0)
            weights = (logits - total).exp()
            if keep is not None:
                weights = weights * keep[n, i, seen].double() / keep_prob
            out.append(weights @ values)
            sums.append(total)
    return torch.stack(out).view(heads, length, -1), torch.stack(sums).view(heads, length)


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def everything(i: int, j: int) -> bool:
    return True


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH", "SBH"])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_every_layout_is_the_same_attention(layout: str, kv_heads: int) -> None:
    q, k, v = tensors((2, 4, 5, 8), (2, kv_heads, 7, 8), (2, kv_heads, 7, 6))
    order = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3), "BSH": (0, 2, 1, 3), "SBH": (2, 0, 1, 3)}
    given = [part.permute(order[layout]) for part in (q, k, v)]
    if layout in ("BSH", "SBH"):
        given = [part.flatten(2) for part in given]
    output, maximum, total, unused, *_ = call(
        "npu_fusion_attention", *given, 4, layout, scale=SCALE
    )
    expected = torch.stack([rows(*part, everything)[0] for part in zip(q, k, v, strict=True)])
    expected = expected.permute(order[layout])
    torch.testing.assert_close(output, expected.reshape(output.shape).float(), **CLOSE)
    assert maximum.shape == total.shape == (2, 4, 5, 8)
    assert unused.numel() == 0
    sums = torch.stack([rows(*part, everything)[1] for part in zip(q, k, v, strict=True)])
    torch.testing.assert_close((maximum + total.log())[..., 3], sums.float(), **CLOSE)


def band(before: int, after: int, shift: int) -> Any:
    return lambda i, j: i + shift - before <= j <= i + shift + after


MODES: list[tuple[int, dict[str, Any], Any]] = [
    (0, {"atten_mask": torch.ones(5, 7).triu(2).bool()}, lambda i, j: j < i + 2),
    (
        0,
        {"atten_mask": torch.zeros(5, 7).bool(), "pre_tockens": 2, "next_tockens": 1},
        band(2, 1, 0),
    ),
    (1, {"atten_mask": torch.eye(5, 7).bool()}, lambda i, j: i != j),
    (2, {"atten_mask": CAUSAL}, lambda i, j: j <= i),
    (3, {"atten_mask": CAUSAL}, lambda i, j: j <= i + 2),
    (4, {"atten_mask": CAUSAL, "pre_tockens": 3, "next_tockens": 1}, band(3, 1, 2)),
    (4, {"atten_mask": CAUSAL, "pre_tockens": 5, "next_tockens": -1}, band(5, -1, 2)),
    (6, {"atten_mask": PREFIX, "prefix": [4, 4]}, lambda i, j: j <= i + 2 or j < 4),
    (2, {}, everything),  # without a mask the mode means nothing
]


@pytest.mark.parametrize(("mode", "options", "visible"), MODES)
def test_sparse_modes_hide_what_their_documentation_says(
    mode: int, options: dict[str, Any], visible: Any
) -> None:
    q, k, v = tensors((2, 2, 5, 4), (2, 2, 7, 4), (2, 2, 7, 4))
    output = call(
        "npu_fusion_attention", q, k, v, 2, "BNSD", scale=SCALE, sparse_mode=mode, **options
    )[0]
    expected = torch.stack([rows(*part, visible)[0] for part in zip(q, k, v, strict=True)])
    torch.testing.assert_close(output, expected.float(), **CLOSE)


def test_each_sequence_has_its_own_prefix() -> None:
    q, k, v = tensors((2, 2, 4, 4), (2, 2, 4, 4), (2, 2, 4, 4))
    mask = torch.ones(2, 1, 4, 4).bool()
    for number, prefix in enumerate((1, 3)):
        mask[number, 0] = torch.tensor(
            [[not (j <= i or j < prefix) for j in range(4)] for i in range(4)]
        )
    output = call(
        "npu_fusion_attention",
        *(q, k, v, 2, "BNSD"),
        scale=SCALE,
        sparse_mode=5,
        prefix=[1, 3],
        atten_mask=mask,
    )[0]
    for number, prefix in enumerate((1, 3)):

        def visible(i: int, j: int, prefix: int = prefix) -> bool:
            return j <= i or j < prefix

        expected = rows(q[number], k[number], v[number], visible)[0]
        torch.testing.assert_close(output[number], expected.float(), **CLOSE)


@pytest.mark.parametrize("mode", [0, 1, 2, 3, 4, 6, 7, 8])
def test_packed_sequences_are_cut_and_masked_one_by_one(mode: int) -> None:
    q, k, v = tensors((9, 4, 8), (11, 2, 8), (11, 2, 8))
    q_ends, k_ends = [4, 5, 9], [3, 6, 11]
    mask = torch.ones(4, 5).triu(1).bool() if mode in (0, 1) else CAUSAL
    output, maximum, *_ = call(
        "npu_fusion_attention",
        *(q, k, v, 4, "TND"),
        scale=SCALE,
        sparse_mode=mode,
        atten_mask=mask,
        pre_tockens=6,
        next_tockens=1,
        prefix=[1, 2, 2],
        actual_seq_qlen=q_ends,
        actual_seq_kvlen=k_ends,
        softmax_layout="TND",
    )
    start_q = start_k = 0
    for number, (stop_q, stop_k) in enumerate(zip(q_ends, k_ends, strict=True)):
        shift = (stop_k - start_k) - (stop_q - start_q)
        last, first = number == 2, number == 0
        visible = {
            0: lambda i, j: j <= i and j <= i + 1,
            1: lambda i, j: j <= i,
            2: lambda i, j: j <= i,
            3: band(99, 0, shift),
            4: band(6, 1, shift),
            6: lambda i, j, s=shift, n=number: j <= i + s or j < [1, 2, 2][n],
            7: band(6, 1, shift) if last else band(99, 0, shift),
            8: band(6, 1, shift) if first else (lambda i, j: j <= i),
        }[mode]
        parts = (q[start_q:stop_q], k[start_k:stop_k], v[start_k:stop_k])
        expected = rows(*(part.transpose(0, 1) for part in parts), visible)[0]
        torch.testing.assert_close(
            output[start_q:stop_q], expected.transpose(0, 1).float(), **CLOSE
        )
        start_q, start_k = stop_q, stop_k
    assert maximum.shape == (9, 4, 8)


def test_softmax_statistics_of_packed_sequences_lie_head_by_head_by_default() -> None:
    q, k, v = tensors((5, 3, 4), (5, 3, 4), (5, 3, 4))
    ends = {"actual_seq_qlen": [2, 5], "actual_seq_kvlen": [2, 5], "scale": SCALE}
    plain = call("npu_fusion_attention", q, k, v, 3, "TND", **ends)[1]
    tokens = call("npu_fusion_attention", q, k, v, 3, "TND", softmax_layout="TND", **ends)[1]
    flat = plain.reshape(-1, 8)
    torch.testing.assert_close(flat[:6].view(3, 2, 8).transpose(0, 1), tokens[:2])
    torch.testing.assert_close(flat[6:].view(3, 3, 8).transpose(0, 1), tokens[2:])


@pytest.mark.parametrize("pse_type", [0, 1, 2, 3])
def test_position_biases_of_all_types(pse_type: int) -> None:
    q, k, v, table, slopes = tensors((1, 2, 4, 4), (1, 2, 4, 4), (1, 2, 4, 4), (1, 2, 4, 4), (2,))
    pse = table if pse_type < 2 else slopes
    output = call(
        "npu_fusion_attention_v2",
        *(q, k, v, 2, "BNSD"),
        scale=SCALE,
        pse=pse,
        pse_type=pse_type,
        q_start_idx=[3],
        kv_start_idx=[1],
    )[0]

    def bias(n: int, i: int, j: int, score: Tensor) -> Tensor:
        if pse_type == 1:
            return (score + table[0, n, i, j]) * SCALE
        if pse_type == 0:
            return score * SCALE + table[0, n, i, j]
        distance = abs(i - j + 2)
        size = math.sqrt(distance) if pse_type == 3 else distance
        return score * SCALE - slopes[n].double() * size

    expected = rows(q[0], k[0], v[0], everything, bias=bias)[0]
    torch.testing.assert_close(output[0], expected.float(), **CLOSE)


def test_a_compressed_alibi_bias_is_read_by_distance() -> None:
    size = 1030
    slope = torch.tensor([0.5, 0.25])
    distance = torch.arange(size).view(-1, 1) - torch.arange(size)
    full = -slope.view(1, 2, 1, 1) * distance.abs()
    q, k, v = tensors((1, 2, size, 4), (1, 2, size, 4), (1, 2, size, 4))
    options = {"atten_mask": CAUSAL, "sparse_mode": 2, "scale": SCALE}
    whole = call("npu_fusion_attention", q, k, v, 2, "BNSD", pse=full, **options)[0]
    short = call("npu_fusion_attention", q, k, v, 2, "BNSD", pse=full[:, :, -1024:, :], **options)[
        0
    ]
    torch.testing.assert_close(short, whole)


def test_a_sink_takes_part_in_the_sum_alone() -> None:
    q, k, v, sink = tensors((2, 3, 4), (2, 5, 4), (2, 5, 4), (2,))
    output, maximum, total, *_ = call(
        "npu_fusion_attention",
        *(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), 2, "BNSD"),
        scale=SCALE,
        sink=sink,
    )
    expected, sums = rows(q, k, v, everything, sink=sink)
    torch.testing.assert_close(output[0], expected.float(), **CLOSE)
    torch.testing.assert_close((maximum + total.log())[0, ..., 0], sums.float(), **CLOSE)


def test_rope_parts_are_added_to_the_scores() -> None:
    q, k, v, qr, kr = tensors((1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4), (1, 2, 3, 2), (1, 2, 5, 2))
    output = call(
        "npu_fusion_attention_v2", q, k, v, 2, "BNSD", query_rope=qr, key_rope=kr, scale=SCALE
    )[0]

    def bias(n: int, i: int, j: int, score: Tensor) -> Tensor:
        return (score + (qr[0, n, i].double() @ kr[0, n, j].double())) * SCALE

    torch.testing.assert_close(
        output[0], rows(q[0], k[0], v[0], everything, bias=bias)[0].float(), **CLOSE
    )


def test_a_row_that_sees_nothing_is_zero_or_the_mean_as_the_operator_can_tell() -> None:
    q, k, v = tensors((1, 1, 4, 4), (1, 1, 2, 4), (1, 1, 2, 4))
    output = call("npu_fusion_attention", q, k, v, 1, "BNSD", atten_mask=CAUSAL, sparse_mode=3)[0]
    assert torch.equal(output[0, 0, :2], torch.zeros(2, 4))
    full = torch.ones(4, 2).bool()
    mean = call("npu_fusion_attention", q, k, v, 1, "BNSD", atten_mask=full)[0]
    torch.testing.assert_close(mean[0, 0, 0], v[0, 0].mean(0))
    zero = call("npu_fusion_attention", q, k, v, 1, "BNSD", atten_mask=full, inner_precise=2)[0]
    assert torch.equal(zero, torch.zeros_like(zero))


def test_dropout_returns_what_makes_its_mask_again() -> None:
    q, k, v, dy = tensors((2, 2, 5, 4), (2, 2, 6, 4), (2, 2, 6, 4), (2, 2, 5, 4))
    torch.manual_seed(3)
    output, *_, seed, offset, length = call(
        "npu_fusion_attention", q, k, v, 2, "BNSD", scale=SCALE, keep_prob=0.7
    )
    assert length == 2 * 2 * 5 * 6
    keep = keep_mask(length, 0.7, seed, offset).view(2, 2, 5, 6)
    parts = [part.double().requires_grad_() for part in (q, k, v)]
    expected = torch.stack(
        [
            rows(*(part[n] for part in parts), everything, keep=keep[n], keep_prob=0.7)[0]
            for n in range(2)
        ]
    )
    torch.testing.assert_close(output, expected.float(), **CLOSE)
    torch.manual_seed(3)
    again = call("npu_fusion_attention", q, k, v, 2, "BNSD", scale=SCALE, keep_prob=0.7)
    assert torch.equal(again[0], output)
    grads = call(
        "npu_fusion_attention_grad",
        *(q, k, v, dy, 2, "BNSD"),
        scale_value=SCALE,
        keep_prob=0.7,
        seed=seed,
        offset=offset,
        numels=length,
    )
    wanted = torch.autograd.grad(expected, parts, dy.double())
    for grad, right in zip(grads[:3], wanted, strict=True):
        torch.testing.assert_close(grad, right.float(), rtol=1e-3, atol=1e-4)
    mask = call("_npu_dropout_gen_mask.Tensor", q, [2, 2, 5, 6], 1 - 0.7, seed, offset)
    assert torch.equal(unpack_bits(mask, length).view(2, 2, 5, 6), keep)
    outside = call(
        "npu_fusion_attention",
        *(q, k, v, 2, "BNSD"),
        scale=SCALE,
        keep_prob=0.7,
        dropout_mask=mask,
        seed=seed,
        offset=offset,
    )
    assert torch.equal(outside[0], output)
    assert outside[4:] == (seed, offset, length)


@pytest.mark.parametrize("version", ["", "_v2", "_v3"])
def test_gradients_are_those_of_the_formula(version: str) -> None:
    q, k, v, dy, pse, sink = tensors(
        (1, 4, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4), (1, 4, 3, 4), (1, 4, 3, 5), (4,)
    )
    parts = [part.double().requires_grad_() for part in (q, k, v, pse, sink)]

    def bias(n: int, i: int, j: int, score: Tensor) -> Tensor:
        return (score + parts[3][0, n, i, j]) * SCALE

    expected = rows(
        *(part[0] for part in parts[:3]), lambda i, j: j <= i + 2, bias=bias, sink=parts[4]
    )[0]
    wanted = torch.autograd.grad(expected, parts, dy[0].double())
    found = call(
        f"npu_fusion_attention_grad{version}",
        *(q, k, v, dy, 4, "BNSD"),
        pse=pse,
        sink=sink,
        atten_mask=CAUSAL,
        sparse_mode=3,
        scale_value=SCALE,
    )
    chosen = found[:4] + (found[-1:])
    for grad, right in zip(chosen, wanted, strict=True):
        torch.testing.assert_close(grad, right.float(), rtol=1e-3, atol=1e-5)


def test_packed_gradients_are_those_of_the_formula() -> None:
    q, k, v, dy = tensors((5, 2, 4), (6, 1, 4), (6, 1, 4), (5, 2, 4))
    options = {
        "actual_seq_qlen": [2, 5],
        "actual_seq_kvlen": [2, 6],
        "sparse_mode": 3,
        "atten_mask": CAUSAL,
    }
    parts = [part.double().requires_grad_() for part in (q, k, v)]
    first = rows(*(part[:2].transpose(0, 1) for part in parts), band(99, 0, 0))[0]
    second = rows(
        parts[0][2:].transpose(0, 1),
        *(part[2:].transpose(0, 1) for part in parts[1:]),
        band(99, 0, 1),
    )[0]
    expected = torch.cat((first, second), 1).transpose(0, 1)
    wanted = torch.autograd.grad(expected, parts, dy.double())
    found = call("npu_fusion_attention_grad", q, k, v, dy, 2, "TND", scale_value=SCALE, **options)
    for grad, right in zip(found[:3], wanted, strict=True):
        torch.testing.assert_close(grad, right.float(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_half_precision_rounds_once(dtype: torch.dtype, limit: float) -> None:
    q, k, v = tensors((1, 2, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8), dtype=dtype)
    output = call("npu_fusion_attention", q, k, v, 2, "BNSD", scale=SCALE)[0]
    assert output.dtype == dtype
    expected = rows(q[0], k[0], v[0], everything)[0]
    assert (output[0].double() - expected).abs().max() <= limit


@given(st.integers(1, 300), st.floats(0.05, 0.95), st.integers(0, 2**40), st.integers(0, 2**40))
@settings(max_examples=30, deadline=None)
def test_masks_survive_packing_and_depend_on_seed_and_offset(
    count: int, keep: float, seed: int, offset: int
) -> None:
    mask = keep_mask(count, keep, seed, offset)
    packed = pack_bits(mask)
    assert packed.numel() == (count + 127) // 128 * 16
    assert torch.equal(unpack_bits(packed, count), mask)
    assert torch.equal(keep_mask(count, keep, seed, offset), mask)


def test_bad_arguments_are_refused_as_the_vendor_refuses_them() -> None:
    q, k, v = tensors((1, 2, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    with pytest.raises(RuntimeError, match="input_layout"):
        call("npu_fusion_attention", q, k, v, 2, "BDSN")
    with pytest.raises(RuntimeError, match="keep_prob"):
        call("npu_fusion_attention", q, k, v, 2, "BNSD", keep_prob=0.0)
    with pytest.raises(RuntimeError, match="sparse_mode"):
        call("npu_fusion_attention", q, k, v, 2, "BNSD", sparse_mode=7)
    with pytest.raises(RuntimeError, match="actual_seq"):
        call("npu_fusion_attention", q[0], k[0], v[0], 2, "TND")


# ── inference ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH", "BNSD_BSND", "BNSD_NBSD", "BSH_NBSD"])
def test_inference_layouts_and_lengths(layout: str) -> None:
    q, k, v = tensors((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8), dtype=torch.float16)
    given, _, wanted = layout.partition("_")
    order = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3), "BSH": (0, 2, 1, 3), "NBSD": (1, 0, 2, 3)}
    parts = [part.permute(order[given]) for part in (q, k, v)]
    parts = [part.flatten(2) for part in parts] if given == "BSH" else parts
    output, lse = call(
        "npu_fused_infer_attention_score",
        *parts,
        num_heads=4,
        num_key_value_heads=2,
        input_layout=layout,
        scale=SCALE,
        actual_seq_lengths=[3, 5],
        actual_seq_lengths_kv=[7, 4],
        sparse_mode=3,
        atten_mask=CAUSAL,
        softmax_lse_flag=True,
    )
    expected = torch.zeros(2, 4, 5, 8, dtype=torch.float64)
    for number, (rows_, columns) in enumerate(((3, 7), (5, 4))):
        expected[number, :, :rows_], sums = rows(
            q[number, :, :rows_],
            k[number, :, :columns],
            v[number, :, :columns],
            band(99, 0, columns - rows_),
        )
        seen = sums.isfinite()
        torch.testing.assert_close(
            lse[number, :, :rows_, 0][seen], sums[seen].float(), rtol=1e-3, atol=1e-3
        )
    expected = expected.permute(order[wanted or given]).reshape(output.shape)
    assert (output.double() - expected).abs().max() < 2e-3


def pages(values: Tensor, table: Tensor, size: int, form: str) -> Tensor:
    """Sequences [B, N, S, D] written into a paged cache of the given form."""
    _, heads, _, width = values.shape
    cache = torch.zeros(int(table.max()) + 1, size, heads, width, dtype=values.dtype)
    for number, sequence in enumerate(values):
        for place in range(sequence.shape[1]):
            block = int(table[number, place // size])
            cache[block, place % size] = sequence[:, place]
    if form == "BBH":
        return cache.flatten(2)
    if form == "BNBD":
        return cache.transpose(1, 2).contiguous()
    nz = cache.view(len(cache), size, heads, width // 16, 16)
    return nz.permute(0, 2, 3, 1, 4).contiguous()


@pytest.mark.parametrize("form", ["BBH", "BNBD", "NZ"])
@pytest.mark.parametrize("version", ["", "_v2"])
def test_paged_caches_of_every_form(form: str, version: str) -> None:
    q, k, v = tensors((5, 4, 32), (2, 2, 9, 32), (2, 2, 9, 32), dtype=torch.bfloat16)
    table = torch.tensor([[5, 0, 3], [2, 4, 1]], dtype=torch.int32)
    names = {
        "": ("num_heads", "scale", "actual_seq_lengths", "actual_seq_lengths_kv"),
        "_v2": ("num_query_heads", "softmax_scale", "actual_seq_qlen", "actual_seq_kvlen"),
    }[version]
    output, _ = call(
        f"npu_fused_infer_attention_score{version}",
        q,
        *(pages(part, table, 4, form) for part in (k, v)),
        **dict(zip(names, (4, SCALE, [2, 5], [6, 9]), strict=True)),
        num_key_value_heads=2,
        input_layout="TND",
        block_table=table,
        block_size=4,
        sparse_mode=3,
        atten_mask=CAUSAL,
    )
    for number, (start, stop, columns) in enumerate(((0, 2, 6), (2, 5, 9))):
        expected = rows(
            q[start:stop].transpose(0, 1),
            k[number, :, :columns],
            v[number, :, :columns],
            band(99, 0, columns - (stop - start)),
        )[0].transpose(0, 1)
        assert (output[start:stop].double() - expected).abs().max() < 2e-2


@pytest.mark.parametrize("quantised", [False, True])
def test_one_new_token_over_a_quantised_cache(quantised: bool) -> None:
    q, k, v = tensors((2, 4, 1, 8), (2, 2, 6, 8), (2, 2, 6, 8), dtype=torch.float16)
    options: dict[str, Any] = {}
    if quantised:
        k8, v8 = ((part * 20).round().clamp(-128, 127).to(torch.int8) for part in (k, v))
        scale = torch.full((2, 2, 1, 8), 0.05, dtype=torch.float16)
        options["antiquant_scale"] = scale
        k, v = (part.half() * scale[0] for part in (k8, v8))
    else:
        k8, v8 = k, v
    output = call(
        "npu_incre_flash_attention",
        *(q, k8, v8),
        num_heads=4,
        num_key_value_heads=2,
        scale_value=SCALE,
        input_layout="BNSD",
        actual_seq_lengths=[4, 6],
        **options,
    )
    for number, columns in enumerate((4, 6)):
        expected = rows(q[number], k[number, :, :columns], v[number, :, :columns], everything)[0]
        assert (output[number].double() - expected).abs().max() < 3e-3


def test_prompts_with_left_padding_and_shared_prefix() -> None:
    q, k, v, pk, pv = tensors(
        (1, 2, 6, 8), (1, 2, 6, 8), (1, 2, 6, 8), (1, 2, 4, 8), (1, 2, 4, 8), dtype=torch.float16
    )
    padded, _ = call(
        "npu_fused_infer_attention_score",
        *(q, k, v),
        num_heads=2,
        scale=SCALE,
        input_layout="BNSD",
        actual_seq_lengths=[3],
        actual_seq_lengths_kv=[4],
        query_padding_size=torch.tensor(1),
        kv_padding_size=torch.tensor(2),
    )
    expected = rows(q[0, :, 2:5], k[0, :, :4], v[0, :, :4], everything)[0]
    assert (padded[0, :, 2:5].double() - expected).abs().max() < 2e-3
    assert torch.equal(padded[0, :, :2], torch.zeros(2, 2, 8).half())
    shared, _ = call(
        "npu_fused_infer_attention_score",
        *(q, k, v),
        num_heads=2,
        scale=SCALE,
        input_layout="BNSD",
        key_shared_prefix=pk,
        value_shared_prefix=pv,
        actual_shared_prefix_len=[3],
    )
    keys, values = torch.cat((pk[0, :, :3], k[0]), 1), torch.cat((pv[0, :, :3], v[0]), 1)
    assert (shared[0].double() - rows(q[0], keys, values, everything)[0]).abs().max() < 2e-3


def test_merging_two_attentions_gives_the_whole() -> None:
    q, k, v = tensors((2, 3, 4), (2, 8, 4), (2, 8, 4))
    whole, sums = rows(q, k, v, everything)
    halves = [
        call(
            "npu_fusion_attention",
            *(part.unsqueeze(0) for part in (q, k[:, s], v[:, s])),
            *(2, "BNSD"),
            scale=SCALE,
        )[:3]
        for s in (slice(0, 3), slice(3, 8))
    ]
    flat = [(o[0].permute(1, 0, 2).reshape(3, 1, 8), m, t) for o, m, t in halves]
    merged, maximum, total = call("npu_ring_attention_update", *flat[0], *flat[1])
    torch.testing.assert_close(merged.reshape(3, 2, 4), whole.transpose(0, 1).float(), **CLOSE)
    torch.testing.assert_close((maximum + total.log())[0, ..., 0], sums.float(), **CLOSE)
    lse = [(m + t.log())[0, ..., 0].reshape(-1) for _, m, t in halves]
    outs = [o[0].reshape(-1, 4) for o, _, _ in halves]
    again, both = call("npu_attention_update", lse, outs, 1)
    torch.testing.assert_close(again, whole.reshape(-1, 4).float(), **CLOSE)
    torch.testing.assert_close(both, sums.reshape(-1).float(), **CLOSE)
