"""Reads a checkpoint of any known kind on the CPU: torch files, safetensors, folders of both
(transformers, accelerate, torchtune), DeepSpeed, PyTorch's distributed checkpoints (FSDP,
Lightning, Megatron's torch_dist), Megatron's older ones, and our own plain folder."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from joymigrate.errors import JoyError
from joymigrate.run.checkpoint import folders, plain, universal, zero
from joymigrate.run.checkpoint.pickle_files import torch_file

STATE = "state.json"
TENSORS = "tensors.safetensors"
SCHEMA = "joymigrate.checkpoint/1"


def kind_of(path: Path) -> str:
    """The kind of a checkpoint, as `torch`, `zero` or `distributed`; JoyError where it is none."""
    if not path.exists():
        raise JoyError("there is no such checkpoint", where=str(path))
    if path.is_file():
        return "safetensors" if path.suffix == ".safetensors" else "torch"
    tests: tuple[tuple[str, Any], ...] = (
        ("plain", (path / STATE).is_file()),
        ("distributed", (path / ".metadata").is_file()),
        ("megatron", folders.is_megatron(path)),
        ("universal", universal.is_universal(path)),
        ("zero", zero.is_zero(path)),
        ("deepspeed", list(zero.step_folder(path).glob("mp_rank_*_model_states.pt"))),
        ("distributed folders", folders.distributed_folders(path)),
        ("folder", folders.weight_files(path) or folders.part_files(path)),
    )
    for kind, fits in tests:
        if fits:
            return kind
    raise JoyError(
        "no checkpoint of a known kind", where=str(path),
        help="known: torch files, safetensors, transformers, accelerate, DeepSpeed, "
        "torch.distributed.checkpoint, Megatron; name the file where a folder holds several",
    )  # fmt: skip


def read(path: Path, *, trust: bool = False) -> tuple[Any, str, list[str]]:
    """The state, its kind, and what was lost on the way. `trust`: files may run code when read."""
    kind = kind_of(path)
    if kind == "torch":
        state = torch_file(path, trust)
        if isinstance(state, torch.nn.Module):
            name = f"{type(state).__module__}.{type(state).__qualname__}"
            return state.state_dict(), kind, [f"the module's own code ({name}): its weights alone"]
        return state, kind, []
    if kind == "safetensors":
        return folders.safetensors_file(path), kind, []
    if kind == "zero":
        state, lost = zero.read(path, trust), ["16-bit copies of the weights: made from float32"]
        return state, kind, [*lost, *beside_step(path)]
    if kind == "universal":
        return universal.read(path, trust), kind, []
    if kind == "plain":
        return plain_folder(path), kind, []
    if kind == "megatron":
        step = folders.megatron_step(path)
        if (step / ".metadata").is_file():
            return read_distributed(step, trust)
        return add_kind(folders.megatron_legacy(step, trust), "Megatron's ranks")
    if kind == "deepspeed":
        state, lost = folders.deepspeed_plain(zero.step_folder(path), trust)
        return state, kind, [*lost, *beside_step(path)]
    if kind == "distributed folders":
        return add_kind(several_distributed(path, trust), "distributed")
    if kind == "folder":
        return add_kind(folders.of_files(path, trust), kind)
    return read_distributed(path, trust)


def add_kind(found: tuple[Any, list[str]], kind: str) -> tuple[Any, str, list[str]]:
    """The state, its kind, and what was lost."""
    return found[0], kind, found[1]


def beside_step(path: Path) -> list[str]:
    """What lies beside a DeepSpeed step that was read (the Trainer's random states, …)."""
    step = zero.step_folder(path)
    if step == path:
        return []
    return folders.others(path, [step, path / "latest", *path.glob("global_step*")])


def plain_folder(path: Path) -> Any:
    """Our own folder."""
    from safetensors.torch import load_file

    raw = json.loads((path / STATE).read_text(encoding="utf-8"))
    if raw.get("schema") != SCHEMA:
        raise JoyError("not a checkpoint of ours", where=str(path / STATE))
    return plain.put_together(raw["state"], load_file(path / TENSORS))


def several_distributed(path: Path, trust: bool) -> tuple[Any, list[str]]:
    """Folders of torch.distributed.checkpoint in one folder, and what a run keeps beside them."""
    found, files, lost = folders.parts(path, trust)
    inside = folders.distributed_folders(path)
    for folder in inside:
        state, _, more = read_distributed(folder, trust)
        lost += more
        found |= {folder.name: state} if found.keys() & state.keys() else state
    return found, [*lost, *folders.others(path, [*files, *inside])]


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
    common, meta = path / "common.pt", path / "meta.pt"
    if meta.is_file():  # of Lightning: loops, callbacks, hyperparameters
        state = {**torch_file(meta, trust), **state}
    if not common.is_file():
        read_too = [meta, *path.glob("*.distcp")]
        return state, "distributed", folders.others(path, read_too)
    state = {**state, "common": torch_file(common, trust)}
    lost = ["Megatron's sharded keys stay as they are stored: its own loader knows their order"]
    return state, "megatron", lost
