"""In a float64 pass, what the program asks for in float32 is float64.

Programs name float32 where they need precision: `x.float()` around a norm, `dtype=torch.float32`
in a softmax. In a float64 copy of the model that would be a loss of precision, and mixed types
that most operators refuse.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

NARROW = (torch.float32, "torch.FloatTensor", "torch.cuda.FloatTensor")


class Float64Mode(TorchFunctionMode):
    """`float()` is `double()`, and an argument float32 is float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        if any(is_narrow(value) for value in (*args, *kwargs.values())):
            args = tuple(widen(value) for value in args)
            kwargs = {name: widen(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)


def is_narrow(value: Any) -> bool:
    """Whether a value names float32."""
    return isinstance(value, torch.dtype | str) and value in NARROW


def widen(value: Any) -> Any:
    """The value, float64 for float32."""
    return torch.float64 if is_narrow(value) else value
