"""Sums as text, made on the fly: `17+25=24;` (the answer starts with its lowest digit)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset

CHARACTERS = "0123456789+=;"
INDEX = {character: index for index, character in enumerate(CHARACTERS)}


def encode(text: str) -> list[int]:
    return [INDEX[character] for character in text]


def decode(tokens: list[int]) -> str:
    return "".join(CHARACTERS[token] for token in tokens)


class Sums(Dataset):
    """`size` rows of `context` characters; the answers are written lowest digit first.

    An item is (tokens, targets): targets are the next characters, -100 where the next one is part
    of a question and cannot be known.
    """

    def __init__(self, size: int, context: int, seed: int, digits: int = 2) -> None:
        self.size = size
        self.context = context
        self.seed = seed
        self.limit = 10**digits

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        tokens: list[int] = []
        known: list[bool] = []
        while len(tokens) <= self.context:
            a, b = torch.randint(self.limit, (2,), generator=generator).tolist()
            question, answer = f"{a}+{b}=", str(a + b)[::-1] + ";"
            tokens += encode(question + answer)
            known += [False] * len(question) + [True] * len(answer)
        row = torch.tensor(tokens[: self.context + 1])
        targets = row[1:].masked_fill(~torch.tensor(known[1 : self.context + 1]), -100)
        return row[:-1], targets
