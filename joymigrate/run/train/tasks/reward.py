"""Reward model: a score per answer, higher for the better of two (Bradley-Terry)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from joymigrate.run.train.columns import Batch, Sample
from joymigrate.run.train.tasks import _inputs, _preference
from joymigrate.run.train.tasks.sft import Sft
from joymigrate.run.train.tasks.task import TaskContext

if TYPE_CHECKING:
    import torch


class Reward(_preference.PairTask, _inputs.ScoredTexts):
    """Pairs of answers; the model has one output per text."""

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        self.sft = Sft(context)

    def shown(self, sample: Sample) -> dict[str, Sample]:
        """Both answers: their scores are compared, and no token is learned."""
        return {
            name: {**row, "targets": row["targets"] & False}
            for name, row in super().shown(sample).items()
        }

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Better answers, then worse ones: [2B, L]."""
        pairs = [_preference.documents(sample) for sample in samples]
        ordered = [p[0] for p in pairs] + [p[1] for p in pairs]
        return _inputs.texts(ordered, self.tokenizer)

    def objective(self, output: torch.Tensor, batch: Batch) -> torch.Tensor:
        """-log sigmoid(better - worse)."""
        import torch

        better, worse = output.float().chunk(2)
        return -torch.nn.functional.logsigmoid(better - worse).sum()

    def predictions(self, output: torch.Tensor, batch: Batch) -> list[dict[str, Any]]:
        """Which answer scores higher, and by how much."""
        better, worse = output.float().chunk(2)
        names = ("rejected", "chosen")
        return [
            {"prediction": names[s > 0], "reference": "chosen", "score": s}
            for s in (better - worse).tolist()
        ]


TASK = Reward
