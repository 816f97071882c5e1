"""npu_apply_adam_w: one step of one parameter, written into parameter and state."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch_npu
from torch import Tensor

from joymigrate.run.kernels.operator import Call

Tensors = Sequence[Tensor]


def when(call: Call) -> str | None:
    """State in the parameters' dtype."""
    if call.shape[1] == 0:
        return "for at least one element"
    return "for state in the parameters' dtype" if call.variant == "mixed" else None


def adamw(
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
    """The chip wants the betas' powers before this step. Tensors without elements are left out."""
    powers = beta1 ** (step - 1), beta2 ** (step - 1)
    with torch.no_grad():
        for param, grad, average, square in zip(params, grads, averages, squares, strict=True):
            if param.numel() == 0:
                continue
            torch_npu.npu_apply_adam_w(
                *powers, lr, weight_decay, beta1, beta2, eps, grad, None, False, maximize,
                out=(param, average, square),
            )  # fmt: skip
    return [*params, *averages, *squares]
