"""Starts a run: in this process, or as several that torch's elastic agent watches and restarts.

A run under somebody's torchrun (RANK and WORLD_SIZE are set) is one worker of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.errors import Exit, JoyError
from joymigrate.run.train import gate, group, held_out, worker
from joymigrate.run.train.assemble import steps_of, task_of
from joymigrate.run.train.data_state import has_grown
from joymigrate.run.train.held_out import BestModel
from joymigrate.run.train.job import Job, check_batch, check_communication
from joymigrate.run.train.run_folder import ACCEPT_DATA, CHECKPOINTS, QUIET, RunFolder, passing_on

MONITOR_S = 0.1  # how often the agent looks at its workers
SHUTDOWN_S = 5  # what a worker has to end in when another one died


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """How a run is started. `meeting` is host:port of several machines' rendezvous."""

    processes: int | None = None  # of this machine; None: as the layout says
    nodes: int = 1
    meeting: str | None = None
    restarts: int | None = None
    fresh: bool = False
    unverified: bool = False
    quiet: bool = False
    accept_data: bool = False  # go on with data that changed
    project: Path = Path()


def launch(job: Job, start: LaunchOptions, tell: Callable[[str], None]) -> int:
    """Run a job to its end; the exit code as in worker.py."""
    with set_variable(QUIET, start.quiet), set_variable(ACCEPT_DATA, start.accept_data):
        return start_run(job, start, tell)


@contextlib.contextmanager
def set_variable(name: str, on: bool) -> Iterator[None]:
    """Workers of this run, in this process or others, find a variable set."""
    before = os.environ.get(name)
    if on:
        os.environ[name] = "1"
    try:
        yield
    finally:
        if on and before is None:
            del os.environ[name]


def start_run(job: Job, start: LaunchOptions, tell: Callable[[str], None]) -> int:
    """Look at folder and gate, then train here or in several processes."""
    job = spread(job, start)
    folder = RunFolder(job.run_folder)
    done = explain_end(job, folder, start)
    if done:
        tell(done)
        return Exit.OK
    if group.rank() == 0:
        device = group.choose(job.device, tell)
        note = gate.check(job, device, start.project, unverified=start.unverified)
        if note:
            tell(f"note: {note}; training all the same (--unverified)")
        folder.begin(job, fresh=start.fresh, tell=tell)
        folder.report(
            name=job.name,
            state="starting",
            message=None,
            layout=job.layout.name,
            processes=job.layout.world,
            device=device.type,
            chip=device.chip,
            rehearsal=device.rehearsal,
            verified=note is None,
        )
        tell(f"run {folder.path}: {job.layout.name} on {device.type}")
    if group.in_group():
        if group.rank() > 0:
            folder.wait_for(job)
        return worker.main(folder.path, tell)
    restarts = job.max_restarts if start.restarts is None else start.restarts
    if job.task.options.get("rollouts") == "actors":
        from joymigrate.run.train.reinforcement.actors import control

        return control(job, folder, restarts, tell)
    if job.layout.world == 1 and restarts == 0:
        return worker.main(folder.path, tell)
    return agent(job, start, restarts, folder, tell)


def explain_end(job: Job, folder: RunFolder, start: LaunchOptions) -> str | None:
    """What to say about a run that needs no more steps; None when there is something to do."""
    known = folder.status()
    if job.data.stream is not None:
        return None
    if start.fresh or known.get("state") != "finished":
        return None
    step = known.get("step", 0)
    folder.compare(dataclasses.asdict(job))
    left = step < (job.steps or steps_of(job, known.get("samples_in_all", 0)))
    ended = has_ended(job, known.get("best"))
    if left and not ended:
        return None
    if (left or job.steps is None) and has_grown(
        folder.path / CHECKPOINTS, job.data.format, job.data.limit
    ):
        return None
    how = "more steps continue it"
    if ended:
        how = f"no better {known['best']['metric']} came; a higher eval.patience continues it"
    return f"run {folder.path} is finished (step {step}); {how}, --fresh starts anew"


def has_ended(job: Job, saved: Mapping[str, Any] | None) -> bool:
    """Whether `saved` (see `BestModel`) says that the run has waited long enough for a better one.

    It says nothing of another metric or of held-out data that changed.
    """
    if job.eval is None or not saved or not BestModel(job.eval, worse=saved["worse"]).ends:
        return False
    digest = held_out.digest_of(job, held_out.unpack(task_of(job)), held_out.content_of(job))
    best = BestModel(job.eval, digest)
    best.restore(saved, lambda step: True)
    return best.ends


def spread(job: Job, start: LaunchOptions) -> Job:
    """The job with its layout on the number of processes that there are."""
    total = job.layout.world
    if group.in_group():
        total = int(os.environ["WORLD_SIZE"])
    elif start.processes is not None:
        total = start.processes * start.nodes
    if total == job.layout.world:
        return job
    changed = dataclasses.replace(job, layout=job.layout.spread(total))
    check_batch(changed)
    check_communication(changed)
    return changed


def agent(
    job: Job, start: LaunchOptions, restarts: int, folder: RunFolder, tell: Callable[[str], None]
) -> int:
    """Start the workers and wait for them, restarting all of them when one dies."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    per_node, rest = divmod(job.layout.world, start.nodes)
    if rest:
        raise JoyError(
            f"{job.layout.world} processes do not divide over {start.nodes} machines",
            where="layout",
        )
    config = LaunchConfig(
        min_nodes=start.nodes,
        max_nodes=start.nodes,
        nproc_per_node=per_node,
        run_id=job.name if start.meeting else uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint=start.meeting or "localhost:0",
        max_restarts=restarts,
        monitor_interval=MONITOR_S,
        shutdown_timeout=SHUTDOWN_S,
        signals_to_handle="SIGQUIT",  # SIGTERM and SIGINT ask for a checkpoint first
    )
    command = ("-m", "joymigrate.run.train.worker", str(folder.path))
    with passing_on(folder):
        try:
            elastic_launch(config, sys.executable)(*command)
        except ChildFailedError as error:
            return judge_error(error, folder, tell)
        except SignalException:
            return Exit.INTERRUPTED
    return Exit.OK


def judge_error(error: Any, folder: RunFolder, tell: Callable[[str], None]) -> int:
    """The exit code of workers that did not end with 0: stopped, a user's mistake, or a crash."""
    state = folder.status().get("state")
    rank, failure = error.get_first_failure()
    if state == "stopped":
        return Exit.INTERRUPTED
    if state == "failed":
        return Exit.ERROR
    told = f"process {rank} ended with exit code {failure.exitcode}"
    if failure.exitcode < 0:
        told = f"process {rank} was killed by {signal.Signals(-failure.exitcode).name}"
    folder.report(state="failed", message=told)
    raise JoyError(
        told,
        where=str(folder.path),
        help="the lines above say more; the same command continues from the last checkpoint, and "
        "--max-restarts does so by itself",
    )
