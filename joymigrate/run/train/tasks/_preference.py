"""Pairs of a better and a worse answer to one prompt: what DPO and reward models read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from joymigrate.run.train import chats, records
from joymigrate.run.train.columns import Array, Sample
from joymigrate.run.train.tasks._language import document
from joymigrate.run.train.tasks.sft import Sft
from joymigrate.run.train.tasks.task import Task

SCHEMA = (
    '{"prompt": "…" or [messages], "chosen": "…" or [messages], "rejected": likewise}; the prompt '
    "also as messages, conversations or instruction"
)


class PairTask(Task):
    """A task that reads pairs; its samples are not packed."""

    SCHEMA: ClassVar[str] = SCHEMA
    # Both answers; where the second begins; the targets' ranges.
    FIELDS: ClassVar[Mapping[str, str]] = {**Task.FIELDS, "cut": "int32"}
    sft: Sft  # what turns one answer into tokens

    def encode(self, record: records.TrainingRecord) -> Sequence[Sample]:
        """One sample per pair."""
        return encode(self.sft, record)

    def shown(self, sample: Sample) -> dict[str, Sample]:
        """Both answers."""
        return dict(zip(("chosen", "rejected"), documents(sample), strict=True))

    def measure(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Share of pairs in which the better answer wins, and the mean margin."""
        return margins(rows)


def encode(sft: Sft, record: records.TrainingRecord) -> list[Sample]:
    """Both answers as one sample: `tokens` of both, `cut` where the second begins, `spans`."""
    import numpy as np

    sides = [side(sft, record, name) for name in ("chosen", "rejected")]
    if any(not made for made in sides):
        return []
    (better,), (worse,) = sides
    if np.array_equal(better["tokens"], worse["tokens"]):
        record.fate.dropped = "both answers are the same"
        return []
    return [
        {
            "tokens": np.concatenate([better["tokens"], worse["tokens"]]),
            "cut": np.array([len(better["tokens"]), better["spans"].size // 2]),
            "spans": np.concatenate([better["spans"].reshape(-1), worse["spans"].reshape(-1)]),
            "weight": np.ones(1),
        }
    ]


def side(sft: Sft, record: records.TrainingRecord, name: str) -> Sequence[Sample]:
    """One answer behind the prompt, its tokens the targets."""
    talk = chats.read_preference(record, name)
    if talk is not None:
        return sft.encode_chat(talk, record)
    rest = {key: value for key, value in record.value.items() if key not in ("chosen", "rejected")}
    text = record.with_value({**rest, "completion": record.require(name)})
    made = sft.encode(text)
    record.used.update(text.used)
    return made


def documents(sample: Sample) -> list[dict[str, Array]]:
    """The two answers as rows with targets and positions: the better one first."""
    at, spans = sample["cut"].tolist()
    ranges = sample["spans"].reshape(-1, 2)
    return [
        document(sample["tokens"][:at], ranges[:spans]),
        document(sample["tokens"][at:], ranges[spans:]),
    ]


def margins(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """How often the better answer wins, and by how much on average."""
    import torch
    from torchmetrics.functional.classification import binary_accuracy

    if not rows:
        return {}
    found = torch.tensor([row["score"] for row in rows])
    wins = binary_accuracy((found > 0).float(), torch.ones(len(found), dtype=torch.int))
    return {"accuracy": float(wins), "margin": float(found.mean())}
