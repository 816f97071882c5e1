"""Tensors of a model folder by name, mapped from its safetensors files, one or many."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from joymigrate import files
from joymigrate.errors import JoyError, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor


class TensorSource(Protocol):
    """Tensors by name, as they are on disk."""

    def __contains__(self, name: str) -> bool: ...

    def __iter__(self) -> Iterator[str]: ...

    def raw(self, name: str) -> Tensor:
        """The tensor. Raises `JoyError` when there is none of this name."""
        ...


class TensorFolder:
    """The tensors of a folder. A file is mapped when its first tensor is taken."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = homes(folder)
        self.open: dict[Path, Any] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.home

    def __iter__(self) -> Iterator[str]:
        return iter(self.home)

    def raw(self, name: str) -> Tensor:
        """A tensor as it is on disk."""
        from safetensors import SafetensorError, safe_open

        path = self.home.get(name)
        if path is None:
            raise JoyError(
                f"the weights have no tensor '{name}'.{did_you_mean(name, self.home)}",
                where=str(self.folder),
                help="the folder's config.json must belong to its weights",
            )
        try:
            if path not in self.open:
                self.open[path] = safe_open(path, framework="pt")
            tensor: Tensor = self.open[path].get_tensor(self.stored(name))
        except (SafetensorError, OSError) as error:
            raise JoyError(f"{path.name} cannot be read: {error}", where=str(path)) from error
        return tensor

    def stored(self, name: str) -> str:
        """What a tensor is called in its file."""
        return name

    def close(self) -> None:
        """Unmap the files."""
        self.open.clear()


def homes(folder: Path) -> dict[str, Path]:
    """Which file holds which tensor: by the index, else by the files' headers."""
    from safetensors import SafetensorError, safe_open

    index = next(iter(sorted(folder.glob("*.safetensors.index.json"))), None)
    if index is not None:
        return read_index(folder, index)
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as opened:
                found |= dict.fromkeys(opened.keys(), path)
        except (SafetensorError, OSError) as error:
            raise JoyError(
                f"{path.name} is no safetensors file: {error}", where=str(path)
            ) from None
    if not found:
        others = sorted(path.name for path in folder.glob("*.bin"))
        raise JoyError(
            "the folder has no safetensors weights" + (f", only {others[0]}" if others else ""),
            where=str(folder),
            help="load the model with transformers and save_pretrained() it: that writes "
            "safetensors",
        )
    return found


def read_index(folder: Path, index: Path) -> dict[str, Path]:
    """Tensors of a sharded folder, as its index says."""
    try:
        listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        found = {str(name): folder / str(file) for name, file in listed.items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise JoyError(f"{index.name} is no index of weights: {error}", where=str(index)) from None
    for path in sorted(set(found.values())):
        if path.parent != folder or not path.is_file():
            raise JoyError(
                f"the index names {path.name}, which is not there",
                where=str(index),
                help="download the folder again",
            )
    return found


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The table at the beginning of a safetensors file (its length, then JSON), `__metadata__`
    included, and where the tensors' bytes begin. Raises `JoyError`, also for a file cut off."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > path.stat().st_size:
                raise ValueError("its header is longer than the file")
            found = json.loads(file.read(length))
        ends = [row["data_offsets"][1] for name, row in found.items() if name != "__metadata__"]
        cut = 8 + length + max(ends, default=0) > path.stat().st_size
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise JoyError(f"{path.name} is no safetensors file: {error}", where=str(path)) from None
    if cut:
        raise JoyError(f"{path.name} is cut off", where=str(path), help="download or copy it again")
    return found, 8 + length


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises `JoyError` for anything else."""
    found = files.read_json(path)
    if not isinstance(found, dict):
        raise JoyError("not a JSON object", where=str(path))
    return found
