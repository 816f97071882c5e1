"""Batches of data loaders: kept by a recording, and handed to a target whose loader makes others.

Programs shuffle, use workers or draw their augmentation otherwise where there is an accelerator. On
the baseline's batches their models can be judged; the target's own loader then is not, and the
verdict says so.
"""

from __future__ import annotations

from typing import Any

import torch
from safetensors.torch import load_file, save

from joymigrate.verify import pytree
from joymigrate.verify.bundle import Rank

INDEX = "loaders.json"
FILE_BYTES = 1 << 25  # of one file, before its last batch
JOINT = "/"


def plain_tensors(batch: Any) -> dict[str, torch.Tensor] | None:
    """Tensors of a batch by path; None where one can't be kept, or there are none."""
    found = dict(pytree.tensors(batch, objects=True))
    for tensor in found.values():
        dense = type(tensor) is torch.Tensor and tensor.layout is torch.strided
        if not dense or tensor.is_quantized or tensor.device.type != "cpu":
            return None
    return found or None


class BatchKeeper:
    """Keeps batches, in order, while they fit `most` bytes; after the first of a loader that does
    not fit none of that loader is kept."""

    def __init__(self, most: int) -> None:
        self.left = most
        self.kept: dict[str, int] = {}  # loader → batches from its first on
        self.over: dict[str, int] = {}  # loader → batches that are not kept
        self.waiting: dict[str, torch.Tensor] = {}
        self.waiting_bytes = 0
        self.files: list[int] = []  # how many tensors each holds
        self.where: dict[str, int] = {}  # "loader/number" → file

    def keep(self, loader: str, number: int, batch: Any, writer: Any) -> None:
        """One batch as its loader made it. `writer` is called for a bundle's rank."""
        found = plain_tensors(batch) if loader not in self.over else None
        size = sum(t.numel() * t.element_size() for t in (found or {}).values())
        if found is None or size > self.left:
            self.over[loader] = self.over.get(loader, 0) + 1
            return
        self.left -= size
        self.kept[loader] = number + 1
        self.where[f"{loader}{JOINT}{number}"] = len(self.files)
        for leaf, tensor in found.items():
            copied = tensor.detach().clone(memory_format=torch.contiguous_format)
            self.waiting[JOINT.join((loader, str(number), leaf))] = copied
        self.waiting_bytes += size
        if self.waiting_bytes >= FILE_BYTES:
            self.write_tensors(writer())

    def write_tensors(self, writer: Any) -> None:
        """What waits, as one file."""
        if self.waiting:
            writer.add(f"loader-{len(self.files)}.safetensors", save(self.waiting))
            self.files.append(len(self.waiting))
            self.waiting, self.waiting_bytes = {}, 0

    def write(self, writer: Any) -> None:
        """The files of a bundle's rank."""
        self.write_tensors(writer)
        writer.add_json(INDEX, {"kept": self.kept, "over": self.over, "where": self.where})

    def notes(self) -> list[str]:
        """What was not kept."""
        kept, over = sum(self.kept.values()), sum(self.over.values())
        said = f"{kept} batches of data loaders are kept; {over} more do not fit --batches, or "
        return [f"{said}can't be written"] if over else []


class BatchGiver:
    """Hands the baseline's batches to a target whose loader made others of the same form."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        index = rank.json(INDEX)
        self.where: dict[str, int] = index.get("where", {})
        self.open: tuple[int, dict[str, torch.Tensor]] | None = None
        self.given: dict[str, list[int]] = {}  # loader → numbers of batches

    def give(self, loader: str, number: int, batch: Any) -> Any:
        """The baseline's batch in the target's containers; `batch` itself where it holds the same
        bytes, has another form, or the baseline kept none."""
        mine = plain_tensors(batch)
        kept = self.kept(loader, number)
        if mine is None or set(mine) != set(kept) or not all(alike(mine[k], kept[k]) for k in kept):
            return batch
        if all(torch.equal(mine[leaf], kept[leaf]) for leaf in kept):
            return batch
        self.given.setdefault(loader, []).append(number)
        return pytree.replace_tensors(
            batch,
            lambda leaf, old: kept[leaf].pin_memory() if old.is_pinned() else kept[leaf].clone(),
            objects=True,
        )

    def kept(self, loader: str, number: int) -> dict[str, torch.Tensor]:
        """The tensors of one batch by path; none where it was not kept."""
        file = self.where.get(f"{loader}{JOINT}{number}")
        if file is None:
            return {}
        if self.open is None or self.open[0] != file:
            self.open = (file, load_file(self.rank.file(f"loader-{file}.safetensors")))
        start = JOINT.join((loader, str(number), ""))
        return {k.removeprefix(start): t for k, t in self.open[1].items() if k.startswith(start)}


def alike(mine: torch.Tensor, kept: torch.Tensor) -> bool:
    """Whether one can stand in the other's place."""
    return mine.dtype == kept.dtype and mine.shape == kept.shape
