"""One distinct operator call: what was called, with which shapes, dtypes and arguments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

TENSOR_KEYS = ("dtype", "shape")


@dataclass(frozen=True, slots=True)
class TensorArg:
    """A tensor argument; `stride` None where it was not recorded (then contiguous)."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None = None
    requires_grad: bool = False
    content: str | None = None  # the name of its kept values; None: they are drawn

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Named:
    """A dtype, layout, memory format or device by the name that torch gives it."""

    name: str


@dataclass(frozen=True, slots=True)
class ReplayCall:
    """A distinct signature. `overload` None: not recorded, any that takes the arguments.

    Arguments are `TensorArg`, `Named`, lists of these, or plain values.
    """

    op: str
    overload: str | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    calls: int = 1
    phase: str | None = None
    where: str | None = None
    module: str | None = None
    results: tuple[str, ...] = ()  # names of the kept results

    @property
    def kept(self) -> bool:
        """Whether all of its tensors were kept."""
        found = list(self.tensors())
        return bool(found) and all(tensor.content for tensor in found)

    def tensors(self) -> Iterator[TensorArg]:
        """All tensor arguments, also inside of lists."""
        stack = [*reversed(self.args), *self.kwargs.values()]
        while stack:
            item = stack.pop()
            if isinstance(item, TensorArg):
                yield item
            elif isinstance(item, list):
                stack += reversed(item)

    @property
    def dtype(self) -> str:
        """The dtype that limits are chosen by: the least precise of the floating inputs."""
        order = ("float8", "bfloat16", "float16", "float32", "complex64", "float64", "complex128")
        found = [tensor.dtype for tensor in self.tensors()]
        floating = [d for d in found if d.startswith(("float", "bfloat", "complex"))]
        ranked = sorted(
            floating, key=lambda d: next((i for i, n in enumerate(order) if d.startswith(n)), 9)
        )
        return ranked[0] if ranked else (found[0] if found else "")

    @property
    def shapes(self) -> str:
        """Shapes of the tensor arguments, to be read: `4x64, 64x128`."""
        shown = ["x".join(map(str, t.shape)) or "scalar" for t in self.tensors()]
        return ", ".join(shown[:4]) + (f", … ({len(shown)})" if len(shown) > 4 else "")

    @property
    def name(self) -> str:
        """`aten::add.Tensor`."""
        return f"{self.op}.{self.overload}" if self.overload else self.op


def parse(raw: Any) -> Any:
    """An argument of the trace's JSON."""
    if isinstance(raw, list):
        return [parse(item) for item in raw]
    if not isinstance(raw, Mapping):
        return raw
    if all(key in raw for key in TENSOR_KEYS):
        stride = raw.get("stride")
        return TensorArg(
            str(raw["dtype"]).removeprefix("torch."),
            tuple(int(size) for size in raw["shape"]),
            None if stride is None else tuple(int(step) for step in stride),
            bool(raw.get("requires_grad")),
            raw.get("content"),
        )
    if "float" in raw:
        return float(raw["float"])
    if "torch" in raw:
        return Named(str(raw["torch"]).removeprefix("torch."))
    return dict(raw)


def freeze(value: Any) -> Any:
    """An argument as something that can be hashed."""
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    if isinstance(value, Mapping):
        return tuple(sorted((key, freeze(item)) for key, item in value.items()))
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return (type(value).__name__, value)


def key(call: ReplayCall) -> Any:
    """What makes two calls the same."""
    return call.op, call.overload, freeze(call.args), freeze(call.kwargs)
