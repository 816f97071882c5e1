"""Writes a checkpoint: a torch file, a safetensors file, our plain folder, or a DCP folder."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.files import replace_file, write_output
from joymigrate.run.checkpoint import plain, universal
from joymigrate.run.checkpoint.pickle_files import without_unknown
from joymigrate.run.checkpoint.read import SCHEMA, STATE, TENSORS

TORCH = (".pt", ".pth", ".bin", ".ckpt")
FORMATS = ("auto", "torch", "safetensors", "plain", "dcp", "zero", "megatron")


def format_of(path: Path, wanted: str) -> str:
    """The format that a name asks for unless one is named."""
    if wanted != "auto":
        return wanted
    if path.suffix in TORCH:
        return "torch"
    return "safetensors" if path.suffix == ".safetensors" else "plain"


def write(state: Any, path: Path, form: str) -> list[str]:
    """Write a state; what the format can't hold. JoyError where it can't hold the state at all."""
    lost: list[str] = []
    if form not in ("plain", "safetensors"):  # which tell themselves what they cannot hold
        state = without_unknown(state, "", lost)
    if form == "torch":
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_output(path, buffer.getvalue())
        return lost
    if form == "safetensors":
        return write_safetensors(state, path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise JoyError("the output is there already", where=str(path), help="name another folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".part-") as folder:
        part = Path(folder) / "checkpoint"
        part.mkdir()
        lost += FOLDERS[form](state, part)
        if path.is_dir():
            path.rmdir()
        shutil.move(part, path)
    return lost


def write_plain(state: Any, folder: Path) -> list[str]:
    """Tensors as safetensors, the rest as JSON."""
    from safetensors.torch import save_file

    taken = plain.take_apart(state)
    save_file(taken.tensors, folder / TENSORS)
    document = {"schema": SCHEMA, "state": taken.skeleton, "lost": taken.lost}
    replace_file(folder / STATE, (json.dumps(document) + "\n").encode())
    return taken.lost


def write_safetensors(state: Any, path: Path) -> list[str]:
    """The weights alone, as other programs read them."""
    from safetensors.torch import save

    weights, lost = weights_of(state)
    if not weights:
        raise JoyError("holds no mapping of names to tensors", help="-o FOLDER keeps all of it")
    write_output(path, save({k: v.detach().cpu().contiguous().clone() for k, v in weights.items()}))
    return lost


def weights_of(state: Any) -> tuple[dict[str, Tensor], list[str]]:
    """The model's tensors of a state, and the names of what else it holds."""
    for key in ("model", "state_dict", "module", "model_state_dict"):
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            inner, _ = weights_of(state[key])
            rest = [f"{name}: not a weight" for name in state if name != key]
            return inner, rest
    if not isinstance(state, Mapping):
        return {}, []
    weights = {str(k): v for k, v in state.items() if isinstance(v, Tensor)}
    return weights, [f"{k}: not a tensor" for k, v in state.items() if not isinstance(v, Tensor)]


def write_dcp(state: Any, folder: Path) -> list[str]:
    """A folder of torch.distributed.checkpoint, which FSDP reads on any number of ranks."""
    from torch.distributed.checkpoint.format_utils import torch_save_to_dcp

    with tempfile.TemporaryDirectory(prefix="joymigrate-") as temporary:
        whole = Path(temporary) / "whole.pt"
        torch.save(state, whole)
        torch_save_to_dcp(str(whole), str(folder))
    return []


def write_megatron(state: Any, folder: Path) -> list[str]:
    """Megatron-core's torch_dist: a DCP folder of tensors, `common.pt` for the rest, what it is."""
    if not isinstance(state, Mapping):
        raise JoyError("Megatron's folder holds tensors by name")
    tensors = {str(key): value for key, value in state.items() if key != "common"}
    common = state.get("common", {})
    lost = write_dcp(tensors, folder)
    torch.save(common, folder / "common.pt")
    facts = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
    facts |= {"common_backend": "torch", "common_backend_version": 1}
    (folder / "metadata.json").write_text(json.dumps(facts), encoding="utf-8")
    return lost


FOLDERS = {
    "plain": write_plain,
    "dcp": write_dcp,
    "zero": universal.write,
    "megatron": write_megatron,
}
