"""Rotations before quantisation: Kronecker products and block-diagonal rotations."""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.block_formats import ELEMENTS, mx_quantised
from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated, torch_dtype
from joymigrate.run.rehearse.refs.gradients import working
from joymigrate.run.rehearse.refs.quantise import INT4, dynamic, pack_int4

DOCS = "op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-{}.md"


@reference("npu_kronecker_quant", source="CANN ops-nn 9.1.0 docs/aclnnFlatQuant.md")
def npu_kronecker_quant(
    x: Tensor,
    kronecker_p1: Tensor,
    kronecker_p2: Tensor,
    clip_ratio: float | None,
    dst_dtype: int | None,
    dst_type_max: float | None,
) -> tuple[Tensor, Tensor]:
    """p1 @ x @ p2 of x [K, M, N] as int4 (eight to an int32) with one scale for each of the K, or
    as float4 [K, M·N/2] with block scales."""
    turned = working(kronecker_p1) @ (working(x) @ working(kronecker_p2))
    if dst_dtype in ELEMENTS:
        return mx_quantised(
            turned.flatten(1), int(dst_dtype or 0), "npu_kronecker_quant", most=dst_type_max or 0.0
        )
    if torch_dtype(dst_dtype, torch.int32, "npu_kronecker_quant") is not torch.int32:
        raise Unsimulated("npu_kronecker_quant", f"dst_dtype {dst_dtype}")
    scale = turned.flatten(1).abs().amax(-1) / (INT4 * (clip_ratio or 1.0))
    wide = scale[:, None, None]
    values = torch.where(wide > 0, turned / wide, turned)
    return pack_int4(values.double().round().clamp(-8, 7)), scale.float()


@reference("npu_rotate_quant", source=DOCS.format("npu_rotate_quant"))
def npu_rotate_quant(given: ReferenceArguments) -> tuple[Tensor, Tensor]:
    """x [..., N] times a rotation [K, K] or [N/K, K, K], K columns at a time, then quantised: per
    token (int8, int4), or with block scales."""
    if given.transpose_y or (given.alpha is not None and 0.0 < float(given.alpha) < 1.0):
        raise Unsimulated("npu_rotate_quant", "transpose_y or alpha")
    size = given.rotation.shape[-1]
    parts = working(given.x).unflatten(-1, (-1, 1, size))  # type: ignore[no-untyped-call]
    turned = (parts @ working(given.rotation)).flatten(-3)
    if given.dst_dtype in ELEMENTS:
        return mx_quantised(
            turned,
            int(given.dst_dtype or 0),
            "npu_rotate_quant",
            mode=given.round_mode or "rint",
            algorithm=given.scale_alg or 0,
            most=given.dst_type_max or 0.0,
        )
    dtype = torch_dtype(given.dst_dtype, torch.int8, "npu_rotate_quant")
    return dynamic(turned, dtype, "npu_rotate_quant")
