"""DIN: the user's interest is the sum of events, weighted by their relevance to the candidate."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from joymigrate.run.train.recommendation.inputs import InputShape, RowInputs, Sizes, need_events
from joymigrate.run.train.recommendation.layers import ActivationUnit, head

PAPER = "Zhou et al., Deep Interest Network, KDD 2018, eq. 3"
SIZES: Sizes = {"hidden": [128, 64], "attention": [64, 16], "dropout": 0.0}
LINEAR = False


class Din(nn.Module):
    """interest = sum_j a(e_j, v_candidate) e_j, without a softmax; then an MLP."""

    def __init__(
        self, shape: InputShape, hidden: list[int], attention: list[int], dropout: float
    ) -> None:
        super().__init__()
        need_events(shape, "din")
        self.units = nn.ModuleList(ActivationUnit(shape.dim, attention) for _ in shape.events)
        inputs = shape.flat + len(shape.events) * shape.dim
        self.deep = head(inputs, hidden, shape.targets, dropout)

    def forward(self, x: RowInputs) -> Tensor:
        """Logits [B, T]."""
        interests = []
        for unit, (events_BLD, mask_BL, target_BD) in zip(self.units, x.events, strict=True):
            weights_BL = unit(target_BD, events_BLD) * mask_BL
            interests.append(torch.einsum("bl,bld->bd", weights_BL, events_BLD))
        logits: Tensor = self.deep(torch.cat([x.flat_BX(), *interests], 1))
        return logits


MODEL = Din
