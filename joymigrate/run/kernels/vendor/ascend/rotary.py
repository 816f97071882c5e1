"""npu_rotary_mul: x · cos + turned(x) · sin."""

from __future__ import annotations

import torch
import torch_npu
from torch import Tensor

from joymigrate.run.kernels.operator import Call

LARGEST = 896  # documented limit of the head size


def when(call: Call) -> str | None:
    """Documented limits."""
    if 0 in call.shape:
        return "for at least one element"
    return None if call.shape[2] < LARGEST else f"for rotations below {LARGEST}"


def rotary(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    """Four axes, cos and sin in x's dtype; what lies beyond the rotation passes."""
    size = cos.shape[-1]
    shape = x.shape
    if x.dim() != 4:
        x = x.reshape(-1, 1, *shape[-2:])
        cos, sin = (t.reshape(-1, 1, *t.shape[-2:]) for t in (cos, sin))
    part = x[..., :size].contiguous()
    mode = "interleave" if interleaved else "half"
    angles = (t.to(x.dtype).contiguous() for t in (cos, sin))
    y: Tensor = torch_npu.npu_rotary_mul(part, *angles, rotary_mode=mode)
    if size < shape[-1]:
        y = torch.cat((y, x[..., size:]), -1)
    return y.reshape(shape)
