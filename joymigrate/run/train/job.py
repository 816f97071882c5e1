"""The job file: what to train, on what, how. YAML, read with one clear error per mistake.

Relative paths count from the job file's folder. `--set optimiser.lr=1e-4` overrides one key.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.train.layout import Layout
from joymigrate.run.train.llamafactory_job import is_llamafactory, read_job
from joymigrate.run.train.samples.job import ReaderSettings, TableSettings
from joymigrate.run.train.stream.job import PublishSettings, StreamSettings
from joymigrate.schema import document, load_file, read, setting

SCHEMA = "joymigrate.job/1"
DTYPES = ("float32", "bfloat16", "float16")
TRACKERS = ("wandb", "mlflow", "swanlab", "trackio", "clearml", "comet_ml", "aim", "dvclive")


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Where the weights come from: a folder, or a configuration for random ones."""

    SHORT = "path"

    path: str | None = setting(None, "a local model folder (config.json and safetensors)")
    from_config: Mapping[str, Any] = setting(
        make=dict, help="random weights: model_type and sizes, such as hidden_size"
    )
    attention: str = setting("sdpa", "sdpa or eager", choices=("sdpa", "eager"))
    recompute: bool = setting(False, "recompute activations in the backward pass: less memory")


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """What is learned; a task's own options stand beside its name."""

    SHORT = "name"
    REST = "options"

    name: str = setting("sft", "pretrain, sft, …")
    options: Mapping[str, Any] = setting(make=dict, help="the task's own options")


@dataclass(frozen=True, slots=True)
class Data:
    """The files, and how their records become sequences."""

    SHORT = "train"

    train: tuple[str, ...] = setting((), "JSONL, Parquet or text files", single=True)
    eval: tuple[str, ...] = setting((), "held-out files of the same kind", single=True)
    holdout: int | float | None = setting(
        None,
        "records of train that are held out for eval, drawn by chance; below 1 a share of them",
        above=0,
    )
    weights: tuple[float, ...] = setting(
        (), "shares of the files of train in every step, mixed by chance (default: one after all)"
    )
    until: str = setting(
        "first",
        "with weights, an epoch ends once the first, every, or the largest file was seen whole",
        choices=("first", "all", "largest"),
    )
    format: str = setting(
        "auto", "auto goes by the suffix", choices=("auto", "jsonl", "parquet", "text")
    )
    limit: int | None = setting(None, "records of each file, at most the first so many", least=1)
    max_length: int = setting(512, "tokens of a sequence, at most", least=2)
    packing: bool = setting(True, "put several documents into one sequence, kept apart")
    template: str | None = setting(None, "a Jinja file with a chat template (else the tokenizer's)")
    cache: str | None = setting(None, "where token caches lie (default: runs/tokens)")
    schema: str | None = setting(None, "features of Parquet files: a YAML file (recommendation)")
    readers: ReaderSettings = setting(make=ReaderSettings, help="with schema: who reads")
    stream: StreamSettings | None = setting(None, "with schema: learn from a stream, without end")
    shuffle: bool = setting(True, "with schema: mix row groups, and the rows in each")


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """Samples of one optimiser step over all processes, and of one forward pass."""

    size: int = setting(8, "sequences of one step, over all processes", least=1)
    micro: int | None = setting(
        None, "sequences of one forward pass (default: all at once)", least=1
    )
    balance: bool = setting(
        False, "with data.schema: exchange a step's rows so that processes work equally long"
    )


@dataclass(frozen=True, slots=True)
class TuningMethod:
    """Which weights are trained."""

    SHORT = "name"

    name: str = setting("full", "full or lora", choices=("full", "lora"))
    rank: int = setting(8, "lora: rank of the added matrices", least=1, only=("name", "lora"))
    alpha: float = setting(
        16.0, "lora: scale of the added matrices, over the rank", only=("name", "lora")
    )
    dropout: float = setting(
        0.0, "lora: dropout on the adapter's input", least=0, most=1, only=("name", "lora")
    )
    targets: tuple[str, ...] = setting(
        (), "lora: names of linear layers (default: all but heads)", single=True,
        only=("name", "lora"),
    )  # fmt: skip
    dora: bool = setting(
        False, "lora: learn the length of each row of the weights apart", only=("name", "lora")
    )
    rslora: bool = setting(
        False, "lora: the scale is over the root of the rank", only=("name", "lora")
    )


@dataclass(frozen=True, slots=True)
class Communication:
    """In what form processes exchange gradients."""

    SHORT = "dtype"

    dtype: str = setting(
        "fp32", "fp32, bf16, or int8 in blocks with a scale", choices=("fp32", "bf16", "int8")
    )


@dataclass(frozen=True, slots=True)
class Optimiser:
    """AdamW or SGD."""

    SHORT = "name"

    name: str = setting("adamw", "adamw or sgd", choices=("adamw", "sgd"))
    lr: float = setting(1e-4, "learning rate", least=0)
    betas: tuple[float, ...] = setting(
        (0.9, 0.95), "adamw: decay of the two averages", only=("name", "adamw")
    )
    eps: float = setting(1e-8, "adamw: keeps the division finite", least=0, only=("name", "adamw"))
    weight_decay: float = setting(0.0, "decay of matrices (never of norms and biases)", least=0)
    momentum: float = setting(0.0, "sgd", least=0, only=("name", "sgd"))
    clip: float = setting(1.0, "largest norm of the gradient; 0 leaves it alone", least=0)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning rate over the steps."""

    SHORT = "name"

    name: str = setting(
        "cosine", "constant, linear or cosine", choices=("constant", "linear", "cosine")
    )
    warmup: int | float = setting(0, "steps of linear warm-up; below 1 a share of the run", least=0)
    floor: float = setting(0.0, "last learning rate, as a share of the first", least=0, most=1)


@dataclass(frozen=True, slots=True)
class Saving:
    """Checkpoints and the exported model."""

    every: int = setting(100, "steps between checkpoints; 0: only the last", least=0)
    keep: int = setting(2, "how many stay on disk", least=1)
    asynchronous: bool = setting(True, "write in the background while training goes on")
    export: bool = setting(True, "write the trained model as a folder of safetensors at the end")


@dataclass(frozen=True, slots=True)
class Logging:
    """What is written while training."""

    every: int = setting(1, "steps between lines of metrics.jsonl", least=1)
    tensorboard: bool = setting(False, "event files in the run folder")
    trackers: tuple[str, ...] = setting(
        (), f"services that figures are sent to: {', '.join(TRACKERS)}", single=True
    )
    samples: bool = setting(False, "which samples every step consumed, in samples/ of the run")
    prometheus: int | None = setting(None, "port to serve metrics on", least=0)


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """Looks at data.eval while training; with a metric the best checkpoint is kept."""

    SHORT = "every"

    every: int = setting(0, "steps between evaluations; 0: at the ends of epochs", least=0)
    batch: int = setting(8, "samples of one pass of a process", least=1)
    limit: int | None = setting(None, "samples to look at, at most", least=1)
    metric: str | None = setting(None, "keep and export the checkpoint that is best by this figure")
    goal: str = setting(
        "auto", "what is better of the metric", choices=("auto", "lowest", "highest")
    )
    patience: int | None = setting(
        None, "evaluations in a row without a better one that end the run", least=1
    )
    margin: float = setting(0.0, "what is better by no more than this is not better", least=0)


@dataclass(frozen=True, slots=True)
class GuardOptions:
    """Watches the loss: where it is no number, the run goes back to the last good checkpoint."""

    spike: float = setting(
        8.0, "deviations of loss and gradient norm above the recent medians; 0: off", least=0
    )
    patience: int = setting(5, "looks in a row above it that are a spike", least=1)
    on_spike: str = setting("warn", "what a spike does", choices=("warn", "roll_back"))
    window: int = setting(50, "recent steps that the median is taken over", least=5)
    rollbacks: int = setting(2, "how often, before the run fails", least=0)


@document("job", "A training job: what `joymigrate train JOB.yaml` reads.")
@dataclass(frozen=True, slots=True)
class Job:
    """One training run. `folder` is where relative paths start; it is not part of the file."""

    model: ModelChoice = setting(help="the model")
    data: Data = setting(help="the data")
    name: str = setting("", "the run's name (default: the file's)")
    device: str = setting("auto", "auto, cpu, cuda or a chip's name")
    tokenizer: str | None = setting(None, "a folder, or bytes (default: the model's)")
    task: TaskOptions = setting(make=TaskOptions, help="the task")
    method: TuningMethod = setting(make=TuningMethod, help="full or lora")
    steps: int | None = setting(None, "optimiser steps (default: one epoch)", least=1)
    epochs: float | None = setting(None, "times over the data, instead of steps", above=0)
    batch: BatchSettings = setting(make=BatchSettings, help="samples of a step")
    dtype: str = setting("float32", "of the computation", choices=DTYPES)
    master: bool = setting(True, "with bfloat16: keep float32 weights beside")
    layout: Layout = setting(make=Layout, help="processes")
    tables: TableSettings = setting(make=TableSettings, help="with data.schema: rows of tables")
    publish: PublishSettings = setting(make=PublishSettings, help="with data.stream: versions")
    comm: Communication = setting(make=Communication, help="how gradients are exchanged")
    optimiser: Optimiser = setting(make=Optimiser, help="optimiser")
    schedule: Schedule = setting(make=Schedule, help="learning rate")
    kernels: Any = setting("auto", "auto, off, or {operator: implementation}")
    checkpoint: Saving = setting(make=Saving, help="checkpoints")
    logging: Logging = setting(make=Logging, help="what is written while training")
    guard: GuardOptions = setting(make=GuardOptions, help="watches the loss")
    eval: EvaluationSettings | None = setting(None, "looks at data.eval while training")
    seed: int = setting(0, "of weights, order and dropout", least=0)
    run: str | None = setting(None, "the run folder (default: runs/NAME)")
    max_restarts: int = setting(0, "how often workers that died are started again", least=0)
    folder: str = setting(".", "where relative paths start", hidden=True)

    def __post_init__(self) -> None:
        check(self)

    def path(self, relative: str) -> Path:
        """A path of the job file."""
        return Path(self.folder) / relative

    @property
    def run_folder(self) -> Path:
        """Where the run writes."""
        return self.path(self.run or f"runs/{self.name}")


def load(
    path: Path, overrides: Sequence[str] = (), tell: Callable[[str], None] = lambda line: None
) -> Job:
    """The job of a file with `key=value` overrides; `JoyError` names the key that is wrong.

    A file of LLaMA-Factory is read as well; `tell` gets a line for each of its keys.
    """
    help = "joymigrate train init job.yaml writes one"
    raw, source = load_file(path, "job", help)
    if is_llamafactory(raw):
        raw, lines = read_job(raw, source, Path.cwd())
        for line in lines:
            tell(line)
    if not isinstance(raw, dict):
        raise JoyError("the job has no keys", where=str(path), help=help)
    job = read(Job, override(raw, overrides), source)
    return dataclasses.replace(job, name=job.name or path.stem, folder=str(path.resolve().parent))


def override(raw: Mapping[str, Any], sets: Sequence[str]) -> dict[str, Any]:
    """`raw` with `a.b=value` written over; values are YAML."""
    made = copy.deepcopy(dict(raw))
    for text in sets:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise JoyError(f"--set takes key=value, got '{text}'", help="--set optimiser.lr=1e-4")
        at = made
        *parents, last = key.strip().split(".")
        for name in parents:
            inner = at.get(name)
            if isinstance(inner, str | int) and name in SHORTS:
                inner = {SHORTS[name]: inner}
            at[name] = inner if isinstance(inner, dict) else {}
            at = at[name]
        at[last] = yaml.safe_load(value)
    return made


SHORTS = {
    **{"model": "path", "task": "name", "data": "train"},
    **{"method": "name", "comm": "dtype", "eval": "every"},
}


def check(job: Job) -> None:
    """What one key cannot say about another."""
    if (job.model.path is None) == (not job.model.from_config):
        raise JoyError(
            "a model is either a path or a from_config",
            where="model",
            help="model: {path: DIR} or model: {from_config: {model_type: qwen2, …}}",
        )
    if job.steps is not None and job.epochs is not None:
        raise JoyError("both steps and epochs were given", help="remove one of them")
    if len(job.optimiser.betas) != 2 or not all(0 <= b < 1 for b in job.optimiser.betas):
        raise JoyError("betas are two numbers from 0 to below 1", where="optimiser")
    if not job.data.train and job.data.stream is None:
        raise JoyError("no data file is named", where="data", help="data: {train: FILE.jsonl}")
    if not isinstance(job.kernels, dict) and job.kernels not in ("auto", "off", False):
        raise JoyError(
            f"'kernels' takes auto, off or operators with implementations, got {job.kernels!r}"
        )
    if job.data.limit is not None and job.data.schema is not None:
        raise JoyError(
            "rows of features are not limited", where="data.limit", help="write a shorter file"
        )
    if job.steps is not None:
        check_warmup(job, job.steps)
    job.layout.check()
    check_communication(job)
    check_batch(job)
    check_mixture(job)
    check_holdout(job)
    check_evaluation(job)
    check_trackers(job)


def check_warmup(job: Job, steps: int) -> None:
    """A warm-up as long as the run would never reach the learning rate that was asked for."""
    if 1 <= steps <= job.schedule.warmup:
        raise JoyError(
            f"schedule.warmup of {job.schedule.warmup} steps is not shorter than the run, which "
            f"has {steps}",
            where="schedule",
            help="fewer steps of warm-up, or a longer run",
        )


def check_communication(job: Job) -> None:
    """Layouts whose gradients are not exchanged as compress.py does."""
    layout, dtype = job.layout, job.comm.dtype
    mixed = layout.dp > 1 and (layout.fsdp > 1 or layout.tp > 1)
    if dtype != "fp32" and (layout.pp > 1 or layout.cp > 1 or mixed):
        raise JoyError(
            f"comm.dtype {dtype} does not go with layout {layout.name}",
            where="comm.dtype",
            help="it goes with dp alone, and with fsdp or fsdp x tp; or use fp32",
        )


def check_batch(job: Job) -> None:
    """Every process sees equally many samples, in equally many passes."""
    if job.batch.balance and job.data.schema is None:
        raise JoyError(
            "batch.balance goes with rows of features",
            where="batch.balance",
            help="data: {schema: features.yaml}; language models pack their texts instead",
        )
    if job.batch.balance and job.layout.cp > 1:
        raise JoyError(
            "batch.balance exchanges rows over all processes, and layout.cp shares each of them",
            where="batch.balance",
            help="leave one of them out: cp gives its processes equal work",
        )
    share, rest = divmod(job.batch.size, job.layout.data_ranks)
    if rest:
        raise JoyError(
            f"batch.size {job.batch.size} does not divide over {job.layout.data_ranks} processes "
            f"of layout {job.layout.name}",
            help=f"use a multiple of {job.layout.data_ranks}",
        )
    if job.batch.micro is not None and share % job.batch.micro:
        raise JoyError(
            f"batch.micro {job.batch.micro} does not divide the {share} samples of a process",
            help="batch.micro divides batch.size / (dp x fsdp)",
        )


def check_mixture(job: Job) -> None:
    """One weight for each file, of a kind of data that can be mixed."""
    weights, files = job.data.weights, job.data.train
    if not weights:
        return
    if job.data.schema is not None or job.data.stream is not None:
        raise JoyError(
            "rows of features are not mixed by weights",
            where="data.weights",
            help="all files of data.train are read; write a file with the shares you want",
        )
    if len(weights) != len(files):
        raise JoyError(
            f"{len(weights)} weights for {len(files)} files of data.train", where="data.weights"
        )
    if len(set(files)) < len(files):
        raise JoyError("a file stands twice in data.train", where="data.weights")
    if not all(0 < one < math.inf for one in weights):
        raise JoyError("every weight is above 0", where="data.weights")


def check_holdout(job: Job) -> None:
    """Records that are held out are drawn from files that are read one after another."""
    size, data = job.data.holdout, job.data
    if size is None:
        return
    beside = {"schema": data.schema, "stream": data.stream, "weights": data.weights}
    named = [f"data.{key}" for key, value in {**beside, "eval": data.eval}.items() if value]
    if named:
        raise JoyError(
            f"data.holdout does not go with {', '.join(named)}",
            where="data.holdout",
            help="name held-out files as data.eval instead",
        )
    if size >= 1 and size != int(size):
        raise JoyError(
            f"data.holdout {size} is neither a share below 1 nor a number of records",
            where="data.holdout",
        )


def check_trackers(job: Job) -> None:
    """Services that are known."""
    for name in job.logging.trackers:
        if name not in TRACKERS:
            raise JoyError(
                f"no tracker is called '{name}'.{did_you_mean(name, TRACKERS)}",
                where="logging.trackers",
                help=f"one of {', '.join(TRACKERS)}; logging.tensorboard writes files",
            )


def check_evaluation(job: Job) -> None:
    """Held-out data are there, and a layout whose model answers as a whole."""
    wish = job.eval
    if wish is None:
        return
    if job.data.stream is not None or not (job.data.eval or job.data.holdout):
        lacking = "a stream has no held-out data" if job.data.stream else "data.eval names no file"
        raise JoyError(
            f"nothing to evaluate on: {lacking}",
            where="eval",
            help="data: {train: FILE, eval: HELD_OUT_FILE}, or data.holdout: 0.1",
        )
    twice = {*map(job.path, job.data.train)} & {*map(job.path, job.data.eval)}
    if twice:
        raise JoyError(
            f"trained on and held out: {', '.join(sorted(map(str, twice)))}",
            where="data.eval",
            help="figures of samples that were learned say nothing; hold other ones out",
        )
    if job.layout.pp > 1 or job.layout.cp > 1:
        raise JoyError(
            f"no evaluation while training with layout {job.layout.name}",
            where="eval",
            help="use dp, fsdp or tp; or train evaluate on the run's checkpoints",
        )
    if wish.metric is None and (wish.patience is not None or wish.goal != "auto" or wish.margin):
        raise JoyError(
            "goal, margin and patience are about a metric",
            where="eval",
            help="eval: {metric: loss, patience: 3}",
        )


def cache_folder(job: Job) -> Path:
    """Where token caches lie, and what is remembered of data files."""
    return job.path(job.data.cache or "runs/tokens")


def data_files(job: Job) -> list[Path]:
    """The training files, in order."""
    return files_named(job, job.data.train)


def files_named(job: Job, names: Sequence[str]) -> list[Path]:
    """Files of the job; with a schema of features a name may be a pattern (clicks-*.parquet)."""
    if job.data.schema is None:
        return [job.path(name) for name in names]
    found: list[Path] = []
    for name in names:
        path = job.path(name)
        found += sorted(path.parent.glob(path.name)) if "*" in path.name else [path]
    if names and not found:
        raise JoyError(f"no file fits {', '.join(names)}", where="data", help=f"in {job.folder}")
    return found


def micro_size(job: Job) -> int:
    """Samples of one forward pass on one process."""
    share = job.batch.size // job.layout.data_ranks
    if job.batch.micro is not None:
        return min(job.batch.micro, share)
    return max(1, share // job.layout.pp) if job.layout.pp > 1 else share
