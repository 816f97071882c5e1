"""A job as another trainer's command: what is common to all of them."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, cast

from joymigrate.errors import JoyError
from joymigrate.run.train.digests import write_bytes
from joymigrate.run.train.job import Job, TaskOptions, micro_size


@dataclass(frozen=True, slots=True)
class RenderedCommand:
    """A command, its environment, files to write first, and keys that have no counterpart.

    `told` says which key of the job became which of the engine's, where a table knows.
    """

    command: tuple[str, ...]
    files: Mapping[Path, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    told: tuple[str, ...] = ()

    def text(self) -> str:
        """As a shell would read it."""
        set_ = "".join(f"{k}={shlex.quote(v)} " for k, v in self.environment.items())
        return set_ + shlex.join(self.command)


@dataclass(frozen=True, slots=True)
class TrainerEngine:
    """A trainer: its tasks, how a job is rendered, its program and how that is installed.

    `module`: the program is a package that Python starts (`python -m`).
    """

    name: str
    tasks: Mapping[str, str]  # our name (or its own) → its name
    render: Callable[[Job], RenderedCommand]
    program: str
    install: str
    module: bool = False


def render(engine: TrainerEngine, job: Job) -> RenderedCommand:
    """The job as `engine` takes it."""
    if job.task.name not in engine.tasks:
        raise JoyError(
            f"{engine.name} has no task '{job.task.name}'",
            where="task",
            help=f"it knows {', '.join(sorted(engine.tasks))}",
        )
    if job.data.schema is not None:
        raise JoyError(
            f"{engine.name} reads texts, and the data have a schema of features",
            where="data.schema",
            help="without --engine joymigrate trains this job itself",
        )
    if job.model.path is None:
        raise JoyError(
            f"{engine.name} starts from a model folder",
            where="model",
            help="model: {path: DIR}; train export writes one from a run",
        )
    read: set[str] = set()
    made = engine.render(cast(Job, NotedJob(job, read)))
    return replace(made, left_out=(*made.left_out, *not_told(job, read)))


def start(engine: TrainerEngine, made: RenderedCommand) -> int:
    """Write the files and run the command; its exit code."""
    known = importlib.util.find_spec if engine.module else shutil.which
    if known(engine.program) is None:
        raise JoyError(
            f"{engine.name} is not installed: there is no '{engine.program}'",
            help=f"{engine.install}; --render shows the command without running it",
        )
    for path, text in made.files.items():
        write_bytes(path, text.encode())
    environment = {**os.environ, **made.environment}
    return subprocess.run(made.command, env=environment).returncode


def figures(job: Job) -> dict[str, Any]:
    """What all trainers are told in numbers."""
    micro = micro_size(job)
    return {
        "micro": micro,
        "accumulate": job.batch.size // (micro * job.layout.data_ranks),
        "processes": job.layout.world,
    }


def deepspeed_or_fsdp(job: Job) -> str | None:
    """The sharding of trainers built on accelerate."""
    if job.layout.tp > 1 or job.layout.pp > 1 or job.layout.cp > 1:
        raise JoyError(
            f"this engine does not split layers: layout {job.layout.name}",
            where="layout",
            help="use dp or fsdp; without --engine joymigrate splits layers itself",
        )
    return "fsdp2" if job.layout.fsdp > 1 else None


# What another trainer may do otherwise when nothing is said, also where the job says nothing.
ALWAYS = ("optimiser.name", "optimiser.betas", "data.packing")
LOCAL = ("name", "folder", "run", "device")  # about this machine and this run


class NotedOptions(Mapping[str, Any]):
    """A task's own options, which note in `read` what is asked of them."""

    def __init__(self, values: Mapping[str, Any], read: set[str]) -> None:
        self.values_, self.read = values, read

    def __getitem__(self, key: str) -> Any:
        self.read.add(f"task.{key}")
        return self.values_[key]

    def __iter__(self) -> Iterator[str]:
        self.read |= {f"task.{key}" for key in self.values_}
        return iter(self.values_)

    def __len__(self) -> int:
        return len(self.values_)


class NotedJob:
    """A job, or a part of it, that notes in `read` which of its keys an engine asks for."""

    def __init__(self, real: Any, read: set[str], above: str = "") -> None:
        self.real, self.read, self.above = real, read, above

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.real, name)
        known = {one.name for one in fields(self.real)}
        if name not in known:  # something made of several keys
            if not isinstance(self.real, Job):
                self.read |= {self.above + one for one in known}
            return value
        if is_dataclass(value):
            return NotedJob(value, self.read, f"{name}.")
        if isinstance(self.real, TaskOptions) and name == "options":
            return NotedOptions(value, self.read)
        self.read.add(self.above + name)
        return value


def keys_of(real: Any, above: str = "") -> Iterator[tuple[str, bool]]:
    """Every key of a job, and whether it says something else than by default."""
    for one in fields(real):
        value = getattr(real, one.name)
        if isinstance(real, TaskOptions) and one.name == "options":
            yield from ((f"task.{key}", True) for key in value)
        elif is_dataclass(value):
            yield from keys_of(value, f"{one.name}.")
        else:
            made = one.default_factory
            plain = one.default if made is MISSING else made()
            yield above + one.name, value != plain


def not_told(job: Job, read: set[str]) -> tuple[str, ...]:
    """Keys of the job that say something, and that an engine hasn't asked for."""
    return tuple(
        key
        for key, says in keys_of(job)
        if key not in read and key not in LOCAL and (says or key in ALWAYS)
    )


def training_arguments(job: Job) -> dict[str, Any]:
    """A job's keys as transformers' TrainingArguments call them; most trainers build on these."""
    count = figures(job)
    told = {
        "output_dir": str(job.run_folder.resolve()),
        "per_device_train_batch_size": count["micro"],
        "gradient_accumulation_steps": count["accumulate"],
        "learning_rate": job.optimiser.lr,
        "weight_decay": job.optimiser.weight_decay,
        "max_grad_norm": job.optimiser.clip,
        "lr_scheduler_type": job.schedule.name,
        "warmup_steps": job.schedule.warmup,
        "save_steps": job.checkpoint.every or 10**9,
        "save_total_limit": job.checkpoint.keep,
        "logging_steps": job.logging.every,
        "seed": job.seed,
        "bf16": job.dtype == "bfloat16",
        "fp16": job.dtype == "float16",
        "gradient_checkpointing": job.model.recompute,
    }
    if job.optimiser.name == "adamw":
        first, second = job.optimiser.betas
        told |= {"adam_beta1": first, "adam_beta2": second, "adam_epsilon": job.optimiser.eps}
    else:
        told["optim"] = job.optimiser.name
    key = "max_steps" if job.steps else "num_train_epochs"
    return {**told, key: job.steps or job.epochs or 1}


def adapter(job: Job, *names: str) -> dict[str, Any]:
    """Rank, scale, dropout and layers of LoRA under an engine's own names; nothing without it.

    Its forms have the names that peft gives them.
    """
    if job.method.name != "lora":
        return {}
    method = job.method
    told = (method.rank, method.alpha, method.dropout, method.targets)
    forms = {"use_dora": method.dora, "use_rslora": method.rslora}
    return {**dict(zip(names, told, strict=True)), **{key: True for key in forms if forms[key]}}
