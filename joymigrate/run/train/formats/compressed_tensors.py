"""compressed-tensors: `int-quantized` (W8A8) and `pack-quantized` (W4A16), read and written.

The format is that of llm-compressor and vLLM, as files of version 0.17 have it. Beside a linear's
name: `weight` int8 [N, K] with `weight_scale` [N, 1] (and `input_scale` [1] where inputs are
static), or `weight_packed` int32 [N, K / 8] with `weight_scale` [N, K / group] and `weight_shape`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run.train.formats.stored_linears import (
    NIBBLES,
    Int4Linear,
    Int8Linear,
    Linear,
    unpack,
)
from joymigrate.run.train.formats.tensors import TensorSource

METHOD = "compressed-tensors"
FORMATS = ("int-quantized", "pack-quantized", "mixed-precision")


class CompressedTensorsReader:
    """The quantised linears of a compressed-tensors folder."""

    format = METHOD

    def __init__(self, source: TensorSource, config: Mapping[str, Any], where: str) -> None:
        self.source = source
        self.where = where
        reason = why_not(config)
        if reason:
            raise JoyError(
                f"these compressed-tensors weights are not read: {reason}",
                where=where,
                help="W8A8 with int8 inputs and W4A16 are read; quantise the plain model with "
                "joymigrate quantise",
            )
        kinds = [kind_of(group) for group in config["config_groups"].values()]
        self.scheme = ", ".join(dict.fromkeys(kinds))

    def linear(self, name: str) -> Linear | None:
        """The linear of this name, None where its weight is plain."""
        if f"{name}.weight_packed" in self.source:
            return self.four(name)
        if f"{name}.weight_scale" in self.source:
            return self.eight(name)
        return None

    def eight(self, name: str) -> Int8Linear:
        """An int8 linear."""
        values = self.source.raw(f"{name}.weight")
        if values.dtype is not torch.int8 or values.dim() != 2:
            raise self.wrong(f"{name}.weight is {values.dtype} {list(values.shape)}, not int8")
        scale = self.source.raw(f"{name}.weight_scale").float().reshape(-1)
        if scale.numel() not in (1, values.shape[0]):
            raise self.wrong(f"{name}.weight_scale has {scale.numel()} numbers")
        zero = self.maybe(f"{name}.weight_zero_point")
        if zero is not None and bool(zero.any()):
            raise self.wrong(f"{name} has int8 weights with zero points, which are not read")
        return Int8Linear(
            values,
            scale.expand(values.shape[0]).contiguous(),
            self.maybe(f"{name}.bias"),
            one(self.maybe(f"{name}.input_scale")),
            one(self.maybe(f"{name}.input_zero_point")),
        )

    def four(self, name: str) -> Int4Linear:
        """A linear of four bits."""
        values = self.source.raw(f"{name}.weight_packed")
        scale = self.source.raw(f"{name}.weight_scale").float()
        shape = [int(n) for n in self.source.raw(f"{name}.weight_shape").tolist()]
        if values.dtype is not torch.int32 or values.shape[1] * NIBBLES != shape[1]:
            raise self.wrong(
                f"{name}: {list(values.shape)} {values.dtype} do not hold {shape} of four bits"
            )
        if scale.dim() != 2 or shape[1] % scale.shape[1]:
            raise self.wrong(f"{name}.weight_scale {list(scale.shape)} does not divide {shape}")
        if f"{name}.weight_g_idx" in self.source:
            raise self.wrong(f"{name} has its inputs reordered (weight_g_idx), which is not read")
        packed = self.maybe(f"{name}.weight_zero_point", torch.int32)
        zero = None if packed is None else unpack(packed.T.contiguous()).T.float()
        if zero is not None:
            zero = zero[: shape[0]].contiguous()  # packed in eights: the last may be filling
        return Int4Linear(values, scale, zero, self.maybe(f"{name}.bias"))

    def maybe(self, name: str, dtype: torch.dtype = torch.float32) -> Tensor | None:
        """A tensor, None where there is none."""
        return self.source.raw(name).to(dtype) if name in self.source else None

    def wrong(self, what: str) -> JoyError:
        """The error for a tensor that does not fit."""
        return JoyError(what, where=self.where)


def one(scale: Tensor | None) -> Tensor | None:
    """A scale of one number as [1]."""
    return None if scale is None else scale.reshape(-1)


def why_not(config: Mapping[str, Any]) -> str:
    """Why weights of this configuration are not read; empty when they are."""
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        return "quantization_config has no config_groups"
    written = config.get("format", "int-quantized")
    if written not in FORMATS:
        return f"the format '{written}'"
    tables = [config.get("sparsity_config"), *groups.values()]
    for group in groups.values():
        if isinstance(group, Mapping):
            tables += [group.get("weights"), group.get("input_activations")]
    if not all(isinstance(table, Mapping | None) for table in tables) or None in groups.values():
        return "a part of quantization_config is not an object"
    sparse = (config.get("sparsity_config") or {}).get("format", "dense")
    if sparse != "dense":
        return f"sparse weights ({sparse})"
    if config.get("transform_config"):
        return "transforms of inputs (transform_config)"
    return next(filter(None, (why_not_group(group) for group in groups.values())), "")


def why_not_group(group: Mapping[str, Any]) -> str:
    """The same for one group of layers."""
    weights, inputs = group.get("weights") or {}, group.get("input_activations")
    bits, kind = weights.get("num_bits"), weights.get("type", "int")
    if kind != "int":
        return f"weights of type {kind} ({bits} bits)"
    if weights.get("actorder") not in (None, "static", "weight"):
        return f"inputs ordered by '{weights['actorder']}'"
    if inputs is None:
        return "" if bits == 4 else f"{bits} bits with plain inputs"
    if bits != 8 or inputs.get("num_bits") != 8 or inputs.get("type", "int") != "int":
        return f"{bits} bits with inputs of {inputs.get('num_bits')} bits"
    if weights.get("strategy") not in ("channel", "tensor"):
        return f"int8 weights with a scale per {weights.get('strategy')}"
    per = inputs.get("strategy", "token")
    if inputs.get("dynamic"):
        fits = per == "token" and inputs.get("symmetric", True)
        return "" if fits else f"dynamic inputs per {per}, symmetric={inputs.get('symmetric')}"
    return "" if per == "tensor" else f"static inputs per {per}"


def kind_of(group: Mapping[str, Any]) -> str:
    """The scheme of a group."""
    inputs = group.get("input_activations")
    if inputs is None:
        return "w4a16"
    return "w8a8" if inputs.get("dynamic") else "w8a8 static"


def tensors(name: str, linear: Linear, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a linear; biases, and scales of four bits, in the model's dtype."""
    if isinstance(linear, Int8Linear):
        if linear.x_offset is not None:
            raise JoyError(f"{name}: inputs with an offset are not written as {METHOD}")
        yield f"{name}.weight", linear.values
        yield f"{name}.weight_scale", linear.scale.reshape(-1, 1).float()
        if linear.x_scale is not None:
            yield f"{name}.input_scale", linear.x_scale.reshape(1).float()
    else:
        if linear.zero is not None:
            raise JoyError(f"{name}: zero points are not written as {METHOD}")
        yield f"{name}.weight_packed", linear.values
        yield f"{name}.weight_scale", linear.scale.to(dtype)
        yield f"{name}.weight_shape", torch.tensor(linear.shape, dtype=torch.int64)
    if linear.bias is not None:
        yield f"{name}.bias", linear.bias.to(dtype)


def configuration(
    scheme: str, ignored: list[str], *, static: bool = False, group: int = 0
) -> dict[str, Any]:
    """The entry `quantization_config` of config.json; `ignored` are linears with plain weights."""
    four = scheme == "w4a16"
    inputs = {
        **numbers(8, "tensor" if static else "token", None),
        "dynamic": not static,
    }
    return {
        "quant_method": METHOD,
        "format": "pack-quantized" if four else "int-quantized",
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
        "ignore": ignored,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": numbers(4, "group", group) if four else numbers(8, "channel", None),
                "input_activations": None if four else inputs,
                "output_activations": None,
            }
        },
    }


def numbers(bits: int, strategy: str, group: int | None) -> dict[str, Any]:
    """How one kind of tensor is quantised."""
    return {
        "num_bits": bits,
        "type": "int",
        "symmetric": True,
        "strategy": strategy,
        "group_size": group,
        "dynamic": False,
        "actorder": None,
        "block_structure": None,
        "observer": "minmax",
        "observer_kwargs": {},
    }
