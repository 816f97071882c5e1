"""msmodelslim: W8A8 with dynamic and with static inputs, read and written.

`quant_model_description.json` says of every tensor how it is stored, as version 26.1.0 writes it.
W8A8_DYNAMIC: `weight` int8 [N, K], `weight_scale` and `weight_offset` float32 [N, 1]. W8A8:
`weight`, `input_scale` [1], `input_offset` [1], `deq_scale` [N] = input_scale · weight_scale
(float32, or its bits in an int64 where the model is not bfloat16), and `quant_bias` int32 [N],
which holds the bias and takes off what the offset adds:
y = (Σ q·weight + quant_bias) · deq_scale with q = round(x / input_scale) + input_offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run.train.formats.stored_linears import Int8Linear, Linear
from joymigrate.run.train.formats.tensors import TensorSource

NAME = "msmodelslim"
DESCRIPTION = "quant_model_description.json"
DYNAMIC, STATIC, FLOAT = "W8A8_DYNAMIC", "W8A8", "FLOAT"
KINDS = {DYNAMIC: "w8a8", STATIC: "w8a8 static"}
NORMS = ("norm.bias", "norm.module.bias", "ln_1.bias", "ln_2.bias")


class MsModelSlimReader:
    """The quantised linears of an msmodelslim folder."""

    format = NAME

    def __init__(self, source: TensorSource, description: Mapping[str, Any], where: str) -> None:
        self.source = source
        self.where = where
        self.kinds = {
            name: str(kind) for name, kind in description.items() if name.endswith(".weight")
        }
        foreign = sorted({*self.kinds.values()} - {FLOAT, *KINDS})
        if foreign:
            raise JoyError(
                f"these msmodelslim weights are not read: {', '.join(foreign)}",
                where=where,
                help=f"{DYNAMIC} and {STATIC} are",
            )
        cache = description.get("kv_cache_type") or description.get("kv_quant_type")
        if cache and str(cache) != FLOAT:
            raise JoyError(f"a quantised cache ({cache}) is not read", where=where)
        self.refuse_shifts()
        found = dict.fromkeys(KINDS[kind] for kind in self.kinds.values() if kind in KINDS)
        self.scheme = ", ".join(found)

    def refuse_shifts(self) -> None:
        """Norms that were given a bias: models of these families have none, so that it would be
        left out without a word."""
        for name in self.source:
            shift = name.endswith(NORMS) and f"{name.removesuffix('.bias')}.weight" in self.source
            if shift and bool(self.source.raw(name).any()):
                raise JoyError(
                    f"'{name}' shifts what the norm gives, which is not read",
                    where=self.where,
                    help="quantise with a symmetric smoothing (shift: False)",
                )

    def linear(self, name: str) -> Linear | None:
        """The linear of this name, None where its weight is plain."""
        kind = self.kinds.get(f"{name}.weight")
        if kind is None or kind == FLOAT:
            return None
        values = self.source.raw(f"{name}.weight")
        if values.dtype is not torch.int8 or values.dim() != 2:
            raise JoyError(
                f"{name}.weight is {values.dtype} {list(values.shape)}, not int8", where=self.where
            )
        return self.dynamic(name, values) if kind == DYNAMIC else self.static(name, values)

    def dynamic(self, name: str, values: Tensor) -> Int8Linear:
        """A linear whose inputs have a scale per row."""
        offset = f"{name}.weight_offset"
        if offset in self.source and bool(self.source.raw(offset).any()):
            raise JoyError(f"{name} has weights with an offset, which is not read")
        scale = self.source.raw(f"{name}.weight_scale").float().reshape(-1)
        bias = f"{name}.bias"
        return Int8Linear(
            values, scale, self.source.raw(bias).float() if bias in self.source else None
        )

    def static(self, name: str, values: Tensor) -> Int8Linear:
        """A linear whose inputs share a scale and an offset."""
        x_scale = self.source.raw(f"{name}.input_scale").float().reshape(-1)
        x_offset = self.source.raw(f"{name}.input_offset").float().reshape(-1)
        if x_scale.numel() != 1:
            raise JoyError(f"{name} has {x_scale.numel()} input scales, not one", where=self.where)
        deq = unpack_scales(self.source.raw(f"{name}.deq_scale")).reshape(-1)
        added = self.source.raw(f"{name}.quant_bias").double().reshape(-1)
        bias = (added + float(x_offset) * values.double().sum(1)) * deq.double()
        shifted = x_offset if bool(x_offset.any()) else None
        return Int8Linear(values, deq / x_scale, bias.float(), x_scale, shifted)


def unpack_scales(scale: Tensor) -> Tensor:
    """float32 scales, from the low half of int64 where they are packed."""
    if scale.dtype is not torch.int64:
        return scale.float()
    return scale.contiguous().view(torch.int32)[..., ::2].contiguous().view(torch.float32)


def pack_scales(scale: Tensor) -> Tensor:
    """float32 scales [N] as the low half of int64 [N]."""
    low = scale.float().contiguous().view(torch.int32)
    return torch.stack((low, torch.zeros_like(low)), -1).view(torch.int64).reshape(scale.shape)


def tensors(name: str, linear: Linear, dtype: torch.dtype) -> Iterator[tuple[str, Tensor, str]]:
    """Name, tensor and kind of everything that a linear is stored as."""
    if not isinstance(linear, Int8Linear):
        raise JoyError(
            f"{name}: msmodelslim has no form for four-bit weights with plain inputs",
            help="--format compressed-tensors",
        )
    if linear.x_scale is None:
        scale = linear.scale.reshape(-1, 1).float()
        yield f"{name}.weight", linear.values, DYNAMIC
        yield f"{name}.weight_scale", scale, DYNAMIC
        yield f"{name}.weight_offset", torch.zeros_like(scale), DYNAMIC
    else:
        yield from static_tensors(name, linear, dtype)
    if linear.bias is not None:
        yield f"{name}.bias", linear.bias.to(dtype), FLOAT


def static_tensors(
    name: str, linear: Int8Linear, dtype: torch.dtype
) -> Iterator[tuple[str, Tensor, str]]:
    """What a linear with static inputs has beside its bias."""
    assert linear.x_scale is not None
    deq = linear.scale.double() * linear.x_scale.double()
    offset = torch.zeros(1) if linear.x_offset is None else linear.x_offset.float().reshape(1)
    bias = torch.zeros_like(deq) if linear.bias is None else linear.bias.double()
    added = (bias / deq).round() - float(offset) * linear.values.double().sum(1)
    narrow = deq.float()
    yield f"{name}.weight", linear.values, STATIC
    yield f"{name}.quant_bias", added.to(torch.int32), STATIC
    yield f"{name}.input_scale", linear.x_scale.reshape(1).float(), STATIC
    yield f"{name}.input_offset", offset, STATIC
    yield f"{name}.deq_scale", narrow if dtype is torch.bfloat16 else pack_scales(narrow), STATIC


def description(kinds: Mapping[str, str], *, static: bool) -> dict[str, Any]:
    """The content of quant_model_description.json."""
    return {
        **kinds,
        "version": "1.0.0",
        "model_quant_type": STATIC if static else DYNAMIC,
        "metadata": {},
        "group_size": 0,
        "optional": {},
    }
