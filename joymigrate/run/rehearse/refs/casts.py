"""Casts and copies of dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated, torch_dtype

SOURCE = "op-plugin （beta）torch_npu-npu_dtype_cast.md, derivatives.yaml"


@reference("_npu_dtype_cast", source=SOURCE)
def _npu_dtype_cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype)


@reference("_npu_dtype_cast_backward", source=SOURCE)
def _npu_dtype_cast_backward(grad: Tensor, dtype: torch.dtype) -> Tensor:
    return grad.to(dtype)


@reference("npu_dtype_cast", source=SOURCE)
def npu_dtype_cast(x: Tensor, dtype: int, input_dtype: int | None) -> Tensor:
    """Cast; `input_dtype` says how x's bits are meant, here only as what they are."""
    if torch_dtype(input_dtype, x.dtype, "npu_dtype_cast") != x.dtype:
        raise Unsimulated("npu_dtype_cast", f"input_dtype {input_dtype}")
    return x.to(torch_dtype(dtype, x.dtype, "npu_dtype_cast"))


@reference("npu_dtype_cast_backward", source=SOURCE)
def npu_dtype_cast_backward(grad: Tensor, dtype: torch.dtype) -> Tensor:
    return grad.to(dtype)


@reference("npu_dtype_cast_", source="op-plugin CastKernelNpuOpApi.cpp")
def npu_dtype_cast_(x: Tensor, src: Tensor) -> Tensor:
    return x.copy_(src)


@reference("npu_view_copy", source="op-plugin ViewCopyKernelNpu.cpp")
def npu_view_copy(x: Tensor, other: Tensor) -> Tensor:
    return x.copy_(other)


@reference("one_", source="op-plugin OneKernelNpu.cpp")
def one_(x: Tensor) -> Tensor:
    return x.fill_(1)
