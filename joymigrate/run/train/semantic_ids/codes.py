"""Semantic ids of items, and the file that keeps them: `ids` [N] and `codes` [N, K] as safetensors.

N items, K levels. Codes of level k are 0 … sizes[k] - 1. No two items have the same codes: where
the quantiser gives several items one id, a last level numbers them (Rajput et al., 2023, TIGER,
section 3.1, arXiv 2305.05065).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from joymigrate.errors import JoyError

CODES = "codes.safetensors"
FORMAT = "joymigrate.semantic-ids/1"


@dataclass(frozen=True, slots=True, eq=False)
class SemanticIds:
    """`ids` int64 [N] rising, `codes` int64 [N, K], `sizes` of the K levels."""

    ids: Tensor
    codes: Tensor
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.codes.shape != (len(self.ids), len(self.sizes)):
            raise JoyError(
                f"{len(self.ids)} items with {len(self.sizes)} levels need codes of that shape, "
                f"got {tuple(self.codes.shape)}"
            )
        if len(self.ids) and bool((self.ids.diff() <= 0).any()):
            raise JoyError("the ids of items rise, each once", help="sort them")
        limit = torch.tensor(self.sizes)
        if bool(((self.codes < 0) | (self.codes >= limit)).any()):
            raise JoyError(f"a code is beyond its level of {list(self.sizes)}")

    def of(self, items: Tensor) -> Tensor:
        """Codes of items of any shape [..., K]; -1 for an item that has none."""
        ids, codes = self.ids.to(items.device), self.codes.to(items.device)
        if not len(ids):
            return items.new_full((*items.shape, len(self.sizes)), -1)
        place = torch.searchsorted(ids, items.contiguous()).clamp(max=len(ids) - 1)
        known = ids[place] == items
        return codes[place].masked_fill(~known[..., None], -1)

    def write(self, path: Path) -> None:
        """The file."""
        from safetensors.torch import save

        from joymigrate.files import write_output

        head = {"schema": FORMAT, "sizes": json.dumps(list(self.sizes))}
        tensors = {"ids": self.ids.contiguous(), "codes": self.codes.contiguous()}
        write_output(path, save(tensors, head))


def read_codes(path: Path) -> SemanticIds:
    """The semantic ids of a file; `JoyError` where it holds something else."""
    from safetensors import safe_open

    try:
        with safe_open(str(path), "pt") as file:
            head = file.metadata() or {}
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, ValueError) as error:
        raise JoyError(f"cannot read semantic ids: {error}", where=str(path)) from None
    except Exception as error:  # safetensors' own error has no public base
        raise JoyError(f"this is no file of semantic ids: {error}", where=str(path)) from None
    if head.get("schema") != FORMAT or not {"ids", "codes"} <= set(found):
        raise JoyError(
            "this is no file of semantic ids",
            where=str(path),
            help="joymigrate train ids TABLE -o codes.safetensors writes one",
        )
    return SemanticIds(found["ids"], found["codes"], tuple(json.loads(head["sizes"])))


def distinct(ids: Tensor, codes: Tensor, sizes: tuple[int, ...]) -> SemanticIds:
    """Add the level that numbers items of one id, where there are some."""
    order = ids.argsort()
    ids, codes = ids[order], codes[order]
    _, owner = torch.unique(codes, dim=0, return_inverse=True)
    by_owner = owner.argsort(stable=True)
    counts = owner.bincount()
    first = counts.cumsum(0) - counts
    number = torch.empty_like(owner)
    number[by_owner] = torch.arange(len(owner)) - first[owner[by_owner]]
    most = int(counts.max()) if len(counts) else 1
    if most == 1:
        return SemanticIds(ids, codes, sizes)
    return SemanticIds(ids, torch.cat([codes, number[:, None]], 1), (*sizes, most))
