"""Sequence to sequence: a text from a text, by an encoder and a decoder (translation, summary)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from joymigrate.run.train import records
from joymigrate.run.train.columns import Batch, Sample
from joymigrate.run.train.tasks import _inputs
from joymigrate.run.train.tasks.task import TOKENS

if TYPE_CHECKING:
    import torch


class Seq2seq(_inputs.GuessedTokens):
    """Models such as T5 and BART."""

    MODEL: ClassVar[str] = "AutoModelForSeq2SeqLM"
    SCHEMA: ClassVar[str] = '{"source": "…", "target": "…"}'
    FIELDS: ClassVar[Mapping[str, str]] = {"tokens": TOKENS, "target": TOKENS}

    def encode(self, record: records.TrainingRecord) -> Sequence[Sample]:
        """One sample; the target ends with an end sign."""
        length = self.context.max_length
        source = record.text("source", "prompt", "text")
        known = self.context.references or record.get("target") is not None
        text = record.text("target", "completion", "summary") if known else ""
        if known and self.context.references and records.is_blank(text, record):
            return []
        whole = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        target = [*whole[: length - 1]]
        record.fate.cut += len(whole) - len(target)
        if self.tokenizer.eos_token_id is not None:
            target.append(self.tokenizer.eos_token_id)
        tokens = _inputs.token_ids(record, self.tokenizer, source, length)
        return [{"tokens": tokens, "target": np.asarray(target), "weight": np.array([len(target)])}]

    def shown(self, sample: Sample) -> dict[str, Sample]:
        """What is read, and the target, which is learned."""
        target = sample["target"]
        whole = {"tokens": target, "targets": np.ones(len(target), dtype=bool)}
        return {**super().shown(sample), "target": whole}

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Padded texts, and targets [B, T] with -100 behind their ends."""
        labels_BT, _ = _inputs.pad_rows([s["target"].astype("int64") for s in samples], -100)
        return {**_inputs.texts(samples, self.tokenizer), "labels": labels_BT}

    def build(self, source: Any) -> Any:
        """A new model starts its answers with the padding token, as T5 does."""
        if source.path is not None:
            return source.transformers(self.MODEL)
        start = self.tokenizer.pad_token_id
        return source.transformers(self.MODEL, decoder_start_token_id=start)

    def forward(self, model: Any, batch: Batch) -> torch.Tensor:
        """Logits [B, T, V]."""
        import torch

        start = model_config(model).decoder_start_token_id
        labels_BT = batch["labels"]
        first = torch.full_like(labels_BT[:, :1], start)
        pad = self.tokenizer.pad_token_id or 0
        shifted = torch.cat(
            [first, labels_BT[:, :-1].masked_fill(labels_BT[:, :-1] == -100, pad)], 1
        )
        logits: torch.Tensor = model(
            **self.inputs(batch), decoder_input_ids=shifted, use_cache=False
        ).logits
        return logits


def model_config(model: Any) -> Any:
    """The configuration, also inside DDP."""
    return getattr(model, "module", model).config


TASK = Seq2seq
