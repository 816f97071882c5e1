"""Which operators run on the matrix unit. Reading it needs no torch."""

from __future__ import annotations

# Operators that run on the matrix unit, by the switch that governs their HF32.
MATMUL = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "addmv", "mv", "addbmm", "dot", "addr"}
    | {"matmul_backward", "linear_backward", "_addmm_activation"}
)
CONVOLUTION = frozenset(
    {"convolution", "convolution_overrideable", "_convolution", "conv2d", "conv3d"}
    | {"convolution_backward", "convolution_backward_overrideable"}
    | {"_slow_conv2d_forward", "_slow_conv2d_backward", "slow_conv3d", "slow_conv3d_forward"}
    | {"slow_conv_transpose2d", "slow_conv_transpose3d", "slow_conv_dilated2d"}
)


def unit_of(operator: str) -> str | None:
    """`matmul`, `convolution` or None for the base name of an operator (`aten::mm` → mm)."""
    base = operator.split("::")[-1].split(".")[0]
    if base in MATMUL:
        return "matmul"
    return "convolution" if base in CONVOLUTION else None
