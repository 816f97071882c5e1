"""Looks at held-out data while training: figures of the task, over all processes of a run.

A look is cut into passes of the same size whatever the layout. Each data rank takes every so many
of them, and what comes out is gathered, so that all processes know the same figures. Where a
forward pass needs all processes (shards, tables cut over them), a rank that has fewer passes
repeats the first one and drops what comes out. `BestModel` says what the figures mean for the run.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.train import digests, group, randomness, records
from joymigrate.run.train.columns import Batch
from joymigrate.run.train.data_state import DataPiece, piece_at, whole
from joymigrate.run.train.feed import move_batch
from joymigrate.run.train.job import EvaluationSettings, Job, cache_folder, files_named
from joymigrate.run.train.parallel import ParallelModel
from joymigrate.run.train.tasks import Task
from joymigrate.run.train.tasks.task import SampleSource

LOWER = ("loss", "perplexity", "log_loss", "mse", "mae", "noise_mse")
HIGHER = (
    *("accuracy", "token_accuracy", "f1_macro", "exact_match", "name_accuracy", "valid_json"),
    *("tag_accuracy", "entity_precision", "entity_recall", "entity_f1", "margin"),
    *("auc", "soft_auc", "gauc", "mrr", "ndcg", "recall_at_1", "ndcg@10", "recall@10"),
    *("pearson", "spearman", "caption_accuracy"),
)


class HeldOutData(Protocol):
    """Held-out samples in passes, and what says which they are."""

    passes: int
    digest: str

    def read(self, numbers: Sequence[int]) -> Iterator[tuple[Batch, float]]:
        """The batches of some passes, in their order, each with its targets."""
        ...


class HeldOutSamples:
    """Samples that have numbers."""

    def __init__(self, task: Task, samples: SampleSource, wish: EvaluationSettings, digest: str):
        self.task, self.samples, self.size, self.digest = task, samples, wish.batch, digest
        self.count = min(len(samples), wish.limit or len(samples))
        self.passes = -(-self.count // self.size)

    def read(self, numbers: Sequence[int]) -> Iterator[tuple[Batch, float]]:
        """The batches of some passes, each with its targets."""
        for number in numbers:
            mine = range(number * self.size, min(self.count, (number + 1) * self.size))
            weight = sum(self.samples.weight(index) for index in mine)
            yield self.task.collate([self.samples[index] for index in mine]), weight


class HeldOutRows:
    """Rows of the sample engine, in the order of their files."""

    def __init__(
        self, task: Any, files: Sequence[Path], size: int, limit: int | None, digest: str = ""
    ) -> None:
        from joymigrate.run.train.samples.open_rows import open_rows

        self.task, self.size, self.digest = task, size, digest
        self.rows = open_rows(files, task.schema, shuffle=False)
        self.count = min(self.rows.order.rows, limit or self.rows.order.rows)
        self.passes = -(-self.count // self.size)

    def read(self, numbers: Sequence[int]) -> Iterator[tuple[Batch, float]]:
        """The batches of some passes, each with the rows that were not skipped."""
        from joymigrate.run.train.samples.feed import RowStream
        from joymigrate.run.train.samples.readers import start_readers

        ends = [(n * self.size, min(self.count, (n + 1) * self.size)) for n in numbers]
        readers = start_readers("threads", 1)
        stream = RowStream(self.rows, readers, tuple(ends), 0)
        try:
            for first, last in ends:
                batch = stream.take(last - first)
                yield self.task.samples_of(batch), float(len(batch))
        finally:
            stream.close()
            readers.close()


def held_out_rows(job: Job, task: Any, wish: EvaluationSettings) -> HeldOutRows:
    """The rows of `data.eval`."""
    key = digest_of(job, unpack(task), group.share(lambda: content_of(job)))
    files = files_named(job, job.data.eval)
    return HeldOutRows(task, files, max(wish.batch, task.LEAST), wish.limit, key)


def held_out_piece(job: Job) -> DataPiece:
    """The records of `data.eval`, or those that `data.holdout` draws from."""
    drawn = job.data.holdout is not None
    files, format = files_named(job, job.data.train if drawn else job.data.eval), job.data.format
    records.check(files, format, "data.train" if drawn else "data.eval")
    return piece_at(0, whole(files, format, job.data.limit), format, cache_folder(job))


def unpack(task: Task) -> Task:
    """The task with one sample a row, and with the model's parts that it keeps."""
    alone = copy.copy(task)
    alone.context = dataclasses.replace(task.context, packing=False)
    return alone


def content_of(job: Job) -> Sequence[str]:
    """Digests of what the files of `data.eval` hold."""
    if job.data.schema is None:
        return held_out_piece(job).digests
    files = files_named(job, job.data.eval)
    records.check_there(files, "data.eval")
    return digests.of_files(files, cache_folder(job))


def digest_of(job: Job, task: Task, content: Sequence[str]) -> str:
    """Which samples are looked at; figures of others are not compared with theirs."""
    size = job.data.holdout
    drawn = [] if size is None else [f"{size} by seed {job.seed}"]
    return digests.of_text(task.identity(), *content, str(job.eval and job.eval.limit), *drawn)


def held_out_of(
    job: Job,
    task: Task,
    laid: ParallelModel,
    samples_of: Callable[[Task, DataPiece], SampleSource],
) -> Evaluator | None:
    """What looks at `data.eval`, or None where the job has no `eval`. Called by all ranks.

    Raises `JoyError` where the task can't be looked at: while training, or in this layout.
    """
    if job.eval is None:
        return None
    check_task(job, task)
    data: HeldOutData
    if job.data.schema is not None:
        data = held_out_rows(job, task, job.eval)
    else:
        alone = unpack(task)
        piece = group.share(lambda: held_out_piece(job))
        key = digest_of(job, alone, piece.digests)
        data = HeldOutSamples(alone, samples_of(alone, piece), job.eval, key)
        task = alone
    return Evaluator(job, task, laid, data)


def check_task(job: Job, task: Task) -> None:
    """A task that is looked at by forward passes, in step where processes need each other."""
    name = job.task.name
    if not task.EVALUATES:
        raise JoyError(
            f"task {name} has no figures of held-out data",
            where="eval",
            help="metrics.jsonl says what its answers earn",
        )
    own = type(task).predict is not Task.predict
    if own and job.layout.fsdp * job.layout.tp > 1:
        raise JoyError(
            f"task {name} writes as it is evaluated, which shards can't do in step",
            where="eval",
            help="use layout dp, or train evaluate on the run's checkpoints",
        )


@dataclass(frozen=True, slots=True)
class PassFigures:
    """What came out of one pass."""

    number: int
    loss: float  # summed
    weight: float
    rows: list[dict[str, Any]]


class Evaluator:
    """Looks at held-out data with the model in training. All ranks call it together."""

    def __init__(self, job: Job, task: Task, laid: ParallelModel, data: HeldOutData) -> None:
        self.job, self.task, self.laid, self.data = job, task, laid, data
        rank, layout = group.rank(), job.layout
        self.ranks, self.rank = layout.data_ranks, layout.data_rank(rank)
        self.tells = layout.place(rank).tp == 0
        self.in_step = layout.fsdp * layout.tp > 1 or job.data.schema is not None

    def measure(self) -> dict[str, float]:
        """Loss and metrics of the task, equal on all ranks; the model trains on as before."""
        import torch

        model = self.laid.model
        drawn = randomness.state()
        training = {module for module in model.modules() if module.training}
        model.eval()
        randomness.seed_step(self.job.seed, 0, self.rank)
        try:
            with torch.no_grad():
                found = self.gather([*self.look()])
        finally:
            for module in model.modules():
                module.training = module in training
                if hasattr(module, "reshard"):
                    module.reshard()
            randomness.restore(drawn)
        return group.share(lambda: self.summed(found))

    def look(self) -> Iterator[PassFigures]:
        """The figures of this rank's passes."""
        mine = [*range(self.rank, self.data.passes, self.ranks)]
        most = -(-self.data.passes // self.ranks)
        more = [0] * (most - len(mine)) if self.in_step else []
        device = self.laid.device.at()
        for turn, (batch, weight) in enumerate(self.data.read([*mine, *more])):
            with self.laid.device.autocast(self.laid.dtype):
                loss, rows = self.forward(move_batch(batch, device))
            if turn < len(mine) and self.tells:
                yield PassFigures(mine[turn], loss, weight, rows)

    def forward(self, batch: Batch) -> tuple[float, list[dict[str, Any]]]:
        """The summed loss and the rows of one pass: of one forward pass where the task can."""
        task, model = self.task, self.laid.model
        if type(task).predict is Task.predict:
            output = task.forward(model, batch)
            return float(task.objective(output, batch)), [*task.predictions(output, batch)]
        return float(task.loss(model, batch)), [*task.predict(model, batch)]

    def gather(self, mine: list[PassFigures]) -> list[PassFigures]:
        """The passes of all ranks, in their order."""
        import torch.distributed as dist

        every: list[Any] = [mine]
        if dist.is_initialized():
            every = [None] * dist.get_world_size()
            dist.all_gather_object(every, mine)
        return sorted((one for some in every for one in some), key=lambda one: one.number)

    def summed(self, found: Sequence[PassFigures]) -> dict[str, float]:
        """The mean loss over targets, and what the task measures over all rows."""
        weight = sum(one.weight for one in found)
        rows = [row for one in found for row in one.rows]
        if not rows or not weight:
            raise JoyError("the held-out data gave no sample", where="data.eval")
        told = [{"id": str(number), **row} for number, row in enumerate(rows)]
        loss = sum(one.loss for one in found) / weight
        return {"loss": loss} | self.task.measure(told) | {"loss": loss}


@dataclass
class BestModel:
    """The best checkpoint by a metric, and when to stop looking for a better one.

    A pure state machine: `on(step, figures)` says whether this step is the best so far. `digest`
    is of the held-out data: what is known of other data or of another metric counts for nothing.
    """

    wish: EvaluationSettings
    digest: str = ""
    value: float | None = None
    step: int | None = None
    worse: int = 0  # evaluations in a row behind the best one

    def on(self, step: int, figures: Mapping[str, float]) -> bool:
        """Take the figures of a step. `JoyError` where they lack the metric."""
        metric = self.wish.metric
        if metric is None:
            return False
        if metric not in figures:
            raise JoyError(
                f"the evaluation gives no '{metric}'.{did_you_mean(metric, [*figures])}",
                where="eval.metric",
                help=f"it gives {', '.join(figures)}",
            )
        sign = 1.0 if self.is_higher_better(metric) else -1.0
        if step == 0:  # there is no checkpoint of it
            return False
        value = figures[metric]
        if math.isfinite(value) and (
            self.value is None or sign * (value - self.value) > self.wish.margin
        ):
            self.value, self.step, self.worse = value, step, 0
            return True
        self.worse += 1
        return False

    def is_higher_better(self, metric: str) -> bool:
        """Which way the metric goes; `JoyError` where only the user can know."""
        if self.wish.goal != "auto":
            return self.wish.goal == "highest"
        plain = metric.rpartition(".")[-1].removeprefix("unseen_")
        if plain not in (*LOWER, *HIGHER):
            raise JoyError(
                f"whether a high '{metric}' is good is not known",
                where="eval.goal",
                help="goal: highest or goal: lowest",
            )
        return plain in HIGHER

    @property
    def ends(self) -> bool:
        """Whether the run has waited long enough for a better one."""
        return self.wish.patience is not None and self.worse >= self.wish.patience

    def document(self) -> dict[str, Any]:
        """As a checkpoint keeps it."""
        state = {"value": self.value, "step": self.step, "worse": self.worse}
        return {"metric": self.wish.metric, "data": self.digest, **state}

    def restore(self, saved: Mapping[str, Any] | None, places: Callable[[int], bool]) -> str | None:
        """Go on from a checkpoint; why not, where it says something that no longer counts.

        `places` says whether the checkpoint of a step is there.
        """
        self.value, self.step, self.worse = None, None, 0
        if not saved:
            return None
        if (saved["metric"], saved["data"]) != (self.wish.metric, self.digest):
            return "eval.metric or the held-out data changed: the best is looked for anew"
        if saved["step"] is not None and not places(saved["step"]):
            return f"the best checkpoint, step {saved['step']}, is gone: it is looked for anew"
        self.value, self.step, self.worse = saved["value"], saved["step"], saved["worse"]
        return None
