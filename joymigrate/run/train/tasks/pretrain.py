"""Causal pre-training: every token of a text is predicted from those before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from joymigrate.run.train import packing, records
from joymigrate.run.train.columns import Sample
from joymigrate.run.train.tasks._next_token import NextToken
from joymigrate.run.train.tasks.task import SampleSource, one_sample
from joymigrate.run.train.tokens import TokenCache


class Pretrain(NextToken):
    """Texts, one after another; with packing they fill rows without a gap."""

    SCHEMA: ClassVar[str] = '{"text": "…"}'

    def encode(self, record: records.TrainingRecord) -> Sequence[Sample]:
        """The text's tokens and an end sign."""
        text = record.text("text", "content")
        if records.is_blank(text, record):
            return []
        tokens = [*self.tokenizer(text, add_special_tokens=False)["input_ids"]]
        if self.tokenizer.eos_token_id is not None:
            tokens.append(self.tokenizer.eos_token_id)
        length = len(tokens) if self.context.packing else self.context.max_length
        return one_sample(record, tokens, [(0, len(tokens))], length)

    def identity(self) -> str:
        """With packing, texts are not cut: the length does not matter."""
        return f"{super().identity()} {'stream' if self.context.packing else 'rows'}"

    def samples(self, cache: TokenCache) -> SampleSource:
        """A stream of equal rows, or one text per row."""
        if self.context.packing:
            return packing.PackedStream(cache, self.context.max_length)
        return packing.Documents(cache, self.context.max_length)


TASK = Pretrain
