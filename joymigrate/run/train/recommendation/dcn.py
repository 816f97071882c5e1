"""DCN-v2: explicit crosses of any order by full matrices, or by a mixture of low-rank experts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from joymigrate.run.train.recommendation.inputs import InputShape, RowInputs, Sizes
from joymigrate.run.train.recommendation.layers import head, mlp

PAPER = "Wang et al., DCN V2, WWW 2021, eq. 1 (full), eq. 3-5 (mixture of low-rank crosses)"
SIZES: Sizes = {
    **{"hidden": [128, 64], "dropout": 0.0, "crosses": 3, "rank": 0, "experts": 4},
    "structure": "parallel",
}
LINEAR = False


class FullCross(nn.Module):
    """x_{l+1} = x_0 * (W x_l + b) + x_l."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, first: Tensor, x: Tensor) -> Tensor:
        """The next layer [B, X]."""
        crossed: Tensor = first * self.linear(x) + x
        return crossed


class MixedCross(nn.Module):
    """x_{l+1} = sum_i G_i(x_l) (x_0 * (U_i g(C_i g(V_i^T x_l)) + b)) + x_l, g = tanh."""

    def __init__(self, width: int, rank: int, experts: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.empty(experts, width, rank))
        self.middle = nn.Parameter(torch.empty(experts, rank, rank))
        self.up = nn.Parameter(torch.empty(experts, rank, width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.gate = nn.Linear(width, experts, bias=False)
        for weight in (self.down, self.middle, self.up):
            nn.init.xavier_normal_(weight)

    def forward(self, first: Tensor, x: Tensor) -> Tensor:
        """The next layer [B, X]."""
        inner_BER = torch.einsum("bx,exr->ber", x, self.down).tanh()
        inner_BER = torch.einsum("ber,ers->bes", inner_BER, self.middle).tanh()
        outer_BEX = torch.einsum("ber,erx->bex", inner_BER, self.up) + self.bias
        shares_BE = self.gate(x).softmax(-1)
        return first * torch.einsum("be,bex->bx", shares_BE, outer_BEX) + x


class Dcn(nn.Module):
    """Crosses before the MLP (stacked) or beside it (parallel)."""

    def __init__(
        self,
        shape: InputShape,
        hidden: list[int],
        dropout: float,
        crosses: int,
        rank: int,
        experts: int,
        structure: str,
    ) -> None:
        super().__init__()
        width = shape.flat

        def layer() -> nn.Module:
            return MixedCross(width, rank, experts) if rank else FullCross(width)

        self.crosses = nn.ModuleList(layer() for _ in range(crosses))
        self.stacked = structure == "stacked"
        if self.stacked:
            self.deep = head(width, hidden, shape.targets, dropout)
        else:
            self.deep = mlp(width, hidden, dropout)
            self.output = nn.Linear(width + (hidden[-1] if hidden else width), shape.targets)

    def forward(self, x: RowInputs) -> Tensor:
        """Logits [B, T]."""
        first = crossed = x.flat_BX()
        for layer in self.crosses:
            crossed = layer(first, crossed)
        logits: Tensor
        if self.stacked:
            logits = self.deep(crossed)
        else:
            logits = self.output(torch.cat([crossed, self.deep(first)], 1))
        return logits


MODEL = Dcn
