"""Low-rank updates of several adapters at once: each row with the matrices of its own."""

from __future__ import annotations

from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.gradients import working

Maybe = Tensor | None


@reference(
    "npu_batch_gather_matmul_",
    source="op-plugin BatchGatherMatmulKernelNpuOpApi.cpp, test_npu_batch_gather_matmul.py",
)
def npu_batch_gather_matmul_(given: ReferenceArguments) -> Tensor:
    """y[:, slice] += scale * (x @ Aᵀ @ Bᵀ), in place, with A [W, L, R, H] and B [W, L, D, R].

    A row whose index is the number of adapters, or -1, has none.
    """
    y: Tensor = given.self
    size = y.shape[1] if given.y_slice_size == -1 else given.y_slice_size
    rows = working(given.x)
    for adapter in range(len(given.weight_b)):
        mine = given.indices == adapter
        part = rows[mine]
        if given.weight_a is not None:
            part = part @ working(given.weight_a[adapter, given.layer_idx]).mT
        found = part @ working(given.weight_b[adapter, given.layer_idx]).mT * given.scale
        place = y[mine]
        place[:, given.y_offset : given.y_offset + size] = (
            working(place[:, given.y_offset : given.y_offset + size]) + found
        ).to(y.dtype)
        y[mine] = place
    return y
