"""SASRec: the next item from those before it, by causal self-attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from joymigrate.run.train.recommendation.inputs import InputShape, RowInputs, Sizes, need_events
from joymigrate.run.train.recommendation.layers import AttentionBlock, visible

PAPER = "Kang and McAuley, Self-Attentive Sequential Recommendation, ICDM 2018, eq. 1-7"
SIZES: Sizes = {"layers": 2, "heads": 1, "dropout": 0.2}
LINEAR = False


class SasRec(nn.Module):
    """States of all events; an item's score is the product of a state with the item's row."""

    def __init__(self, shape: InputShape, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        need_events(shape, "sasrec")
        self.dim, self.dropout = shape.dim, dropout
        self.positions = nn.Embedding(shape.events[0], shape.dim)
        nn.init.normal_(self.positions.weight, std=0.02)
        self.blocks = nn.ModuleList(
            AttentionBlock(shape.dim, heads, shape.dim, dropout, first=True) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(shape.dim)

    def states(self, events_BLD: Tensor, mask_BL: Tensor, *times: Tensor | None) -> Tensor:
        """What is known after every event [B, L, D]; times are not looked at."""
        places = torch.arange(events_BLD.shape[1], device=events_BLD.device)
        x_BLD = events_BLD * self.dim**0.5 + self.positions(places)
        x_BLD = nn.functional.dropout(x_BLD, self.dropout, self.training) * mask_BL[..., None]
        allowed_BLL = visible(mask_BL, causal=True)
        for block in self.blocks:
            x_BLD = block(x_BLD, allowed_BLL) * mask_BL[..., None]
        found: Tensor = self.norm(x_BLD)
        return found

    def forward(self, x: RowInputs) -> Tensor:
        """The candidate's logit after the last event [B, 1]; 0 without events."""
        events_BLD, mask_BL, target_BD = x.events[0]
        last = (mask_BL.sum(1) - 1).clamp(min=0)
        rows = torch.arange(len(last), device=last.device)
        state_BD = self.states(events_BLD, mask_BL)[rows, last] * mask_BL.any(1)[:, None]
        return (state_BD * target_BD).sum(-1, keepdim=True)


MODEL = SasRec
