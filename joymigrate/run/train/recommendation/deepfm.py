"""DeepFM: a factorisation machine and an MLP over the same embeddings."""

from __future__ import annotations

from torch import Tensor, nn

from joymigrate.run.train.recommendation.inputs import InputShape, RowInputs, Sizes
from joymigrate.run.train.recommendation.layers import head, pairwise_sum

PAPER = "Guo et al., DeepFM, IJCAI 2017, eq. 1-4"
SIZES: Sizes = {"hidden": [128, 64], "dropout": 0.0}
LINEAR = True


class DeepFM(nn.Module):
    """logit = <w, x> + sum over pairs <v_i, v_j> + MLP([embeddings, numbers])."""

    def __init__(self, shape: InputShape, hidden: list[int], dropout: float) -> None:
        super().__init__()
        self.first = nn.Linear(shape.numbers, shape.targets)
        self.deep = head(shape.flat, hidden, shape.targets, dropout)

    def forward(self, x: RowInputs) -> Tensor:
        """Logits [B, T]."""
        assert x.linear_B is not None
        pairs_B = pairwise_sum(x.fields_BFD) + x.linear_B
        logits: Tensor = self.deep(x.flat_BX()) + self.first(x.numbers_BG) + pairs_B[:, None]
        return logits


MODEL = DeepFM
