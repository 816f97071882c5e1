"""Folders of many files: transformers' Trainer, accelerate, torchtune, Lightning's sharded ones,
DeepSpeed without ZeRO, and Megatron's before torch_dist. What lies in a folder and is not read is
named."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.checkpoint.pickle_files import torch_file
from joymigrate.run.train.formats.tensors import read_index

# What a run keeps beside its weights, by the names of transformers, accelerate and torchtune.
PARTS = {
    "optimizer.pt": "optimizer", "optimizer.bin": "optimizer", "scheduler.pt": "scheduler",
    "scheduler.bin": "scheduler", "scaler.pt": "scaler", "rng_state*.pth": "rng_state",
    "random_states_*.pkl": "rng_state", "trainer_state.json": "trainer_state",
    "training_args.bin": "training_args", "recipe_state.pt": "recipe_state",
}  # fmt: skip
HARMLESS = (".json", ".md", ".txt", ".py", ".jinja", ".model", ".tiktoken", ".yaml", ".yml", ".log",
            ".png", ".jpg", ".jpeg", ".svg", ".pdf")  # fmt: skip
PAPERS = ("license", "notice", "copying", "readme")  # beginnings of names without an end
LATEST = "latest_checkpointed_iteration.txt"  # of Megatron
TORCH = (".pt", ".pth", ".ckpt", ".bin")
STEMS = ("model", "pytorch_model", "diffusion_pytorch_model")
ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")


def others(folder: Path, used: Iterable[Path]) -> list[str]:
    """The files and folders in `folder` that were not read and may hold a part of the run."""
    read = set(used)
    return [
        f"{path.name}: a {'folder' if path.is_dir() else 'file'} that is not read"
        for path in sorted(folder.iterdir())
        if path not in read
        and not path.name.startswith(".")
        and path.suffix not in HARMLESS
        and not (path.is_file() and path.name.lower().startswith(PAPERS))
    ]


def weight_files(folder: Path) -> list[Path]:
    """The files of a folder's weights: those of its index, one model's, else all safetensors."""
    for stem in STEMS:
        for end in ("safetensors", "bin"):
            index = folder / f"{stem}.{end}.index.json"
            if index.is_file():
                return sorted(set(read_index(folder, index).values()))
            if (folder / f"{stem}.{end}").is_file():
                return [folder / f"{stem}.{end}"]
    for name in ADAPTERS:
        if (folder / name).is_file():
            return [folder / name]
    found = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*_model_*.pt"))
    alone = [path for path in sorted(folder.glob("*.*")) if path.suffix in TORCH]
    alone = [path for path in alone if path not in part_files(folder)]
    return found or (alone if len(alone) == 1 else [])


def part_files(folder: Path) -> list[Path]:
    """The files of a folder that hold what a run keeps beside its weights."""
    return [path for pattern in PARTS for path in sorted(folder.glob(pattern))]


def weights(files: Iterable[Path], trust: bool) -> dict[str, Any]:
    """All tensors of some files; JoyError where two files hold one name."""
    found: dict[str, Any] = {}
    for file in files:
        more = safetensors_file(file) if file.suffix == ".safetensors" else torch_file(file, trust)
        if not isinstance(more, Mapping):
            raise JoyError("holds no mapping of names to tensors", where=str(file))
        twice = sorted(map(str, found.keys() & more.keys()))
        if twice:
            raise JoyError(
                f"'{twice[0]}' is in this file and in another one of the folder", where=str(file),
                help="convert one file by its name",
            )  # fmt: skip
        found |= more
    return found


def safetensors_file(path: Path) -> dict[str, Any]:
    """One file's tensors; JoyError where it is broken."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, ValueError, OSError) as error:
        raise JoyError(
            f"not a whole safetensors file: {str(error)[:200]}", where=str(path)
        ) from None


def parts(folder: Path, trust: bool) -> tuple[dict[str, Any], list[Path], list[str]]:
    """What a run keeps beside its weights, the files of it, and those that need `--trust`."""
    found: dict[str, Any] = {}
    files: list[Path] = []
    lost: list[str] = []
    by_process: set[str] = set()
    for pattern, key in PARTS.items():
        for path in sorted(folder.glob(pattern)):
            apart = path.stem[-1].isdigit()  # one file for each process
            if key in found and not (apart and key in by_process):
                continue  # a second file of one part: `others` names it
            files.append(path)
            try:
                value = json_file(path) if path.suffix == ".json" else torch_file(path, trust)
            except JoyError as error:
                help = f" ({error.help})" if error.help else ""
                lost.append(f"{path.name}: {error.what}{help}")
                continue
            if apart:
                by_process.add(key)
                found.setdefault(key, {})[path.stem] = value
            else:
                found[key] = value
    return found, files, lost


def json_file(path: Path) -> Any:
    """What a JSON file says; JoyError where it is cut short."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise JoyError("not whole JSON", where=str(path)) from None


def state_file(path: Path, trust: bool) -> dict[str, Any]:
    """A torch file that holds a mapping; JoyError for anything else."""
    state = torch_file(path, trust)
    if not isinstance(state, dict):
        raise JoyError("holds no mapping of names to values", where=str(path))
    return state


def of_files(folder: Path, trust: bool) -> tuple[Any, list[str]]:
    """Weights by name, or `model` and what was kept beside it; what was not read."""
    files = weight_files(folder)
    model = weights(files, trust)
    beside, more, lost = parts(folder, trust)
    lost += others(folder, [*files, *more])
    if not files:
        lost.append("the weights: no file of them is in the folder")
    return ({"model": model, **beside} if beside else model), lost


def is_megatron(folder: Path) -> bool:
    """Whether a folder is of Megatron: it names its last iteration, or holds `mp_rank_…`."""
    return (folder / LATEST).is_file() or bool(list(folder.glob("mp_rank_*/*.pt")))


def megatron_step(folder: Path) -> Path:
    """The folder of the iteration that Megatron's file names; the folder itself without one."""
    latest = folder / LATEST
    if not latest.is_file():
        return folder
    name = latest.read_text(encoding="utf-8").strip()
    step = folder / (f"iter_{int(name):07d}" if name.isdigit() else name)  # or `release`
    if not step.is_dir():
        raise JoyError(f"names an iteration that is not there: {step.name}", where=str(latest))
    return step


def megatron_legacy(folder: Path, trust: bool) -> tuple[Any, list[str]]:
    """`mp_rank_…/*.pt`: one rank's state as it is; those of several ranks under their names."""
    ranks = {
        place.name: {path.stem: state_file(path, trust) for path in sorted(place.glob("*.pt"))}
        for place in sorted(folder.glob("mp_rank_*"))
    }
    if not any(ranks.values()):
        raise JoyError(
            "an iteration of Megatron without a file that is read", where=str(folder),
            help="known: mp_rank_…/*.pt and torch_dist (not zarr)",
        )  # fmt: skip
    joined = {name: {**files.pop("model_optim_rng", {}), **files} for name, files in ranks.items()}
    if len(joined) == 1:
        return next(iter(joined.values())), []
    return joined, [
        f"the parts of {len(joined)} ranks stay apart, under their names: Megatron's own "
        "tools/checkpoint/convert.py joins tensor- and pipeline-parallel ones"
    ]


def deepspeed_plain(folder: Path, trust: bool) -> tuple[Any, list[str]]:
    """DeepSpeed without ZeRO: one file with everything; JoyError for tensor-parallel ones."""
    files = sorted(folder.glob("mp_rank_*_model_states.pt"))
    if len(files) > 1:
        raise JoyError(
            "tensor-parallel DeepSpeed checkpoints are not read", where=str(folder),
            help="DeepSpeed's ds_to_universal.py first",
        )  # fmt: skip
    state = state_file(files[0], trust)
    model = state.pop("module", None)
    return {"model": model, **{k: v for k, v in state.items() if v is not None}}, []


def distributed_folders(folder: Path) -> list[Path]:
    """The folders of torch.distributed.checkpoint in a folder (accelerate's FSDP: two of them)."""
    return sorted(path.parent for path in folder.glob("*/.metadata"))
