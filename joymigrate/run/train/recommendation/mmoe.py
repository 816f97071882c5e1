"""MMoE: experts that all tasks share, and a gate of its own for every task."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from joymigrate.run.train.recommendation.inputs import InputShape, RowInputs, Sizes
from joymigrate.run.train.recommendation.layers import head, mlp

PAPER = (
    "Ma et al., Modeling Task Relationships with Multi-gate Mixture-of-Experts, KDD 2018, eq. 6-7"
)
SIZES: Sizes = {"experts": 4, "expert": [128, 64], "tower": [32], "dropout": 0.0}
LINEAR = False


class Mmoe(nn.Module):
    """y_k = tower_k(sum_i softmax(W_k x)_i expert_i(x))."""

    def __init__(
        self, shape: InputShape, experts: int, expert: list[int], tower: list[int], dropout: float
    ) -> None:
        super().__init__()
        width = shape.flat
        self.experts = nn.ModuleList(mlp(width, expert, dropout) for _ in range(experts))
        gates = (nn.Linear(width, experts, bias=False) for _ in range(shape.targets))
        self.gates = nn.ModuleList(gates)
        towers = (head(expert[-1], tower, 1, dropout) for _ in range(shape.targets))
        self.towers = nn.ModuleList(towers)

    def forward(self, x: RowInputs) -> Tensor:
        """Logits [B, T]."""
        flat_BX = x.flat_BX()
        experts_BEH = torch.stack([expert(flat_BX) for expert in self.experts], 1)
        logits = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            mixed_BH = torch.einsum("be,beh->bh", gate(flat_BX).softmax(-1), experts_BEH)
            logits.append(tower(mixed_BH))
        return torch.cat(logits, 1)


MODEL = Mmoe
