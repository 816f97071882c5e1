"""Relations of shapes and dtypes that the chip refuses, which no list of dtypes can say.

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
FLASH_HEADS = 'host code of ops-transformer 9.1.0: "Head dim must <= 768"'
FLASH_DOCUMENT = "document of aclnnFlashAttentionScore (CANN 8.2): query, key, value of one dtype"
ADD_RMS_NORM = 'host code of ops-nn 9.1.0: "Expected both tensors to have same dtype"'
QUANT_SCALE = "documents of aclnnQuantMatmulV3, V4 (ops-nn e5c3fa9); vllm-ascend 12907, 6636"
TND_HEAD_SIZES = (64, 128, 192)
MOST_HEAD_SIZE = 768


def find_refusal(name: str, arguments: Arguments) -> ShapeRefusal | None:
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


def training_attention(arguments: Arguments) -> ShapeRefusal | None:
    """Head sizes, one dtype for all three, and the mask."""
    query, layout, heads = (arguments.get(n) for n in ("query", "input_layout", "head_num"))
    kernel = "aclnnFlashAttentionScore"
    if query is None:
        return None
    hidden = layout in ("BSH", "SBH")
    size = query.size(-1) // (heads or 1) if hidden else query.size(-1)
    if size > MOST_HEAD_SIZE:
        said = Text(
            "head size {size}; the kernel takes at most {most}", size=size, most=MOST_HEAD_SIZE
        )
        return ShapeRefusal(kernel, said, FLASH_HEADS)
    others = [arguments[name] for name in ("key", "value") if arguments.get(name) is not None]
    unlike = next((one.dtype for one in others if one.dtype != query.dtype), None)
    if unlike is not None:
        said = Text(
            "the query is {one} and key or value {other}; the kernel takes one dtype for all",
            one=plain(query.dtype),
            other=plain(unlike),
        )
        return ShapeRefusal(kernel, said, FLASH_DOCUMENT, plain(unlike))
    return attention_mask(arguments)


def add_rms_norm(arguments: Arguments) -> ShapeRefusal | None:
    """Both addends have one dtype."""
    one, other = arguments.get("x1"), arguments.get("x2")
    if one is None or other is None or one.dtype == other.dtype:
        return None
    said = Text(
        "x1 is {one} and x2 {other}; the kernel takes one dtype for both",
        one=plain(one.dtype),
        other=plain(other.dtype),
    )
    return ShapeRefusal("aclnnAddRmsNorm", said, ADD_RMS_NORM, plain(other.dtype))


def quantised_scale(arguments: Arguments) -> ShapeRefusal | None:
    """The scale of the weights is never float16, whatever comes out."""
    scale = arguments.get("scale")
    if scale is None or plain(scale.dtype) != "float16":
        return None
    said = Text("the scale is float16; the kernel takes bfloat16, float32, int64, uint64")
    return ShapeRefusal("aclnnQuantMatmul", said, QUANT_SCALE, "float16")


def plain(dtype: Any) -> str:
    """A dtype's name without `torch.`."""
    return str(dtype).removeprefix("torch.")


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
    "npu::npu_fusion_attention": training_attention,
    "npu::npu_fusion_attention_v2": training_attention,
    "npu::npu_fusion_attention_v3": training_attention,
    "npu::npu_fused_infer_attention_score": infer_head_size,
    "npu::npu_fused_infer_attention_score_v2": infer_head_size,
    "npu::npu_add_rms_norm": add_rms_norm,
    "npu::npu_quant_matmul": quantised_scale,
    "aten::convolution": convolution_groups,
    "aten::_convolution": convolution_groups,
    "aten::conv3d": convolution_groups,
    "aten::convolution_overrideable": convolution_groups,
    "npu::npu_conv3d": convolution_groups,
}
