"""The keys and values of all layers, in blocks, and the attention that reads and writes them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run import kernels
from joymigrate.run.serve.engine.batch import Batch

REQUEST = {"auto": None, "vendor": "vendor", "gather": "gather", "varlen": "varlen"}


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What one layer keeps of a token, and how it attends."""

    heads: int  # query heads
    kv_heads: int
    key_size: int
    value_size: int
    scale: float | None = None
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False

    @property
    def numbers(self) -> int:
        """Numbers kept per token."""
        return self.kv_heads * (self.key_size + self.value_size)


class Cache:
    """Blocks of keys and values for every layer; `attend` is bound to one implementation."""

    def __init__(
        self,
        shapes: list[CacheShape],
        blocks: int,
        size: int,
        dtype: torch.dtype,
        device: torch.device,
        attention: str = "auto",
        *,
        pretouch: bool = False,
    ) -> None:
        """`blocks` for sequences, and one more, number `blocks`, that no sequence ever gets.
        With `pretouch` the host's memory is taken now, not when a block is first written."""
        self.shapes = shapes
        self.order: dict[int, int] = {}  # a model's layers that are not numbered from 0 up
        self.blocks = blocks
        self.size = size
        self.chosen = [choose(shape, dtype, device, attention) for shape in shapes]
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        for shape, choice in zip(shapes, self.chosen, strict=True):
            order = layout(choice.implementation)
            for made, width in ((self.keys, shape.key_size), (self.values, shape.value_size)):
                axes = (blocks + 1, size, shape.kv_heads, width)
                made.append(empty(axes, order, dtype, device))
        if pretouch:
            for laid in (*self.keys, *self.values):
                laid.zero_()
        self.functions: list[Callable[..., Any]] = [choice.function for choice in self.chosen]

    @property
    def bytes(self) -> int:
        """Memory of the blocks."""
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))

    @property
    def attention(self) -> str:
        """Names of the implementations in use."""
        return ", ".join(sorted({choice.implementation for choice in self.chosen}))

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        batch: Batch,
        *,
        scale: float | None = None,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Keep the new keys and values of a layer, and attend: [T, H, E]."""
        output: Tensor = self.functions[layer](
            query,
            key,
            value,
            self.keys[layer],
            self.values[layer],
            batch.slots,
            batch.table,
            batch.starts,
            batch.lengths,
            scale=scale,
            window=window,
            softcap=softcap,
            sinks=sinks,
            memo=batch.memo,
        )[0]
        return output


def layout(implementation: str) -> tuple[int, ...]:
    """The order of a cache's axes in memory that an implementation reads fastest."""
    from joymigrate.run.kernels.ops.paged_attention import layout as of

    return of(implementation)


def empty(
    axes: tuple[int, ...], order: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Zeros of shape `axes` that lie in memory as `order` says."""
    sizes = [axes[axis] for axis in order]
    laid = (
        reserve_zeros(sizes, dtype)
        if device.type == "cpu"
        else torch.zeros(sizes, dtype=dtype, device=device)
    )
    return laid.permute([order.index(axis) for axis in range(len(axes))])


def reserve_zeros(sizes: list[int], dtype: torch.dtype) -> Tensor:
    """Zeros that take no memory before they are written: torch's own are written at once, and
    `calloc` writes those that it lays into memory which the process has freed."""
    import mmap

    count = math.prod(sizes) * torch.empty(0, dtype=dtype).element_size()
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # a forked child's writes are its own
    pages = mmap.mmap(-1, count, flags=flags)
    with contextlib.suppress(AttributeError, OSError):  # macOS, or a kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8, count=count).view(dtype).view(sizes)


def choose(
    shape: CacheShape, dtype: torch.dtype, device: torch.device, attention: str
) -> kernels.KernelChoice:
    """The implementation of paged attention for a layer. An explicit one that cannot run raises."""
    variant = " ".join(
        name for name, on in (("softcap", shape.softcap), ("sinks", shape.sinks)) if on
    )
    request = "reference" if attention == "reference" else REQUEST[attention]
    sizes = (shape.heads, shape.kv_heads, shape.key_size)
    try:
        return kernels.op("paged_attention").choose(
            dtype=dtype, shape=sizes, device=device, request=request, variant=variant
        )
    except JoyError as error:
        raise JoyError(error.what, where=error.where, help="--attention auto") from None
