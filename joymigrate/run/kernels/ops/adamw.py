"""One step of AdamW over a list of parameters, in place.

    adamw(params, grads, averages, squares, step, *, lr, beta1=0.9, beta2=0.999, eps=1e-8,
          weight_decay=0.01, maximize=False) -> [*params, *averages, *squares]

`averages` and `squares` are the running means of the gradient and of its square, in the dtype of
the parameter or float32; `step` counts from 1 and includes this one. `kernels.AdamW` is the
optimiser around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from joymigrate.run.kernels.operator import (
    Call,
    Implementation,
    Operator,
    OperatorCase,
    OperatorTolerance,
)
from joymigrate.run.kernels.samples import Samples

Tensors = Sequence[Tensor]


def reference(
    params: Tensors,
    grads: Tensors,
    averages: Tensors,
    squares: Tensors,
    step: int,
    *,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    maximize: bool = False,
) -> list[Tensor]:
    """The definition, parameter by parameter."""
    with torch.no_grad():
        for param, given, average, square in zip(params, grads, averages, squares, strict=True):
            grad = -given if maximize else given
            param.mul_(1 - lr * weight_decay)
            average.lerp_(grad.to(average.dtype), 1 - beta1)
            square.mul_(beta2).addcmul_(
                grad.to(square.dtype), grad.to(square.dtype), value=1 - beta2
            )
            root = (square / (1 - beta2**step)).sqrt_().add_(eps)
            param.addcdiv_(average, root, value=-lr / (1 - beta1**step))
    return [*params, *averages, *squares]


def step_fused(
    params: Tensors,
    grads: Tensors,
    averages: Tensors,
    squares: Tensors,
    step: int,
    *,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    maximize: bool = False,
) -> list[Tensor]:
    """torch's fused step: one pass over all tensors."""
    if params:
        counted = torch.tensor(float(step), device=params[0].device)
        with torch.no_grad():
            torch._fused_adamw_(
                list(params), list(grads), list(averages), list(squares), [],
                [counted] * len(params),
                lr=lr, beta1=beta1, beta2=beta2, weight_decay=weight_decay, eps=eps,
                amsgrad=False, maximize=maximize,
            )  # fmt: skip
    return [*params, *averages, *squares]


def describe(params: Tensors, averages: Tensors) -> tuple[Tensor, tuple[int, ...], str]:
    if not params:
        return torch.empty(0), (0, 0), ""
    mixed = any(a.dtype != p.dtype for p, a in zip(params, averages, strict=True))
    return params[0], (len(params), sum(p.numel() for p in params)), "mixed" if mixed else ""


def one_dtype(call: Call) -> str | None:
    """Fused steps take parameters and state of one dtype."""
    return "for state in the parameters' dtype" if call.variant == "mixed" else None


def one(random: Samples, *shapes: tuple[int, ...]) -> tuple[list[Tensor], ...]:
    """params, grads, averages, squares."""
    params = [random.normal(*shape) for shape in shapes]
    grads = [random.normal(*shape, scale=0.1) for shape in shapes]
    averages = [random.normal(*shape, scale=0.01) for shape in shapes]
    squares = [random.uniform(*shape, low=1e-4, high=1e-2) for shape in shapes]
    return params, grads, averages, squares


def cases(random: Samples) -> Iterator[OperatorCase]:
    keywords = {"lr": 1e-2, "weight_decay": 0.1}
    yield OperatorCase("usual", (*one(random, (16, 8), (8,)), 3), keywords)
    yield OperatorCase("odd", (*one(random, (7,), (3, 5), (1,)), 1), {"lr": 1e-3})
    yield OperatorCase("climbing", (*one(random, (4, 4)), 10), {**keywords, "maximize": True})
    yield OperatorCase("empty tensor", (*one(random, (0, 3), (2,)), 2), keywords)
    yield OperatorCase("no tensors", ([], [], [], [], 1), keywords)


def grid(random: Samples) -> Iterator[tuple[str, Callable[[], OperatorCase]]]:
    for count, size in ((32, 4096), (16, 65536), (4, 1_000_000)):

        def build(c: int = count, s: int = size) -> OperatorCase:
            return OperatorCase("", (*one(random, *[(s,)] * c), 10), {"lr": 1e-3})

        yield f"{count} tensors of {size}", build


OPERATOR = Operator(
    name="adamw",
    signature="adamw(params, grads, averages, squares, step, *, lr, beta1=0.9, beta2=0.999, "
    "eps=1e-8, weight_decay=0.01, maximize=False) -> [*params, *averages, *squares]",
    formula="m = β₁m + (1-β₁)g; v = β₂v + (1-β₂)g²; "
    "p = p(1 - lr·wd) - lr · m/(1-β₁ᵗ) / (sqrt(v/(1-β₂ᵗ)) + eps)",
    reference=reference,
    describe=describe,
    cases=cases,
    grid=grid,
    # A dozen roundings in a row to the parameter's dtype, which the state shares here.
    tolerance=OperatorTolerance(5e-6, 5e-3, 4e-2),
    implementations=(Implementation("torch", step_fused, 10, when=one_dtype),),
    mutates=True,
    differentiable=False,
    bytes_moved=lambda params: 7 * sum(p.numel() * p.element_size() for p in params),
)
