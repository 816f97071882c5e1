"""Wide & Deep: a linear model over ids and crosses beside an MLP."""

from __future__ import annotations

from torch import Tensor, nn

from joymigrate.run.train.recommendation.inputs import InputShape, RowInputs, Sizes
from joymigrate.run.train.recommendation.layers import head

PAPER = "Cheng et al., Wide & Deep Learning for Recommender Systems, DLRS 2016, eq. 3"
SIZES: Sizes = {"hidden": [128, 64], "dropout": 0.0}
LINEAR = True


class WideDeep(nn.Module):
    """logit = w_wide · [x, cross(x)] + w_deep · MLP([embeddings, numbers]) + b."""

    def __init__(self, shape: InputShape, hidden: list[int], dropout: float) -> None:
        super().__init__()
        self.wide = nn.Linear(shape.numbers, shape.targets)
        self.deep = head(shape.flat, hidden, shape.targets, dropout)

    def forward(self, x: RowInputs) -> Tensor:
        """Logits [B, T]."""
        assert x.linear_B is not None
        logits: Tensor = self.deep(x.flat_BX()) + self.wide(x.numbers_BG) + x.linear_B[:, None]
        return logits


MODEL = WideDeep
