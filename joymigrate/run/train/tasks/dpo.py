"""Direct preference optimisation: the better answer gains probability against a frozen reference.

Per pair: -log sigmoid(beta * ((log p - log r)(chosen) - (log p - log r)(rejected))), p the model
and r the reference (Rafailov et al., 2023, arXiv 2305.18290).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from joymigrate.errors import JoyError
from joymigrate.run.train.columns import Batch, Sample
from joymigrate.run.train.tasks import _language, _preference
from joymigrate.run.train.tasks.sft import Sft
from joymigrate.run.train.tasks.task import TaskContext, rows

if TYPE_CHECKING:
    import torch

LOSSES = ("sigmoid", "ipo", "hinge")


class Dpo(_preference.PairTask):
    """Pairs of answers. With LoRA the reference is the model without its adapter, else a copy."""

    OPTIONS: ClassVar[Mapping[str, Any]] = {"beta": 0.1, "loss": "sigmoid", "smoothing": 0.0}

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        if self.options["loss"] not in LOSSES:
            raise JoyError(
                f"unknown loss '{self.options['loss']}'", help=f"one of {', '.join(LOSSES)}"
            )
        self.sft = Sft(dataclasses.replace(context, options={}))
        self.reference: Any = None
        self.adapted: Any = None

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Better answers, then worse ones: [2B, L]."""
        pairs = [_preference.documents(sample) for sample in samples]
        return rows([p[0] for p in pairs] + [p[1] for p in pairs], self.tokenizer.pad_token_id or 0)

    def prepare(self, model: Any) -> None:
        """Keep what the answers are compared with, before anything is trained."""
        import copy

        if hasattr(model, "disable_adapter"):
            self.adapted = model
            return
        self.reference = copy.deepcopy(model).eval().requires_grad_(False)

    def answers(self, model: Any, batch: Batch) -> torch.Tensor:
        """Log-probability of every answer [2B]; for ipo of its mean token, as in TRL's trainer and
        LLaMA-Factory's (train/dpo/trainer.py at 00052690)."""
        logits = model(**self.inputs(batch), use_cache=False).logits
        scores, wanted = _language.target_scores(logits, batch["labels"])
        return scores.sum(-1) / (wanted.sum(-1) if self.options["loss"] == "ipo" else 1)

    @contextlib.contextmanager
    def referring(self, model: Any, batch: Batch) -> Iterator[Any]:
        """The reference model, on the batch's device."""
        if self.adapted is not None:
            with self.adapted.disable_adapter():
                yield model
            return
        self.reference.to(batch["input_ids"].device)
        yield self.reference

    def forward(self, model: Any, batch: Batch) -> torch.Tensor:
        """By how much each answer gained against the reference [2B]."""
        import torch

        with torch.no_grad(), self.referring(model, batch) as reference:
            before = self.answers(reference, batch)
        return self.answers(model, batch) - before

    def objective(self, output: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The chosen loss over the pairs."""
        from joymigrate.run.train.reinforcement import policy

        better, worse = output.chunk(2)
        wish = self.options
        return policy.pair_losses(
            better - worse, wish["loss"], float(wish["beta"]), float(wish["smoothing"])
        ).sum()

    def predictions(self, output: torch.Tensor, batch: Batch) -> list[dict[str, Any]]:
        """Which answer gained more; the score is the margin of rewards."""
        better, worse = output.chunk(2)
        scores = (float(self.options["beta"]) * (better - worse)).tolist()
        names = ("rejected", "chosen")
        return [{"prediction": names[s > 0], "reference": "chosen", "score": s} for s in scores]


TASK = Dpo
