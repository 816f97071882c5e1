"""Dtype numbers of the vendor's schemas → torch dtypes.

An `int` argument named dtype holds either a torch ScalarType number (torch_npu turns a
`torch.dtype` into it) or one of torch_npu's own numbers, which start at 256 (torch_npu
`csrc/core/npu/NPUMacros`/`npu/utils`: `torch_npu.hifloat8`, `float8_e5m2`, ... `float4_e2m1fn_x2`).
"""

from __future__ import annotations

import torch
from torch import Tensor

SCALAR_TYPES: dict[int, torch.dtype] = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    9: torch.complex64,
    10: torch.complex128,
    11: torch.bool,
    12: torch.qint8,
    13: torch.quint8,
    14: torch.qint32,
    15: torch.bfloat16,
    16: torch.quint4x2,
    23: torch.float8_e5m2,
    24: torch.float8_e4m3fn,
}

# torch_npu's own numbers: those torch can hold in a dtype of its own.
EXTENDED_TYPES: dict[int, torch.dtype] = {
    291: torch.float8_e5m2,
    292: torch.float8_e4m3fn,
}
UNSIMULATED_TYPES: dict[int, str] = {
    285: "int4",
    290: "hifloat8",
    293: "float8_e8m0fnu",
    296: "float4_e2m1fn_x2",
    297: "float4_e1m2fn_x2",
}
INT_LIMITS: dict[torch.dtype, tuple[int, int]] = {
    torch.int8: (-128, 127),
    torch.uint8: (0, 255),
    torch.qint8: (-128, 127),
    torch.quint8: (0, 255),
    torch.int32: (-(2**31), 2**31 - 1),
    torch.qint32: (-(2**31), 2**31 - 1),
}


class Unsimulated(NotImplementedError):
    """The operator is known, this use of it has no reference. The message says which."""

    def __init__(self, operator: str, what: str) -> None:
        super().__init__(f"rehearsal device: {operator} has no reference for {what}")


def torch_dtype(code: int | torch.dtype | None, default: torch.dtype, operator: str) -> torch.dtype:
    """The torch dtype of a schema's dtype number; `default` for None."""
    if code is None:
        return default
    if isinstance(code, torch.dtype):
        return code
    dtype = SCALAR_TYPES.get(code) or EXTENDED_TYPES.get(code)
    if dtype is None:
        raise Unsimulated(operator, f"dtype {UNSIMULATED_TYPES.get(code, code)}")
    return dtype


def saturate(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Round half to even, clamp to the range of an integer dtype, and cast (aclnn `rint`)."""
    if dtype.is_floating_point:
        limit = torch.finfo(dtype).max
        return value.clamp(-limit, limit).to(dtype)
    low, high = INT_LIMITS[dtype]
    whole = value.double().round().clamp(low, high)
    return whole.to(torch.int64).to(PLAIN.get(dtype, dtype))


PLAIN: dict[torch.dtype, torch.dtype] = {
    torch.qint8: torch.int8,
    torch.quint8: torch.uint8,
    torch.qint32: torch.int32,
}


def int4_pairs(packed: Tensor) -> Tensor:
    """int32 holding eight int4, or int8/uint8 holding two, → int8 values, lowest nibble first."""
    nibbles = 8 if packed.dtype == torch.int32 else 2
    shifts = torch.arange(nibbles) * 4
    values = (packed.to(torch.int64).unsqueeze(-1) >> shifts) & 0xF
    values = torch.where(values > 7, values - 16, values)
    return values.flatten(-2).to(torch.int8)
