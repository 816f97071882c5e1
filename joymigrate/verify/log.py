"""Collects statistics and sketches where the tensors lie; one copy to the host per step."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from joymigrate.verify.shard_map import local_part, wait_for
from joymigrate.verify.signs import WIDTH
from joymigrate.verify.sketch import Row, ShardPlace, as_float, sketch, statistics

Meta = tuple[str, int, str, str, str, tuple[int, ...], str]


class StepLog:
    """The records of one step, in the order of their arising."""

    def __init__(self) -> None:
        self.meta: list[Meta] = []
        self.stats: list[Row] = []
        self.sketches: list[Row] = []
        self.seen: dict[int, tuple[Any, int, int]] = {}  # id → (reference, version, row)

    def again(self, tensor: torch.Tensor) -> bool:
        """Take the numbers of a tensor that was measured already and not changed since."""
        known = self.seen.get(id(tensor))
        if tensor.is_inference():
            return False
        if known is not None and known[0]() is tensor and known[1] == tensor._version:
            self.stats.append(self.stats[known[2]])
            self.sketches.append(self.sketches[known[2]])
            return True
        self.seen[id(tensor)] = (weakref.ref(tensor), tensor._version, len(self.stats))
        return False

    def add(
        self,
        module: str,
        call: int,
        kind: str,
        leaf: str,
        tensor: torch.Tensor,
        spread: tuple[str, ShardPlace] | None = None,
    ) -> None:
        """Record one tensor. What has no plain values (meta, sparse, wrapped) is left out."""
        tensor = wait_for(tensor)
        placed = local_part(tensor) if type(tensor).__name__ == "DTensor" else None
        if placed is not None:
            tensor, spread = placed
        if not plain(tensor):
            return
        shard = spread[1] if spread else None
        if shard is None and self.again(tensor):
            pass  # one module's output is the next one's input
        elif torch._C._len_torch_dispatch_stack():
            with torch.utils._python_dispatch._disable_current_modes():
                self.measure(tensor, shard)
        else:
            self.measure(tensor, shard)
        shape = spread[1].shape if spread else tuple(tensor.shape)
        dtype = str(tensor.dtype).removeprefix("torch.")
        self.meta.append((module, call, kind, leaf, dtype, shape, spread[0] if spread else ""))

    def measure(self, tensor: torch.Tensor, shard: ShardPlace | None) -> None:
        """Queue the reductions of one tensor; on a device nothing waits for them."""
        device = tensor.device.type
        if torch.is_autocast_enabled(device):  # the program's: it would round the sketch
            with torch.autocast(device, enabled=False):
                self.measure_exactly(tensor, shard)
        else:
            self.measure_exactly(tensor, shard)

    def measure_exactly(self, tensor: torch.Tensor, shard: ShardPlace | None) -> None:
        """The same, in float32."""
        values = as_float(tensor.detach())  # no graph is built on it
        self.stats.append(statistics(values))
        self.sketches.append(sketch(values, shard))

    def take(self) -> tuple[list[Meta], NDArray[np.float32], NDArray[np.float32]]:
        """Everything so far, on the host; the log is empty afterwards."""
        meta, stats, sketches = self.meta, self.stats, self.sketches
        self.meta, self.stats, self.sketches, self.seen = [], [], [], {}
        return meta, on_host(stats, 4), on_host(sketches, WIDTH)


def on_host(rows: list[Row], width: int) -> NDArray[np.float32]:
    """Rows as one array: one copy per device."""
    made = np.zeros((len(rows), width), np.float32)
    places: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
    for number, row in enumerate(rows):
        if isinstance(row, torch.Tensor):
            places.setdefault(row.device, []).append((number, row))
        else:
            made[number] = row
    for held in places.values():
        made[[n for n, _ in held]] = torch.stack([row for _, row in held]).cpu().numpy()
    return made


def plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor has values that can be reduced."""
    if tensor.is_meta or tensor.layout is not torch.strided or tensor.is_quantized:
        return False
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
