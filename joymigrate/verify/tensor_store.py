"""Tensors by content in files of a bundle, written as they come: a recording holds few of them, and
so does a replay, which reads each when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save

FILE_BYTES = 1 << 25  # of one file, before its last tensor


def read_tensor(path: Path, content: str) -> torch.Tensor:
    """One tensor of a file. It lies in the file's memory map, and goes with it."""
    with safe_open(path, framework="pt") as file:
        made: torch.Tensor = file.get_tensor(content)
    return made


class KeptTensors(Mapping[str, torch.Tensor]):
    """Tensors by content in some files that are not written any more."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.where: dict[str, Path] = {}
        for path in paths:
            with safe_open(path, framework="pt") as file:
                self.where.update(dict.fromkeys(file.keys(), path))

    def __getitem__(self, content: str) -> torch.Tensor:
        return read_tensor(self.where[content], content)

    def __contains__(self, content: object) -> bool:
        return content in self.where

    def __iter__(self) -> Iterator[str]:
        return iter(self.where)

    def __len__(self) -> int:
        return len(self.where)


class NamedTensors(Mapping[str, torch.Tensor]):
    """Some of these tensors by the names of weights. `contents`: name → content."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], contents: Mapping[str, str]) -> None:
        self.tensors = tensors
        self.contents = {name: key for name, key in contents.items() if key in tensors}

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[self.contents[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.contents)

    def __len__(self) -> int:
        return len(self.contents)


class TensorStore(Mapping[str, torch.Tensor]):
    """`prefix`-0.safetensors and so on of a bundle's rank, each content once.

    `writer` is asked for the rank's `RankWriter` when a file is written, not before. A tensor that
    is read back lies in the file's memory map.
    """

    def __init__(self, prefix: str, writer: Callable[[], Any]) -> None:
        self.prefix = prefix
        self.writer = writer
        self.waiting: dict[str, torch.Tensor] = {}
        self.waiting_bytes = 0
        self.where: dict[str, int] = {}  # content → file
        self.files = 0

    def add(self, content: str, tensor: torch.Tensor) -> None:
        """Keep a tensor on the CPU that nothing changes any more. Raises OSError."""
        if content in self:
            return
        self.waiting[content] = tensor.contiguous()
        self.waiting_bytes += tensor.numel() * tensor.element_size()
        if self.waiting_bytes >= FILE_BYTES:
            self.write()

    def write(self) -> None:
        """Write what waits as one file. Raises OSError."""
        if self.waiting:
            self.writer().add(self.name(self.files), save(self.waiting))
            self.where.update(dict.fromkeys(self.waiting, self.files))
            self.waiting, self.waiting_bytes = {}, 0
            self.files += 1

    def back_to(self, files: int) -> None:
        """Forget what waits, and every file from this number on."""
        self.waiting, self.waiting_bytes = {}, 0
        for number in range(files, self.files):
            self.writer().remove(self.name(number))
        self.where = {content: n for content, n in self.where.items() if n < files}
        self.files = files

    def name(self, number: int) -> str:
        """One file's name."""
        return f"{self.prefix}-{number}.safetensors"

    def __getitem__(self, content: str) -> torch.Tensor:
        if content in self.waiting:
            return self.waiting[content]
        path = self.writer().folder / self.name(self.where[content])
        return read_tensor(path, content)

    def __contains__(self, content: object) -> bool:
        return content in self.waiting or content in self.where

    def __iter__(self) -> Iterator[str]:
        return iter([*self.where, *self.waiting])

    def __len__(self) -> int:
        return len(self.where) + len(self.waiting)
