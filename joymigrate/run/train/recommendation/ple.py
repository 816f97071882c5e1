"""PLE: experts of each task beside shared ones, in several levels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from joymigrate.run.train.recommendation.inputs import InputShape, RowInputs, Sizes
from joymigrate.run.train.recommendation.layers import head, mlp

PAPER = "Tang et al., Progressive Layered Extraction, RecSys 2020, eq. 1-6"
SIZES: Sizes = {
    **{"levels": 2, "own": 2, "shared": 2, "expert": [64], "tower": [32], "dropout": 0.0},
}
LINEAR = False


class Level(nn.Module):
    """One extraction network: T tasks and what they share, each with experts and a gate."""

    def __init__(
        self, width: int, tasks: int, own: int, shared: int, expert: list[int], *, last: bool,
        dropout: float,
    ) -> None:  # fmt: skip
        super().__init__()

        def experts(count: int) -> nn.ModuleList:
            return nn.ModuleList(mlp(width, expert, dropout) for _ in range(count))

        self.own = nn.ModuleList(experts(own) for _ in range(tasks))
        self.shared = experts(shared)
        self.gates = nn.ModuleList(nn.Linear(width, own + shared, bias=False) for _ in range(tasks))
        every = tasks * own + shared
        self.shared_gate = None if last else nn.Linear(width, every, bias=False)

    def forward(self, tasks: list[Tensor], common: Tensor) -> tuple[list[Tensor], Tensor]:
        """Per task [B, H], and what they share [B, H]."""
        own = []
        for experts, x in zip(self.own, tasks, strict=True):
            assert isinstance(experts, nn.ModuleList)
            own.append([expert(x) for expert in experts])
        shared = [expert(common) for expert in self.shared]
        found = [
            weigh_experts(gate(x), [*mine, *shared])
            for gate, x, mine in zip(self.gates, tasks, own, strict=True)
        ]
        if self.shared_gate is None:
            return found, common
        every = [one for mine in own for one in mine] + shared
        return found, weigh_experts(self.shared_gate(common), every)


def weigh_experts(scores_BE: Tensor, experts: list[Tensor]) -> Tensor:
    """The experts' outputs by the softmax of a gate [B, H]."""
    return torch.einsum("be,beh->bh", scores_BE.softmax(-1), torch.stack(experts, 1))


class Ple(nn.Module):
    """Levels of extraction, then a tower per task."""

    def __init__(
        self, shape: InputShape, levels: int, own: int, shared: int, expert: list[int],
        tower: list[int], dropout: float,
    ) -> None:  # fmt: skip
        super().__init__()
        tasks = shape.targets
        widths = [shape.flat] + [expert[-1]] * (levels - 1)
        self.levels = nn.ModuleList(
            Level(width, tasks, own, shared, expert, last=at == levels - 1, dropout=dropout)
            for at, width in enumerate(widths)
        )
        self.towers = nn.ModuleList(head(expert[-1], tower, 1, dropout) for _ in range(tasks))

    def forward(self, x: RowInputs) -> Tensor:
        """Logits [B, T]."""
        common = x.flat_BX()
        tasks = [common] * len(self.towers)
        for level in self.levels:
            tasks, common = level(tasks, common)
        pairs = zip(self.towers, tasks, strict=True)
        return torch.cat([tower(one) for tower, one in pairs], 1)


MODEL = Ple
