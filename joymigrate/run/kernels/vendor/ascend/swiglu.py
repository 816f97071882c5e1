"""npu_swiglu: silu of the first half times the second."""

from __future__ import annotations

import torch
import torch_npu
from torch import Tensor


def swiglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """The chip wants both in one tensor; give it packed where you can, to save the copy."""
    both = gate if up is None else torch.cat((gate, up), -1)
    found: Tensor = torch_npu.npu_swiglu(both, dim=-1)
    return found
