"""What Triton's interpreter lacks for public kernels: the vendor's functions of numbers, real
numbers as arguments, and buffers with an end.

An access beyond every buffer raises `Beyond` instead of ending the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from joymigrate.profile.port import block_pointers

BY_SYMBOL: dict[str, Callable[..., Any]] = {
    "tanh": np.tanh, "pow": np.power, "powi": np.power, "fast_divide": np.divide,
    "fdividef": np.divide, "fast_dividef": np.divide, "div_rn": np.divide, "exp": np.exp,
    "expm1": np.expm1, "log1p": np.log1p, "log2": np.log2, "log": np.log, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "rint": np.rint, "round": np.round, "trunc": np.trunc,
    "floor": np.floor, "ceil": np.ceil, "isnan": np.isnan, "isinf": np.isinf, "abs": np.abs,
    "fast_exp": np.exp, "fast_log": np.log, "sin": np.sin, "cos": np.cos, "atan2": np.arctan2,
}  # fmt: skip


class Beyond(Exception):
    """An address outside of every buffer."""


class Fence:
    """The buffers that a kernel may touch."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []

    def let_in(self, tensors: list[torch.Tensor]) -> None:
        """Only these buffers from here on."""
        self.ranges = [
            (one.untyped_storage().data_ptr(),
             one.untyped_storage().data_ptr() + one.untyped_storage().nbytes())
            for one in tensors
        ]  # fmt: skip

    def check(self, pointers: Any, mask: Any) -> None:
        """Raise Beyond where a lane that counts points outside."""
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        at = np.broadcast_to(pointers.data, np.broadcast_shapes(pointers.data.shape, mask.shape))
        at = at[np.broadcast_to(mask, at.shape).astype(bool)]
        if not at.size:
            return
        low, high = int(at.min()), int(at.max()) + size
        if any(begin <= low and high <= end for begin, end in self.ranges):
            return
        inside = np.zeros(at.shape, bool)
        for begin, end in self.ranges:
            inside |= (at >= begin) & (at + np.uint64(size) <= end)
        if not inside.all():
            raise Beyond("an address beyond a buffer")


FENCE = Fence()


def install() -> None:
    """Teach the interpreter of this process, once."""
    take_reals()
    fence_accesses()
    block_pointers.install()
    interpreter.interpreter_builder.create_extern_elementwise = by_symbol
    from triton.language.extra import libdevice

    for name in BY_SYMBOL:
        if hasattr(libdevice, name):  # there: names without a body, which the compiler fills
            setattr(libdevice, name, by_name(name))


def take_reals() -> None:
    """Let the interpreter take a real number as the compiler does: as a scalar of float32."""
    convert = interpreter._implicit_cvt

    def taken(value: Any) -> Any:
        if type(value) is float:
            handle = interpreter.TensorHandle(np.array([value], np.float32), tl.float32)
            return tl.tensor(handle, tl.float32)
        return convert(value)

    interpreter._implicit_cvt = taken


def fence_accesses() -> None:
    """Check every address before memory is touched."""
    builder = interpreter.interpreter_builder

    def checked(name: str, mask_at: int | None) -> None:
        real = getattr(builder, name)

        def call(*args: Any, **words: Any) -> Any:
            pointers = args[1] if name == "create_atomic_rmw" else args[0]
            mask = np.ones(1, bool) if mask_at is None else args[mask_at].data
            FENCE.check(pointers, mask)
            return real(*args, **words)

        setattr(builder, name, call)

    checked("create_masked_load", 1)
    checked("create_masked_store", 2)
    checked("create_atomic_rmw", 3)
    checked("create_atomic_cas", None)


def by_symbol(
    library: str, path: str, symbol: str, arguments: list[Any], kind: Any, pure: bool
) -> Any:
    """A function of the vendor's library, computed by NumPy."""
    name = symbol.removeprefix("__nv_")
    function = BY_SYMBOL.get(name) or BY_SYMBOL.get(name.removesuffix("f"))
    if function is None:
        raise NotImplementedError(f"{symbol} is not known in the interpreter")
    data = function(*[one.data for one in arguments])
    scalar = kind.scalar if hasattr(kind, "scalar") else kind
    return interpreter.TensorHandle(data.astype(interpreter._get_np_dtype(scalar)), scalar)


def by_name(name: str) -> Callable[..., Any]:
    """A function of the vendor's library on tensors of the interpreter."""

    def call(*given: Any) -> Any:
        first = next(one for one in given if isinstance(one, tl.tensor))
        data = [one.handle.data if isinstance(one, tl.tensor) else one for one in given]
        found = BY_SYMBOL[name](*data).astype(first.handle.data.dtype)
        return tl.tensor(interpreter.TensorHandle(found, first.handle.dtype), first.type)

    return call
