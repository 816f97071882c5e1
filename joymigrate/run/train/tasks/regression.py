"""Regression: one number per text, or per pair of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from joymigrate.run.train import records
from joymigrate.run.train.columns import Batch, Sample
from joymigrate.run.train.tasks import _inputs
from joymigrate.run.train.tasks.task import TOKENS

if TYPE_CHECKING:
    import torch


class Regression(_inputs.ScoredTexts):
    """A number per text, by the mean square error."""

    HEAD: ClassVar[Mapping[str, Any]] = {"num_labels": 1, "problem_type": "regression"}
    SCHEMA: ClassVar[str] = '{"text": "…", "score": 0.7}; "text_pair" may stand beside'
    FIELDS: ClassVar[Mapping[str, str]] = {"tokens": TOKENS, "label": "float32"}  # NaN: not known

    def encode(self, record: records.TrainingRecord) -> Sequence[Sample]:
        """One sample."""
        import numpy as np

        text = record.text("text", "sentence")
        known = self.context.references or record.get("score") is not None
        raw = record.require("score", "label") if known else None
        score = records.as_number(raw, "score", record) if known else float("nan")
        pair = record.text("text_pair") if record.get("text_pair") is not None else None
        tokens = _inputs.token_ids(record, self.tokenizer, text, self.context.max_length, pair)
        return [{"tokens": tokens, "label": np.array([score]), "weight": np.ones(1)}]

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Padded texts and numbers [B]."""
        return {
            **_inputs.texts(samples, self.tokenizer),
            "labels": _inputs.numbers(samples, "label", "float32"),
        }

    def objective(self, output: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Square error."""
        total: torch.Tensor = (output.float() - batch["labels"]).square().sum()
        return total

    def predictions(self, output: torch.Tensor, batch: Batch) -> list[dict[str, Any]]:
        """The number."""
        found = []
        for made, label in zip(output.float().tolist(), batch["labels"].tolist(), strict=True):
            known = {} if label != label else {"reference": label}
            found.append({"prediction": made, **known})
        return found

    def measure(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Mean square and absolute error, and both correlations where they are defined."""
        import torch
        from torchmetrics.functional import regression

        known = [row for row in rows if "reference" in row]
        if not known:
            return {}
        guess = torch.tensor([row["prediction"] for row in known])
        truth = torch.tensor([row["reference"] for row in known])
        found = {
            "mse": float(regression.mean_squared_error(guess, truth)),
            "mae": float(regression.mean_absolute_error(guess, truth)),
        }
        if len(known) > 1 and guess.std() > 0 and truth.std() > 0:
            found["pearson"] = float(regression.pearson_corrcoef(guess, truth))
            found["spearman"] = float(regression.spearman_corrcoef(guess, truth))
        return found


TASK = Regression
