"""Mixture of experts over ranks: tokens go to the ranks of their experts, and come back weighted.

Ranks of shared experts come first, then those of the routed ones: expert e of E lives on rank
`shared ranks + e // (experts per rank)`. A rank's rows lie by expert, source rank and token.
What dispatch hands to combine beside the rows is the vendor's affair; here it is, for every row,
source rank, token and place among the token's experts (-1 - number for a shared expert).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from joymigrate.run.rehearse.refs.gradients import working
from joymigrate.run.rehearse.refs.quantise import dynamic

Maybe = Tensor | None
PLAIN, DYNAMIC = 0, 2  # quant_mode
NOTE = 128  # int32 numbers of a row's note for combine


@dataclass(frozen=True, slots=True)
class ExpertPlaces:
    """Where experts live."""

    ranks: int
    experts: int
    shared_ranks: int = 0
    shared_experts: int = 1

    @property
    def each(self) -> int:
        """Routed experts of one rank."""
        return self.experts // (self.ranks - self.shared_ranks)

    def rank_of(self, expert: int) -> int:
        return self.shared_ranks + expert // self.each

    def shared_rank_of(self, number: int, source: int) -> int:
        """Which copy of a shared expert serves a rank's tokens."""
        copies = self.shared_ranks // self.shared_experts
        return number * copies + source % copies

    def local(self, rank: int) -> int:
        """Experts of a rank."""
        return 1 if rank < self.shared_ranks else self.each

    def longest(self, rank: int, tokens: int, k: int) -> int:
        """Rows that a rank has room for, of `tokens` in all."""
        if rank >= self.shared_ranks:
            return tokens * min(self.each, k)
        copies = self.shared_ranks // self.shared_experts
        return tokens // self.ranks * -(-self.ranks // copies)


@dataclass(frozen=True, slots=True)
class ExpertRow:
    """One token on its way to one expert."""

    source: int
    token: int
    slot: int  # among the token's experts; -1 - number of a shared expert


def rows_of(
    places: ExpertPlaces, rank: int, ids: list[Tensor], active: list[Tensor]
) -> list[list[ExpertRow]]:
    """For each expert of `rank` its rows, by source rank and token; `active` [tokens, k] bool."""
    found: list[list[ExpertRow]] = [[] for _ in range(places.local(rank))]
    for source, (chosen, used) in enumerate(zip(ids, active, strict=True)):
        if rank < places.shared_ranks:
            for number in range(places.shared_experts):
                if places.shared_rank_of(number, source) == rank:
                    tokens = used.any(1).nonzero().reshape(-1).tolist()
                    found[0] += [ExpertRow(source, token, -1 - number) for token in tokens]
            continue
        first = (rank - places.shared_ranks) * places.each
        for local in range(places.each):
            hits = ((chosen == first + local) & used).nonzero().tolist()
            found[local] += [ExpertRow(source, token, slot) for token, slot in hits]
    return found


def active_of(expert_ids: Tensor, mask: Maybe) -> Tensor:
    """Which (token, expert) pairs take part, [tokens, k]."""
    if mask is None:
        return torch.ones(expert_ids.shape, dtype=torch.bool)
    return (mask if mask.dim() == 2 else mask.unsqueeze(1)).expand(expert_ids.shape)


def send_form(x: Tensor, scales: Maybe, expert: int, quant_mode: int) -> tuple[Tensor, Tensor]:
    """A token's row as it is sent to an expert, and its scale."""
    if quant_mode == PLAIN:
        return x, torch.zeros(len(x))
    wide = working(x) if scales is None else working(x) * working(scales[expert])
    return dynamic(wide, torch.int8, "npu_moe_distribute_dispatch")


@dataclass(frozen=True, slots=True)
class Dispatched:
    """What one rank receives. `counts` [experts·ranks]: rows by (expert, source), summed up."""

    rows: Tensor
    scales: Tensor
    notes: Tensor  # [A, 3]
    tokens: Tensor  # rows of each expert, int64
    counts: Tensor
    weights: Tensor  # of the tokens' experts, where given


def dispatch_to(
    places: ExpertPlaces,
    rank: int,
    x: list[Tensor],
    ids: list[Tensor],
    active: list[Tensor],
    room: int,
    *,
    scales: list[Tensor] | None = None,
    weights: list[Tensor] | None = None,
    quant_mode: int = PLAIN,
) -> Dispatched:
    """What `rank` receives of what all ranks hold (lists by rank)."""
    by_expert = rows_of(places, rank, ids, active)
    dtype = torch.int8 if quant_mode == DYNAMIC else x[0].dtype
    rows = torch.zeros(room, x[0].shape[1], dtype=dtype)
    row_scales, row_weights = torch.zeros(room), torch.zeros(room)
    notes = torch.zeros(room, 3, dtype=torch.int32)
    counts = torch.zeros(len(by_expert), places.ranks, dtype=torch.int32)
    shift = places.shared_experts if places.shared_ranks else 0
    at = 0
    for local, chosen in enumerate(by_expert):
        for one in chosen:
            if one.slot < 0:
                expert = -1 - one.slot
            else:
                expert = shift + (rank - places.shared_ranks) * places.each + local
            own = None if scales is None else scales[one.source]
            token = x[one.source][one.token : one.token + 1]
            value, scale = send_form(token, own, expert, quant_mode)
            rows[at], row_scales[at] = value[0], scale[0]
            notes[at] = torch.tensor([one.source, one.token, one.slot])
            if weights is not None and one.slot >= 0:
                row_weights[at] = weights[one.source][one.token, one.slot]
            counts[local, one.source] += 1
            at += 1
    ends = counts.reshape(-1).cumsum(0).to(torch.int32)
    return Dispatched(rows, row_scales, notes, counts.sum(1), ends, row_weights)


def collect(
    rank: int,
    tokens: int,
    rows: list[Tensor],
    notes: list[Tensor],
    used: list[int],
    weights: Tensor,
) -> Tensor:
    """This rank's tokens [tokens, H], float32: the sum of their experts' rows times `weights`."""
    total = torch.zeros(tokens, rows[0].shape[1])
    for part, note, count in zip(rows, notes, used, strict=True):
        mine = (note[:count, 0] == rank).nonzero().reshape(-1)
        token, slot = note[mine, 1].long(), note[mine, 2].long()
        factor = torch.where(slot < 0, 1.0, weights.float()[token, slot.clamp(min=0)])
        total.index_add_(0, token, part[mine].float() * factor.unsqueeze(1))
    return total
