"""Which code may follow which: a trie of valid ids as three arrays.

Nodes are numbered level by level, and in the order of their codes inside a level, so the children
of a node stand next to each other: node n has children first[n] … first[n] + count[n] - 1, and
token[c] is the code that leads to c. 0 is the root. N items, K levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from joymigrate.errors import JoyError


class CodeTrie(Protocol):
    """What may be written."""

    @property
    def rounds(self) -> int: ...

    def widths(self, nodes: Tensor) -> Tensor:
        """How many codes may follow each node [W]."""
        ...

    def children(self, nodes: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
        """Codes, the nodes that they lead to, and which of them are real [W, most]."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Trie:
    """`leaf` is the number of the first leaf; leaf l stands for `items[l - leaf]`."""

    first: Tensor
    count: Tensor
    token: Tensor
    items: Tensor
    rounds: int
    leaf: int

    @classmethod
    def of(cls, codes: Tensor, items: Tensor | None = None) -> Trie:
        """The trie of `codes` [N, K], for `items` [N] (default: 0 … N-1)."""
        if codes.dim() != 2 or not codes.numel():
            raise JoyError(f"a trie needs ids of one code or more, got {tuple(codes.shape)}")
        codes, count = codes.long(), len(codes)
        items = torch.arange(count) if items is None else items.long()
        order = torch.arange(count)
        for level in reversed(range(codes.shape[1])):
            order = order[codes[order, level].argsort(stable=True)]
        codes, items = codes[order], items[order]
        changes = codes[1:] != codes[:-1]
        new = torch.cat([torch.ones(1, codes.shape[1], dtype=torch.bool), changes.cummax(1).values])
        if not bool(new[:, -1].all()):
            at = int((~new[:, -1]).nonzero()[0, 0])
            raise JoyError(
                f"items {int(items[at - 1])} and {int(items[at])} have the same codes "
                f"{codes[at].tolist()}",
                help="joymigrate train ids tells such items apart by a last level",
            )
        parent = torch.zeros(count, dtype=torch.long)
        nodes, tokens, parents = 1, [torch.zeros(1, dtype=torch.long)], []
        for level in range(codes.shape[1]):
            starts = new[:, level]
            number = nodes + starts.long().cumsum(0) - 1
            tokens.append(codes[starts, level])
            parents.append(parent[starts])
            parent, leaf = number, nodes
            nodes += int(starts.sum())
        above = torch.cat(parents)
        width = above.bincount(minlength=nodes)
        first = 1 + width.cumsum(0) - width
        return cls(first, width, torch.cat(tokens), items, codes.shape[1], leaf)

    def to(self, device: torch.device | str) -> Trie:
        """The same on a device."""
        first, count, token, items = (
            t.to(device) for t in (self.first, self.count, self.token, self.items)
        )
        return Trie(first, count, token, items, self.rounds, self.leaf)

    def widths(self, nodes: Tensor) -> Tensor:
        """How many codes may follow."""
        return self.count[nodes]

    def children(self, nodes: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
        """What may follow; places that are not real repeat the last node."""
        place = torch.arange(most, device=nodes.device)
        real = place < self.count[nodes][:, None]
        found = (self.first[nodes][:, None] + place).clamp(max=len(self.token) - 1)
        return self.token[found], found, real

    def items_of(self, leaves: Tensor) -> Tensor:
        """The items of leaves."""
        return self.items[leaves - self.leaf]


@dataclass(frozen=True, slots=True)
class AnyToken:
    """Every code of a vocabulary, a number of times: search without rules."""

    vocabulary: int
    rounds: int

    def widths(self, nodes: Tensor) -> Tensor:
        """All of them."""
        return torch.full_like(nodes, self.vocabulary)

    def children(self, nodes: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
        """All codes; there are no nodes to tell apart."""
        tokens = torch.arange(most, device=nodes.device).expand(len(nodes), -1)
        real = torch.ones_like(tokens, dtype=torch.bool)
        return tokens, torch.zeros_like(tokens), real
