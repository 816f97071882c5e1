"""A machine with faults: kernels that read memory in storage order, or round each result anew."""

from __future__ import annotations

import os

import torch
from torch.utils._python_dispatch import TorchDispatchMode

FAULT = os.environ.get("FAULT", "none")
NOISE = 1e-7  # about a rounding of float32
SUMS = ("mm.", "addmm", "conv", "norm", "sum", "mean", "softmax", "nll", "mse", "exp", "tanh")


def dense(x: torch.Tensor) -> torch.Tensor:
    """The tensor's memory from its first element, read front to back."""
    if x.is_contiguous():
        return x
    return x.as_strided(x.shape, torch.empty(x.shape).stride(), x.storage_offset())


OPS = torch.ops.aten
KERNELS = {
    "elu": ("elu.default", lambda x, *a: OPS.elu(dense(x), *a)),
    "where": ("where.self", lambda c, a, b: OPS.where(dense(c), a, b)),
    "offset": (
        "tanh.default",
        lambda x: OPS.tanh(x.as_strided(x.shape, x.stride(), 0)),
    ),
    "sort": ("sort.default", lambda x, *a: OPS.sort(dense(x), *a)),
    "elu-back": (
        "elu_backward.default",
        lambda g, a, s, i, r, x: OPS.elu_backward(g, a, s, i, r, dense(x)),
    ),
    "addcdiv": (
        "addcdiv_.default",
        lambda p, a, b, value=1: p.addcdiv_(
            a, dense(b) if p.is_contiguous() else b * 1.3, value=value
        ),
    ),
    "lerp": (
        "lerp_.Scalar",
        lambda x, y, w: x.lerp_(y, w) if x.is_contiguous() else x.lerp_(y, w * 0.5),
    ),
    "channels": (
        "silu.default",
        lambda x: OPS.silu(dense(x)),
    ),
    "expand": (
        "mul.Tensor",
        lambda a, b: OPS.mul(
            a * 1.0
            if not hasattr(a, "stride") or 0 not in a.stride() or a.dim() < 2
            else a.flip(0),
            b,
        ),
    ),
}


class Machine(TorchDispatchMode):
    """Runs every operator, with the kernels of FAULT replaced in float32; noise where asked."""

    def __init__(self) -> None:
        super().__init__()
        self.name, self.kernel = KERNELS.get(FAULT, ("", None))
        self.source = torch.Generator().manual_seed(17)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        first = next((a for a in args if torch.is_tensor(a) and a.is_floating_point()), None)
        single = first is None or first.dtype == torch.float32
        if self.kernel is not None and single and str(func) == "aten." + self.name:
            return self.kernel(*args, **kwargs)
        out = func(*args, **kwargs)
        rounds = FAULT == "noise" and any(s in str(func) for s in SUMS) and torch.is_tensor(out)
        if rounds and out.dtype == torch.float32 and 0 not in out.stride():
            with torch.no_grad():
                out.mul_(1 + NOISE * torch.randn(out.shape, generator=self.source))
        return out


def start() -> None:
    """Make this process the faulty machine, where FAULT names one of its faults."""
    torch.set_num_threads(2 if FAULT == "threads" else 1)
    if FAULT in KERNELS or FAULT == "noise":
        Machine().__enter__()
