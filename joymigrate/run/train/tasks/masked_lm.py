"""Masked language modelling: encoders learn the tokens that were hidden from them.

Which tokens are hidden depends on the sample's content and the job's seed, so that every layout
and a resumed run hide the same ones. Of the hidden ones 80 % become the mask, 10 % another token,
10 % stay (Devlin et al., 2018, arXiv 1810.04805).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from joymigrate.run.train import records
from joymigrate.run.train.columns import Array, Batch, Sample
from joymigrate.run.train.tasks import _inputs
from joymigrate.run.train.tasks.task import TOKENS

if TYPE_CHECKING:
    pass


class MaskedLm(_inputs.GuessedTokens):
    """Models such as BERT."""

    MODEL: ClassVar[str] = "AutoModelForMaskedLM"
    SCHEMA: ClassVar[str] = '{"text": "…"}'
    OPTIONS: ClassVar[Mapping[str, Any]] = {"share": 0.15}
    FIELDS: ClassVar[Mapping[str, str]] = {
        "tokens": TOKENS,
        "truth": "int32",
    }  # as seen; as they are

    def identity(self) -> str:
        """Also the seed: it decides what is hidden."""
        return f"{super().identity()} {self.context.seed}"

    def encode(self, record: records.TrainingRecord) -> Sequence[Sample]:
        """One sample per text."""
        import numpy as np

        text = record.text("text", "content")
        if records.is_blank(text, record):
            return []
        tokens = _inputs.token_ids(record, self.tokenizer, text, self.context.max_length)
        shown, truth = self.hidden(tokens.astype(np.int64))
        count = int((truth >= 0).sum())
        return [{"tokens": shown, "truth": truth, "weight": np.array([count])}]

    def hidden(self, tokens: Array) -> tuple[Array, Array]:
        """What is shown, and the true tokens where it counts (-100 elsewhere)."""
        import zlib

        import numpy as np

        draw = np.random.default_rng([self.context.seed, zlib.crc32(tokens.tobytes())])
        special = np.isin(tokens, self.tokenizer.all_special_ids)
        chosen = (draw.random(len(tokens)) < float(self.options["share"])) & ~special
        if not chosen.any():
            chosen[draw.integers(len(tokens))] = True
        fate = draw.random(len(tokens))
        mask = self.tokenizer.mask_token_id
        if mask is None:  # the built-in tokenizer has none: its unused start sign stands for it
            mask = self.tokenizer.bos_token_id or self.tokenizer.unk_token_id or 0
        other = draw.integers(0, len(self.tokenizer), len(tokens))
        shown = np.where(chosen & (fate < 0.8), mask, tokens)
        shown = np.where(chosen & (fate >= 0.9), other, shown)
        return shown, np.where(chosen, tokens, -100)

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Padded texts and the true tokens [B, L]."""
        labels_BL, _ = _inputs.pad_rows([sample["truth"] for sample in samples], -100)
        return {**_inputs.texts(samples, self.tokenizer), "labels": labels_BL}


TASK = MaskedLm
