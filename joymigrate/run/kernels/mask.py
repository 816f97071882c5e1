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
    Globals(4)                    the first 4 keys are seen by all, the first 4 queries see all
    Blocks(64, ((0,), (0, 1)))    block-sparse: which blocks of 64 keys each block of queries sees
    Causal() & (Window(64) | Globals(4))    compositions: what all parts show, what one of them does
    Dense(tensor)                 a boolean tensor broadcastable to [B, N, rows, columns]
    Jagged(offsets, Causal())     sequences of different lengths in one row of tokens, [T, N, D];
                                  offsets [B + 1]; with `contexts` [B], Candidates by sequence

`cover(rows, columns)` says whether a rectangle of pairs is visible in no, some or all places, so
that an implementation can leave tiles out without a tensor of the mask.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from joymigrate.errors import JoyError

Span = tuple[int, int]  # first position, and the one behind the last
NONE, SOME, ALL = 0, 1, 2  # how much of a rectangle is visible; SOME where it isn't known


class Composable:
    """Masks are joined by `&` (visible in both) and `|` (visible in one of them)."""

    __slots__ = ()

    def __and__(self, other: Simple) -> Both:
        return Both((self, other))  # type: ignore[arg-type]

    def __or__(self, other: Simple) -> Either:
        return Either((self, other))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Full(Composable):
    """Every key is visible."""

    @property
    def name(self) -> str:
        return "full"

    def visible(self, i: Tensor, j: Tensor) -> Tensor:
        return (i >= 0) | (j >= 0)

    def cover(self, rows: Span, columns: Span) -> int:
        return ALL


@dataclass(frozen=True, slots=True)
class Causal(Composable):
    """Keys up to the query's own position."""

    @property
    def name(self) -> str:
        return "causal"

    def visible(self, i: Tensor, j: Tensor) -> Tensor:
        return j <= i

    def cover(self, rows: Span, columns: Span) -> int:
        return below(rows, columns)


@dataclass(frozen=True, slots=True)
class WindowMask(Composable):
    """The last `size` keys up to the query's own position, itself included."""

    size: int

    def __post_init__(self) -> None:
        at_least("a window's size", self.size, 1)

    @property
    def name(self) -> str:
        return "window"

    def visible(self, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & (j > i - self.size)

    def cover(self, rows: Span, columns: Span) -> int:
        if columns[1] <= rows[0] - self.size + 1:
            return NONE
        near = ALL if columns[0] >= rows[1] - self.size else SOME
        return min(near, below(rows, columns))


@dataclass(frozen=True, slots=True)
class Prefix(Composable):
    """The first `length` keys are visible to all; after them causal."""

    length: int

    def __post_init__(self) -> None:
        at_least("a prefix's length", self.length, 0)

    @property
    def name(self) -> str:
        return "prefix"

    def visible(self, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) | (j < self.length)

    def cover(self, rows: Span, columns: Span) -> int:
        return max(before(columns, self.length), below(rows, columns))


@dataclass(frozen=True, slots=True)
class SharedPrefixMask(Composable):
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

    def cover(self, rows: Span, columns: Span) -> int:
        edges = list(itertools.accumulate((self.prefix, *self.branches)))
        first, last, low, high = (
            bisect.bisect_right(edges, place)
            for place in (rows[0], rows[1] - 1, columns[0], columns[1] - 1)
        )
        own = ALL if first == last == low == high else SOME
        if columns[0] >= self.prefix and (high < first or low > last):
            own = NONE
        return min(max(before(columns, self.prefix), own), below(rows, columns))


@dataclass(frozen=True, slots=True)
class CandidateMask(Composable):
    """A context of `context` positions, then candidates that see it and themselves only."""

    context: int = 0
    causal: bool = True

    def __post_init__(self) -> None:
        at_least("a context's length", self.context, 0)

    @property
    def name(self) -> str:
        return "candidates"

    def visible(self, i: Tensor, j: Tensor) -> Tensor:
        context = (j < self.context) & (j <= i) if self.causal else j < self.context
        return context | (j == i)

    def cover(self, rows: Span, columns: Span) -> int:
        context = before(columns, self.context)
        if self.causal:
            context = min(context, below(rows, columns))
        meets = rows[0] < columns[1] and columns[0] < rows[1]
        return max(context, SOME if meets else NONE)


@dataclass(frozen=True, slots=True)
class Globals(Composable):
    """The first `count` keys are visible to all, and the first `count` queries see all."""

    count: int

    def __post_init__(self) -> None:
        at_least("the number of global tokens", self.count, 0)

    @property
    def name(self) -> str:
        return "globals"

    def visible(self, i: Tensor, j: Tensor) -> Tensor:
        return (i < self.count) | (j < self.count)

    def cover(self, rows: Span, columns: Span) -> int:
        return max(before(rows, self.count), before(columns, self.count))


@dataclass(frozen=True, slots=True)
class BlockSparseMask(Composable):
    """Block-sparse: `table[a]` are the blocks of `size` keys that block a of the queries sees."""

    size: int
    table: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        at_least("a block's size", self.size, 1)
        for row in self.table:
            for block in row:
                at_least("a block's number", block, 0)

    @property
    def name(self) -> str:
        return "blocks"

    def visible(self, i: Tensor, j: Tensor) -> Tensor:
        width = max((block for row in self.table for block in row), default=0) + 1
        seen = torch.zeros(len(self.table) + 1, width + 1, dtype=torch.bool)
        for number, row in enumerate(self.table):
            seen[number, list(row)] = True
        a = torch.div(i, self.size, rounding_mode="floor")
        b = torch.div(j, self.size, rounding_mode="floor")
        # The last row and column stand for everything outside of the table, which sees nothing.
        a = torch.where((a < 0) | (a >= len(self.table)), len(self.table), a)
        b = torch.where((b < 0) | (b >= width), width, b)
        return seen.to(i.device)[a, b]

    def cover(self, rows: Span, columns: Span) -> int:
        blocks = range(columns[0] // self.size, -(-columns[1] // self.size))
        shares = []
        for a in range(rows[0] // self.size, -(-rows[1] // self.size)):
            row = set(self.table[a]) if 0 <= a < len(self.table) else set()
            shares += [b in row for b in blocks]
        return ALL if all(shares) else SOME if any(shares) else NONE


@dataclass(frozen=True, slots=True)
class Both(Composable):
    """What every part shows."""

    parts: tuple[Simple, ...]

    @property
    def name(self) -> str:
        return "composed"

    def visible(self, i: Tensor, j: Tensor) -> Tensor:
        return functools.reduce(torch.logical_and, (part.visible(i, j) for part in self.parts))

    def cover(self, rows: Span, columns: Span) -> int:
        return min(part.cover(rows, columns) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Either(Composable):
    """What at least one part shows."""

    parts: tuple[Simple, ...]

    @property
    def name(self) -> str:
        return "composed"

    def visible(self, i: Tensor, j: Tensor) -> Tensor:
        return functools.reduce(torch.logical_or, (part.visible(i, j) for part in self.parts))

    def cover(self, rows: Span, columns: Span) -> int:
        return max(part.cover(rows, columns) for part in self.parts)


def below(rows: Span, columns: Span) -> int:
    """How much of a rectangle lies on or below the diagonal."""
    if columns[1] - 1 <= rows[0]:
        return ALL
    return NONE if columns[0] >= rows[1] else SOME


def before(positions: Span, edge: int) -> int:
    """How many of the positions lie before an edge."""
    if positions[1] <= edge:
        return ALL
    return SOME if positions[0] < edge else NONE


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


Simple = (
    Full
    | Causal
    | WindowMask
    | Prefix
    | SharedPrefixMask
    | CandidateMask
    | Globals
    | BlockSparseMask
    | Both
    | Either
)


@dataclass(frozen=True, slots=True, eq=False)
class JaggedMask:
    """Sequences back to back: sequence b is tokens offsets[b] to offsets[b + 1].

    `longest` is the largest length, where the caller knows it (else it costs a copy from the
    device). `contexts` [B] gives each sequence its own context length under Candidates.
    """

    offsets: Tensor
    inner: Simple = Causal()
    contexts: Tensor | None = None
    longest: int | None = None

    @property
    def name(self) -> str:
        return f"jagged {self.inner.name}"

    def placed(self, place: Callable[[Tensor], Tensor]) -> JaggedMask:
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

    def of(self, sequence: int) -> Simple:
        """The mask inside one sequence."""
        if self.contexts is None or not isinstance(self.inner, CandidateMask):
            return self.inner
        return replace(self.inner, context=int(self.contexts[sequence]))


Mask = Simple | Dense | JaggedMask
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
    return cached_dense(mask, rows, columns, device)


@functools.lru_cache(maxsize=8)
def cached_dense(mask: Simple, rows: int, columns: int, device: torch.device) -> Tensor:
    """`dense` of a rule; all layers of a step ask for the same one."""
    i = torch.arange(rows, device=device).unsqueeze(1) + (columns - rows)
    j = torch.arange(columns, device=device).unsqueeze(0)
    return mask.visible(i, j)


def trivial(mask: Simple | Dense, rows: int, columns: int) -> bool:
    """Whether the mask hides nothing at these sizes."""
    if isinstance(mask, Full):
        return True
    if isinstance(mask, WindowMask):
        return rows == 1 and columns <= mask.size
    return isinstance(mask, (Causal, Prefix)) and rows == 1
