"""total [N, K] += dyᵀ x in Triton, float32 all the way: the product is never rounded.

One program adds one tile of `total`; it walks over the tokens in steps, so no two programs write
the same place and the result does not depend on their order.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from joymigrate.run.kernels.own import launch


@triton.jit
def kernel(
    x, dy, total, tokens, outputs, inputs,
    TILE_N: tl.constexpr, TILE_K: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)
    k = tl.program_id(1) * TILE_K + tl.arange(0, TILE_K)
    summed = tl.zeros((TILE_N, TILE_K), dtype=tl.float32)
    for first in range(0, tokens, STEP):
        t = (first + tl.arange(0, STEP)).to(tl.int64)
        grads = tl.load(
            dy + t[None, :] * outputs + n[:, None],
            mask=(t[None, :] < tokens) & (n[:, None] < outputs),
            other=0.0,
        )
        values = tl.load(
            x + t[:, None] * inputs + k[None, :],
            mask=(t[:, None] < tokens) & (k[None, :] < inputs),
            other=0.0,
        )
        summed += tl.dot(grads, values, input_precision=PRECISION)
    here = total + n[:, None].to(tl.int64) * inputs + k[None, :]
    inside = (n[:, None] < outputs) & (k[None, :] < inputs)
    tl.store(here, tl.load(here, mask=inside, other=0.0) + summed, mask=inside)


def matmul_add_fp32(x: Tensor, dy: Tensor, total: Tensor) -> Tensor:
    """See `ops/matmul_add_fp32.py`."""
    rows, grads = launch.rows(x), launch.rows(dy)
    tokens, inputs = rows.shape
    outputs = grads.shape[1]
    if not tokens or not total.numel():
        return total
    target = total if total.is_contiguous() else total.contiguous()
    tile_n, tile_k = min(64, launch.block(outputs)), min(64, launch.block(inputs))
    grid = (triton.cdiv(outputs, tile_n), triton.cdiv(inputs, tile_k))
    kernel[grid](
        rows, grads, target, tokens, outputs, inputs,
        TILE_N=tile_n, TILE_K=tile_k, STEP=32, PRECISION="ieee",
    )  # fmt: skip
    return total if target is total else total.copy_(target)
