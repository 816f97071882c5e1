"""The chip's overflow flags: never raised here, since torch on CPU has none.

A loss scaler that asks for them sees no overflow; the check of gradients looks at the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import reference

SOURCE = "op-plugin FloatStatusKernelNpu.cpp"
FLAGS = 8  # entries of a status tensor


@reference("npu_alloc_float_status", source=SOURCE)
def npu_alloc_float_status() -> Tensor:
    return torch.zeros(FLAGS)


@reference("npu_get_float_status", source=SOURCE)
def npu_get_float_status() -> Tensor:
    return torch.zeros(FLAGS, dtype=torch.int32)


@reference("npu_clear_float_status", source=SOURCE)
def npu_clear_float_status(x: Tensor) -> Tensor:
    return x.new_zeros(FLAGS)


@reference(
    "_amp_foreach_non_finite_check", source="op-plugin AmpForeachNonFiniteCheckAndUnscaleKernelNpu"
)
def _amp_foreach_non_finite_check(scaled_grads: Sequence[Tensor]) -> bool:
    return not all(bool(grad.isfinite().all()) for grad in scaled_grads)
