"""Arguments of operators: as keys that are cheap to compare, and as JSON.

An argument is `{"dtype", "shape", "stride", "device", "requires_grad"}` for a tensor (and "layout"
where it is sparse), a list for a list, a JSON scalar as it is, `{"float": "inf"}` for a float that
JSON has no word for, and `{"torch": "bfloat16"}` for a dtype, device, layout or memory format.
"""

from __future__ import annotations

import math
from typing import Any

import torch

SCALARS = (bool, int, float, str, type(None))
TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)


class TensorKey(tuple):  # type: ignore[type-arg]
    """A tensor in a key: (dtype, shape, stride, device, requires_grad), and a layout with holes."""

    __slots__ = ()


def key(value: Any) -> Any:
    """A hashable description of one argument; equal for arguments that print the same."""
    if isinstance(value, torch.Tensor):
        return tensor(value)
    if value.__class__ in SCALARS:
        return (value.__class__, value) if value.__class__ is not str else value
    if isinstance(value, (list, tuple)):
        return ("list", *map(key, value))
    if isinstance(value, TORCH):
        return ("torch", str(value))
    if isinstance(value, dict):
        return ("dict", *((name, key(part)) for name, part in value.items()))
    return ("other", type(value).__name__)


def tensor(value: torch.Tensor) -> TensorKey:
    """A tensor's key. Symbolic or unreadable layouts are left out rather than computed."""
    shape = tuple(value.shape)
    if value.layout is torch.jagged:  # one side has no length of its own
        return TensorKey((value.dtype, (), (), value.device, value.requires_grad, "jagged"))
    if value.layout is not torch.strided:
        layout = str(value.layout).removeprefix("torch.")
        return TensorKey((value.dtype, shape, (), value.device, value.requires_grad, layout))
    try:
        stride = value.stride()
    except (RuntimeError, NotImplementedError):  # nested tensors have none
        stride = ()
    return TensorKey((value.dtype, shape, stride, value.device, value.requires_grad))


def without_values(described: Any) -> Any:
    """A key with its scalars blanked, for operators called with ever new ones."""
    if isinstance(described, TensorKey):
        return described
    if isinstance(described, tuple) and described and described[0] in (bool, int, float):
        return (described[0], None)
    if isinstance(described, tuple):
        return tuple(without_values(part) for part in described)
    return described


def as_json(described: Any) -> Any:
    """A key as it is written."""
    if isinstance(described, TensorKey):
        dtype, shape, stride, device, grad, *layout = described
        return {
            "dtype": short(dtype),
            "shape": [int(n) for n in shape],
            "stride": [int(n) for n in stride],
            "device": str(device),
            "requires_grad": grad,
            **({"layout": layout[0]} if layout else {}),
        }
    if isinstance(described, str):
        return described
    head, *rest = described
    if head == "list":
        return [as_json(part) for part in rest]
    if head == "torch":
        return {"torch": rest[0].removeprefix("torch.")}
    if head == "dict":
        return {name: as_json(part) for name, part in rest}
    if head == "other":
        return {"type": rest[0]}
    (value,) = rest
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def short(dtype: torch.dtype) -> str:
    """`float32` of `torch.float32`."""
    return str(dtype).removeprefix("torch.")
