"""What tells two calls of one function apart for a watch that sees first calls only."""

from __future__ import annotations

from typing import Any

import torch


def kind_of(value: Any) -> Any:
    """What tells two calls apart: dtypes, words and switches, not shapes or numbers."""
    kind = type(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return value.dtype
    if kind is str or kind is bool or value is None or kind is torch.dtype:
        return value
    if kind is list or kind is tuple:
        return kind_of(value[0]) if value else kind
    return kind
