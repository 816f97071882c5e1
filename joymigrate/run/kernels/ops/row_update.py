"""One step of a row-wise optimiser: the rows at some places of a table, in place.

    row_update(weights, state, places, gradients, step, *, kind, lr, eps, beta1=0.9, beta2=0.999,
               weight_decay=0.0) -> [weights, state]

`weights` [V, D] of any float dtype, `state` [V, S] float32, `places` [U] distinct, `gradients`
[U, D] already summed over repeated ids; `step` counts from 1. S by `kind`: sgd 0, rowwise_adagrad 1
(the mean of squares of a row), adagrad D, adam and lamb 2·D (mean, then mean of squares). Rows that
are not named stay as they are. LAMB scales each row's step by ‖row‖ / ‖direction‖ (You et al.,
arXiv 1904.00962, a row as a layer).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from joymigrate.run.kernels.operator import (
    Implementation,
    Operator,
    OperatorCase,
    OperatorTolerance,
)
from joymigrate.run.kernels.samples import Samples

WIDTH = {"sgd": 0, "rowwise_adagrad": 1, "adagrad": -1, "adam": -2, "lamb": -2}  # negative: · D


def reference(
    weights: Tensor,
    state: Tensor,
    places: Tensor,
    gradients: Tensor,
    step: int,
    *,
    kind: str,
    lr: float,
    eps: float = 1e-8,
    beta1: float = 0.9,
    beta2: float = 0.999,
    weight_decay: float = 0.0,
) -> list[Tensor]:
    """The definition. Sums in float32 at least."""
    with torch.no_grad():
        wide = torch.promote_types(torch.float32, weights.dtype)
        rows = weights.index_select(0, places).to(wide)
        grad = gradients.to(wide)
        if weight_decay and kind != "lamb":
            grad = grad + weight_decay * rows
        held = state.index_select(0, places) if kind != "sgd" else state
        if kind == "sgd":
            rows = rows - lr * grad
        elif kind == "rowwise_adagrad":
            held = held + grad.square().mean(1, keepdim=True)
            rows = rows - lr * grad / (held.sqrt() + eps)
        elif kind == "adagrad":
            held = held + grad.square()
            rows = rows - lr * grad / (held.sqrt() + eps)
        else:
            mean, square = held.chunk(2, 1)
            mean = beta1 * mean + (1 - beta1) * grad
            square = beta2 * square + (1 - beta2) * grad.square()
            held = torch.cat((mean, square), 1)
            root = (square / (1 - beta2**step)).sqrt() + eps
            direction = mean / (1 - beta1**step) / root
            if kind == "lamb":
                direction = direction + weight_decay * rows
                direction = direction * trust(rows, direction)
            rows = rows - lr * direction
        weights.index_copy_(0, places, rows.to(weights.dtype))
        if kind != "sgd":
            state.index_copy_(0, places, held.to(state.dtype))
    return [weights, state]


def in_place(
    weights: Tensor,
    state: Tensor,
    places: Tensor,
    gradients: Tensor,
    step: int,
    *,
    kind: str,
    lr: float,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    **betas: float,
) -> list[Tensor]:
    """SGD's and Adagrad's step with one matrix beside the rows and the state."""
    if weight_decay or kind not in ("sgd", "rowwise_adagrad", "adagrad"):
        return reference(
            weights, state, places, gradients, step,
            kind=kind, lr=lr, eps=eps, weight_decay=weight_decay, **betas,
        )  # fmt: skip
    with torch.no_grad():
        direction = gradients
        if kind != "sgd":
            held = state.index_select(0, places)
            if kind == "adagrad":
                held.addcmul_(gradients, gradients)
            else:
                held.add_(gradients.square().mean(1, keepdim=True))
            state.index_copy_(0, places, held)
            root = held.sqrt_().add_(eps)
            direction = torch.div(gradients, root, out=root if kind == "adagrad" else None)
        rows = weights.index_select(0, places)
        weights.index_copy_(0, places, rows.sub_(direction, alpha=lr))
    return [weights, state]


def trust(rows: Tensor, direction: Tensor) -> Tensor:
    """‖row‖ / ‖direction‖, and 1 where either is zero. [U, 1]"""
    size = rows.square().sum(1, keepdim=True).sqrt()
    length = direction.square().sum(1, keepdim=True).sqrt()
    usable = (size > 0) & (length > 0)
    return torch.where(usable, size / torch.where(usable, length, 1.0), 1.0)


def describe(weights: Tensor, places: Tensor, kind: str) -> tuple[Tensor, tuple[int, ...], str]:
    return weights, (places.numel(), *weights.shape[1:]), kind


def one(random: Samples, kind: str, rows: int, size: int, count: int) -> tuple[Any, ...]:
    """weights, state, places, gradients, step."""
    width = WIDTH[kind] if WIDTH[kind] >= 0 else -WIDTH[kind] * size
    state = random.uniform(rows, width, low=1e-4, high=1e-2)
    places = torch.randperm(rows, generator=random.generator)[:count]
    return random.normal(rows, size), state, places, random.normal(count, size, scale=0.1), 3


def cases(random: Samples) -> Iterator[OperatorCase]:
    keywords = {"lr": 1e-2, "eps": 1e-6}
    for kind in WIDTH:
        yield OperatorCase(kind, one(random, kind, 20, 8, 7), {"kind": kind, **keywords})
        decayed = {"kind": kind, "weight_decay": 0.1, **keywords}
        yield OperatorCase(f"{kind}, decay, odd", one(random, kind, 9, 5, 9), decayed)
    yield OperatorCase("no rows", one(random, "adam", 6, 4, 0), {"kind": "adam", **keywords})


def grid(random: Samples) -> Iterator[tuple[str, Callable[[], OperatorCase]]]:
    for count, size in ((4096, 32), (65536, 64)):
        for kind in ("rowwise_adagrad", "adam"):

            def build(k: str = kind, c: int = count, s: int = size) -> OperatorCase:
                return OperatorCase("", one(random, k, 2 * c, s, c), {"kind": k, "lr": 1e-2})

            yield f"{kind}, {count} rows of {size}", build


OPERATOR = Operator(
    name="row_update",
    signature="row_update(weights, state, places, gradients, step, *, kind, lr, eps=1e-8, "
    "beta1=0.9, beta2=0.999, weight_decay=0.0) -> [weights, state]",
    formula="weights[places] and state[places] after one step of the optimiser `kind`",
    reference=reference,
    describe=describe,
    exact=False,
    cases=cases,
    grid=grid,
    # A dozen roundings in a row to the weights' dtype, which the state shares in a check.
    tolerance=OperatorTolerance(5e-6, 5e-3, 4e-2),
    implementations=(
        Implementation("torch", in_place, 10, dtypes=("float32",), backward=False),
        Implementation(
            "triton", "joymigrate.run.kernels.own.row_update:row_update", 20,
            devices=("cuda",), packages=("triton",), interpreted=True,
        ),
    ),
    mutates=True,
    differentiable=False,
    bytes_moved=lambda weights, state, places, gradients: (
        2 * places.numel() * (weights.shape[1] * weights.element_size() + 4 * state.shape[1])
        + gradients.numel() * gradients.element_size()
    ),
)  # fmt: skip
