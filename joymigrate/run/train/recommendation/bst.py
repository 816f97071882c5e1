"""BST: a transformer over the events and the candidate, then an MLP."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from joymigrate.run.train.recommendation.inputs import InputShape, RowInputs, Sizes, need_events
from joymigrate.run.train.recommendation.layers import AttentionBlock, visible

PAPER = "Chen et al., Behavior Sequence Transformer, DLP-KDD 2019, eq. 1-4"
SIZES: Sizes = {"hidden": [256, 128, 64], "layers": 1, "heads": 4, "dropout": 0.0, "slope": 0.01}
LINEAR = False


class Bst(nn.Module):
    """MLP([fields, numbers, transformer([events, candidate])]), LeakyReLU throughout.

    Positions count backwards from the candidate, which has 0 (the paper: time before it).
    """

    def __init__(
        self,
        shape: InputShape,
        hidden: list[int],
        layers: int,
        heads: int,
        dropout: float,
        slope: float,
    ) -> None:
        super().__init__()
        need_events(shape, "bst")
        length = shape.events[0] + 1
        self.positions = nn.Embedding(length, shape.dim)
        self.blocks = nn.ModuleList(
            AttentionBlock(shape.dim, heads, 4 * shape.dim, dropout, first=False, slope=slope)
            for _ in range(layers)
        )
        parts: list[nn.Module] = []
        inputs = shape.flat + length * shape.dim
        for width in hidden:
            parts += [nn.Linear(inputs, width), nn.LeakyReLU(slope), nn.Dropout(dropout)]
            inputs = width
        self.deep = nn.Sequential(*parts, nn.Linear(inputs, shape.targets))

    def forward(self, x: RowInputs) -> Tensor:
        """Logits [B, T]."""
        events_BLD, mask_BL, target_BD = x.events[0]
        length = mask_BL.sum(1, keepdim=True)
        place_BL = (length - torch.arange(mask_BL.shape[1], device=mask_BL.device)).clamp(min=0)
        places = torch.cat([place_BL, torch.zeros_like(length)], 1)
        mask = torch.cat([mask_BL, torch.ones_like(mask_BL[:, :1])], 1)
        x_BLD = torch.cat([events_BLD, target_BD[:, None]], 1) + self.positions(places)
        allowed_BLL = visible(mask, causal=False)
        for block in self.blocks:
            x_BLD = block(x_BLD, allowed_BLL)
        seen_BLD = x_BLD * mask[..., None]
        logits: Tensor = self.deep(torch.cat([x.flat_BX(), seen_BLD.flatten(1)], 1))
        return logits


MODEL = Bst
