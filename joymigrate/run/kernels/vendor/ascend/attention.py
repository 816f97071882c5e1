"""npu_fusion_attention under our mask descriptions.

Conventions of the chip's operator: in a mask True means hidden (the opposite of torch's), packed
sequences (TND) take cumulative lengths without the leading 0, and for causal and window masks it
wants one fixed 2048 x 2048 upper triangle with a `sparse_mode`:
    0 no compression   1 the whole mask as given   3 causal from the lower right   4 band from there
"""

from __future__ import annotations

import functools
import math

import torch
import torch_npu
from torch import Tensor

from joymigrate.run.kernels.mask import (
    Causal,
    Full,
    JaggedMask,
    Mask,
    Simple,
    WindowMask,
    dense,
)
from joymigrate.run.kernels.operator import Call

COMPRESSED = 2048
UNLIMITED = 2147483647
LARGEST = 512  # documented head size
PACKED = ("jagged full", "jagged causal", "jagged window")


def when(call: Call) -> str | None:
    """Documented limits, and rows that would see nothing (the chip gives them the mean of v)."""
    if 0 in call.shape:
        return "for at least one element"
    if call.shape[-1] > LARGEST:
        return f"for head sizes up to {LARGEST}"
    if " silu" in call.variant or call.variant.endswith(" biased"):
        return "for softmax without a relative bias"
    kind = call.variant.removesuffix(" long")
    if kind.startswith("jagged"):
        return None if kind in PACKED else f"packed sequences: not for {kind}"
    if kind != call.variant and kind not in ("causal", "window"):
        return f"a long {kind} mask would be a tensor of queries by keys"
    rows, columns = call.shape[2], call.shape[3]
    if call.variant != "full" and rows > columns:
        return "for at least as many keys as queries"
    return None


@functools.lru_cache(maxsize=4)
def triangle(device: torch.device) -> Tensor:
    """The compressed mask of modes 2 to 4: True above the diagonal."""
    ones = torch.ones(COMPRESSED, COMPRESSED, dtype=torch.bool, device=device)
    return ones.triu(1)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None) -> Tensor:
    """See `ops/attention.py`."""
    factor = scale if scale is not None else 1 / math.sqrt(q.shape[-1])
    if isinstance(mask, JaggedMask):
        return attend_packed(q, k, v, mask, factor)
    options = arguments(mask, q.shape[-2], k.shape[-2], q.device)
    found: Tensor = torch_npu.npu_fusion_attention(
        q.contiguous(), k.contiguous(), v.contiguous(), q.shape[1], "BNSD", scale=factor, **options
    )[0]
    return found


def arguments(mask: Mask, rows: int, columns: int, device: torch.device) -> dict[str, object]:
    """The arguments that say which keys are hidden."""
    if isinstance(mask, Full):
        return {}
    if isinstance(mask, Causal):
        return {"atten_mask": triangle(device), "sparse_mode": 3}
    if isinstance(mask, WindowMask):
        band = {"pre_tockens": mask.size - 1, "next_tockens": 0}
        return {"atten_mask": triangle(device), "sparse_mode": 4, **band}
    assert not isinstance(mask, JaggedMask)
    seen = dense(mask, rows, columns, device)
    assert seen is not None
    hidden = ~seen
    while hidden.dim() < 4:
        hidden = hidden.unsqueeze(0)
    # One mask for all heads or one each; the batch's axis is 1 or whole.
    hidden = hidden.expand(hidden.shape[0], hidden.shape[1], rows, columns)
    return {"atten_mask": hidden.contiguous(), "sparse_mode": 1}


def attend_packed(q: Tensor, k: Tensor, v: Tensor, mask: JaggedMask, scale: float) -> Tensor:
    """TND: tokens of all sequences in one axis. Sequences without tokens are left out."""
    ends = [stop for start, stop in mask.bounds() if stop > start]
    inner: Simple = mask.inner
    options = arguments(inner, 0, 0, q.device)
    found: Tensor = torch_npu.npu_fusion_attention(
        q.contiguous(), k.contiguous(), v.contiguous(), q.shape[1], "TND", scale=scale,
        actual_seq_qlen=ends, actual_seq_kvlen=ends, **options,
    )[0]  # fmt: skip
    return found
