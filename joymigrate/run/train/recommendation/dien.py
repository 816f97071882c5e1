"""DIEN: interests are read from events by a GRU, and evolve towards the candidate by an AUGRU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from joymigrate.run.train.recommendation.inputs import InputShape, RowInputs, Sizes, need_events
from joymigrate.run.train.recommendation.layers import head

PAPER = "Zhou et al., Deep Interest Evolution Network, AAAI 2019, eq. 2-15"
SIZES: Sizes = {"hidden": [128, 64], "auxiliary": 0.5, "dropout": 0.0}
LINEAR = False


class Augru(nn.Module):
    """A GRU whose update gate is scaled by the attention of its step (eq. 14, 15)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.inputs = nn.Linear(dim, 3 * dim)
        self.states = nn.Linear(dim, 3 * dim)

    def forward(self, x_BLD: Tensor, weights_BL: Tensor, mask_BL: Tensor) -> Tensor:
        """The state behind the last event [B, D]."""
        given = self.inputs(x_BLD)
        state_BD = torch.zeros_like(x_BLD[:, 0])
        for step in range(x_BLD.shape[1]):
            reset_x, update_x, new_x = given[:, step].chunk(3, -1)
            reset_h, update_h, new_h = self.states(state_BD).chunk(3, -1)
            reset = (reset_x + reset_h).sigmoid()
            update = (update_x + update_h).sigmoid() * weights_BL[:, step, None]
            new = (new_x + reset * new_h).tanh()
            moved = (1 - update) * state_BD + update * new
            state_BD = torch.where(mask_BL[:, step, None], moved, state_BD)
        return state_BD


class Interest(nn.Module):
    """Interest extraction, attention by the candidate, evolution."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.extract = nn.GRU(dim, dim, batch_first=True)
        self.attention = nn.Linear(dim, dim, bias=False)
        self.evolve = Augru(dim)

    def forward(
        self, events_BLD: Tensor, mask_BL: Tensor, target_BD: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The evolved interest [B, D] and the auxiliary loss (a scalar)."""
        hidden_BLD, _ = self.extract(events_BLD)
        scores_BL = torch.einsum("bld,bd->bl", self.attention(hidden_BLD), target_BD)
        least = torch.finfo(scores_BL.dtype).min
        weights_BL = scores_BL.masked_fill(~mask_BL, least).softmax(-1) * mask_BL
        return self.evolve(hidden_BLD, weights_BL, mask_BL), auxiliary(
            hidden_BLD, events_BLD, mask_BL
        )


def auxiliary(hidden_BLD: Tensor, events_BLD: Tensor, mask_BL: Tensor) -> Tensor:
    """Each state tells the next event from another row's event (eq. 7), summed over the rows.

    The paper draws negatives from all items; here they are the events of the row before.
    """
    nexts, both = events_BLD[:, 1:], mask_BL[:, 1:] & mask_BL.roll(1, 0)[:, 1:]
    wrongs = events_BLD.roll(1, 0)[:, 1:]
    states = hidden_BLD[:, :-1]
    right, wrong = (states * nexts).sum(-1), (states * wrongs).sum(-1)
    loss_BL = nn.functional.softplus(-right) + nn.functional.softplus(wrong)
    return (loss_BL * both).sum() / both.sum().clamp(min=1) * len(mask_BL)


class Dien(nn.Module):
    """MLP([fields, numbers, evolved interests]); `extra_loss` is the auxiliary one."""

    def __init__(
        self, shape: InputShape, hidden: list[int], auxiliary: float, dropout: float
    ) -> None:
        super().__init__()
        need_events(shape, "dien")
        self.auxiliary = auxiliary
        self.interests = nn.ModuleList(Interest(shape.dim) for _ in shape.events)
        inputs = shape.flat + len(shape.events) * shape.dim
        self.deep = head(inputs, hidden, shape.targets, dropout)
        self.extra_loss: Tensor | None = None

    def forward(self, x: RowInputs) -> Tensor:
        """Logits [B, T]."""
        found = [part(*one) for part, one in zip(self.interests, x.events, strict=True)]
        losses = torch.stack([loss for _, loss in found])
        self.extra_loss = self.auxiliary * losses.sum() if self.training else None
        logits: Tensor = self.deep(torch.cat([x.flat_BX(), *(state for state, _ in found)], 1))
        return logits


MODEL = Dien
