"""Makes the inputs of a call: values in the operator's domain, indices inside of their tensors.

The same call gets the same values everywhere: they come from a seed made of the signature.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import torch

from joymigrate.verify.layout import fillable
from joymigrate.verify.ops.call import Named, ReplayCall, TensorArg

# Results for other arguments are NaN and compare nothing.
POSITIVE = frozenset(
    [
        "log",
        "log2",
        "log10",
        "log1p",
        "sqrt",
        "rsqrt",
        "lgamma",
        "digamma",
        "reciprocal",
        "pow",
        "float_power",
        "std",
        "var",
    ]
)
UNIT = frozenset(["acos", "asin", "atanh", "erfinv", "logit", "binary_cross_entropy"])  # 0 to 1
POSITIVE_ARGUMENTS = re.compile(
    r"rstd|invstd|running_var|^var$|exp_avg_sq|max_exp_avg|total_weight|^std$|state_sum|square_avg"
)
PROBABILITY_OUTPUTS = re.compile(r"softmax_backward|softmax.*_backward_data")
SPECIAL = (math.inf, -math.inf, math.nan)


@dataclass(frozen=True, slots=True)
class UnusualInputs:
    """One kind of unusual inputs."""

    name: str
    fill: Callable[[torch.Tensor, torch.Generator], torch.Tensor]


def large(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A quarter of the range: sums and squares overflow, single values don't."""
    return values * (torch.finfo(values.dtype).max / 64)


def tiny(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Just above the smallest normal number: products underflow."""
    return values * (torch.finfo(values.dtype).tiny * 8)


def special(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Some elements are inf, -inf and NaN."""
    flat = values.clone().reshape(-1)
    for index, value in enumerate(SPECIAL):
        flat[index::31] = value
    return flat.reshape(values.shape)


def zeros(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """All zeros."""
    return torch.zeros_like(values)


EDGES = (
    UnusualInputs("large", large),
    UnusualInputs("tiny", tiny),
    UnusualInputs("special", special),
    UnusualInputs("zeros", zeros),
)


def seed_of(call: ReplayCall, seed: int) -> int:
    """A seed that the signature and the user's seed decide."""
    text = f"{call.name} {call.args!r} {sorted(call.kwargs.items(), key=lambda i: i[0])!r}"
    return crc32(text.encode(), seed)


def bound_of(call: ReplayCall) -> int:
    """What every index of this call is below: valid along any dimension of its largest tensor."""
    name = call.op.split("::")[-1]
    plain = [a for a in call.args if isinstance(a, int) and not isinstance(a, bool)]
    if name == "one_hot":
        return max(1, plain[0]) if plain else 8
    if name in ("gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "index_select"):
        first = next(call.tensors(), None)
        if first is not None and first.shape and plain:
            return max(1, first.shape[plain[0] % len(first.shape)])
    if name == "embedding_dense_backward":
        return max(1, plain[0]) if plain else 1
    if name in ("embedding", "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"):
        first = next(call.tensors(), None)
        return max(1, first.shape[0]) if first is not None and first.shape else 1
    if "nll_loss" in name or "cross_entropy" in name:
        wide = [t for t in call.tensors() if t.dtype.startswith(("float", "bfloat")) and t.shape]
        most = max(wide, key=lambda t: len(t.shape), default=None)
        return max(1, most.shape[1 if len(most.shape) > 1 else 0]) if most else 1
    floating = [t for t in call.tensors() if t.dtype.startswith(("float", "bfloat", "complex"))]
    sizes = [size for t in floating for size in t.shape if size > 0]
    return max(1, min(sizes, default=8))


@dataclass(slots=True)
class InputMaker:
    """Turns a call's arguments into values on the CPU."""

    call: ReplayCall
    generator: torch.Generator
    names: Sequence[str] = ()  # of the positional arguments
    edge: UnusualInputs | None = None
    contiguous: bool = True
    requires_grad: bool = False
    held: Mapping[str, torch.Tensor] = field(default_factory=dict)  # kept values by name

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments."""
        names = [*self.names, *[""] * len(self.call.args)]
        args = [self.value(a, name) for a, name in zip(self.call.args, names, strict=False)]
        kwargs = {name: self.value(value, name) for name, value in self.call.kwargs.items()}
        return args, kwargs

    def value(self, argument: Any, name: str) -> Any:
        """One argument."""
        if isinstance(argument, TensorArg):
            return self.tensor(argument, name)
        if isinstance(argument, list):
            return [self.value(item, name) for item in argument]
        if isinstance(argument, Named):
            return resolve_name(argument.name)
        return argument

    def tensor(self, wanted: TensorArg, name: str) -> torch.Tensor:
        """A tensor with the recorded strides (storage no larger than they reach)."""
        dtype = getattr(torch, wanted.dtype)
        values = self.held.get(wanted.content or "")
        if values is None or values.shape != wanted.shape or values.dtype != dtype:
            values = self.values(wanted, dtype, name)
        stride = wanted.stride
        if not self.contiguous and len(wanted.shape) > 1:
            values = spread(values)
        elif stride is not None and stride != values.stride() and fillable(wanted.shape, stride):
            size = 1 + sum((n - 1) * s for n, s in zip(wanted.shape, stride, strict=True))
            room = torch.zeros(size, dtype=dtype).as_strided(wanted.shape, stride)
            values = room.copy_(values)
        if self.requires_grad and wanted.requires_grad and values.is_floating_point():
            values = values.detach().requires_grad_()
        return values

    def values(self, wanted: TensorArg, dtype: torch.dtype, name: str) -> torch.Tensor:
        """Contiguous values in the operator's domain."""
        shape = wanted.shape
        if dtype == torch.bool:
            return torch.rand(shape, generator=self.generator) < 0.5
        if name == "offsets" and len(shape) == 1:
            return self.offsets(shape[0], dtype)
        if not dtype.is_floating_point and not dtype.is_complex:
            most = min(bound_of(self.call), torch.iinfo(dtype).max)
            drawn = torch.randint(0, most, shape, generator=self.generator)
            return drawn.to(dtype)
        if dtype.is_complex:
            return torch.randn(shape, generator=self.generator, dtype=torch.complex128).to(dtype)
        values = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        values = self.in_domain(values, name).to(dtype)
        if self.edge is not None and dtype.itemsize > 1:
            values = self.edge.fill(values, self.generator)
        return values

    def offsets(self, number: int, dtype: torch.dtype) -> torch.Tensor:
        """Where bags begin: ascending from 0, below the number of indices."""
        whole = [t for t in self.call.tensors() if t.dtype.startswith("int")]
        indices = whole[0].elements if whole else number
        return (
            (torch.arange(number) * max(1, indices // max(1, number))).clamp_max(indices).to(dtype)
        )

    def in_domain(self, values: torch.Tensor, name: str) -> torch.Tensor:
        """Values that the operator is made for."""
        op = self.call.op.split("::")[-1].rstrip("_")
        if op in UNIT:
            return torch.sigmoid(values)
        if op in POSITIVE or POSITIVE_ARGUMENTS.search(name):
            return values.abs() + 0.1
        if op in ("div", "true_divide", "fmod", "remainder", "addcdiv", "_foreach_div"):
            return torch.where(values >= 0, values + 0.2, values - 0.2)
        if PROBABILITY_OUTPUTS.search(op) and name == "output":
            soft = torch.softmax(values, -1) if values.dim() else torch.sigmoid(values)
            return soft.log() if "log" in op else soft
        return values


def spread(values: torch.Tensor) -> torch.Tensor:
    """The same values with other strides: every second place of a transposed storage."""
    shape = (*reversed(values.shape[1:]), values.shape[0] * 2)
    room = torch.zeros(shape, dtype=values.dtype)
    view = room.permute(*range(room.dim() - 1, -1, -1))[::2]
    return view.copy_(values)


def resolve_name(name: str) -> Any:
    """A dtype, layout, memory format, or device by name; others stay text."""
    found = getattr(torch, name, None)
    if isinstance(found, torch.dtype | torch.layout | torch.memory_format):
        return found
    try:
        return torch.device(name)
    except RuntimeError:
        return name


def move_value(
    value: Any, device: str, dtype: Mapping[torch.dtype, torch.dtype] | None = None
) -> Any:
    """A copy of an argument on a device; `dtype` maps dtypes to others (float32 → float64).

    Strides are kept. Devices among the arguments become this one.
    """
    if isinstance(value, torch.Tensor):
        wanted = (dtype or {}).get(value.dtype, value.dtype)
        made = torch.empty_strided(value.shape, dense(value), dtype=wanted, device=device)
        made.copy_(value.detach())
        return made.requires_grad_() if value.requires_grad else made
    if isinstance(value, list):
        return [move_value(item, device, dtype) for item in value]
    if isinstance(value, torch.device):
        return torch.device(device)
    if isinstance(value, torch.dtype) and dtype:
        return dtype.get(value, value)
    return value


def dense(value: torch.Tensor) -> tuple[int, ...]:
    """Its strides, or contiguous ones where elements overlap (such a tensor cannot be filled)."""
    if value.numel() and not fillable(value.shape, value.stride()):
        return torch.empty(value.shape, device="meta").stride()
    return value.stride()
