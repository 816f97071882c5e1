"""Composed masks, relative biases and SiLU: blockwise attention against the float64 definition."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from joymigrate.errors import JoyError
from joymigrate.run import kernels
from joymigrate.run.kernels import ring_attention
from joymigrate.run.kernels.mask import (
    ALL,
    NONE,
    BlockSparseMask,
    CandidateMask,
    Causal,
    Full,
    Globals,
    JaggedMask,
    Prefix,
    SharedPrefixMask,
    Simple,
    WindowMask,
    dense,
)
from joymigrate.run.kernels.ops import attention as operator
from joymigrate.run.kernels.own import blockwise_attention as blockwise
from joymigrate.run.kernels.scores import Bias, Silu

CPU = torch.device("cpu")
FEW = settings(max_examples=60, deadline=None)

simple = st.one_of(
    st.just(Full()),
    st.just(Causal()),
    st.builds(WindowMask, st.integers(1, 40)),
    st.builds(Prefix, st.integers(0, 30)),
    st.builds(
        SharedPrefixMask, st.integers(0, 20), st.lists(st.integers(0, 20), max_size=4).map(tuple)
    ),
    st.builds(CandidateMask, st.integers(0, 30), st.booleans()),
    st.builds(Globals, st.integers(0, 6)),
    st.builds(
        BlockSparseMask,
        st.integers(1, 16),
        st.lists(st.lists(st.integers(0, 5), max_size=4).map(tuple), max_size=6).map(tuple),
    ),
)
composed = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
    ),
    max_leaves=4,
)


@FEW
@given(composed, st.integers(1, 30), st.integers(0, 30), st.integers(1, 30), st.integers(1, 30))
def test_what_a_mask_covers_is_true(mask: Simple, i: int, j: int, rows: int, columns: int) -> None:
    a = torch.arange(i, i + rows).unsqueeze(1)
    b = torch.arange(j, j + columns).unsqueeze(0)
    seen = mask.visible(a, b).expand(rows, columns)
    share = mask.cover((i, i + rows), (j, j + columns))
    assert share != ALL or bool(seen.all())
    assert share != NONE or not bool(seen.any())


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@FEW
@given(
    composed,
    st.lists(st.integers(0, 45), min_size=1, max_size=4),
    st.sampled_from([None, Silu(7.0)]),
    st.sampled_from(["", "position", "time", "both"]),
    st.sampled_from([(2, 2), (4, 2)]),
    st.integers(0, 1000),
)
def test_packed_attention_and_its_gradients_equal_the_definition(
    mask: Simple,
    lengths: list[int],
    activation: Silu | None,
    kind: str,
    heads: tuple[int, int],
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    total = sum(lengths)
    q, k, v = draw(total, heads[0], 6), draw(total, heads[1], 6), draw(total, heads[1], 3)
    position = draw(1, 31) if kind in ("position", "both") else None
    time = draw(heads[0], 20) if kind in ("time", "both") else None
    times = torch.randint(0, 1000, (total,), generator=generator) if time is not None else None
    bias = Bias(position, time, times) if kind else None
    packed = JaggedMask(operator.offsets_of(tuple(lengths)), mask)
    leaves = [t for t in (q, k, v, position, time) if t is not None]
    given_back = torch.randn(total, heads[0], 3, generator=generator, dtype=torch.float64)
    found = []
    for run in (operator.reference, blockwise.attention):
        y = run(q, k, v, packed, bias=bias, activation=activation)
        grads = torch.autograd.grad((y * given_back).sum(), leaves, allow_unused=True)
        found.append([y, *grads])
    for want, got in zip(*found, strict=True):
        close(
            torch.zeros(1) if got is None else got,
            torch.zeros_like(got if got is not None else torch.zeros(1)) if want is None else want,
        )


@pytest.mark.parametrize("lengths", [(300, 1200), (1100, 1100)])
def test_several_tiles_meet_in_one_softmax(
    lengths: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, columns = lengths
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 2, rows, 4, generator=generator, dtype=torch.float64)
    k, v = (torch.randn(2, 1, columns, 4, generator=generator).double() for _ in range(2))
    mask = Causal() & (
        WindowMask(400) | Globals(3) | BlockSparseMask(128, ((0,),) * 4 + ((1, 2, 3),) * 5)
    )
    close(blockwise.attention(q, k, v, mask), operator.reference(q, k, v, mask))


class Largest(TorchDispatchMode):
    """The most elements of any tensor that is made."""

    elements = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        for one in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(one, Tensor):
                self.elements = max(self.elements, one.untyped_storage().nbytes())
        return found


@pytest.mark.parametrize("mask", [WindowMask(64) | Globals(2), CandidateMask(4000)], ids=str)
def test_no_tensor_is_quadratic_in_the_length(mask: Simple) -> None:
    length = 4096
    q, k, v = (torch.randn(length, 1, 8, requires_grad=True) for _ in range(3))
    packed = JaggedMask(torch.tensor([0, length]), Causal() & mask)
    choice = kernels.op("attention").choose_for(kernels.op("attention").call_of(q, k, v, packed))
    assert choice.implementation == "blockwise"
    with Largest() as seen:
        choice(q, k, v, packed).sum().backward()
    assert seen.elements <= 4 * blockwise.ROWS * blockwise.COLUMNS < length * length


def test_a_library_is_not_given_what_it_does_not_compute() -> None:
    q, k, v = (torch.randn(1, 2, 6, 4) for _ in range(3))
    for more in ({"activation": Silu()}, {"bias": Bias(position=torch.zeros(1, 5))}):
        with pytest.raises(JoyError, match="for softmax without a relative bias"):
            kernels.op("attention")(q, k, v, Causal(), request="torch", **more)


def test_a_bias_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(JoyError, match="2R - 1 columns, got 4"):
        Bias(position=torch.zeros(1, 4))
    with pytest.raises(JoyError, match="both its table and the times"):
        Bias(time=torch.zeros(1, 4))


def test_the_buckets_are_those_of_the_published_code() -> None:
    gaps = torch.tensor([0, 1, 2, 60, 86400, 10**9])
    bias = Bias(time=torch.zeros(1, 41), times=gaps[None])
    want = (torch.log(gaps.abs().clamp(min=1).double()) / 0.301).long().clamp(max=40)
    assert torch.equal(bias.bucket(gaps), want)
    assert dense(Causal(), 2, 2, CPU) is not None


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_processes_share_a_sequence(tmp_path: Path, processes: int) -> None:
    """Random masks, biases and ways; three processes never divide 1, 2 or 4 heads."""
    program = Path(__file__).parent / "programs" / "context_parallel.py"
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "meet"), str(processes), "40"],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("equal") == processes


def test_runs_of_a_ring_hold_every_position_once() -> None:
    for zigzag in (False, True):
        for world in (1, 2, 3, 5):
            held = ring_attention.runs_of(60, world, zigzag)
            places = [p for runs in held for run in runs for p in range(*run)]
            assert sorted(places) == list(range(60))
            # Pairs that a causal mask shows, by process: with zigzag all have the same.
            work = [sum(p + 1 for run in runs for p in range(*run)) for runs in held]
            assert (len(set(work)) == 1) == (zigzag or world == 1)
    with pytest.raises(JoyError, match="7 positions do not divide into 4 equal runs"):
        ring_attention.runs_of(7, 2, zigzag=True)


@pytest.mark.parametrize("activation", [None, Silu(7.0)])
@pytest.mark.parametrize("size", [1.0, 40.0])
def test_short_sequences_that_go_together_are_each_for_itself(
    activation: Silu | None, size: float
) -> None:
    draw = torch.Generator().manual_seed(0)
    lengths = [0, 1, 1, 2, 5, 5, 6, 0, 7, 9, 33, 34, 35, 300, 40, 41, 3]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    groups, alone = blockwise.groups_of(JaggedMask(offsets).bounds())
    assert sorted([*alone, *(n for one in groups for n in one)]) == [
        n for n, length in enumerate(lengths) if length
    ]
    assert len(groups) == 2
    total = int(offsets[-1])
    q, k, v, dout = (
        torch.randn(total, 2, 8, generator=draw, dtype=torch.float64) * size for _ in range(4)
    )
    times = torch.randint(0, 10_000, (total,), generator=draw)
    tables = [torch.randn(1, n, generator=draw, dtype=torch.float64) for n in (81, 40)]

    def slopes(one_by_one: bool) -> list[torch.Tensor]:
        given = [t.clone().requires_grad_() for t in (q, k, v, *tables)]
        parts = []
        cuts = offsets.tolist() if one_by_one else [0, total]
        for start, stop in itertools.pairwise(cuts):
            edges = torch.tensor([0, stop - start]) if one_by_one else offsets
            bias = Bias(given[3], given[4], times[start:stop])
            parts.append(
                blockwise.attention(
                    *(t[start:stop] for t in given[:3]), JaggedMask(edges), bias=bias,
                    activation=activation,
                )
            )  # fmt: skip
        found = torch.cat(parts)
        return [found.detach(), *torch.autograd.grad(found, given, dout)]

    for one, other in zip(slopes(True), slopes(False), strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-9 * float(one.abs().max()))
