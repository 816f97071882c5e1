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


def one(value: Any, case: dict[str, Any], masters: dict[str, Tensor]) -> Any:
    """One argument."""
    if isinstance(value, dict) and "tensor" in value:
        tensor = masters[value["tensor"]]
        if tensor.dtype == torch.float64:
            tensor = tensor.to(dtype_of(case["dtype"]))
        return lay_out(tensor, case["layout"])
    if isinstance(value, dict) and "dtype" in value:
        return dtype_of(value["dtype"])
    if isinstance(value, list):
        return [one(item, case, masters) for item in value]
    return value
