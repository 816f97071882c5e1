"""Pairs of a better and a worse answer to one prompt: what DPO and reward models read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.train import records
from joymigrate.run.train.columns import Array, Sample
from joymigrate.run.train.tasks._language import document
from joymigrate.run.train.tasks.sft import Sft

SCHEMA = '{"prompt": "…" or [messages], "chosen": "…" or [messages], "rejected": likewise}'


def encode(sft: Sft, record: records.Record) -> list[Sample]:
    """Both answers as one sample: `tokens` of both, `cut` where the second begins, `spans`."""
    import numpy as np

    sides = [side(sft, record, name) for name in ("chosen", "rejected")]
    if any(not made for made in sides):
        return []
    (better,), (worse,) = sides
    return [
        {
            "tokens": np.concatenate([better["tokens"], worse["tokens"]]),
            "cut": np.array([len(better["tokens"]), better["spans"].size // 2]),
            "spans": np.concatenate([better["spans"].reshape(-1), worse["spans"].reshape(-1)]),
            "weight": np.ones(1),
        }
    ]


def side(sft: Sft, record: records.Record, name: str) -> Sequence[Sample]:
    """One answer behind the prompt, its tokens the targets."""
    prompt, answer = record.value.get("prompt"), records.field(record, name)
    if isinstance(answer, Mapping):
        answer = [answer]
    value: dict[str, Any]
    if isinstance(prompt, str) and isinstance(answer, str):
        value = {"prompt": prompt, "completion": answer}
    elif isinstance(answer, list) and isinstance(prompt, str | list | None):
        asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt or []
        beside = {key: record.value[key] for key in ("system", "tools") if key in record.value}
        value = {"messages": [*asked, *answer], **beside}
    else:
        raise JoyError("prompt and answers are texts, or lists of messages", where=record.where)
    return sft.encode(records.Record(value, record.where))


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
