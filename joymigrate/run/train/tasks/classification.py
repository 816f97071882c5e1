"""Sequence classification: one class per text, or per pair of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from joymigrate.run.train import records
from joymigrate.run.train.columns import Array, Batch, Sample
from joymigrate.run.train.tasks import _inputs
from joymigrate.run.train.tasks.task import TOKENS, TaskContext

if TYPE_CHECKING:
    import torch


class Classification(_inputs.PaddedTexts):
    """A class per text. The classes are `labels`, or what the training data name."""

    MODEL: ClassVar[str] = "AutoModelForSequenceClassification"
    SCHEMA: ClassVar[str] = '{"text": "…", "label": "name"}; "text_pair" may stand beside'
    OPTIONS: ClassVar[Mapping[str, Any]] = {"labels": None}
    FIELDS: ClassVar[Mapping[str, str]] = {"tokens": TOKENS, "label": "int32"}  # -1: not known

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        self.names = _inputs.class_names(context, self.options["labels"], "label")
        self.options["labels"] = list(self.names)

    def encode(self, record: records.TrainingRecord) -> Sequence[Sample]:
        """One sample."""
        import numpy as np

        text = record.text("text", "sentence")
        pair = record.text("text_pair") if record.get("text_pair") is not None else None
        tokens = _inputs.token_ids(record, self.tokenizer, text, self.context.max_length, pair)
        return [{"tokens": tokens, "label": self.label(record), "weight": np.ones(1)}]

    def label(self, record: records.TrainingRecord) -> Array:
        """The number of the record's class; -1 where it is not known and need not be."""
        import numpy as np

        if not self.context.references and record.get("label") is None:
            return np.array([-1])
        return np.array([_inputs.class_of(self.names, record.require("label"), record)])

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Padded texts and labels [B]."""
        return {
            **_inputs.texts(samples, self.tokenizer),
            "labels": _inputs.numbers(samples, "label"),
        }

    def build(self, source: Any) -> Any:
        """A model with a head over the classes."""
        more = _inputs.head_settings(self.names)
        return source.transformers(self.MODEL, pad_token_id=self.tokenizer.pad_token_id, **more)

    def objective(self, output: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Cross entropy."""
        import torch

        return torch.nn.functional.cross_entropy(output.float(), batch["labels"], reduction="sum")

    def predictions(self, output: torch.Tensor, batch: Batch) -> list[dict[str, Any]]:
        """The most likely class and its probability."""
        return _inputs.class_rows(output, batch, self.names)

    def measure(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Accuracy and macro F1."""
        return _inputs.class_metrics(rows, self.names)


TASK = Classification
