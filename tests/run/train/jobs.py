"""Small jobs for the tests: a tiny model, a few hundred lines of data."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import yaml

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "sat",
    "on",
    "mat",
    "ran",
    "to",
    "fro",
    "red",
    "blue",
    "sky",
    "sea",
]
TINY = {
    "model_type": "qwen2",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def texts(path: Path, count: int = 200) -> Path:
    """Lines of words, always the same."""
    draw = random.Random(0)
    lines = (" ".join(draw.choices(WORDS, k=draw.randint(3, 30))) for _ in range(count))
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    return path


def chats(path: Path, count: int = 100) -> Path:
    """Sums to learn."""
    draw = random.Random(0)
    with path.open("w") as file:
        for _ in range(count):
            n = draw.randint(0, 99)
            messages = [
                {"role": "user", "content": f"double {n}"},
                {"role": "assistant", "content": str(2 * n)},
            ]
            file.write(json.dumps({"messages": messages}) + "\n")
    return path


def document(**changes: Any) -> dict[str, Any]:
    """A job as a mapping; `changes` replace whole keys."""
    made: dict[str, Any] = {
        "model": {"from_config": dict(TINY)},
        "data": {"train": "text.jsonl", "max_length": 64},
        "task": "pretrain",
        "steps": 20,
        "batch": {"size": 8},
        "optimiser": {"lr": 1e-3},
        "checkpoint": {"every": 5, "export": False},
        "device": "cpu",
    }
    made.update(changes)
    return made


def write(folder: Path, name: str = "job", **changes: Any) -> Path:
    """The job as a file, with its data beside it."""
    if not (folder / "text.jsonl").exists():
        texts(folder / "text.jsonl")
        chats(folder / "chat.jsonl")
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document(**changes)))
    return path


def losses(run: Path) -> list[float]:
    """The losses of a run, by step; each step once and in order."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    return [line["loss"] for line in lines]
