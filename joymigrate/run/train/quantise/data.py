"""Calibration samples: JSONL with text, messages or tokens, as token ids."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError

SHAPES = '{"text": "…"}, {"messages": [{"role": "user", "content": "…"}]} or {"tokens": [5, 17]}'
HELD_OUT = 4  # every fourth sample judges, where there are enough
TOKENIZERS = ("tokenizer*", "vocab*", "*.model", "*.tiktoken", "tokenization*.py")
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
    """At most `most` samples of at most `length` tokens, in the file's order. Raises `JoyError`
    for lines of another shape."""
    tokenizer: Any = None
    found: list[tuple[int, ...]] = []
    dropped = cut = 0
    for where, line in lines(path):
        if len(found) == most:
            break
        if not any(key in line for key in ("tokens", "input_ids")) and tokenizer is None:
            tokenizer = load_tokenizer(model)
        ids = ids_of(line, tokenizer, where)
        if vocabulary is not None and any(not 0 <= i < vocabulary for i in ids):
            raise JoyError(f"a token is not among the model's {vocabulary}", where=where)
        if len(ids) < LEAST:
            dropped += 1
            continue
        cut += len(ids) > length
        found.append(tuple(ids[:length]))
    if not found:
        raise JoyError(
            "there is no sample of two or more tokens in this file",
            where=str(path),
            help=f"one JSON object per line: {SHAPES}",
        )
    return CalibrationSamples(tuple(found), path, dropped, cut)


def lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of a JSONL file, plain or gzipped, with its place."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if not raw.strip():
                    continue
                where = f"{path}:{number}"
                try:
                    line = json.loads(raw)
                except ValueError as error:
                    raise JoyError(f"not JSON: {error}", where=where) from None
                if not isinstance(line, dict):
                    raise JoyError("not a JSON object", where=where, help=SHAPES)
                yield where, line
    except OSError as error:
        raise JoyError(f"cannot read: {error.strerror or error}", where=str(path)) from None


def ids_of(line: dict[str, Any], tokenizer: Any, where: str) -> list[int]:
    """The token ids of one sample."""
    tokens = line.get("tokens", line.get("input_ids"))
    if tokens is not None:
        whole = isinstance(tokens, list) and all(type(item) is int for item in tokens)
        if not whole:
            raise JoyError("'tokens' is not a list of whole numbers", where=where, help=SHAPES)
        return list(tokens)
    if isinstance(line.get("messages"), list):
        return chat_ids(line["messages"], tokenizer, where)
    text = line.get("text", line.get("prompt"))
    if not isinstance(text, str):
        raise JoyError("no 'text', 'messages' or 'tokens' here", where=where, help=SHAPES)
    if isinstance(line.get("completion"), str):
        text += line["completion"]
    return list(tokenizer(text)["input_ids"])


def chat_ids(messages: list[Any], tokenizer: Any, where: str) -> list[int]:
    """A conversation through the model's own template."""
    if not getattr(tokenizer, "chat_template", None):
        raise JoyError(
            "the model has no chat template, so it cannot read 'messages'",
            where=where,
            help='give plain text: {"text": "…"}',
        )
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception as error:  # templates raise what they like
        raise JoyError(f"the chat template refuses these messages: {error}", where=where) from None
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def load_tokenizer(model: Path) -> Any:
    """The model's tokenizer."""
    from joymigrate.chips import hide_driverless

    hide_driverless()
    from transformers import AutoTokenizer

    # Without any of these transformers makes an empty tokenizer and says nothing.
    if not any(file for pattern in TOKENIZERS for file in model.glob(pattern)):
        raise JoyError(
            "the model's folder has no tokenizer",
            where=str(model),
            help='give token ids: {"tokens": [5, 17, …]}',
        )

    try:
        return AutoTokenizer.from_pretrained(model, local_files_only=True)
    except Exception as error:  # missing files surface as many types
        raise JoyError(
            f"the model's tokenizer does not load: {str(error).splitlines()[0]}",
            where=str(model),
            help='give token ids: {"tokens": [5, 17, …]}',
        ) from None
