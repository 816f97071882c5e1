"""A job as another trainer's command: what is common to all of them."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.train.digests import write_bytes
from joymigrate.run.train.job import Job, micro_size


@dataclass(frozen=True, slots=True)
class Rendered:
    """A command, its environment, files to write first, and keys that have no counterpart."""

    command: tuple[str, ...]
    files: Mapping[Path, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def text(self) -> str:
        """As a shell would read it."""
        set_ = "".join(f"{k}={shlex.quote(v)} " for k, v in self.environment.items())
        return set_ + shlex.join(self.command)


@dataclass(frozen=True, slots=True)
class Engine:
    """A trainer: its tasks, how a job is rendered, its program and how that is installed.

    `module`: the program is a package that Python starts (`python -m`).
    """

    name: str
    tasks: Mapping[str, str]  # our name (or its own) → its name
    render: Callable[[Job], Rendered]
    program: str
    install: str
    module: bool = False


def render(engine: Engine, job: Job) -> Rendered:
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
    return engine.render(job)


def start(engine: Engine, made: Rendered) -> int:
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
            help="use dp or fsdp, or --engine mindspeed",
        )
    return "fsdp2" if job.layout.fsdp > 1 else None


def not_told(job: Job, *known: str) -> tuple[str, ...]:
    """Keys of the job that say something and have no counterpart."""
    found = []
    for name in ("comm", "guard", "kernels"):
        default: Any = Job.__dataclass_fields__[name]
        plain = default.default if name == "kernels" else default.default_factory()
        if name not in known and getattr(job, name) != plain:
            found.append(name)
    if job.task.options and "task" not in known:
        found.append("task." + ", task.".join(map(str, job.task.options)))
    return tuple(found)
