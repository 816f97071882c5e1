"""Block formats (MX): float8 and float4 elements with one power of two for every block of 32.

A scale is a byte: the exponent of E8M0, biased by 127. Scales come in pairs (two blocks of a
row, or of the axis that is quantised), an odd number of blocks is filled up with 0. float4 comes
packed, two to a byte, the first in the low nibble.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from joymigrate.run.rehearse.refs.declaration import ReferenceArguments, reference
from joymigrate.run.rehearse.refs.dtypes import Unsimulated, torch_dtype
from joymigrate.run.rehearse.refs.gradients import working
from joymigrate.run.rehearse.refs.norms import rms_of

KERNEL = "CANN ops-nn 9.1.0 docs/aclnn{}.md"
Maybe = Tensor | None
BIAS = 127  # of E8M0
BLOCK = 32


@dataclass(frozen=True, slots=True)
class Element:
    """One element format. `emax`: exponent of its largest number; `torch`: its tensor's dtype."""

    name: str
    emax: int
    largest: float
    mantissa: int
    lowest: int  # exponent of its smallest normal number
    torch: torch.dtype = torch.uint8

    @property
    def packed(self) -> bool:
        return self.torch is torch.uint8


E5M2 = Element("float8_e5m2", 15, 57344.0, 2, -14, torch.float8_e5m2)
E4M3 = Element("float8_e4m3fn", 8, 448.0, 3, -6, torch.float8_e4m3fn)
E2M1 = Element("float4_e2m1fn_x2", 2, 6.0, 1, 0)
E1M2 = Element("float4_e1m2fn_x2", 0, 1.75, 2, 0)
ELEMENTS = {23: E5M2, 24: E4M3, 291: E5M2, 292: E4M3, 296: E2M1, 297: E1M2}
# The numbers that a nibble's three low bits stand for.
STEPS = {
    E2M1: torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]),
    E1M2: torch.arange(8) * 0.25,
}


def element_of(code: int, operator: str) -> Element:
    """The element format of a schema's dtype number."""
    if code not in ELEMENTS:
        raise Unsimulated(operator, f"dst_type {code}")
    return ELEMENTS[code]


def round_to_grid(values: Tensor, element: Element, mode: str, operator: str) -> Tensor:
    """Float values on the element's grid, saturating."""
    exponent = torch.frexp(values.abs()).exponent.sub(1).clamp(min=element.lowest)
    grid = torch.ldexp(torch.ones_like(values), exponent - element.mantissa)
    steps = values / grid
    if mode == "rint":
        steps = steps.round()
    elif mode == "round":
        steps = torch.sign(steps) * (steps.abs() + 0.5).floor()
    elif mode == "floor":
        steps = steps.floor()
    else:
        raise Unsimulated(operator, f"round_mode {mode}")
    return (steps * grid).clamp(-element.largest, element.largest)


def store_bytes(values: Tensor, element: Element) -> Tensor:
    """Values on the element's grid as its bytes."""
    if not element.packed:
        return values.to(element.torch)
    bits = torch.searchsorted(STEPS[element], values.abs().float().contiguous())
    nibbles = bits | (torch.signbit(values).long() << 3)
    packed: Tensor = nibbles[..., ::2] | (nibbles[..., 1::2] << 4)
    return packed.to(torch.uint8)


def load_bytes(stored_values: Tensor, element: Element) -> Tensor:
    """The real numbers behind the bytes of `stored`, float32."""
    if not element.packed:
        return stored_values.float()
    both = torch.stack((stored_values & 0xF, stored_values >> 4), -1).flatten(-2).long()
    sign = 1.0 - 2.0 * (both >> 3).float()
    return STEPS[element][both & 7] * sign


def exponents(top: Tensor, element: Element, algorithm: int, most: float, operator: str) -> Tensor:
    """The shared exponent of blocks whose largest absolute value is `top`; -127 for zero."""
    if algorithm == 0:
        found = torch.frexp(top).exponent - 1 - element.emax
    elif algorithm == 1 and not element.packed:
        found = _rounded_up(top / element.largest)
    elif algorithm == 2 and element is E2M1 and most not in (0.0, 6.0, 7.0):
        found = _rounded_up(top / most)
    else:
        raise Unsimulated(operator, f"scale_alg {algorithm} of {element.name}, largest {most}")
    return torch.where(top > 0, found.clamp(-BIAS, BIAS), -BIAS)


def _rounded_up(scale: Tensor) -> Tensor:
    """Exponents of the next power of two that is not smaller."""
    mantissa, exponent = torch.frexp(scale)
    return torch.where(mantissa == 0.5, exponent - 1, exponent)


def mx_quantised(
    values: Tensor,
    code: int,
    operator: str,
    *,
    axis: int = -1,
    mode: str = "rint",
    algorithm: int = 0,
    most: float = 0.0,
    block: int = BLOCK,
) -> tuple[Tensor, Tensor]:
    """Elements [...] (float4: last axis halved), and scales as bytes: `axis` becomes pairs of
    blocks, and the two of a pair are a new last axis."""
    element = element_of(code, operator)
    if block % BLOCK or block <= 0:
        raise RuntimeError(f"{operator}: block_size {block} must be a multiple of {BLOCK}")
    axis %= values.dim()
    wide = working(values).movedim(axis, -1)
    length = wide.shape[-1]
    blocks = F.pad(wide, (0, -length % block)).unflatten(-1, (-1, block))  # type: ignore[no-untyped-call]
    shared = exponents(blocks.abs().amax(-1), element, algorithm, most, operator)
    scaled = torch.ldexp(blocks, -shared.unsqueeze(-1)).flatten(-2)[..., :length]
    elements = store_bytes(
        round_to_grid(scaled.movedim(-1, axis), element, mode, operator), element
    )
    scales = F.pad((shared + BIAS).to(torch.uint8), (0, shared.shape[-1] % 2))
    pairs = scales.unflatten(-1, (-1, 2))  # type: ignore[no-untyped-call]
    return elements, pairs.movedim(-2, axis).contiguous()


def mx_dequantised(
    elements: Tensor, scales: Tensor, element: Element, axis: int, block: int = BLOCK
) -> Tensor:
    """The real numbers, float32."""
    values = load_bytes(elements, element)
    axis %= values.dim()
    flat = scales.movedim(axis, -2).flatten(-2)  # the pairs in a row, along the last axis
    flat = flat.view(torch.uint8) if flat.dtype.itemsize == 1 else flat
    spread = (flat.int() - BIAS).repeat_interleave(block, -1)[..., : values.shape[axis]]
    return torch.ldexp(values, spread.movedim(-1, axis))


@reference(
    "npu_dynamic_mx_quant", source=KERNEL.format("DynamicMxQuantV2"), without="max_low_bound"
)
def npu_dynamic_mx_quant(
    x: Tensor,
    axis: int,
    round_mode: str,
    dst_type: int,
    block_size: int,
    scale_alg: int | None,
    dst_type_max: float,
) -> tuple[Tensor, Tensor]:
    """Elements and scales of x along one axis."""
    return mx_quantised(
        x,
        dst_type,
        "npu_dynamic_mx_quant",
        axis=axis,
        mode=round_mode,
        algorithm=scale_alg or 0,
        most=dst_type_max,
        block=block_size,
    )


@reference(
    "npu_dynamic_mx_quant_with_dual_axis", source=KERNEL.format("DynamicMxQuantWithDualAxis")
)
def npu_dynamic_mx_quant_with_dual_axis(
    x: Tensor, round_mode: str, dst_type: int, scale_alg: int, dst_type_max: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Elements and scales along the last axis, then along the last but one."""
    found: list[Tensor] = []
    for axis in (-1, -2):
        found += mx_quantised(
            x,
            dst_type,
            "npu_dynamic_mx_quant_with_dual_axis",
            axis=axis,
            mode=round_mode,
            algorithm=scale_alg,
            most=dst_type_max or 0.0,
        )
    return found[0], found[1], found[2], found[3]


@reference("npu_anti_mx_quant", source=KERNEL.format("AntiMxQuant"))
def npu_anti_mx_quant(
    x: Tensor, mxscale: Tensor, axis: int | None, dst_type: int | None, src_type: int | None
) -> Tensor:
    """The numbers behind elements and scales, in bfloat16 unless told otherwise."""
    operator = "npu_anti_mx_quant"
    native = {one.torch: one for one in (E5M2, E4M3)}
    element = native.get(x.dtype) or element_of(292 if src_type is None else src_type, operator)
    found = mx_dequantised(x, mxscale, element, -1 if axis is None else axis)
    return found.to(torch_dtype(dst_type, torch.bfloat16, operator))


@reference("npu_rms_norm_dynamic_mx_quant", source=KERNEL.format("RmsNormDynamicMxQuant"))
def npu_rms_norm_dynamic_mx_quant(
    x: Tensor,
    gamma: Tensor,
    beta: Maybe,
    epsilon: float,
    scale_alg: int,
    round_mode: str,
    dst_type: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Elements and scales of the norm (plus beta), and the reciprocal rms."""
    y, rstd = rms_of(x, gamma, epsilon)
    elements, scales = mx_quantised(
        y if beta is None else y + working(beta),
        dst_type,
        "npu_rms_norm_dynamic_mx_quant",
        mode=round_mode,
        algorithm=scale_alg,
    )
    return elements, scales, rstd.float()


@reference("npu_add_rms_norm_dynamic_mx_quant", source=KERNEL.format("AddRmsNormDynamicMxQuant"))
def npu_add_rms_norm_dynamic_mx_quant(
    given: ReferenceArguments,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Elements of the sum's norm, the sum, the scales, and the reciprocal rms."""
    total = working(given.x1) + working(given.x2)
    elements, scales, rstd = npu_rms_norm_dynamic_mx_quant(
        total,
        given.gamma,
        beta=given.beta,
        epsilon=given.epsilon,
        scale_alg=given.scale_alg,
        round_mode=given.round_mode,
        dst_type=given.dst_type,
    )
    return elements, total.to(given.x1.dtype), scales, rstd


def _clip_unit(x: Tensor, dim: int, limit: float, alpha: float, bias: float) -> Tensor:
    """The clipped unit of `swiglu_mode` 1: even places are the gate, odd ones the linear part."""
    lanes = working(x).movedim(dim, -1)
    gate, linear = lanes[..., ::2].clamp(max=limit), lanes[..., 1::2].clamp(-limit, limit)
    return (gate * torch.sigmoid(alpha * gate) * (linear + bias)).movedim(-1, dim)


@reference("npu_swiglu_mx_quant", source=KERNEL.format("SwigluMxQuant"), without="group_index")
def npu_swiglu_mx_quant(given: ReferenceArguments) -> tuple[Tensor, Tensor]:
    """Elements and scales of the gated unit."""
    if given.swiglu_mode == 1:
        y = _clip_unit(
            given.x, given.activate_dim, given.clamp_limit, given.glu_alpha, given.glu_bias
        )
    else:
        first, second = working(given.x).chunk(2, given.activate_dim)
        y = F.silu(first) * second if given.activate_left else first * F.silu(second)
    return mx_quantised(
        y,
        given.dst_type,
        "npu_swiglu_mx_quant",
        axis=given.axis,
        mode=given.round_mode,
        algorithm=given.scale_alg,
        most=float(given.max_dtype_value),
    )
