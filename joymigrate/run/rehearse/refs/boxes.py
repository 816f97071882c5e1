"""Boxes of detectors: overlaps, suppression, encoding, region pooling.

Overlaps are exact here; the chip adds about 0.01 to sides and unions, which shows in the third
digit for boxes of a few pixels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated
from joymigrate.run.rehearse.refs.gradients import vjp, working

BETA = "op-plugin docs/zh/custom_APIs/torch_npu/（beta）torch_npu-{}.md"
FORMULAS = "op-plugin derivatives.yaml"
EPSILON = 1e-9


def area(boxes: Tensor) -> Tensor:
    return (boxes[..., 2] - boxes[..., 0]).clamp(min=0) * (boxes[..., 3] - boxes[..., 1]).clamp(
        min=0
    )


def intersection(a: Tensor, b: Tensor) -> Tensor:
    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    return (high - low).clamp(min=0).prod(-1)


def overlaps(boxes: Tensor, truths: Tensor, mode: int) -> Tensor:
    """[truths, boxes]; mode 0 over the union, 1 over the truth's area."""
    a, b = working(boxes).unsqueeze(0), working(truths).unsqueeze(1)
    inner = intersection(a, b)
    outer = area(b) if mode == 1 else area(a) + area(b) - inner
    return inner / outer.clamp(min=EPSILON)


@reference("npu_iou", source=BETA.format("npu_iou"))
def npu_iou(bboxes: Tensor, gtboxes: Tensor, mode: int) -> Tensor:
    return overlaps(bboxes, gtboxes, mode).to(bboxes.dtype)


@reference("npu_ptiou", source=BETA.format("npu_ptiou"))
def npu_ptiou(bboxes: Tensor, gtboxes: Tensor, mode: int) -> Tensor:
    return overlaps(bboxes, gtboxes, mode).to(bboxes.dtype)


@reference("npu_nms_v4", source=BETA.format("npu_nms_v4"))
def npu_nms_v4(
    x: Tensor,
    scores: Tensor,
    max_output_size: float,
    iou_threshold: Tensor,
    scores_threshold: Tensor,
) -> tuple[Tensor, Tensor]:
    """Chosen boxes by falling score, padded with zeros to the limit, and how many there are."""
    limit = int(max_output_size)
    order = scores.sort(dim=0, descending=True, stable=True).indices.tolist()
    table = overlaps(x, x, 0)
    chosen: list[int] = []
    for number in order:
        if float(scores[number]) <= float(scores_threshold) or len(chosen) >= limit:
            continue
        if all(float(table[number, kept]) <= float(iou_threshold) for kept in chosen):
            chosen.append(number)
    found = torch.zeros(limit, dtype=torch.int32)
    found[: len(chosen)] = torch.tensor(chosen, dtype=torch.int32)
    return found, torch.tensor(len(chosen), dtype=torch.int32)


@reference("npu_nms_with_mask", source=BETA.format("npu_nms_with_mask"))
def npu_nms_with_mask(x: Tensor, iou_threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes [N, 5] sorted by score: the boxes, their indices, and which survive (uint8)."""
    boxes = working(x)[:, :4]
    table, kept = overlaps(boxes, boxes, 0), torch.ones(len(x), dtype=torch.bool)
    for number in range(len(x)):
        if kept[number]:
            kept[number + 1 :] &= table[number, number + 1 :] <= iou_threshold
    return x.clone(), torch.arange(len(x), dtype=torch.int32), kept.to(torch.uint8)


def _centres(boxes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Centre and size with the old "+ 1" convention of pixel boxes."""
    width, height = boxes[:, 2] - boxes[:, 0] + 1, boxes[:, 3] - boxes[:, 1] + 1
    return (boxes[:, 0] + boxes[:, 2]) / 2, (boxes[:, 1] + boxes[:, 3]) / 2, width, height


@reference("npu_bounding_box_encode", source=BETA.format("npu_bounding_box_encode"))
def npu_bounding_box_encode(given: ReferenceArguments) -> Tensor:
    px, py, pw, ph = _centres(working(given.anchor_box))
    gx, gy, gw, gh = _centres(working(given.ground_truth_box))
    deltas = torch.stack(((gx - px) / pw, (gy - py) / ph, (gw / pw).log(), (gh / ph).log()), -1)
    means, stds = (
        torch.tensor([given.means0, given.means1, given.means2, given.means3]),
        torch.tensor([given.stds0, given.stds1, given.stds2, given.stds3]),
    )
    return ((deltas - means) / stds).to(given.anchor_box.dtype)


@reference("npu_bounding_box_decode", source=BETA.format("npu_bounding_box_decode"))
def npu_bounding_box_decode(given: ReferenceArguments) -> Tensor:
    """Boxes from anchors and deltas, cut at `max_shape` (height, width)."""
    means, stds = (
        torch.tensor([given.means0, given.means1, given.means2, given.means3]),
        torch.tensor([given.stds0, given.stds1, given.stds2, given.stds3]),
    )
    shifts = working(given.deltas) * stds + means
    limit = abs(math.log(given.wh_ratio_clip))
    dx, dy = shifts[:, 0], shifts[:, 1]
    dw, dh = shifts[:, 2].clamp(-limit, limit), shifts[:, 3].clamp(-limit, limit)
    px, py, pw, ph = _centres(working(given.rois))
    gx, gy, gw, gh = px + pw * dx, py + ph * dy, pw * dw.exp(), ph * dh.exp()
    found = torch.stack(
        (gx - gw / 2 + 0.5, gy - gh / 2 + 0.5, gx + gw / 2 - 0.5, gy + gh / 2 - 0.5), -1
    )
    if len(given.max_shape) == 2:
        height, width = given.max_shape
        high = torch.tensor([width - 1, height - 1, width - 1, height - 1])
        found = found.clamp(min=0).minimum(high)
    return found.to(given.rois.dtype)


# ── generalised, distance and complete overlap; boxes [4, N] ────────────────────────────────────


def _corners(boxes: Tensor, trans: bool) -> Tensor:
    """[4, N] → [N, 4] corners; `trans`: given as centre and size."""
    rows = boxes.T
    if not trans:
        return rows
    half = rows[:, 2:] / 2
    return torch.cat((rows[:, :2] - half, rows[:, :2] + half), -1)


def _pairs(boxes: Tensor, truths: Tensor, trans: bool, cross: bool) -> tuple[Tensor, Tensor]:
    a, b = _corners(boxes, trans), _corners(truths, trans)
    return (a.unsqueeze(1), b.unsqueeze(0)) if cross else (a, b)


def enhance_iou(kind: str, boxes: Tensor, truths: Tensor, trans: bool, cross: bool) -> Tensor:
    """GIoU, DIoU or CIoU of pairs, [1, N] (or [N, M] crossed)."""
    a, b = _pairs(boxes, truths, trans, cross)
    inner = intersection(a, b)
    union = area(a) + area(b) - inner
    iou = inner / (union + EPSILON)
    low, high = torch.minimum(a[..., :2], b[..., :2]), torch.maximum(a[..., 2:], b[..., 2:])
    hull = high - low
    if kind == "giou":
        outer = hull.prod(-1) + EPSILON
        found = iou - (outer - union) / outer
    else:
        gap = ((a[..., :2] + a[..., 2:]) - (b[..., :2] + b[..., 2:])).square().sum(-1) / 4
        found = iou - gap / (hull.square().sum(-1) + EPSILON)
        if kind == "ciou":
            found = found - _shape_penalty(a, b, iou)
    return found if cross else found.unsqueeze(0)


def _angle(boxes: Tensor) -> Tensor:
    size = boxes[..., 2:] - boxes[..., :2]
    return torch.atan(size[..., 0] / (size[..., 1] + EPSILON))


def _shape_penalty(a: Tensor, b: Tensor, iou: Tensor) -> Tensor:
    v = (4 / math.pi**2) * (_angle(b) - _angle(a)).square()
    alpha = (v / (1 - iou + v + EPSILON)).detach()
    return alpha * v


def _check_mode(operator: str, mode: int) -> None:
    if mode != 0:
        raise Unsimulated(operator, f"mode {mode}")


@reference("npu_giou", source=BETA.format("npu_giou"))
def npu_giou(x: Tensor, gtboxes: Tensor, trans: bool, is_cross: bool, mode: int) -> Tensor:
    _check_mode("npu_giou", mode)
    found = enhance_iou("giou", working(x), working(gtboxes), trans, is_cross)
    return (found if is_cross else found.T).to(x.dtype)


@reference("npu_diou", source=BETA.format("npu_diou"))
def npu_diou(x: Tensor, gtboxes: Tensor, trans: bool, is_cross: bool, mode: int) -> Tensor:
    _check_mode("npu_diou", mode)
    return enhance_iou("diou", working(x), working(gtboxes), trans, is_cross).to(x.dtype)


@reference("npu_ciou", source=BETA.format("npu_ciou"))
def npu_ciou(x: Tensor, gtboxes: Tensor, trans: bool, is_cross: bool, mode: int) -> Tensor:
    _check_mode("npu_ciou", mode)
    return enhance_iou("ciou", working(x), working(gtboxes), trans, is_cross).to(x.dtype)


@reference("_npu_ciou", source=FORMULAS)
def _npu_ciou(
    x: Tensor, gtboxes: Tensor, trans: bool, is_cross: bool, mode: int
) -> tuple[Tensor, Tensor]:
    """The overlap, and the difference of the angles."""
    found = npu_ciou(x, gtboxes, trans, is_cross, mode)
    a, b = _pairs(working(x), working(gtboxes), trans, is_cross)
    return found, (_angle(b) - _angle(a)).reshape(found.shape).to(x.dtype)


@reference("npu_giou_backward", source=FORMULAS)
def npu_giou_backward(
    grad: Tensor, bboxes: Tensor, gtboxes: Tensor, trans: bool, is_cross: bool
) -> tuple[Tensor | None, ...]:
    wanted = grad if is_cross else grad.reshape(1, -1)
    return vjp(lambda a, b: enhance_iou("giou", a, b, trans, is_cross), (bboxes, gtboxes), wanted)


@reference("npu_diou_backward", source=FORMULAS)
def npu_diou_backward(
    grad: Tensor, bboxes: Tensor, gtboxes: Tensor, trans: bool, is_cross: bool
) -> tuple[Tensor | None, ...]:
    return vjp(lambda a, b: enhance_iou("diou", a, b, trans, is_cross), (bboxes, gtboxes), grad)


@reference("npu_ciou_backward", source=FORMULAS)
def npu_ciou_backward(
    grad: Tensor, bboxes: Tensor, gtboxes: Tensor, trans: bool, is_cross: bool
) -> tuple[Tensor | None, ...]:
    return vjp(lambda a, b: enhance_iou("ciou", a, b, trans, is_cross), (bboxes, gtboxes), grad)


# ── region pooling ──────────────────────────────────────────────────────────────────────────────


def pool_bins(
    x: Tensor, rois: Tensor, scale: float, height: int, width: int, samples: int, end_mode: int
) -> Tensor:
    """Average of bilinear samples in every bin; rois [K, 5] (batch, x0, y0, x1, y1)."""
    if samples < 1:
        raise Unsimulated("npu_roi_align", "a sample number that follows the region's size")
    extra = 1.0 if end_mode == 1 else 0.0
    x0, y0 = rois[:, 1] * scale, rois[:, 2] * scale
    x1, y1 = (rois[:, 3] + extra) * scale, (rois[:, 4] + extra) * scale
    step_y = (y1 - y0).clamp(min=0.0 if end_mode else 1.0) / (height * samples)
    step_x = (x1 - x0).clamp(min=0.0 if end_mode else 1.0) / (width * samples)
    at_y = y0[:, None] + (torch.arange(height * samples) + 0.5) * step_y[:, None]
    at_x = x0[:, None] + (torch.arange(width * samples) + 0.5) * step_x[:, None]
    low_y, high_y, near_y = _taps(at_y, x.shape[2])
    low_x, high_x, near_x = _taps(at_x, x.shape[3])
    image = x[rois[:, 0].long()]  # [K, C, H, W]

    def pick(rows: Tensor, columns: Tensor) -> Tensor:
        lines = image.gather(2, rows[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))
        index = columns[:, None, None, :].expand(-1, x.shape[1], rows.shape[1], -1)
        return lines.gather(3, index)

    fy, fx = near_y[:, None, :, None], near_x[:, None, None, :]
    top = pick(low_y, low_x) * (1 - fx) + pick(low_y, high_x) * fx
    bottom = pick(high_y, low_x) * (1 - fx) + pick(high_y, high_x) * fx
    inside = ((at_y >= -1) & (at_y <= x.shape[2]))[:, None, :, None] & (
        (at_x >= -1) & (at_x <= x.shape[3])
    )[:, None, None, :]
    found = (top * (1 - fy) + bottom * fy) * inside
    shape = (len(rois), x.shape[1], height, samples, width, samples)
    return found.reshape(shape).mean((3, 5))


def _taps(at: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Lower and upper neighbour of every sample, and how near it is to the upper one."""
    at = at.clamp(0, size - 1)
    low = at.floor().long().clamp(max=size - 1)
    return low, (low + 1).clamp(max=size - 1), at - low


@reference("npu_roi_align", source=BETA.format("npu_roi_align"))
def npu_roi_align(
    x: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sample_num: int,
    roi_end_mode: int,
) -> Tensor:
    found = pool_bins(
        working(x),
        working(rois),
        spatial_scale,
        pooled_height,
        pooled_width,
        sample_num,
        roi_end_mode,
    )
    return found.to(x.dtype)


@reference("npu_roi_alignbk", source="op-plugin RoiAlignBackwardKernelNpu.cpp")
def npu_roi_alignbk(given: ReferenceArguments) -> Tensor:
    """`self` is the gradient of the pooled regions."""
    regions = working(given.rois)
    found = vjp(
        lambda a: pool_bins(
            a,
            regions,
            given.spatial_scale,
            given.pooled_height,
            given.pooled_width,
            given.sample_num,
            1 if given.roi_end_mode is None else given.roi_end_mode,
        ),
        (torch.zeros(list(given.xdiff_shape), dtype=given.x.dtype),),
        given.x,
    )[0]
    assert found is not None
    return found
