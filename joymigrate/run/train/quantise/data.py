"""Calibration samples: JSONL with text, messages or tokens, as token ids."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.train import chats, records
from joymigrate.run.train import tokenizer as tokenizers
from joymigrate.run.train.tasks.sft import Sft
from joymigrate.run.train.tasks.task import TaskContext

SHAPES = '{"text": "…"}, {"messages": [{"role": "user", "content": "…"}]} or {"tokens": [5, 17]}'
HELD_OUT = 4  # every fourth sample judges, where there are enough
CONVERSATIONS = ("messages", "conversations", "instruction")
LEAST = 2  # tokens: one to see and one to predict


@dataclass(frozen=True, slots=True)
class CalibrationSamples:
    """Token ids of every sample, and where they come from."""

    ids: tuple[tuple[int, ...], ...]
    path: Path
    dropped: int = 0  # too short to predict anything
    cut: int = 0  # longer than the wanted length

    @property
    def tokens(self) -> int:
        """Tokens of all samples."""
        return sum(map(len, self.ids))

    def split(self) -> tuple[CalibrationSamples, CalibrationSamples, bool]:
        """Samples to calibrate with and others to judge by; (all, all, False) of fewer than 4."""
        if len(self.ids) < HELD_OUT:
            return self, self, False
        kept = tuple(ids for i, ids in enumerate(self.ids) if i % HELD_OUT != HELD_OUT - 1)
        held = tuple(ids for i, ids in enumerate(self.ids) if i % HELD_OUT == HELD_OUT - 1)
        return CalibrationSamples(kept, self.path), CalibrationSamples(held, self.path), True


def read_samples(
    path: Path, model: Path, *, most: int = 128, length: int = 512, vocabulary: int | None = None
) -> CalibrationSamples:
    """At most `most` samples of at most `length` tokens, in the file's order.

    Raises `JoyError` for records of another shape.
    """
    tokenizer: Any = None
    found: list[tuple[int, ...]] = []
    dropped = cut = 0
    try:
        for record, _ in records.read([path], "jsonl"):
            if len(found) == most:
                break
            ids = given_ids(record)
            if ids is None:
                tokenizer = tokenizer or load_tokenizer(model)
                ids = written_ids(record, tokenizer)
            if vocabulary is not None and any(not 0 <= i < vocabulary for i in ids):
                raise JoyError(f"a token is not among the model's {vocabulary}", where=record.where)
            if len(ids) < LEAST:
                dropped += 1
                continue
            cut += len(ids) > length
            found.append(tuple(ids[:length]))
    except OSError as error:
        raise JoyError(f"cannot read: {error.strerror}", where=str(path)) from None
    if not found:
        raise JoyError(
            "there is no sample of two or more tokens in this file",
            where=str(path),
            help=f"one JSON object per line: {SHAPES}",
        )
    return CalibrationSamples(tuple(found), path, dropped, cut)


def given_ids(record: records.TrainingRecord) -> list[int] | None:
    """The token ids that a record gives itself."""
    tokens = record.get("tokens", "input_ids")
    if tokens is not None and not (
        isinstance(tokens, list) and all(type(item) is int for item in tokens)
    ):
        raise JoyError("'tokens' is not a list of whole numbers", where=record.where, help=SHAPES)
    return tokens


def written_ids(record: records.TrainingRecord, tokenizer: Any) -> list[int]:
    """The token ids of a conversation by the model's own template, or of a text.

    A text may have any keys beside it, such as a label: nothing is learned from them.
    """
    plain = isinstance(record.get("text", "prompt"), str) and record.get(*CONVERSATIONS) is None
    talk = None if plain else chats.read(record, answered=False)
    if talk is None:
        text = record.text("text", "prompt")
        if record.get("completion") is not None:
            text += record.text("completion")
        return list(tokenizer(text)["input_ids"])
    if tokenizer.chat_template is None:
        raise JoyError(
            "the model has no chat template, so it cannot read 'messages'",
            where=record.where,
            help='give plain text: {"text": "…"}',
        )
    made = Sft(TaskContext(tokenizer)).render(talk.messages, record, tools=talk.tools)
    return list(tokenizer(made, add_special_tokens=False)["input_ids"])


def load_tokenizer(model: Path) -> Any:
    """The model's tokenizer; an error says what to give without one."""
    try:
        if tokenizers.has_tokenizer(model):
            return tokenizers.from_folder(model)
        what = "the model's folder has no tokenizer"
    except JoyError as error:
        what = error.what
    raise JoyError(what, where=str(model), help='give token ids: {"tokens": [5, 17, …]}')
