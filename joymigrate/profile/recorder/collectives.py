"""First calls of collectives, and which reduction they compute where not every backend has it.

Torch's function modes do not see the methods of a process group. The dispatcher hands the reduction
on as an object without a word for it: the caller's frame knows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, Protocol

import torch

CALLER = "torch.distributed.distributed_c10d"
SPECIAL = frozenset(("band", "bor", "bxor", "premul_sum"))
DEEP = 40  # frames that are looked at


def special(namespace: str, args: tuple[Any, ...], frame: FrameType | None) -> str:
    """`band`, `bor`, `bxor` or `premul_sum`; "" for sums, averages, products and extremes."""
    if namespace.startswith("_c10d_functional"):
        return next((str(one) for one in args if isinstance(one, str) and one in SPECIAL), "")
    for _ in range(DEEP):
        if frame is None:
            return ""
        if frame.f_globals.get("__name__") == CALLER and "op" in frame.f_locals:
            kind = frame.f_locals["op"]
            word = str(getattr(getattr(kind, "op", kind), "name", kind))
            return word.lower() if word.lower() in SPECIAL else ""
        frame = frame.f_back
    return ""


COMPUTE = ("allreduce", "allreduce_coalesced", "reduce", "reduce_scatter", "_reduce_scatter_base",
           "reduce_scatter_tensor_coalesced", "allgather", "_allgather_base",
           "allgather_into_tensor_coalesced", "broadcast", "alltoall", "alltoall_base", "gather",
           "scatter", "send", "recv")  # fmt: skip


class Patched(Protocol):
    """What is needed of the run that is watched."""

    def exactly(self, why: str, around: str = "") -> AbstractContextManager[None]:
        """Record what happens inside."""

    def patch(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        """Put `around(real, *args)` in the place of an attribute until the watch ends."""


def watch_collectives(run: Patched) -> None:
    """Record the first call of each method of a process group, by dtypes and reduction."""
    if not torch.distributed.is_available():
        return
    owner: Any = torch._C._distributed_c10d.ProcessGroup
    known: set[Any] = set()

    def around(real: Any, *args: Any, **kwargs: Any) -> Any:
        kinds = [str(getattr(one, "reduceOp", "")) for one in args]
        key = (real.__name__, *kinds, *(one for given in args for one in dtypes_of(given)))
        if key in known:
            return real(*args, **kwargs)
        known.add(key)
        with run.exactly("call"):
            return real(*args, **kwargs)

    for name in COMPUTE:
        if hasattr(owner, name):
            run.patch(owner, name, around)


def dtypes_of(value: Any) -> list[Any]:
    """The dtypes of the tensors in an argument."""
    if isinstance(value, torch.Tensor):
        return [value.dtype]
    return [one for part in value for one in dtypes_of(part)] if isinstance(value, list) else []
