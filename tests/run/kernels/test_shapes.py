"""Any shape, any layout: what is chosen equals the reference, results and gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from joymigrate.run import kernels
from joymigrate.run.kernels.mask import CandidateMask, Causal, Full, JaggedMask, Prefix, WindowMask

SOME = settings(max_examples=30, deadline=None)
lead = st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple)
width = st.integers(1, 19)
layout = st.sampled_from(["plain", "turned", "gaps"])


def tensor(layout: str, *shape: int, seed: int = 0) -> Tensor:
    """A leaf's view of this shape in one of three memory layouts."""
    generator = torch.Generator().manual_seed(seed)
    if layout == "turned" and len(shape) > 1:
        turned = (*shape[:-2], shape[-1], shape[-2])
        made = torch.randn(*turned, generator=generator, dtype=torch.float64).transpose(-1, -2)
    elif layout == "gaps":
        made = torch.randn(*shape, 2, generator=generator, dtype=torch.float64)[..., 0]
    else:
        made = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return made.requires_grad_() if made._base is None else made.detach().requires_grad_()


def agree(op: str, run: Callable[[str], Tensor], *leaves: Tensor) -> None:
    """Every implementation that can run in float64 gives the reference's result and gradients."""
    kernel = kernels.op(op)
    want = run("reference")
    grads = torch.autograd.grad(want.sum(), leaves, allow_unused=True)
    for name in kernel.names():
        if name not in ("torch", "recomputed", "unique"):
            continue
        item = next(i for i in kernel.implementations if i.name == name)
        if not item.backward:
            with torch.no_grad():
                torch.testing.assert_close(run(name), want.detach())
            continue
        got = run(name)
        torch.testing.assert_close(got, want)
        found = torch.autograd.grad(got.sum(), leaves, allow_unused=True)
        for mine, theirs, leaf in zip(found, grads, leaves, strict=True):
            zero = torch.zeros_like(leaf)
            pair = (zero if g is None else g for g in (mine, theirs))
            torch.testing.assert_close(*pair)


@SOME
@given(lead, width, layout)
def test_norms(shape: tuple[int, ...], size: int, kind: str) -> None:
    x, residual = (tensor(kind, *shape, size, seed=seed) for seed in (0, 1))
    weight = tensor("plain", size, seed=2)
    norm, fused = kernels.op("rms_norm"), kernels.op("add_rms_norm")
    agree("rms_norm", lambda name: norm(x, weight, 1e-5, request=name), x, weight)

    def both(name: str) -> Tensor:
        y, total = fused(x, residual, weight, 1e-5, request=name)
        return y * 2 + total  # type: ignore[no-any-return]

    agree("add_rms_norm", both, x, residual, weight)


@SOME
@given(lead, width, layout)
def test_gates(shape: tuple[int, ...], size: int, kind: str) -> None:
    gate, up = (tensor(kind, *shape, size, seed=seed) for seed in (0, 1))
    swiglu = kernels.op("swiglu")
    agree("swiglu", lambda name: swiglu(gate, up, request=name), gate, up)
    both = tensor(kind, *shape, 2 * size)
    agree("swiglu", lambda name: swiglu(both, request=name), both)


@SOME
@given(lead, st.integers(1, 6), st.integers(0, 5), layout, st.booleans())
def test_rotations(shape: tuple[int, ...], half: int, rest: int, kind: str, beside: bool) -> None:
    x = tensor(kind, *shape, 3, 2 * half + rest)
    angle = torch.rand(3, half, dtype=torch.float64)
    angle = angle.repeat_interleave(2, -1) if beside else torch.cat((angle, angle), -1)
    rotary = kernels.op("rotary")
    agree(
        "rotary",
        lambda name: rotary(x, angle.cos(), angle.sin(), interleaved=beside, request=name),
        x,
    )


@SOME
@given(st.integers(0, 9), st.integers(1, 9), st.integers(2, 13), st.data())
def test_losses(rows: int, size: int, classes: int, data: st.DataObject) -> None:
    numbers = st.one_of(st.just(-100), st.integers(0, classes - 1))
    target = torch.tensor(
        data.draw(st.lists(numbers, min_size=rows, max_size=rows)), dtype=torch.long
    )
    hidden, weight = tensor("plain", rows, size), tensor("plain", classes, size, seed=1)
    options = {
        "label_smoothing": data.draw(st.sampled_from([0.0, 0.1])),
        "reduction": data.draw(st.sampled_from(["mean", "sum"])),
    }
    fused = kernels.op("fused_linear_cross_entropy")
    agree(
        fused.name, lambda name: fused(hidden, weight, target, request=name, **options),
        hidden, weight,
    )  # fmt: skip
    logits = tensor("turned", rows, classes)
    loss = kernels.op("cross_entropy")
    agree(loss.name, lambda name: loss(logits, target, request=name, **options), logits)


@SOME
@given(
    st.sampled_from([Full(), Causal(), WindowMask(3), Prefix(2), CandidateMask(3)]),
    st.tuples(st.integers(0, 2), st.integers(1, 2), st.integers(1, 2), st.integers(1, 6)),
    st.integers(0, 6),
    st.integers(1, 9),
    layout,
)
def test_attention(
    mask: Causal, sizes: tuple[int, int, int, int], more: int, head: int, kind: str
) -> None:
    batch, groups, per, rows = sizes
    q = tensor(kind, batch, groups * per, rows, head)
    k, v = (tensor(kind, batch, groups, rows + more, head, seed=seed) for seed in (1, 2))
    attention = kernels.op("attention")
    agree("attention", lambda name: attention(q, k, v, mask, request=name), q, k, v)


@SOME
@given(
    st.lists(st.integers(0, 6), max_size=4),
    st.sampled_from([Full(), Causal(), WindowMask(2), CandidateMask(2)]),
)
def test_packed_attention(lengths: list[int], mask: Causal) -> None:
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    q = tensor("plain", sum(lengths), 4, 3)
    k, v = (tensor("plain", sum(lengths), 2, 3, seed=seed) for seed in (1, 2))
    attention = kernels.op("attention")
    jagged = JaggedMask(offsets, mask)
    agree("attention", lambda name: attention(q, k, v, jagged, request=name), q, k, v)
