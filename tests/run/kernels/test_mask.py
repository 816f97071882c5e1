"""Mask descriptions against a position-by-position definition, and attention under them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run import kernels
from joymigrate.run.kernels.mask import (
    CandidateMask,
    Causal,
    Dense,
    Full,
    JaggedMask,
    Mask,
    Prefix,
    SharedPrefixMask,
    Simple,
    WindowMask,
    dense,
)
from joymigrate.run.kernels.ops import attention

CPU = torch.device("cpu")
FEW = settings(max_examples=60, deadline=None)


def branch(position: int, prefix: int, lengths: tuple[int, ...]) -> int:
    """0 in the prefix, else the number of the branch from 1."""
    edge = prefix
    for number, length in enumerate((0, *lengths)):
        edge += length
        if position < edge:
            return number
    return len(lengths) + 1


def sees(mask: Simple, i: int, j: int) -> bool:
    """The definition, one pair of positions at a time."""
    if isinstance(mask, Full):
        return True
    if isinstance(mask, Causal):
        return j <= i
    if isinstance(mask, WindowMask):
        return 0 <= i - j < mask.size
    if isinstance(mask, Prefix):
        return j < mask.length or j <= i
    if isinstance(mask, SharedPrefixMask):
        mine, other = (branch(p, mask.prefix, mask.branches) for p in (i, j))
        return j <= i and (other == 0 or mine == other)
    if j == i:
        return True
    return j < mask.context and (j <= i or not mask.causal)


masks = st.one_of(
    st.just(Full()),
    st.just(Causal()),
    st.builds(WindowMask, st.integers(1, 9)),
    st.builds(Prefix, st.integers(0, 9)),
    st.builds(
        SharedPrefixMask, st.integers(0, 5), st.lists(st.integers(0, 4), max_size=4).map(tuple)
    ),
    st.builds(CandidateMask, st.integers(0, 9), st.booleans()),
)


@FEW
@given(masks, st.integers(1, 9), st.integers(0, 6))
def test_a_mask_shows_what_its_definition_says(mask: Simple, rows: int, before: int) -> None:
    columns = rows + before
    got = dense(mask, rows, columns, CPU)
    want = [[sees(mask, r + before, j) for j in range(columns)] for r in range(rows)]
    assert (torch.ones(rows, columns).bool() if got is None else got).tolist() == want


def by_hand(q: Tensor, k: Tensor, v: Tensor, shown: Callable[[int, int], bool]) -> Tensor:
    """One head's attention in plain Python floats."""
    out = torch.zeros(len(q), v.shape[1], dtype=torch.float64)
    for i in range(len(q)):
        keys = [j for j in range(len(k)) if shown(i, j)]
        if not keys:
            continue
        scores = [float(q[i] @ k[j]) / math.sqrt(q.shape[1]) for j in keys]
        weights = [math.exp(s - max(scores)) for s in scores]
        out[i] = sum(w * v[j] for w, j in zip(weights, keys, strict=True)) / sum(weights)
    return out


@pytest.mark.parametrize("name", ["reference", "torch"])
@pytest.mark.parametrize(
    "mask",
    [
        Full(),
        Causal(),
        WindowMask(3),
        Prefix(3),
        SharedPrefixMask(2, (2, 3)),
        CandidateMask(4),
        CandidateMask(4, False),
    ],
    ids=str,
)
def test_attention_equals_plain_python(mask: Simple, name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 4, 5, 4, generator=generator, dtype=torch.float64)
    k, v = (torch.randn(1, 2, 7, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    got = kernels.op("attention")(q, k, v, mask, request=name)
    for head in range(4):
        kv = head // 2
        want = by_hand(q[0, head], k[0, kv], v[0, kv], lambda r, j: sees(mask, r + 2, j))
        torch.testing.assert_close(got[0, head], want)


@pytest.mark.parametrize("name", ["reference", "torch"])
@pytest.mark.parametrize(
    ("mask", "sequence_mask"),
    [
        (Causal(), lambda n: Causal()),
        (WindowMask(2), lambda n: WindowMask(2)),
        (CandidateMask(), lambda n: CandidateMask((2, 0, 4)[n])),
    ],
    ids=["causal", "window", "contexts"],
)
def test_packed_sequences_do_not_see_each_other(
    mask: Causal | WindowMask | CandidateMask, sequence_mask: Callable[[int], Simple], name: str
) -> None:
    lengths = (3, 0, 5)
    offsets = torch.tensor([0, 3, 3, 8])
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(8, 2, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    contexts = torch.tensor([2, 0, 4]) if isinstance(mask, CandidateMask) else None
    got = kernels.op("attention")(q, k, v, JaggedMask(offsets, mask, contexts), request=name)
    for number, length in enumerate(lengths):
        start = int(offsets[number])
        inner = sequence_mask(number)
        part = slice(start, start + length)
        for head in range(2):
            rows = q[part, head], k[part, head], v[part, head]
            want = by_hand(*rows, functools.partial(sees, inner))
            torch.testing.assert_close(got[part, head], want)


def test_a_query_that_sees_nothing_gives_zeros_and_no_nan() -> None:
    q, k, v = (torch.randn(1, 1, n, 4, requires_grad=True) for n in (3, 2, 2))
    hidden = Dense(torch.tensor([[True, False], [False, False], [True, True]]))
    for name in ("reference", "torch"):
        y = kernels.op("attention")(q, k, v, hidden, request=name)
        grads = torch.autograd.grad(y.sum(), (q, k, v))
        assert y[0, 0, 1].tolist() == [0.0] * 4
        assert all(bool(g.isfinite().all()) for g in grads)


@pytest.mark.parametrize(
    "mask",
    [WindowMask(40), Prefix(50), SharedPrefixMask(40, (50, 38)), CandidateMask(100)],
    ids=str,
)
def test_the_rule_given_to_flex_attention_is_the_same(mask: Mask) -> None:
    assert not isinstance(mask, (Dense, JaggedMask))
    rule = attention.rule_of(mask, 12)
    i, j = torch.arange(128).unsqueeze(1), torch.arange(140).unsqueeze(0)
    want = dense(mask, 128, 140, CPU)
    assert want is not None
    assert torch.equal(rule(i * 0, j * 0, i, j), want)


@pytest.mark.parametrize(
    "build",
    [
        lambda: WindowMask(0),
        lambda: Prefix(-1),
        lambda: SharedPrefixMask(1, (-2,)),
        lambda: CandidateMask(-1),
    ],
)
def test_a_size_that_makes_no_sense_is_refused(build: Callable[[], object]) -> None:
    with pytest.raises(JoyError, match="is at least"):
        build()
