"""Boxes: overlap, non-maximum suppression, and features of regions.

torchvision's compiled operators where they are installed, else the same in plain torch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

try:
    from torchvision.ops import nms, roi_align
except Exception:  # not installed, or built for another torch
    nms = roi_align = None


def overlap(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Intersection over union of every box of a [N, 4] with every box of b [M, 4]; x1 y1 x2 y2."""
    low = torch.maximum(a[:, None, :2], b[None, :, :2])
    high = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(2)
    areas = [(box[:, 2:] - box[:, :2]).clamp(min=0).prod(1) for box in (a, b)]
    return shared / (areas[0][:, None] + areas[1][None] - shared).clamp(min=1e-6)


def suppress(boxes: torch.Tensor, scores: torch.Tensor, limit: float) -> torch.Tensor:
    """Indices of the boxes to keep, best first."""
    if nms is not None:
        return nms(boxes, scores, limit)
    order = scores.argsort(descending=True)
    clashes = overlap(boxes[order], boxes[order]) > limit
    alive = torch.ones(len(order), dtype=torch.bool, device=boxes.device)
    for index in range(len(order)):
        if alive[index].item():  # one look at the device per box
            alive[index + 1 :] &= ~clashes[index, index + 1 :]
    return order[torch.nonzero(alive).squeeze(1)]


def crop(features: torch.Tensor, boxes: torch.Tensor, size: int, scale: float) -> torch.Tensor:
    """Features [1, C, H, W] of every box, resampled to [N, C, size, size]."""
    if roi_align is not None:
        return roi_align(features, [boxes], size, scale, aligned=True)
    height, width = features.shape[-2:]
    at = (torch.arange(size, device=boxes.device) + 0.5) / size
    scaled = boxes * scale
    x = scaled[:, None, 0] + at[None] * (scaled[:, None, 2] - scaled[:, None, 0])
    y = scaled[:, None, 1] + at[None] * (scaled[:, None, 3] - scaled[:, None, 1])
    grid = torch.stack(
        (
            (2 * x / width - 1)[:, None, :].expand(-1, size, -1),
            (2 * y / height - 1)[:, :, None].expand(-1, -1, size),
        ),
        3,
    )
    return F.grid_sample(features.expand(len(boxes), -1, -1, -1), grid, align_corners=False)
