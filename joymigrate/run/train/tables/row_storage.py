"""Files of safetensors that are larger than memory: read by rows, and filled in place.

A file is its header and one block of bytes a tensor, so a tensor is a memory-mapped array. Space is
reserved before a file is filled: a full disk is an error of the call, not a signal in the middle.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from joymigrate.run.train.formats.tensors import read_header

ALIGN = 8  # bytes: where the tensors begin
KINDS = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "BOOL": torch.bool, "U8": torch.uint8,
}  # fmt: skip
NAMES = {kind: name for name, kind in KINDS.items()}


class MappedTensor:
    """A tensor in a file: shape, type, and its bytes as an array."""

    def __init__(self, path: Path, entry: Mapping[str, Any], base: int, mode: Any) -> None:
        self.kind = KINDS[entry["dtype"]]
        self.shape = tuple(entry["shape"])
        # numpy has no bfloat16: its bytes pass as whole numbers
        self.plain = np.dtype("i2") if self.kind is torch.bfloat16 else numpy_type(self.kind)
        self.array: npt.NDArray[Any]
        if math.prod(self.shape):
            first = base + entry["data_offsets"][0]
            self.array = np.memmap(path, self.plain, mode, first, self.shape)
        else:  # nothing can't be mapped
            self.array = np.zeros(self.shape, self.plain)

    def rows(self, at: Any) -> Tensor:
        """Some rows, in memory."""
        return torch.from_numpy(np.array(self.array[at], order="C")).view(self.kind)

    def flush(self) -> None:
        """What was put is in the file."""
        if isinstance(self.array, np.memmap):
            self.array.flush()

    def put(self, at: Any, values: Tensor) -> None:
        """Write rows, in the file's type."""
        given = values.detach().to("cpu", self.kind).contiguous()
        if self.kind is torch.bfloat16:
            given = given.view(torch.int16)
        self.array[at] = given.numpy()


def numpy_type(kind: torch.dtype) -> np.dtype[Any]:
    """numpy's type of the same name."""
    return torch.empty(0, dtype=kind).numpy().dtype


def open_mapped(path: Path) -> tuple[dict[str, str], dict[str, MappedTensor]]:
    """A file's metadata, and its tensors as they lie."""
    header, base = read_header(path)
    about = header.pop("__metadata__", {})
    return about, {name: MappedTensor(path, entry, base, "r") for name, entry in header.items()}


def make_mapped(
    path: Path,
    wanted: Mapping[str, tuple[torch.dtype, Sequence[int]]],
    about: Mapping[str, str],
) -> dict[str, MappedTensor]:
    """A new file of these tensors, to be filled. `OSError` where there is no space for it."""
    header: dict[str, Any] = {"__metadata__": dict(about)}
    at = 0
    for name in sorted(wanted, key=lambda one: -wanted[one][0].itemsize):
        kind, shape = wanted[name]
        size = kind.itemsize * math.prod(shape)
        entry = {"dtype": NAMES[kind], "shape": list(shape), "data_offsets": [at, at + size]}
        header[name] = entry
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % ALIGN)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.flush()
        base = 8 + len(text)
        os.posix_fallocate(file.fileno(), 0, base + at)
    return {name: MappedTensor(path, header[name], base, "r+") for name in wanted}
