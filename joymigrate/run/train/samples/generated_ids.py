"""Ids that a model writes: drawn from it, and how probable they are, among those that exist.

The policy goes down the trie of the items' semantic ids: at each level the softmax of the model's
logits over the codes that some item goes on with. So every id drawn is an item's, and the
probabilities of all items are 1 together. N ids, K levels, V codes of a level, M children.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from joymigrate.run.beam import BeamRequest, BeamSearch, Trie


def choices(
    logits_NV: Tensor, nodes_N: Tensor, trie: Trie, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, the nodes that they lead to, and their log-probabilities (-inf: no code) [N, M]."""
    most = int(trie.widths(nodes_N).max())
    tokens, leads, real = trie.children(nodes_N, most)
    scores = (logits_NV.float() / temperature).gather(1, tokens)
    return tokens, leads, scores.masked_fill(~real, -torch.inf).log_softmax(-1)


@torch.no_grad()
def draw_ids(dense: Any, memory: Any, trie: Trie, temperature: float) -> tuple[Tensor, Tensor]:
    """One id for every row of the memory: codes [N, K] and leaves [N] of the trie."""
    count, device = len(memory.seen_BL), memory.seen_BL.device
    codes = torch.zeros(count, trie.rounds, dtype=torch.long, device=device)
    nodes = torch.zeros(count, dtype=torch.long, device=device)
    for level in range(trie.rounds):
        logits = dense.write(memory, codes)[level]
        tokens, leads, logs = choices(logits, nodes, trie, temperature)
        chosen = torch.multinomial(logs.exp(), 1)
        codes[:, level] = tokens.gather(1, chosen)[:, 0]
        nodes = leads.gather(1, chosen)[:, 0]
    return codes, nodes


def log_probabilities(
    logits: Sequence[Tensor], codes_NK: Tensor, trie: Trie, temperature: float
) -> Tensor:
    """Of each code of ids that are in the trie, given those before it [N, K]."""
    nodes = torch.zeros(len(codes_NK), dtype=torch.long, device=codes_NK.device)
    found = []
    for level, rows in enumerate(logits):
        tokens, leads, logs = choices(rows, nodes, trie, temperature)
        same = (tokens == codes_NK[:, level, None]) & logs.isfinite()
        at = same.int().argmax(1, keepdim=True)
        found.append(logs.gather(1, at)[:, 0])
        nodes = leads.gather(1, at)[:, 0]
    return torch.stack(found, 1)


@dataclass(slots=True)
class WrittenIds:
    """One row of a batch in beam search: its memory, and what the beams wrote [W, level]."""

    memory: Any
    codes: Tensor


class BatchWriter:
    """A `Writer` over rows that the encoder has read; prompts are their numbers."""

    def __init__(self, dense: Any, memory: Any, rounds: int) -> None:
        self.dense, self.memory, self.rounds = dense, memory, rounds

    def begin(self, prompts: Sequence[int]) -> list[tuple[WrittenIds, Tensor]]:
        """Each row with an empty id."""
        device = self.memory.seen_BL.device
        none = torch.zeros(1, 0, dtype=torch.long, device=device)
        states = [WrittenIds(self.memory.row(row), none) for row in prompts]
        return [(state, self.behind(state)[0]) for state in states]

    def step(
        self, states: Sequence[WrittenIds], parents: Sequence[Tensor], tokens: Sequence[Tensor]
    ) -> list[Tensor]:
        """Logits behind the new codes."""
        for state, above, new in zip(states, parents, tokens, strict=True):
            state.codes = torch.cat([state.codes[above], new[:, None]], 1)
        return [self.behind(state) for state in states]

    def behind(self, state: WrittenIds) -> Tensor:
        """Logits of the next level [W, V]."""
        count, level = state.codes.shape
        codes = torch.nn.functional.pad(state.codes, (0, self.rounds - level))
        logits: Tensor = self.dense.write(state.memory.repeated(count), codes)[level]
        return logits


@torch.no_grad()
def best_ids(dense: Any, memory: Any, trie: Trie, width: int) -> list[tuple[Tensor, Tensor]]:
    """By beam search, for every row of the memory: codes [W, K] and leaves [W], best first."""
    count = len(memory.seen_BL)
    search = BeamSearch(BatchWriter(dense, memory, trie.rounds), trie, capacity=count * width)
    found = search.run([BeamRequest(row, width) for row in range(count)])
    for one in found:
        if one.error is not None:
            raise one.error
    return [(one.tokens, one.nodes) for one in found]
