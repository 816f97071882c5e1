"""Reads safetensors files and lays tensors out as a case says. Only torch is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

NAMES = {"F64": torch.float64, "F32": torch.float32, "I64": torch.int64, "BOOL": torch.bool}


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file of the kit, which holds the types in `NAMES` only."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    found = {}
    for name, facts in header.items():
        begin, end = facts["data_offsets"]
        raw = bytearray(data[8 + size + begin : 8 + size + end])
        plain = torch.frombuffer(raw, dtype=NAMES[facts["dtype"]]) if raw else torch.empty(0)
        found[name] = plain.reshape(facts["shape"]).clone()
    return found


def dtype_of(name: str) -> torch.dtype:
    """torch's dtype of a name."""
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def lay_out(tensor: Tensor, layout: str) -> Tensor:
    """The same values in another memory layout."""
    if layout == "transposed" and tensor.dim() >= 2:
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "strided" and tensor.dim() >= 1 and tensor.shape[-1] > 0:
        return torch.stack([tensor, tensor], dim=-1)[..., 0]
    return tensor.contiguous()


def arguments(case: dict[str, Any], masters: dict[str, Tensor]) -> list[Any]:
    """The arguments of a case on the CPU: `{"tensor": name}` becomes a tensor of its dtype."""
    return [one(value, case, masters) for value in case["args"]]


def named_arguments(case: dict[str, Any], masters: dict[str, Tensor]) -> dict[str, Any]:
    """The named arguments of a case on the CPU."""
    return {k: one(value, case, masters) for k, value in (case.get("kwargs") or {}).items()}


def one(value: Any, case: dict[str, Any], masters: dict[str, Tensor]) -> Any:
    """One argument."""
    if isinstance(value, list):
        return [one(item, case, masters) for item in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        tensor = masters[value["tensor"]]
        if "dtype" in value:
            return restride(tensor.to(dtype_of(value["dtype"])), value.get("strides"))
        if tensor.dtype == torch.float64:
            tensor = tensor.to(dtype_of(case["dtype"]))
        return lay_out(tensor, case["layout"])
    if "device" in value:
        return torch.device("cpu")
    return getattr(torch, str(next(iter(value.values()))))  # a dtype, layout or memory format


def restride(tensor: Tensor, strides: list[int] | None, device: str = "cpu") -> Tensor:
    """The same numbers on a device with these strides; an axis of stride 0 repeats its first."""
    tensor = tensor.contiguous() if strides is None else tensor
    steps = tensor.stride() if strides is None else strides
    whole = tensor
    for axis, step in enumerate(steps):
        if step == 0 and tensor.shape[axis] > 1:
            whole = whole.narrow(axis, 0, 1)
    made = torch.empty_strided(whole.shape, tuple(steps), dtype=tensor.dtype, device=device)
    made.copy_(whole)
    return made.expand(tensor.shape)
