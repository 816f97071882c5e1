"""One step of a row-wise optimiser in Triton: a program reads, changes and writes one row.

The kinds of `ops/row_update.py`: 0 sgd, 1 rowwise_adagrad, 2 adagrad, 3 adam, 4 lamb.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from joymigrate.run.kernels.own import launch

KINDS = {"sgd": 0, "rowwise_adagrad": 1, "adagrad": 2, "adam": 3, "lamb": 4}


@triton.jit
def update(
    weights, state, places, gradients, numbers, size, width, KIND: tl.constexpr, BLOCK: tl.constexpr
):
    program = tl.program_id(0).to(tl.int64)
    row = tl.load(places + program).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < size
    lr, eps = tl.load(numbers), tl.load(numbers + 1)
    beta1, beta2, decay = tl.load(numbers + 2), tl.load(numbers + 3), tl.load(numbers + 4)
    left1, left2 = tl.load(numbers + 5), tl.load(numbers + 6)
    value = tl.load(weights + row * size + at, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(gradients + program * size + at, mask=inside, other=0.0).to(tl.float32)
    if KIND != 4:
        grad += decay * value
    held = state + row * width
    if KIND == 0:
        step = grad
    elif KIND == 1:
        total = tl.load(held).to(tl.float32) + tl.sum(grad * grad, 0) / size
        step = grad / (tl.sqrt(total) + eps)
        tl.store(held, total.to(state.dtype.element_ty))
    elif KIND == 2:
        total = tl.load(held + at, mask=inside, other=1.0).to(tl.float32) + grad * grad
        step = grad / (tl.sqrt(total) + eps)
        tl.store(held + at, total.to(state.dtype.element_ty), mask=inside)
    else:
        mean = tl.load(held + at, mask=inside, other=0.0).to(tl.float32)
        square = tl.load(held + size + at, mask=inside, other=1.0).to(tl.float32)
        mean = beta1 * mean + (1 - beta1) * grad
        square = beta2 * square + (1 - beta2) * grad * grad
        tl.store(held + at, mean.to(state.dtype.element_ty), mask=inside)
        tl.store(held + size + at, square.to(state.dtype.element_ty), mask=inside)
        step = (mean / left1) / (tl.sqrt(square / left2) + eps)
        if KIND == 4:
            step = tl.where(inside, step + decay * value, 0.0)
            own = tl.sqrt(tl.sum(value * value, 0))
            length = tl.sqrt(tl.sum(step * step, 0))
            usable = (own > 0) & (length > 0)
            step = step * tl.where(usable, own / tl.where(usable, length, 1.0), 1.0)
    changed = (value - lr * step).to(weights.dtype.element_ty)
    tl.store(weights + row * size + at, changed, mask=inside)


def row_update(
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
    """See `ops/row_update.py`."""
    if places.numel():
        left = 1 - beta1**step, 1 - beta2**step
        numbers = torch.tensor(
            [lr, eps, beta1, beta2, weight_decay, *left], dtype=torch.float32, device=weights.device
        )
        own, held = weights.contiguous(), state.contiguous()
        update[(places.numel(),)](
            own, held, places.contiguous(), gradients.contiguous(), numbers, weights.shape[1],
            state.shape[1], KIND=KINDS[kind], BLOCK=launch.block(weights.shape[1]),
        )  # fmt: skip
        for given, changed in ((weights, own), (state, held)):
            if given is not changed and given.data_ptr() != changed.data_ptr():
                given.copy_(changed)
    return [weights, state]
