"""How far one tensor is from another, and what kind of difference it is. In float64 on the CPU."""

from __future__ import annotations

import math
from typing import Any

import torch

# Masks hold the lowest number of their type, which another type can't hold: it means "never".
NEVER = 1e38
BLOCKED = -1e4  # what a mask adds to a score that takes no part, or less (transformers' models)
FAR = 1e3  # times the smallest values: another kind of number
ALONE = 2.0**-6  # of a unit of the error: what one value may be off by, where all others are right
AT_ONCE = 1 << 22  # elements: copies of a table in float64 would be the largest of a pass


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The values as float64 on the CPU; what float32 can hardly hold is inf."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    values = tensor.to("cpu").to(torch.float64).reshape(-1)
    never = values.abs() > NEVER
    return torch.where(never, values.sign() * math.inf, values) if bool(never.any()) else values


def relative_error(target: torch.Tensor, golden: torch.Tensor) -> float:
    """‖a - g‖ / ‖g‖ over the values finite in both; inf where a NaN or inf stands alone.

    A golden of zeros counts as one of norm √n · 2^-60, so that an exact zero is no error.
    """
    plain = [t.detach().to("cpu") for t in (target, golden) if not t.is_complex()]
    if len(plain) == 2 and plain[0].numel() == plain[1].numel() > 0:
        size, norm, apart, other = plain[0].numel(), 0.0, 0.0, 0.0
        for start in range(0, size, AT_ONCE):
            part = slice(start, start + AT_ONCE)
            a, g = (t.reshape(-1)[part].to(torch.float64) for t in plain)
            norm = math.hypot(norm, float(torch.linalg.vector_norm(g)))
            other = math.hypot(other, float(torch.linalg.vector_norm(a)))
            apart = math.hypot(apart, float(torch.linalg.vector_norm(a - g)))
        if norm <= NEVER and other <= NEVER:  # no value is odd
            return apart / max(norm, math.sqrt(size) * 2.0**-60)
    a, g = flat(target), flat(golden)
    if a.numel() != g.numel():
        return math.inf
    odd = ~(torch.isfinite(a) & torch.isfinite(g))
    if bool(odd.any()):
        same = (a[odd] == g[odd]) | (torch.isnan(a[odd]) & torch.isnan(g[odd]))
        if not bool(same.all()):
            return math.inf
        a, g = a[~odd], g[~odd]
    if a.numel() == 0:
        return 0.0
    norm = float(torch.linalg.vector_norm(g))
    return float(torch.linalg.vector_norm(a - g)) / max(norm, math.sqrt(a.numel()) * 2.0**-60)


def rounding_error(target: torch.Tensor, golden: torch.Tensor) -> float:
    """`relative_error` of what should differ by rounding alone: the norm of a mask's -1e9 must not
    hide the values beside it, nor a million right ones one that is wrong."""
    error = relative_error(target, golden)
    a, g = flat(target), flat(golden)
    kept = torch.isfinite(a) & torch.isfinite(g) & (g != 0)
    a, g = a[kept], g[kept]
    if not math.isfinite(error) or not g.numel():
        return error
    size = g.abs()
    usual = size.kthvalue(1 + size.numel() // 100).values  # nearly the smallest
    near = size <= FAR * usual
    error = max(error, relative_error(a[near], g[near]))
    scale = torch.linalg.vector_norm(g[near]) / math.sqrt(int(near.sum()))
    farthest = ((a - g).abs() / torch.maximum(size, scale)).max()
    return max(error, ALONE * float(farthest))


def kept_by(mask: torch.Tensor) -> torch.Tensor | None:
    """What an attention mask lets take part: True of a boolean one, 0 of one that is added to the
    scores (torch.nn.functional.scaled_dot_product_attention); None for what is no mask."""
    if mask.dtype is torch.bool:
        return mask.detach()
    if not mask.is_floating_point():
        return None
    kept, blocked = mask.detach() == 0, mask.detach() <= BLOCKED
    return kept if bool((kept | blocked).all()) else None


def as_mask_of(live: torch.Tensor, golden: torch.Tensor) -> torch.Tensor:
    """`golden`, or where one of both is a boolean attention mask and the other one that is added,
    the same mask as `live` has it: fused attention takes either, by hand it is added."""
    boolean = live.dtype is torch.bool
    if boolean == (golden.dtype is torch.bool) or live.shape != golden.shape or not live.numel():
        return golden
    mine, kept = kept_by(live), kept_by(golden)
    if mine is None or kept is None:
        return golden
    added, other = (kept, mine) if boolean else (mine, kept)
    if bool(added.all()) and not bool(other.all()):  # zeros: as well numbers as a mask
        return golden
    lowest = float(live.min())
    return (
        kept if boolean else torch.zeros_like(golden, dtype=live.dtype).masked_fill(~kept, lowest)
    )


def signature(target: torch.Tensor, golden: torch.Tensor) -> dict[str, Any]:
    """What tells causes apart: how many values are not finite, or other shapes."""
    a, g = flat(target), flat(golden)
    if a.numel() != g.numel():
        return {"shapes": [list(target.shape), list(golden.shape)]}
    return {"nonfinite": [int((~torch.isfinite(one)).sum()) for one in (a, g)]}
