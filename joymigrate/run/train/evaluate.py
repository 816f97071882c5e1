"""Runs a trained model over records: samples for `verify task`, and the task's metrics.

In one process, from a run folder (its newest checkpoint) or a model folder with a job. To predict
means the same without references; language models then write freely instead of being scored.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.train import chats, group, records
from joymigrate.run.train.checkpoint_store import CheckpointStore
from joymigrate.run.train.columns import Sample
from joymigrate.run.train.feed import move_batch
from joymigrate.run.train.held_out import HeldOutRows
from joymigrate.run.train.job import Job
from joymigrate.run.train.run_folder import CHECKPOINTS, JOB, RunFolder
from joymigrate.run.train.tasks import Task

Tell = Callable[[str], None]
FREE = ("sft", "pretrain")  # tasks whose prediction is a text of the model's own


@dataclass(frozen=True, slots=True)
class EvaluateOptions:
    """How to look. `limit` is the number of records at most; `new_tokens` of a free text."""

    references: bool = True
    batch: int = 8
    limit: int | None = None
    new_tokens: int = 128
    step: int | None = None  # of the checkpoint
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What came out: one row per sample, in the data's order; metrics over all of them."""

    rows: list[dict[str, Any]]
    metrics: dict[str, float]
    skipped: int  # records that gave no sample


@dataclass(frozen=True, slots=True)
class MemoryData:
    """Samples in memory, with a cache's face."""

    items: Sequence[Sample]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Sample:
        return self.items[index]

    def weight(self, index: int) -> float:
        """What a sample counts."""
        found = self.items[index].get("weight")
        return 1.0 if found is None else float(found[0])


def evaluate(
    target: Path,
    job: Job | None,
    data: Sequence[Path],
    wish: EvaluateOptions | None = None,
    tell: Tell = lambda line: None,
) -> Evaluation:
    """Rows and metrics of a run or model folder on `data`."""
    import torch

    wish = wish or EvaluateOptions()
    job, task, model = open_target(target, job, wish, tell)
    if job.data.schema is None:
        records.check(data)
    task.context = dataclasses.replace(
        task.context,
        files=tuple(data),
        packing=False,
        fixed_length=False,
        references=wish.references,
    )
    device = group.choose(wish.device or job.device, tell)
    model.to(device.at()).eval()
    if job.data.schema is not None:
        from joymigrate.run.train.samples.tasks import LEAST

        held = HeldOutRows(task, data, max(wish.batch, LEAST), wish.limit)
    rows: list[dict[str, Any]] = []
    skipped = 0
    torch.manual_seed(job.seed)
    with torch.no_grad():
        if job.data.schema is not None:
            skipped = held.count
            for batch, weight in held.read(range(held.passes)):
                skipped -= int(weight)
                rows += task.predict(model, move_batch(batch, device.at())) if weight else []
            rows = [{**row, "id": str(number)} for number, row in enumerate(rows)]
        elif not wish.references and job.task.name in FREE:
            rows = [generate_answer(task, model, r, i, wish) for i, r in read(data, wish.limit)]
        else:
            for ids, samples, missing in portions(task, data, wish):
                skipped += missing
                if samples:
                    rows += looked_at(task, model, ids, samples, device)
    for row in rows:
        row["task"] = job.task.name
    if not rows:
        raise JoyError("the data gave no sample", where=", ".join(map(str, data)))
    return Evaluation(rows, task.measure(rows) if wish.references else {}, skipped)


def open_target(
    target: Path, job: Job | None, wish: EvaluateOptions, tell: Tell
) -> tuple[Job, Task, Any]:
    """Job, task and model of a run or model folder."""
    from joymigrate.run.train.assemble import model_of, task_of
    from joymigrate.run.train.export import load_weights

    if (target / JOB).is_file():
        run = RunFolder(target)
        job = run.job()
        shelf = CheckpointStore(target / CHECKPOINTS)
        number = shelf.newest(tell) if wish.step is None else wish.step
        if number is None or not shelf.place(number).is_dir():
            raise JoyError("the run has no such checkpoint", where=str(target))
        task = task_of(name_classes(job, target / "model"))
        model = model_of(job, task)
        load_weights(model, shelf.place(number))
        return job, task, model
    if not target.is_dir():
        raise JoyError("no such run or model folder", where=str(target))
    if job is None:
        raise JoyError(
            "a model folder does not say what it was trained for",
            where=str(target),
            help="name the job with --job, or name the run folder",
        )
    task = task_of(name_classes(job, target))
    compared = hasattr(task, "reference")  # trained against another model: the job's own
    reference = None
    if compared:
        model_of(job, task)
        reference = getattr(task, "reference", None)
    source = dataclasses.replace(job.model, path=str(target.resolve()), from_config={})
    method = dataclasses.replace(job.method, name="full")
    model = model_of(dataclasses.replace(job, model=source, method=method), task)
    if compared:
        task.__dict__["reference"] = reference
    return job, task, model


def name_classes(job: Job, folder: Path) -> Job:
    """The job with the classes that a trained model's configuration names, where it does."""
    from joymigrate.run.train.tasks import find

    options = dict(job.task.options)
    if "labels" not in find(job.task.name).OPTIONS or options.get("labels"):
        return job
    try:
        config = json.loads((folder / "config.json").read_text())
        names = [config["id2label"][key] for key in sorted(config["id2label"], key=int)]
    except (OSError, ValueError, KeyError, TypeError):
        return job
    if names[0] == "O":  # tags: O, B-a, I-a, B-b …
        names = [name[2:] for name in names if name.startswith("B-")]
    task = dataclasses.replace(job.task, options={**options, "labels": names})
    return dataclasses.replace(job, task=task)


def read(data: Sequence[Path], limit: int | None) -> Iterator[tuple[str, records.TrainingRecord]]:
    """Records with their ids: their own field `id`, else their number from 0."""
    for number, (record, _) in enumerate(records.read(data)):
        if limit is not None and number >= limit:
            return
        own = record.value.get("id")
        yield str(number if own is None else own), record


def portions(
    task: Task, data: Sequence[Path], wish: EvaluateOptions
) -> Iterator[tuple[list[str], list[Sample], int]]:
    """Batches of samples with their ids, and how many records gave none."""
    ids: list[str] = []
    held: list[Sample] = []
    missing = 0
    for name, record in read(data, wish.limit):
        made = task.encode(record)
        missing += not made
        for part, sample in enumerate(made):
            ids.append(name if len(made) == 1 else f"{name}.{part}")
            held.append(sample)
        if len(held) >= wish.batch:
            yield ids, held, missing
            ids, held, missing = [], [], 0
    if held or missing:
        yield ids, held, missing


def looked_at(
    task: Task, model: Any, ids: Sequence[str], samples: Sequence[Sample], device: Any
) -> list[dict[str, Any]]:
    """Rows of one batch."""
    cache: Any = MemoryData(samples)
    seen = task.samples(cache)
    if len(seen) != len(samples):  # a stream of one row for many texts
        raise JoyError("this task's samples cannot be told apart; turn packing off")
    batch = task.collate([seen[index] for index in range(len(seen))])
    made = task.predict(model, move_batch(batch, device.at()))
    return [{"id": name, **row} for name, row in zip(ids, made, strict=True)]


def generate_answer(
    task: Any, model: Any, record: records.TrainingRecord, name: str, wish: EvaluateOptions
) -> dict[str, Any]:
    """What a language model writes behind a record's prompt."""
    from joymigrate.run.train.tasks import _language

    prompt = prompt_of(task, record)
    made = _language.generate(model, prompt, task.tokenizer, wish.new_tokens)
    ends = _language.stops(task.tokenizer)
    kept = [token for token in made if token not in ends]
    return {
        "id": name,
        "prediction": task.tokenizer.decode(kept, skip_special_tokens=True),
        "tokens": kept,
    }


def prompt_of(task: Any, record: records.TrainingRecord) -> list[int]:
    """Tokens of what comes before the answer."""
    if hasattr(task, "render"):
        talk = chats.read(record, answered=False)
        if talk is not None:
            answered = talk.messages and talk.messages[-1]["role"] == "assistant"
            messages = talk.messages[:-1] if answered else talk.messages
            text = task.render(messages, record, prompt=True, tools=talk.tools)
            return [*task.tokenizer(text, add_special_tokens=False)["input_ids"]]
    text = record.text("prompt", "text")
    return [*task.tokenizer(text, add_special_tokens=False)["input_ids"]]


def lines(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as JSONL; a number that JSON lacks becomes null."""
    return "".join(json.dumps(clean(row), ensure_ascii=False) + "\n" for row in rows)


def clean(value: Any) -> Any:
    """Without NaN and infinities."""
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, Mapping):
        return {key: clean(inner) for key, inner in value.items()}
    return [clean(one) for one in value] if isinstance(value, list) else value
