"""Weights of a model folder, as a model asks for them: by name and in a dtype."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.train.formats.tensors import TensorFolder

if TYPE_CHECKING:
    import torch
    from torch import Tensor

WRAPPED = "model."


class Weights(TensorFolder):
    """The tensors of a folder; remembers which were taken."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        # Embedding models are often saved without the causal model around them.
        self.bare = "embed_tokens.weight" in self.home
        if self.bare:
            self.home |= {WRAPPED + name: path for name, path in self.home.items()}
        self.taken: set[str] = set()

    def raw(self, name: str) -> Tensor:
        """A tensor as it is on disk. Raises `JoyError` when there is none of this name."""
        tensor = super().raw(name)
        self.taken.add(name)
        return tensor

    def stored(self, name: str) -> str:
        """What a tensor is called in its file."""
        return name.removeprefix(WRAPPED) if self.bare else name

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


class HeldWeights(Weights):
    """Tensors that are in memory already, as a model in training has them."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors
        self.folder = Path()
        self.home = dict.fromkeys(tensors, self.folder)
        self.bare = False
        self.taken: set[str] = set()

    def raw(self, name: str) -> Tensor:
        """A tensor as it is. Raises `JoyError` when there is none of this name."""
        if name not in self.tensors:
            raise JoyError(f"the weights have no tensor '{name}'.{did_you_mean(name, self.home)}")
        self.taken.add(name)
        return self.tensors[name]

    def close(self) -> None:
        """Nothing is mapped."""

    @property
    def bytes(self) -> int:
        """Size of the tensors."""
        return sum(one.numel() * one.element_size() for one in self.tensors.values())
