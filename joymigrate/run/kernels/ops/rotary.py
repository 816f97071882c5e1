"""Rotary position embedding of one tensor.

    rotary(x, cos, sin, *, interleaved=False) -> y

`x` [B, N, S, D] (or any [..., S, D]); `cos`, `sin` [..., S, R] broadcast to x's first R ≤ D
entries, the rest passes through. Each angle stands twice in them: in both halves (`half`, the form
of Llama and Qwen), or side by side with `interleaved` (the form of GLM and Cohere). No gradient
reaches cos and sin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from joymigrate.run.kernels.operator import (
    CPU,
    POINTWISE,
    WIDE,
    Call,
    Implementation,
    Operator,
    OperatorCase,
    rows_of,
)
from joymigrate.run.kernels.samples import Samples


def turn_pairs(x: Tensor, interleaved: bool) -> Tensor:
    """Each pair (a, b) as (-b, a)."""
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def reference(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    """x · cos + turned(x) · sin over the first R entries."""
    size = cos.shape[-1]
    part, rest = x[..., :size], x[..., size:]
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    part = part * cos + turn_pairs(part, interleaved) * sin
    return torch.cat((part, rest), -1) if rest.shape[-1] else part


class Rotation(torch.autograd.Function):
    """Written in place into one output; the backward is the rotation by the opposite angle, so
    nothing but cos and sin is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        return rotate(x, cos, sin, interleaved)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        return rotate(dy, cos, -sin, ctx.interleaved), None, None, None


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Two products written where they belong, without the turned copy of x."""
    size = cos.shape[-1]
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    made = x * cos if size == x.shape[-1] else torch.cat((x[..., :size] * cos, x[..., size:]), -1)
    y = made[..., :size]
    low, high = (slice(0, size, 2), slice(1, size, 2)) if interleaved else halves(size)
    y[..., low].addcmul_(x[..., :size][..., high], sin[..., low], value=-1)
    y[..., high].addcmul_(x[..., :size][..., low], sin[..., high])
    return made


def halves(size: int) -> tuple[slice, slice]:
    return slice(0, size // 2), slice(size // 2, size)


def in_place(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    """`Rotation`; without a gradient, just the two products."""
    if x.requires_grad and torch.is_grad_enabled():
        found: Tensor = Rotation.apply(x, cos, sin, interleaved)  # type: ignore[no-untyped-call]
        return found
    return rotate(x, cos, sin, interleaved)


def describe(
    x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False
) -> tuple[Tensor, tuple[int, ...], str]:
    variant = "interleaved" if interleaved else "half"
    return x, (rows_of(x), x.shape[-1], cos.shape[-1]), variant


def pays_on_cpu(call: Call) -> str | None:
    """Measured on a CPU: 1.8 times the reference in float32, 0.55 to 1.1 in bfloat16 (whose
    addcmul is slow there), 0.84 for the few heads of one decoding step."""
    if call.device != CPU:
        return None
    if call.dtype == "bfloat16":
        return "slower than the reference in bfloat16 on a CPU"
    return None if call.shape[0] * call.shape[1] >= 1 << 16 else "slower for so few heads on a CPU"


def whole_heads(call: Call) -> str | None:
    """Liger rotates whole heads by halves."""
    if call.variant != "half":
        return "for the half form"
    return None if call.shape[1] == call.shape[2] else "for a rotation of the whole head"


def one(
    random: Samples, x: tuple[int, ...], angles: tuple[int, ...], **kwargs: bool
) -> OperatorCase:
    """A case with x of this shape and cos, sin of that."""
    cos, sin = random.angles(*angles, interleaved=kwargs.get("interleaved", False))
    return OperatorCase("", (random.normal(*x), cos, sin), kwargs, grad=(0,))


def cases(random: Samples) -> Iterator[OperatorCase]:
    for interleaved in (False, True):
        form = "interleaved" if interleaved else "half"
        for name, (x, angles) in SHAPES.items():
            case = one(random, x, angles, interleaved=interleaved)
            yield OperatorCase(f"{form}, {name}", case.args, case.kwargs, case.grad)


SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "usual": ((2, 4, 9, 32), (2, 1, 9, 32)),
    "shared positions": ((2, 4, 9, 32), (1, 1, 9, 32)),
    "part of the head": ((2, 3, 7, 40), (1, 1, 7, 24)),
    "odd sizes": ((1, 3, 5, 6), (1, 1, 5, 6)),
    "one position": ((3, 2, 1, 64), (3, 1, 1, 64)),
    "no positions": ((2, 2, 0, 16), (1, 1, 0, 16)),
}
GRID: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "1x14x512x64": ((1, 14, 512, 64), (1, 1, 512, 64)),
    "4x32x256x128": ((4, 32, 256, 128), (4, 1, 256, 128)),
    "decode 8x14x1x64": ((8, 14, 1, 64), (8, 1, 1, 64)),
}


def grid(random: Samples) -> Iterator[tuple[str, Callable[[], OperatorCase]]]:
    for label, (x, angles) in GRID.items():
        yield label, lambda a=x, b=angles: one(random, a, b)  # type: ignore[misc]
    label, (x, angles) = "interleaved 1x14x512x64", GRID["1x14x512x64"]
    yield label, lambda: one(random, x, angles, interleaved=True)


OPERATOR = Operator(
    name="rotary",
    signature="rotary(x, cos, sin, *, interleaved=False) -> y",
    formula="(a, b) → (a · cos - b · sin, b · cos + a · sin) for each pair of the first R entries",
    reference=reference,
    describe=describe,
    cases=cases,
    grid=grid,
    tolerance=POINTWISE,
    implementations=(
        Implementation("torch", in_place, 10, dtypes=WIDE, pays=pays_on_cpu),
        Implementation(
            "triton", "joymigrate.run.kernels.own.rotary:rotary", 20,
            devices=("cuda",), packages=("triton",), interpreted=True,
        ),
        Implementation(
            "liger", "joymigrate.run.kernels.own.liger:rotary", 15, devices=("cuda", "xpu"),
            packages=("liger_kernel",), calls="LigerRopeFunction", when=whole_heads,
            interpreted=True,
        ),
    ),
    bytes_moved=lambda x: 2 * x.numel() * x.element_size(),
)  # fmt: skip
