"""Encodings of one-stage detectors, and the normalisation of padded audio features."""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import reference
from joymigrate.run.rehearse.refs.gradients import working

Pair = tuple[int, int] | list[int]
TINY = 1e-6


@reference("npu_yolo_boxes_encode", source="op-plugin test_yolo_boxes_encode.py, as mmdet's coder")
def npu_yolo_boxes_encode(x: Tensor, gt_bboxes: Tensor, stride: Tensor) -> Tensor:
    """Offsets of the true boxes' centres in strides around 0.5, and log of the size ratios."""
    boxes, truths = working(x), working(gt_bboxes)
    size, wanted = boxes[:, 2:] - boxes[:, :2], truths[:, 2:] - truths[:, :2]
    moved = (truths[:, 2:] + truths[:, :2] - boxes[:, 2:] - boxes[:, :2]) / 2
    centre = (moved / working(stride)[:, None] + 0.5).clamp(TINY, 1 - TINY)
    return torch.cat((centre, (wanted / size).clamp(min=TINY).log()), 1).to(gt_bboxes.dtype)


@reference("npu_anchor_response_flags", source="op-plugin test_anchorresponseflags.py")
def npu_anchor_response_flags(
    x: Tensor, featmap_size: Pair, stride: Pair, num_base_anchors: int
) -> Tensor:
    """One for each anchor of the cells [h, w] that hold the centre of a box of x, uint8."""
    boxes = working(x)
    column = ((boxes[:, 0] + boxes[:, 2]) / 2 / stride[0]).floor().long()
    row = ((boxes[:, 1] + boxes[:, 3]) / 2 / stride[1]).floor().long()
    flags = torch.zeros(featmap_size[0] * featmap_size[1], dtype=torch.uint8)
    flags[row * featmap_size[1] + column] = 1
    return flags.repeat_interleave(num_base_anchors)


@reference("npu_normalize_batch", source="op-plugin test_normalize_batch.py")
def npu_normalize_batch(x: Tensor, seq_len: Tensor, normalize_type: int) -> Tensor:
    """x [N, C, T] by mean and deviation of its first seq_len steps, per channel or (1) of all."""
    found = []
    for part, length in zip(working(x), seq_len.tolist(), strict=True):
        seen = part[:, : int(length)]
        axes = (0, 1) if normalize_type else (1,)
        deviation, mean = torch.std_mean(seen, axes, keepdim=True)
        found.append((part - mean) / (deviation + 1e-5))
    return torch.stack(found).to(x.dtype)
