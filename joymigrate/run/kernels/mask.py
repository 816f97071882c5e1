"""Which keys a query sees, as a description instead of a tensor.

Positions: a query's is its index plus `columns - rows`, so the last query sees the last key also
when keys come from a cache. A description is small and hashable; `dense` makes the boolean tensor
(True: visible) for implementations that need one, `visible` the rule on index tensors.

    Full()                        every key
    Causal()                      keys up to the query's own
    Window(256)                   the last 256 keys up to the query's own
    Prefix(100)                   100 keys that all see, then causal (prefix language model)
    Shared(100, (20, 30))         a prefix stored once, then branches that see it and themselves,
                                  not each other (several answers to one prompt, in one sequence)
    Candidates(50)                a context of 50, then candidates that see it and themselves only
                                  (target-aware ranking); causal=False: the context sees all of it
    Dense(tensor)                 a boolean tensor broadcastable to [B, N, rows, columns]
    Jagged(offsets, Causal())     sequences of different lengths in one row of tokens, [T, N, D];
                                  offsets [B + 1]; with `contexts` [B], Candidates by sequence
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from joymigrate.errors import JoyError


@dataclass(frozen=True, slots=True)
class Full:
    """Every key is visible."""

    @property
    def name(self) -> str:
        return "full"

    def visible(self, i: Tensor, j: Tensor) -> Tensor:
        return (i >= 0) | (j >= 0)


@dataclass(frozen=True, slots=True)
class Causal:
    """Keys up to the query's own position."""

    @property
    def name(self) -> str:
        return "causal"

    def visible(self, i: Tensor, j: Tensor) -> Tensor:
        return j <= i


@dataclass(frozen=True, slots=True)
class Window:
    """The last `size` keys up to the query's own position, itself included."""

    size: int

    def __post_init__(self) -> None:
        at_least("a window's size", self.size, 1)

    @property
    def name(self) -> str:
        return "window"

    def visible(self, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & (j > i - self.size)


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first `length` keys are visible to all; after them causal."""

    length: int

    def __post_init__(self) -> None:
        at_least("a prefix's length", self.length, 0)

    @property
    def name(self) -> str:
        return "prefix"

    def visible(self, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) | (j < self.length)


@dataclass(frozen=True, slots=True)
class Shared:
    """A causal prefix, then causal branches that see the prefix and themselves."""

    prefix: int
    branches: tuple[int, ...]

    def __post_init__(self) -> None:
        at_least("a prefix's length", self.prefix, 0)
        for length in self.branches:
            at_least("a branch's length", length, 0)

    @property
    def name(self) -> str:
        return "shared"

    def branch(self, position: Tensor) -> Tensor:
        """Number of the branch of each position; 0 for the prefix."""
        sizes = torch.tensor((self.prefix, *self.branches), device=position.device)
        return torch.bucketize(position, sizes.cumsum(0), right=True)

    def visible(self, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & ((j < self.prefix) | (self.branch(j) == self.branch(i)))


@dataclass(frozen=True, slots=True)
class Candidates:
    """A context of `context` positions, then candidates that see it and themselves only."""

    context: int = 0
    causal: bool = True

    def __post_init__(self) -> None:
        at_least("a context's length", self.context, 0)

    @property
    def name(self) -> str:
        return "candidates"

    def visible(self, i: Tensor, j: Tensor) -> Tensor:
        before = (j < self.context) & (j <= i) if self.causal else j < self.context
        return before | (j == i)


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """A boolean tensor, True where a key is visible."""

    tensor: Tensor

    @property
    def name(self) -> str:
        return "dense"

    def placed(self, place: Callable[[Tensor], Tensor]) -> Dense:
        """The same with its tensor elsewhere."""
        return Dense(place(self.tensor))


Simple = Full | Causal | Window | Prefix | Shared | Candidates


@dataclass(frozen=True, slots=True, eq=False)
class Jagged:
    """Sequences back to back: sequence b is tokens offsets[b] to offsets[b + 1].

    `longest` is the largest length, where the caller knows it (else it costs a copy from the
    device). `contexts` [B] gives each sequence its own context length under Candidates.
    """

    offsets: Tensor
    inner: Full | Causal | Window | Candidates = Causal()
    contexts: Tensor | None = None
    longest: int | None = None

    @property
    def name(self) -> str:
        return f"jagged {self.inner.name}"

    def placed(self, place: Callable[[Tensor], Tensor]) -> Jagged:
        """The same with its tensors elsewhere."""
        contexts = None if self.contexts is None else place(self.contexts)
        return replace(self, offsets=place(self.offsets), contexts=contexts)

    def bounds(self) -> list[tuple[int, int]]:
        """First and last token of each sequence, on the host."""
        edges: list[int] = self.offsets.tolist()
        return list(itertools.pairwise(edges))

    def length(self) -> int:
        """The longest sequence."""
        if self.longest is not None:
            return self.longest
        return max((stop - start for start, stop in self.bounds()), default=0)

    def of(self, sequence: int) -> Full | Causal | Window | Candidates:
        """The mask inside one sequence."""
        if self.contexts is None or not isinstance(self.inner, Candidates):
            return self.inner
        return replace(self.inner, context=int(self.contexts[sequence]))


Mask = Full | Causal | Window | Prefix | Shared | Candidates | Dense | Jagged
CAUSAL = Causal()


def at_least(what: str, value: int, lowest: int) -> None:
    """Raise `JoyError` for a size that makes no sense."""
    if value < lowest:
        raise JoyError(f"{what} is at least {lowest}, got {value}")


def dense(mask: Simple | Dense, rows: int, columns: int, device: torch.device) -> Tensor | None:
    """The boolean tensor of a mask, [rows, columns] or as given; None where all is visible."""
    if isinstance(mask, Full):
        return None
    if isinstance(mask, Dense):
        return mask.tensor
    return remembered(mask, rows, columns, device)


@functools.lru_cache(maxsize=8)
def remembered(mask: Simple, rows: int, columns: int, device: torch.device) -> Tensor:
    """`dense` of a rule; all layers of a step ask for the same one."""
    i = torch.arange(rows, device=device).unsqueeze(1) + (columns - rows)
    j = torch.arange(columns, device=device).unsqueeze(0)
    return mask.visible(i, j)


def trivial(mask: Simple | Dense, rows: int, columns: int) -> bool:
    """Whether the mask hides nothing at these sizes."""
    if isinstance(mask, Full):
        return True
    if isinstance(mask, Window):
        return rows == 1 and columns <= mask.size
    return isinstance(mask, (Causal, Prefix)) and rows == 1
