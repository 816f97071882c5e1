"""Weights of a model folder: safetensors files, one or many, read tensor by tensor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joymigrate.errors import JoyError, did_you_mean

if TYPE_CHECKING:
    import torch
    from torch import Tensor

WRAPPED = "model."


class Weights:
    """The tensors of a folder by name; files are mapped, not read, until a tensor is taken."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = homes(folder)  # tensor name -> file
        # Embedding models are often saved without the causal model around them.
        self.bare = "embed_tokens.weight" in self.home
        if self.bare:
            self.home |= {WRAPPED + name: path for name, path in self.home.items()}
        self.open: dict[Path, Any] = {}
        self.taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self.home

    def __iter__(self) -> Iterator[str]:
        return iter(self.home)

    def raw(self, name: str) -> Tensor:
        """A tensor as it is on disk. Raises `JoyError` when there is none of this name."""
        from safetensors import SafetensorError, safe_open

        home = self.home.get(name)
        if home is None:
            raise JoyError(
                f"the weights have no tensor '{name}'.{did_you_mean(name, self.home)}",
                where=str(self.folder),
                help="the folder's config.json must belong to its weights",
            )
        try:
            if home not in self.open:
                self.open[home] = safe_open(home, framework="pt")
            stored = name.removeprefix(WRAPPED) if self.bare else name
            tensor: Tensor = self.open[home].get_tensor(stored)
        except (SafetensorError, OSError) as error:
            raise JoyError(f"{home.name} cannot be read: {error}", where=str(home)) from error
        self.taken.add(name)
        return tensor

    def get(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor in `dtype`."""
        return self.raw(name).to(dtype)

    def maybe(self, name: str, dtype: torch.dtype | None = None) -> Tensor | None:
        """A tensor in `dtype`, None where there is none."""
        return self.get(name, dtype) if name in self else None

    @property
    def bytes(self) -> int:
        """Size of the files."""
        return sum(path.stat().st_size for path in set(self.home.values()))

    def close(self) -> None:
        """Unmap the files."""
        self.open.clear()


def homes(folder: Path) -> dict[str, Path]:
    """Which file holds which tensor."""
    from safetensors import SafetensorError, safe_open

    index = next(iter(sorted(folder.glob("*.safetensors.index.json"))), None)
    if index is not None:
        return indexed(folder, index)
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


def indexed(folder: Path, index: Path) -> dict[str, Path]:
    """Tensors of a sharded folder, as its index says."""
    try:
        listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        found = {str(name): folder / str(file) for name, file in listed.items()}
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise JoyError(f"{index.name} is no index of weights: {error}", where=str(index)) from None
    missing = sorted({path.name for path in found.values() if not path.is_file()})
    if missing:
        raise JoyError(
            f"the index names {missing[0]}, which is not there",
            where=str(index),
            help="download the folder again",
        )
    return found
