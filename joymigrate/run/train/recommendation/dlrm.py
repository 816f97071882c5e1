"""DLRM: numbers become a vector, all pairs of vectors are multiplied, an MLP on top."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from joymigrate.run.train.recommendation.inputs import InputShape, RowInputs, Sizes
from joymigrate.run.train.recommendation.layers import head, mlp

PAPER = "Naumov et al., Deep Learning Recommendation Model, arXiv 1906.00091, section 2"
SIZES: Sizes = {"bottom": [64], "top": [128, 64]}
LINEAR = False


class Dlrm(nn.Module):
    """top([z, z_i · z_j for i > j]) with z_0 = bottom(numbers) and z_1 … z_F the embeddings."""

    rows: Tensor
    columns: Tensor

    def __init__(self, shape: InputShape, bottom: list[int], top: list[int]) -> None:
        super().__init__()
        self.bottom = mlp(shape.numbers, [*bottom, shape.dim]) if shape.numbers else None
        vectors = shape.fields + (shape.numbers > 0)
        first = shape.dim if shape.numbers else 0
        self.top = head(first + vectors * (vectors - 1) // 2, top, shape.targets)
        rows, columns = torch.tril_indices(vectors, vectors, -1)
        self.register_buffer("rows", rows, persistent=False)
        self.register_buffer("columns", columns, persistent=False)

    def forward(self, x: RowInputs) -> Tensor:
        """Logits [B, T]."""
        z_BVD, parts = x.fields_BFD, []
        if self.bottom is not None:
            dense_BD = self.bottom(x.numbers_BG)
            z_BVD, parts = torch.cat([dense_BD[:, None], z_BVD], 1), [dense_BD]
        products_BVV = torch.bmm(z_BVD, z_BVD.transpose(1, 2))
        logits: Tensor = self.top(torch.cat([*parts, products_BVV[:, self.rows, self.columns]], 1))
        return logits


MODEL = Dlrm
