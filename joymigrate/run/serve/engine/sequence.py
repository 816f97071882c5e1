"""One text being continued: its tokens, how many of them are in the cache, and in which blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

from joymigrate.run.serve.engine.blocks import ROOT, chain

ARRIVALS = count()


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens `ids` (prompt, then output); `computed` of them have keys and values in `blocks`.

    `root` starts the hash chain: two sequences share blocks only when it is the same (it differs
    where the same tokens mean other content, as with images). `cacheable` False keeps it from
    reading the prefix cache.
    """

    request_id: str
    ids: list[int]
    prompt: int  # number of prompt tokens
    limit: int  # length at which it ends
    index: int = 0
    priority: int = 0
    root: bytes = ROOT
    cacheable: bool = True
    adapter: int = 0  # which of the model's adapters changes it; 0: none
    every: bool = False  # the states of all its tokens are wanted, not only of the newest
    arrival: int = field(default_factory=lambda: next(ARRIVALS))
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    cached: int = -1  # prompt tokens found in the prefix cache at the first start; -1: not started
    state: Any = None  # what the engine keeps with it
    # What layers with states keep (see models/states.py), by the number of tokens that it is of.
    kept: dict[int, Any] = field(default_factory=dict)

    @property
    def order(self) -> tuple[int, int]:
        """Who goes first."""
        return (self.priority, self.arrival)

    @property
    def output(self) -> list[int]:
        """The generated tokens."""
        return self.ids[self.prompt :]

    @property
    def decoding(self) -> bool:
        """Whether exactly the newest token waits to be computed."""
        return len(self.ids) - self.computed == 1 and self.computed > 0

    def digests_of(self, size: int, tokens: int) -> list[bytes]:
        """Hashes of the full blocks in the first `tokens` tokens."""
        full = tokens // size
        while len(self.digests) < full:
            start = len(self.digests) * size
            parent = self.digests[-1] if self.digests else self.root
            self.digests.append(chain(parent, self.ids[start : start + size]))
        return self.digests[:full]
