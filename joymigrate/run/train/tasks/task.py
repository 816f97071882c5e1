"""What a task is: the one class that every file of this folder derives from.

The loop calls, in this order: `fields`, `identity` and `encode` (once, to build the cache),
`samples`, `build` (the model), `prepare`, and then for every step `collate`, `objective`. The loss
is a *sum* over targets: the loop divides by the targets of the whole step over all processes, so
that no layout or batch split changes the result.

Shapes: B samples, L tokens, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from joymigrate.errors import JoyError
from joymigrate.run.train.columns import Array, Batch, Sample
from joymigrate.run.train.digests import of_text
from joymigrate.run.train.records import TrainingRecord
from joymigrate.run.train.tasks._language import document, teacher_forced, token_metrics
from joymigrate.run.train.tokens import TokenCache
from joymigrate.schema import read

if TYPE_CHECKING:
    import torch


class SampleSource(Protocol):
    """Anything with a length that gives samples and their weights by number."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Sample: ...
    def weight(self, index: int, /) -> float: ...


@dataclass(frozen=True, slots=True)
class TaskContext:
    """What a task may know. `tokenizer` is None for tasks with `TOKENIZER = False`."""

    tokenizer: Any
    max_length: int = 512
    packing: bool = True
    seed: int = 0
    fixed_length: bool = False  # pad every batch to `max_length` (pipeline stages need it)
    files: tuple[Path, ...] = ()  # where relative paths in records start: beside the first
    options: Mapping[str, Any] = field(default_factory=dict)
    references: bool = True  # False: records to predict on may lack what is learned


TOKENS = "tokens"  # in `FIELDS`: the smallest type that holds the tokenizer's numbers
FORM = "4"  # how records are read; another one makes token caches anew


class Task:
    """A task with the defaults of language models; see the module's text for who calls what."""

    OPTIONS: ClassVar[Mapping[str, Any]] = {}  # the task's own keys with their defaults
    MODEL: ClassVar[str] = "AutoModelForCausalLM"  # the class of transformers that builds it
    TOKENIZER: ClassVar[bool] = True
    SCHEMA: ClassVar[str] = ""  # one line: what a record must have
    FIELDS: ClassVar[Mapping[str, str]] = {"tokens": TOKENS, "spans": "int32"}  # see `fields`
    updates: int = 1  # optimiser steps with the samples of a step
    CUTS: ClassVar[bool] = False  # the loss may be of a part of each sequence (layout.cp)
    PACKS: ClassVar[bool] = False  # whether several documents may share a row
    EVALUATES: ClassVar[bool] = True  # whether held-out data can be looked at while training
    PIPELINE: ClassVar[bool] = False  # forward takes tokens and positions, the loss reads `labels`

    def __init__(self, context: TaskContext) -> None:
        self.context = context
        self.tokenizer = context.tokenizer
        help = f"this task knows {', '.join(self.OPTIONS) or 'no keys of its own'}"
        read(
            options_class(type(self).__name__, self.OPTIONS),
            context.options,
            keys=("task",),
            help=help,
        )
        self.options = {**self.OPTIONS, **context.options}

    # -- data ---------------------------------------------------------------------------------

    def fields(self) -> dict[str, str]:
        """Arrays of one sample by name, with their numpy types. `weight` is read by the loop."""
        from joymigrate.run.train.tokenizer import dtype_for

        own = dtype_for(len(self.tokenizer)) if self.TOKENIZER else ""
        known = {name: own if kind == TOKENS else kind for name, kind in self.FIELDS.items()}
        return {**known, "weight": "float32"}

    def identity(self) -> str:
        """Whatever decides what `encode` gives; another identity is another cache."""
        from joymigrate.run.train.tokenizer import digest

        known = digest(self.tokenizer) if self.tokenizer is not None else ""
        name = type(self).__module__.rsplit(".", 1)[-1]
        return of_text(
            FORM, name, known, str(self.context.max_length), repr(sorted(self.options.items()))
        )

    def encode(self, record: TrainingRecord) -> Sequence[Sample]:
        """The samples of one record; none when it has nothing to learn from."""
        raise NotImplementedError

    def samples(self, cache: TokenCache) -> SampleSource:
        """What the order runs over: the cache's samples, or rows packed from them."""
        return cache

    def collate(self, samples: Sequence[Sample]) -> Batch:
        """Samples as tensors on the CPU; the loop moves them."""
        raise NotImplementedError

    def shown(self, sample: Sample) -> dict[str, Sample]:
        """A sample's rows by name, each with `tokens` and which of them are `targets`."""
        import numpy as np

        tokens = sample["tokens"]
        if "spans" in sample:
            return {"": document(tokens, sample["spans"])}
        return {"": {"tokens": tokens, "targets": np.zeros(len(tokens), dtype=bool)}}

    # -- model --------------------------------------------------------------------------------

    def build(self, source: Any) -> Any:
        """The model: `source.transformers(self.MODEL)`; a task may build one of its own."""
        return source.transformers(self.MODEL)

    def prepare(self, model: Any) -> None:
        """Called once with the model before it is distributed (reference models, heads)."""

    # -- loss ---------------------------------------------------------------------------------

    def inputs(self, batch: Batch) -> dict[str, Any]:
        """What of a batch the model's forward takes."""
        return {name: batch[name] for name in ("input_ids", "position_ids") if name in batch}

    def forward(self, model: Any, batch: Batch) -> Any:
        """The model's output that `objective` reads."""
        return model(**self.inputs(batch), use_cache=False).logits

    def objective(self, output: Any, batch: Batch) -> torch.Tensor:
        """The loss summed over the targets of `batch` (a scalar)."""
        raise NotImplementedError

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        """`forward` and `objective`; a task whose loss needs several passes overrides it."""
        return self.objective(self.forward(model, batch), batch)

    def figures(self) -> dict[str, float]:
        """What a line of metrics says beside the loss; nothing here."""
        return {}

    # -- evaluation ---------------------------------------------------------------------------

    def predict(self, model: Any, batch: Batch) -> Iterable[dict[str, Any]]:
        """`predictions` of one forward pass; a task that generates or searches overrides it."""
        return self.predictions(self.forward(model, batch), batch)

    def predictions(self, output: Any, batch: Batch) -> Iterable[dict[str, Any]]:
        """One object per sample with `prediction`, `score` and, where known, `reference`.

        Here: the most likely token at every target, given the true ones before it.
        """
        return teacher_forced(output, batch, self.tokenizer)

    def measure(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Standard metrics over what `predict` gave for records with a reference."""
        return token_metrics(rows)


class NeedsSchema(Task):
    """A task that only reads features, of data that have no schema: says what is missing."""

    TOKENIZER: ClassVar[bool] = False
    SCHEMA: ClassVar[str] = "Parquet with a schema of features: data: {schema: features.yaml}"

    def __init__(self, context: TaskContext) -> None:
        raise JoyError(
            "this task reads features, and the data have no schema",
            where="data.schema",
            help="data: {train: clicks-*.parquet, schema: features.yaml}; "
            "see docs/how-to/samples.md",
        )


def one_sample(
    record: TrainingRecord, tokens: Sequence[int], spans: Sequence[tuple[int, int]], length: int
) -> list[Sample]:
    """Tokens cut at `length` with their target ranges; nothing when no target is left.

    What is cut, and why there is nothing, is noted in the record's fate.
    """
    import numpy as np

    kept = np.asarray(tokens[:length])
    cut = [(a, min(b, len(kept))) for a, b in spans if a < len(kept)]
    weight = sum(b - max(a, 1) for a, b in cut if b > max(a, 1))  # the first is never a target
    record.fate.cut += len(tokens) - len(kept)
    if weight == 0:
        learns = any(b > max(a, 1) for a, b in spans)
        record.fate.dropped = (
            "what is learned begins behind data.max_length"
            if learns
            else ("nothing in it is learned")
        )
        return []
    ranges = np.asarray(cut, dtype=np.int32)
    return [{"tokens": kept, "spans": ranges, "weight": np.array([weight], dtype=np.float32)}]


def rows(samples: Sequence[Sample], pad: int, length: int | None = None) -> Batch:
    """Token rows as `input_ids`, `labels` (-100: no target), `position_ids`, all [B, L].

    Rows are padded on the right to the longest, or to `length`. A padded position is a document
    of its own, so that no real token attends to it.
    """
    import numpy as np
    import torch

    longest = length or max(len(sample["tokens"]) for sample in samples)
    ids_BL = np.full((len(samples), longest), pad, dtype=np.int64)
    labels_BL = np.full((len(samples), longest), -100, dtype=np.int64)
    positions_BL = np.zeros((len(samples), longest), dtype=np.int64)
    for row, sample in enumerate(samples):
        tokens: Array = sample["tokens"]
        count = len(tokens)
        ids_BL[row, :count] = tokens
        labels_BL[row, :count] = np.where(sample["targets"], tokens, -100)
        positions_BL[row, :count] = sample["positions"]
        positions_BL[row, count:] = np.arange(longest - count)
    return {
        "input_ids": torch.from_numpy(ids_BL),
        "labels": torch.from_numpy(labels_BL),
        "position_ids": torch.from_numpy(positions_BL),
    }


def token_sum(logits_BLV: torch.Tensor, labels_BL: torch.Tensor) -> torch.Tensor:
    """Cross entropy in float32, summed over all places but those labelled -100."""
    import torch

    return torch.nn.functional.cross_entropy(
        logits_BLV.flatten(0, 1).float(), labels_BL.flatten(), reduction="sum"
    )


def next_token_sum(logits_BLV: torch.Tensor, labels_BL: torch.Tensor) -> torch.Tensor:
    """`token_sum` of every token given those before it."""
    return token_sum(logits_BLV[:, :-1], labels_BL[:, 1:])


def options_class(name: str, defaults: Mapping[str, Any]) -> type[Any]:
    """A task's own keys as a document's class: each takes values of its default's type."""
    fields = [
        (key, Any if default is None else type(default), field(default_factory=lambda: None))
        for key, default in defaults.items()
    ]
    return dataclasses.make_dataclass(f"{name}Options", fields, frozen=True)
