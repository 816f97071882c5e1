"""Relations of shapes that the chip's tiling refuses, which no list of dtypes can say.

Each rule names where the limit is published or was met. What is not listed is not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from joymigrate.language import Text


@dataclass(frozen=True, slots=True)
class ShapeRefusal:
    """A call that tiling refuses."""

    kernel: str
    message: Text
    source: str
    dtype: str = ""


Arguments = Mapping[str, Any]
FLASH_TILING = "ops-transformer c29bc10, flash_attention_score_tiling_general.cpp"
INFER_TILING = "ops-transformer c29bc10, fused_infer_attention_score_tiling; vllm-ascend 9632"
CONVOLUTION = 'Ascend/pytorch 85: "Conv3dv2 only supports groups = 1 or groups = cin"'
TND_HEAD_SIZES = (64, 128, 192)


def refused(name: str, arguments: Arguments) -> ShapeRefusal | None:
    """What tiling refuses of a call of the operator `name` (npu::npu_fusion_attention)."""
    rule = RULES.get(name.partition(".")[0])
    return rule(arguments) if rule is not None else None


def attention_mask(arguments: Arguments) -> ShapeRefusal | None:
    """A training mask is never broadcast over the queries or from one dimension less."""
    mask, layout = arguments.get("atten_mask"), arguments.get("input_layout")
    compressed = arguments.get("sparse_mode") in (2, 3, 4, 5, 6, 7, 8)
    if mask is None or layout not in ("BNSD", "BSND", "BSH", "SBH") or compressed:
        return None
    query, key, heads = arguments["query"], arguments["key"], arguments["head_num"]
    batch_at, length_at = {"BNSD": (0, 2), "BSND": (0, 1), "BSH": (0, 1), "SBH": (1, 0)}[layout]
    batch, rows, columns = query.size(batch_at), query.size(length_at), key.size(length_at)
    takes = ((batch, heads), (batch, 1), (1, 1))
    shapes = [(*one, rows, columns) for one in takes] + [(rows, columns)]
    if tuple(mask.shape) in shapes:
        return None
    said = Text(
        "the mask's shape is {shape}; the kernel takes {takes}",
        shape=list(mask.shape),
        takes=", ".join(str(list(one)) for one in dict.fromkeys(shapes)),
    )
    return ShapeRefusal("aclnnFlashAttentionScore", said, FLASH_TILING)


def infer_head_size(arguments: Arguments) -> ShapeRefusal | None:
    """With packed sequences only some head sizes are taken."""
    query = arguments.get("query")
    if arguments.get("input_layout") != "TND" or query is None or query.dim() != 3:
        return None
    size = query.size(2)
    if size in TND_HEAD_SIZES:
        return None
    said = Text(
        "head size {size} with layout TND; the kernel takes {takes}",
        size=size,
        takes=", ".join(map(str, TND_HEAD_SIZES)),
    )
    return ShapeRefusal("aclnnFusedInferAttentionScore", said, INFER_TILING)


def convolution_groups(arguments: Arguments) -> ShapeRefusal | None:
    """Three-dimensional convolutions are whole or one group per channel."""
    image, groups = arguments.get("input"), arguments.get("groups") or 1
    if image is None or image.dim() != 5 or groups in (1, image.size(1)):
        return None
    said = Text(
        "groups = {groups} with {channels} channels; the kernel takes 1 or as many as channels",
        groups=groups,
        channels=image.size(1),
    )
    return ShapeRefusal("aclnnConvolution", said, CONVOLUTION)


RULES: dict[str, Callable[[Arguments], ShapeRefusal | None]] = {
    "npu::npu_fusion_attention": attention_mask,
    "npu::npu_fusion_attention_v2": attention_mask,
    "npu::npu_fusion_attention_v3": attention_mask,
    "npu::npu_fused_infer_attention_score": infer_head_size,
    "npu::npu_fused_infer_attention_score_v2": infer_head_size,
    "aten::convolution": convolution_groups,
    "aten::_convolution": convolution_groups,
    "aten::conv3d": convolution_groups,
    "aten::convolution_overrideable": convolution_groups,
    "npu::npu_conv3d": convolution_groups,
}
