"""HSTU: the next event from all before it, by pointwise SiLU attention over time and place.

Sequences are packed: a padded place costs nothing in attention or projections. The attention is the
kernel registry's, so the same model runs on whatever a device has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from joymigrate.run import kernels
from joymigrate.run.kernels.mask import JaggedMask
from joymigrate.run.kernels.scores import Bias, Silu
from joymigrate.run.train.recommendation.inputs import InputShape, RowInputs, Sizes, need_events
from joymigrate.run.train.recommendation.sequence_cut import SequenceCut

PAPER = "Zhai et al., Actions Speak Louder than Words, ICML 2024, eq. 1-3 (arXiv 2402.17152)"
SIZES: Sizes = {"layers": 2, "heads": 2, "dropout": 0.2, "buckets": 128}
LINEAR = False
FIRST = 0.02  # deviation of first weights and biases, as in the published code


class HstuLayer(nn.Module):
    """U, V, Q, K = SiLU(W norm(x)); y = x + W' (norm(attention(Q, K, V)) * U)."""

    def __init__(self, dim: int, heads: int, length: int, dropout: float, buckets: int) -> None:
        super().__init__()
        self.dim, self.heads, self.length, self.dropout = dim, heads, length, dropout
        # Without weights of their own, as in the published code.
        self.norm_1, self.norm_2 = (
            nn.LayerNorm(dim, eps=1e-6, elementwise_affine=False) for _ in range(2)
        )
        self.inner = nn.Linear(dim, 4 * dim, bias=False)
        self.outer = nn.Linear(dim, dim)
        self.by_place = nn.Parameter(torch.empty(1, 2 * length - 1).normal_(std=FIRST))
        self.by_time = nn.Parameter(torch.empty(1, buckets + 1).normal_(std=FIRST))
        nn.init.normal_(self.inner.weight, std=FIRST)
        nn.init.xavier_uniform_(self.outer.weight)

    def forward(
        self,
        x_TD: Tensor,
        mask: JaggedMask,
        times: tuple[Tensor, Tensor] | None,
        attention: Callable[..., Tensor],
    ) -> Tensor:
        """`times`: of the events as keys, and as queries: when the next one comes [T]."""
        mixed = nn.functional.silu(self.inner(self.norm_1(x_TD)))
        u_TD, v, q, k = mixed.chunk(4, -1)
        bias = Bias(position=self.by_place)
        if times is not None:
            bias = Bias(self.by_place, self.by_time, times[0], times[1])
        q, k, v = (t.view(len(t), self.heads, self.dim // self.heads) for t in (q, k, v))
        found = attention(
            q, k, v, mask, scale=1.0, bias=bias, activation=Silu(float(self.length))
        ).flatten(1)
        gated = nn.functional.dropout(self.norm_2(found) * u_TD, self.dropout, self.training)
        y_TD: Tensor = x_TD + self.outer(gated)
        return y_TD


class Hstu(nn.Module):
    """States of all events, of length 1: their product with an item's row is a cosine."""

    def __init__(
        self, shape: InputShape, layers: int, heads: int, dropout: float, buckets: int
    ) -> None:
        super().__init__()
        need_events(shape, "hstu")
        self.dim, self.heads, self.dropout, length = shape.dim, heads, dropout, shape.events[0]
        self.cut: SequenceCut | None = None
        self.own_BL: Tensor | None = None  # with a cut: the events computed here, of the last batch
        self.positions = nn.Embedding(length, shape.dim)
        nn.init.xavier_normal_(self.positions.weight)
        self.layers = nn.ModuleList(
            HstuLayer(shape.dim, heads, length, dropout, buckets) for _ in range(layers)
        )

    def cut_over(self, group: Any) -> None:
        """Share the events of every sequence over the processes of a group."""
        self.cut = SequenceCut(group, self.heads)

    def states(
        self,
        events_BLD: Tensor,
        mask_BL: Tensor,
        times_BL: Tensor | None = None,
        asked_B: Tensor | None = None,
    ) -> Tensor:
        """What is known after every event [B, L, D]; 0 behind the last, and at others' events.

        A query asks with the time of the event that comes next, the last one with that of its row
        (`asked_B`), or where nobody knows it with its own.
        """
        counts = mask_BL.sum(1)
        at = mask_BL.flatten().nonzero().squeeze(-1)
        offsets = nn.functional.pad(counts.cumsum(0), (1, 0))
        total, rows, ends_at, more = len(at), at, offsets, 0
        attention: Callable[..., Tensor] = kernels.op("attention")
        mine: slice | Tensor = slice(None)
        if self.cut is not None and total:
            here, padded = self.cut.places(total)
            here, more, attention = here.to(at.device), padded - total, self.cut.attention
            rows = nn.functional.pad(at, (0, more))[here]
            mine = here < total
            if more:  # a sequence of its own, which nobody looks at
                ends_at = nn.functional.pad(offsets, (0, 1), value=padded)
        x_TD = events_BLD.flatten(0, 1)[rows] * self.dim**0.5
        x_TD = x_TD + self.positions(rows % mask_BL.shape[1])
        x_TD = nn.functional.dropout(x_TD, self.dropout, self.training)
        mask, times = JaggedMask(ends_at), None
        if times_BL is not None:
            known = times_BL.flatten()[at]
            ends = (offsets[1:] - 1)[counts > 0]
            last = known[ends]
            if asked_B is not None:
                last = torch.maximum(last, asked_B[counts > 0])
            asks = known.roll(-1).index_put((ends,), last)
            times = (nn.functional.pad(known, (0, more)), nn.functional.pad(asks, (0, more)))
        for layer in self.layers:
            x_TD = layer(x_TD, mask, times, attention)
        x_TD, rows = x_TD[mine], rows[mine]
        x_TD = x_TD / x_TD.norm(dim=-1, keepdim=True).clamp(min=1e-6)
        if self.cut is not None:
            self.own_BL = torch.zeros_like(mask_BL)
            self.own_BL.view(-1)[rows] = True
        found: Tensor = x_TD.new_zeros(mask_BL.numel(), self.dim).index_copy(0, rows, x_TD)
        return found.view(*mask_BL.shape, self.dim)

    def forward(self, x: RowInputs) -> Tensor:
        """The candidate's logit after the last event [B, 1]; 0 without events."""
        events_BLD, mask_BL, target_BD = x.events[0]
        last = (mask_BL.sum(1) - 1).clamp(min=0)
        rows = torch.arange(len(last), device=last.device)
        state_BD = self.states(events_BLD, mask_BL, x.times_of(0), x.asked_B)[rows, last]
        return (state_BD * target_BD).sum(-1, keepdim=True)


MODEL = Hstu
