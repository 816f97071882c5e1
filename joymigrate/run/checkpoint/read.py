"""Reads a checkpoint of any known kind on the CPU: torch files, safetensors, DeepSpeed ZeRO,
PyTorch's distributed checkpoints (FSDP, Megatron's torch_dist), and our own plain folder."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from joymigrate.errors import JoyError
from joymigrate.run.checkpoint import plain, universal, zero
from joymigrate.run.checkpoint.pickled import torch_file

STATE = "state.json"
TENSORS = "tensors.safetensors"
SCHEMA = "joymigrate.checkpoint/1"


def kind_of(path: Path) -> str:
    """plain, zero, universal, distributed, safetensors or torch; JoyError where it is none."""
    if not path.exists():
        raise JoyError("there is no such checkpoint", where=str(path))
    if path.is_file():
        return "safetensors" if path.suffix == ".safetensors" else "torch"
    if (path / STATE).is_file():
        return "plain"
    if (path / ".metadata").is_file():
        return "distributed"
    if universal.is_universal(path):
        return "universal"
    if zero.is_zero(path):
        return "zero"
    if list(path.glob("*.safetensors")):
        return "safetensors"
    raise JoyError(
        "no checkpoint of a known kind", where=str(path),
        help="known: torch files, safetensors, DeepSpeed ZeRO, torch.distributed.checkpoint",
    )  # fmt: skip


def read(path: Path, *, trust: bool = False) -> tuple[Any, str, list[str]]:
    """The state, its kind, and what was lost on the way. `trust`: files may run code when read."""
    kind = kind_of(path)
    if kind == "torch":
        return torch_file(path, trust), kind, []
    if kind == "safetensors":
        return safetensors(path), kind, []
    if kind == "zero":
        return zero.read(path, trust), kind, ["float16 copies of the weights: made from float32"]
    if kind == "universal":
        return universal.read(path, trust), kind, []
    if kind == "plain":
        return plain_folder(path), kind, []
    return read_distributed(path, trust)


def safetensors(path: Path) -> dict[str, Any]:
    """All tensors of a file or of the files of a folder."""
    from safetensors.torch import load_file

    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    found: dict[str, Any] = {}
    for file in files:
        found |= load_file(file)
    return found


def plain_folder(path: Path) -> Any:
    """Our own folder."""
    from safetensors.torch import load_file

    raw = json.loads((path / STATE).read_text(encoding="utf-8"))
    if raw.get("schema") != SCHEMA:
        raise JoyError("not a checkpoint of ours", where=str(path / STATE))
    return plain.put_together(raw["state"], load_file(path / TENSORS))


def read_distributed(path: Path, trust: bool) -> tuple[Any, str, list[str]]:
    """A folder of torch.distributed.checkpoint, joined; with Megatron's common.pt where it is."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    if not trust:
        raise JoyError(
            "the folder's .metadata runs code when it is read", where=str(path),
            help="--trust if you trust where the checkpoint comes from",
        )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="joymigrate-") as folder:
        whole = Path(folder) / "whole.pt"
        try:
            dcp_to_torch_save(str(path), str(whole))
        except Exception as error:
            raise JoyError(
                f"cannot join the folder: {str(error)[:200]}", where=str(path),
                help="Megatron's zarr format is not read: save with --dist-ckpt-format torch_dist",
            ) from None  # fmt: skip
        state = torch.load(whole, map_location="cpu", weights_only=False)
    common = path / "common.pt"
    if not common.is_file():
        return state, "distributed", []
    state = {**state, "common": torch_file(common, trust)}
    lost = ["Megatron's sharded keys stay as they are stored: its own loader knows their order"]
    return state, "megatron", lost
