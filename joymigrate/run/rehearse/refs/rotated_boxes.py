"""Rotated boxes: overlaps by clipping one rectangle at the other, suppression, and encodings.

A box is a centre, sizes and an angle in degrees; image axes, as OpenCV and mmcv draw them. Areas
are exact here; the chip computes in float32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import reference
from joymigrate.run.rehearse.refs.gradients import working

BETA = "op-plugin docs/zh/custom_APIs/torch_npu/（beta）torch_npu-{0}.md, test_{1}.py"
Point = tuple[float, float]


def corners(box: list[float]) -> list[Point]:
    """The corners of (x, y, w, h, degrees), in order."""
    x, y, w, h, angle = box
    c, s = math.cos(math.radians(angle)) / 2, math.sin(math.radians(angle)) / 2
    along, across = (c * w, s * w), (-s * h, c * h)
    return [
        (x + i * along[0] + j * across[0], y + i * along[1] + j * across[1])
        for i, j in ((-1, -1), (1, -1), (1, 1), (-1, 1))
    ]


def clip(polygon: list[Point], a: Point, b: Point) -> list[Point]:
    """The part of a polygon on the left of the line from a to b (Sutherland-Hodgman)."""

    def side(p: Point) -> float:
        return (b[0] - a[0]) * (p[1] - a[1]) - (b[1] - a[1]) * (p[0] - a[0])

    found: list[Point] = []
    for k, now in enumerate(polygon):
        before = polygon[k - 1]
        s, t = side(before), side(now)
        if (s >= 0) != (t >= 0):
            part = s / (s - t)
            found.append(
                (before[0] + part * (now[0] - before[0]), before[1] + part * (now[1] - before[1]))
            )
        if t >= 0:
            found.append(now)
    return found


def area(polygon: list[Point]) -> float:
    return abs(sum(p[0] * q[1] - q[0] * p[1] for p, q in ring(polygon))) / 2


def ring(polygon: list[Point]) -> list[tuple[Point, Point]]:
    return [(polygon[k - 1], polygon[k]) for k in range(len(polygon))]


def overlap(a: list[float], b: list[float]) -> float:
    """The area that two boxes (x, y, w, h, degrees) share."""
    middle = ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2)  # near zero, for precision
    here, there = ([box[0] - middle[0], box[1] - middle[1], *box[2:]] for box in (a, b))
    polygon = corners(here)
    for start, end in ring(corners(there)):
        polygon = clip(polygon, start, end)
    return area(polygon)


def as_centres(boxes: Tensor, corners_given: bool, sign: int = 1) -> list[list[float]]:
    """Boxes [N, 5] as (x, y, w, h, degrees); they may be (x1, y1, x2, y2, degrees)."""
    wide = boxes.double()
    if corners_given:
        low, high, angle = wide[:, :2], wide[:, 2:4], wide[:, 4:] * sign
        wide = torch.cat(((low + high) / 2, high - low, angle), 1)
    return [[float(one) for one in row] for row in wide.tolist()]


def table(boxes: Tensor, others: Tensor, trans: bool, cross: bool, over: int | None) -> Tensor:
    """[B, N, 5] and [B, K, 5] → [B, N, K] shared areas, or (0) IoU, (1) shares of the first."""
    found = []
    for own, theirs in zip(boxes, others, strict=True):
        a, b = as_centres(own, trans), as_centres(theirs, trans)
        rows = torch.zeros(len(a), len(b), dtype=torch.float64)
        for i, one in enumerate(a):
            for j, two in enumerate(b):
                if not cross and i != j:
                    continue
                shared, first, second = overlap(one, two), one[2] * one[3], two[2] * two[3]
                whole = {None: 1.0, 0: first + second - shared, 1: first}[over]
                rows[i, j] = shared / whole if whole > 0 else 0.0
        found.append(rows)
    return torch.stack(found).to(boxes.dtype)


@reference("npu_rotated_overlaps", source=BETA.format("npu_rotated_overlaps", "rotated_overlaps"))
def npu_rotated_overlaps(self: Tensor, query_boxes: Tensor, trans: bool) -> Tensor:
    """Shared areas [B, N, K]; the package turns [B, N, 5] itself."""
    return table(self, query_boxes, trans, True, None)


@reference(
    "npu_rotated_iou",
    source=BETA.format("npu_rotated_iou", "rotated_iou"),
    without="v_threshold e_threshold",
)
def npu_rotated_iou(
    self: Tensor, query_boxes: Tensor, trans: bool, mode: int, is_cross: bool
) -> Tensor:
    """IoU (mode 0) or the share of the first box (1), [B, N, K]; the thresholds have to be 0."""
    return table(self, query_boxes, trans, is_cross, min(mode, 1))


@reference("npu_nms_rotated", source=BETA.format("npu_nms_rotated", "nms_rotated"))
def npu_nms_rotated(
    self: Tensor,
    scores: Tensor,
    iou_threshold: float,
    scores_threshold: float,
    max_output_size: int,
    mode: int,
) -> tuple[Tensor, Tensor]:
    """Indices by falling score of boxes that overlap no better one, and how many there are.

    In mode 1 boxes are (x1, y1, x2, y2) with an angle that turns the other way.
    """
    boxes = as_centres(self, mode == 1, -1)
    limit = max_output_size if max_output_size >= 0 else len(boxes)
    chosen: list[int] = []
    for number in working(scores).sort(descending=True, stable=True).indices.tolist():
        if float(scores[number]) <= scores_threshold or len(chosen) >= limit:
            continue
        mine = boxes[number]
        for kept in chosen:
            shared = overlap(mine, boxes[kept])
            whole = mine[2] * mine[3] + boxes[kept][2] * boxes[kept][3] - shared
            if whole > 0 and shared / whole > iou_threshold:
                break
        else:
            chosen.append(number)
    return torch.tensor(chosen, dtype=torch.int32), torch.tensor([len(chosen)], dtype=torch.int32)


def unpack(boxes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[B, 5, N] as (x1, y1, x2, y2, degrees): centre [B, 2, N], sizes [B, 2, N], tangent [B, N]."""
    wide = boxes.double()
    low, high = wide[:, :2], wide[:, 2:4]
    return (low + high) / 2, high - low, torch.deg2rad(wide[:, 4]).tan()


@reference("npu_rotated_box_encode", source=BETA.format("npu_rotated_box_encode", "rotated_box"))
def npu_rotated_box_encode(self: Tensor, gt_bboxes: Tensor, weight: Tensor) -> Tensor:
    """Offsets of the true boxes from anchors, both [B, 5, N]: centre, log of sizes, tangents."""
    centre, size, tangent = unpack(self)
    wanted_centre, wanted_size, wanted_tangent = unpack(gt_bboxes)
    moved, grown = (wanted_centre - centre) / size, (wanted_size / size).log()
    turned = (wanted_tangent - tangent).unsqueeze(1)
    return (torch.cat((moved, grown, turned), 1) * weight.double()[:, None]).to(self.dtype)


@reference("npu_rotated_box_decode", source=BETA.format("npu_rotated_box_decode", "rotated_box"))
def npu_rotated_box_decode(self: Tensor, deltas: Tensor, weight: Tensor) -> Tensor:
    """What `npu_rotated_box_encode` made of boxes, back into (x1, y1, x2, y2, degrees)."""
    centre, size, tangent = unpack(self)
    change = deltas.double() / weight.double()[:, None]
    at, extent = centre + change[:, :2] * size, size * change[:, 2:4].exp()
    angle = torch.rad2deg((change[:, 4:] + tangent.unsqueeze(1)).atan())
    return torch.cat((at - extent / 2, at + extent / 2, angle), 1).to(self.dtype)
