"""Every task's loss falls on data that can be learned, and its metric beats chance."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from joymigrate.run.train import build, evaluate, records, tokenizer
from joymigrate.run.train.assemble import special_tokens
from joymigrate.run.train.models import ModelSource
from joymigrate.run.train.tasks import TaskContext, find, names
from joymigrate.run.train.tokens import open_cache
from tests.run.train import jobs, learnable


@dataclass
class Case:
    """A task on a tiny model. `above` is what chance cannot reach, for `metric`."""

    model: dict[str, Any]
    metric: str
    above: float
    steps: int = 40
    lr: float = 1e-2
    size: int = 16
    options: dict[str, Any] = field(default_factory=dict)


CASES = {
    "dpo": Case(learnable.QWEN2, "accuracy", 0.9, steps=8),  # chance: 0.5
    "reward": Case(learnable.QWEN2, "accuracy", 0.9, steps=10),  # chance: 0.5
    "classification": Case(learnable.BERT, "accuracy", 0.8, steps=60, lr=3e-3),  # chance: 0.33
    "token-classification": Case(learnable.BERT, "entity_f1", 0.6),  # chance: near 0
    "regression": Case(learnable.BERT, "spearman", 0.7),  # chance: 0
    "ranking": Case(learnable.BERT, "mrr", 0.85, size=8),  # chance: 0.61
    "embedding": Case(learnable.BERT, "recall_at_1", 0.5),  # chance: 1/32
    "tool-selection": Case(learnable.QWEN2, "name_accuracy", 0.85, steps=60, lr=5e-3),  # 0.5
    "image-classification": Case(learnable.VIT, "accuracy", 0.8, options={"size": 16}),  # 0.33
    "ctr": Case({"model_type": "deepfm", "hidden": [16]}, "auc", 0.75, size=64),  # chance: 0.5
    "image-text": Case(learnable.QWEN2VL, "exact_match", 0.7, size=8, options={"size": 28}),  # 0.33
    "text-to-image": Case(
        learnable.UNET, "caption_accuracy", 0.6, steps=60, options={"size": 16}
    ),  # 0.33
    "seq2seq": Case(learnable.T5, "token_accuracy", 0.8),  # below 0.67: letter and end sign
    "masked-lm": Case(learnable.BERT, "token_accuracy", 0.6),  # chance: 0.33
}


def test_every_task_is_learned_here_or_in_the_runs() -> None:
    # Those on samples with features are learned in test_recommendation.py.
    assert set(names()) == {
        *CASES,
        "sft",
        "pretrain",
        "sequence",
        "multitask",
        "generative",
        "grpo",
    }


def context(path: Path, case: Case, length: int = 128) -> TaskContext:
    return TaskContext(
        tokenizer=tokenizer.byte_level(), max_length=length, files=(path,), options=case.options
    )


def train(name: str, case: Case, folder: Path) -> tuple[Any, Any, list[float]]:
    """Steps of the loop's kind: mean loss over targets, AdamW."""
    torch.manual_seed(0)
    path = learnable.write(name, folder, "train.jsonl", 128, seed=1)
    kind = find(name)
    task = kind(context(path, case, 256))
    known = task.tokenizer if kind.TOKENIZER else None
    source = ModelSource(
        None,
        case.model,
        tokens=len(known) if known else None,
        special=special_tokens(known),
    )
    model = task.build(source)
    task.prepare(model)
    recipe = build.Recipe((path,), task.fields(), task.identity(), task.encode)
    samples = task.samples(open_cache(folder / "cache", recipe))
    optimiser = torch.optim.AdamW(model.parameters(), lr=case.lr, weight_decay=0.0)
    losses = []
    for step in range(case.steps):
        chosen = [(step * case.size + at) % len(samples) for at in range(case.size)]
        batch = task.collate([samples[index] for index in chosen])
        loss = task.loss(model, batch) / sum(samples.weight(index) for index in chosen)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(float(loss.detach()))
    return task, model.eval(), losses


def measured(task: Any, model: Any, path: Path, batch: int) -> tuple[dict[str, float], list[Any]]:
    """Metrics on records that were not seen."""
    rows: list[Any] = []
    with torch.no_grad():
        for ids, samples, _ in evaluate.portions(
            task, [path], evaluate.EvaluateOptions(batch=batch)
        ):
            found = task.predict(model, task.collate(samples))
            rows += [{"id": i, **row} for i, row in zip(ids, found, strict=True)]
    return task.measure(rows), rows


SLOW = ("text-to-image",)  # mostly the import of diffusers


@pytest.mark.dear
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in CASES]
)
def test_a_task_learns(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        task, model, losses = train(name, case, tmp_path)
        path = learnable.write(name, tmp_path, "eval.jsonl", 32, seed=2)
        metrics, rows = measured(task, model, path, 16)
    finally:
        torch.set_num_threads(before)
    assert sum(losses[-4:]) < 0.9 * sum(losses[:4]), losses
    assert metrics[case.metric] > case.above, metrics
    assert len({row["id"] for row in rows}) == 32
    assert evaluate.lines(rows).count("\n") == 32


def test_a_task_reads_records_without_references_to_predict(tmp_path: Path) -> None:
    """What is learned may be missing then; what is read may not."""
    value = {
        "classification": {"text": "a"},
        "token-classification": {"text": "ab"},
        "regression": {"text": "a"},
        "ranking": {"query": "q", "documents": ["a", "b"]},
        "embedding": {"anchor": "a"},
        "tool-selection": {"query": "q", "tools": [{"name": "t"}]},
        "ctr": {"user": "u", "item": "a", "price": 1.0},
        "seq2seq": {"source": "a"},
    }
    for name, given in value.items():
        path = learnable.write(name, tmp_path, f"{name}.jsonl", 20, seed=1)
        case = CASES[name]
        free = context(path, case)
        task = find(name)(
            TaskContext(**{**{s: getattr(free, s) for s in free.__slots__}, "references": False})
        )
        (sample,) = task.encode(records.TrainingRecord(given, "x:1"))
        assert task.collate([sample])


def test_losses_of_dpo_are_those_of_its_formula(tmp_path: Path) -> None:
    """At the start model and reference agree, so every pair loses log 2."""
    path = learnable.write("dpo", tmp_path, "train.jsonl", 4, seed=1)
    task = find("dpo")(context(path, CASES["dpo"]))
    known = tokenizer.byte_level()
    model = task.build(
        ModelSource(None, jobs.TINY, tokens=len(known), special=special_tokens(known))
    )
    task.prepare(model)
    recipe = build.Recipe((path,), task.fields(), task.identity(), task.encode)
    samples = open_cache(tmp_path / "cache", recipe)
    batch = task.collate([samples[0], samples[1]])
    assert float(task.loss(model, batch).detach()) == pytest.approx(2 * 0.693147, abs=1e-5)
