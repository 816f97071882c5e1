"""Low-rank updates of several adapters at once: each row with the matrices of its own."""

from __future__ import annotations

from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import reference
from joymigrate.run.rehearse.refs.gradients import working

Maybe = Tensor | None


@reference(
    "npu_batch_gather_matmul_",
    source="op-plugin BatchGatherMatmulKernelNpuOpApi.cpp, test_npu_batch_gather_matmul.py",
)
def npu_batch_gather_matmul_(
    self: Tensor,
    x: Tensor,
    weight_b: Tensor,
    indices: Tensor,
    weight_a: Maybe,
    layer_idx: int,
    scale: float,
    y_offset: int,
    y_slice_size: int,
) -> Tensor:
    """y[:, slice] += scale * (x @ Aᵀ @ Bᵀ), in place, with A [W, L, R, H] and B [W, L, D, R].

    A row whose index is the number of adapters, or -1, has none.
    """
    size = self.shape[1] if y_slice_size == -1 else y_slice_size
    rows = working(x)
    for adapter in range(len(weight_b)):
        mine = indices == adapter
        part = rows[mine]
        if weight_a is not None:
            part = part @ working(weight_a[adapter, layer_idx]).mT
        found = part @ working(weight_b[adapter, layer_idx]).mT * scale
        place = self[mine]
        place[:, y_offset : y_offset + size] = (
            working(place[:, y_offset : y_offset + size]) + found
        ).to(self.dtype)
        self[mine] = place
    return self
