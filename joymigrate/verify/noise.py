"""A noisy backend: results of matrix products, reductions and transcendental functions are moved
by up to some units in the last place, as another chip's would be. Convolutions in float32 take
torch's other kernels in place of oneDNN's: either may be off by far more than a unit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from joymigrate.modes import WatchingMode
from joymigrate.verify.layout import fillable

WORDS = (
    *("mm", "softmax", "sum", "mean", "norm", "conv", "attention", "exp", "tanh", "rsqrt", "var"),
    *("gelu", "silu", "sigmoid", "erf", "cumsum", "linear", "pool", "log"),
)
NOT = ("empty", "logical", "normal_", "_foreach")


PATCHES = 1 << 26  # numbers: 256 MiB in float32
POOL = 1 << 20  # drawn numbers, which are used again and again from another place on

active: list[Noise] = []


@contextmanager
def keep_noise() -> Iterator[None]:
    """What runs in here leaves the noise of the program's own calls as it would have been."""
    states = [(one, one.generator.bit_generator.state) for one in active]
    try:
        yield
    finally:
        for one, state in states:
            one.generator.bit_generator.state = state


@contextmanager
def without_onednn() -> Iterator[None]:
    """What runs in here takes torch's own kernels."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


class Noise(WatchingMode):
    """Multiplies results by 1 + k · eps, k a whole number between -ulps and ulps; eps is that of
    the result's type, or `grain`."""

    def __init__(self, ulps: float, seed: int = 1, grain: float | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ulps, self.grain = ulps, grain
        # Not torch's: where draws are shared between two runs, ours must not be counted.
        self.generator = np.random.default_rng(seed)
        most = int(ulps)
        self.drawn = torch.from_numpy(self.generator.integers(-most, most + 1, POOL, np.int8))
        self.pools: dict[Any, torch.Tensor] = {}  # by device and type

    def __enter__(self) -> Any:
        active.append(self)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        active.remove(self)
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[-1]
        with without_onednn() if has_plain_kernel(name, args) else nullcontext():
            made = func(*args, **(kwargs or {}))
        if any(word in name for word in NOT) or not any(word in name for word in WORDS):
            return made
        aliases = [r.alias_info for r in func._schema.returns]
        if any(alias is not None and not alias.is_write for alias in aliases):
            return made  # a view (`expand`): the values are somebody else's
        for tensor in made if isinstance(made, tuple | list) else (made,):
            self.move(tensor)
        return made

    def move(self, tensor: Any) -> None:
        """Noise on one result, in place."""
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            return
        if tensor.is_nested:  # its length is no number: what it is computed from is moved
            return
        if tensor.dtype == torch.float64 or not tensor.numel():
            return
        if not fillable(tensor.shape, tensor.stride()):
            return  # elements that share their memory
        key = tensor.device, tensor.dtype
        if key not in self.pools:
            units = self.drawn.to(*key) * (self.grain or torch.finfo(tensor.dtype).eps)
            self.pools[key] = units.add_(1)  # exact: 1 + k · eps
        pool, size = self.pools[key], tensor.numel()
        if size > POOL:
            pool = pool.repeat(-(-size // POOL))
        start = int(self.generator.integers(len(pool) - size + 1))
        tensor.mul_(pool[start : start + size].view(tensor.shape))


def has_plain_kernel(name: str, args: Any) -> bool:
    """Whether a call is a convolution in float32, or its gradient, that torch's other kernels make
    as well. They round otherwise: oneDNN sums the gradient of a bias in a row (80 units), NNPACK
    multiplies patches that it has transformed (20 units).

    They hold every patch of the batch at once: they are not taken for large ones.
    """
    if name not in ("convolution", "convolution_backward"):
        return False
    given, weight = args[1:3] if name == "convolution_backward" else args[:2]
    patches = given.numel() * math.prod(weight.shape[2:])
    return patches <= PATCHES and all(t.dtype == torch.float32 for t in (given, weight))
