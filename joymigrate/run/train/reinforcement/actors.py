"""Reinforcement learning on separate Ray actors under one controller.

    controller (this process)
      ├─ trainer 0 … N-1   the present training loop, one process of the layout each
      └─ writer 0 … W-1    our serving engine and the rewards

A trainer gives its weights to Ray once a step; a writer takes them when it is asked with weights
that it does not hold. What is asked is a function of seed, step and prompt, so a call that is asked
again, by a writer that died and was started anew, has the same answer. A trainer that dies ends all
trainers; the controller starts them from the last checkpoint (`max_restarts`), and the same command
goes on where the controller itself was killed.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joymigrate.errors import Exit, JoyError
from joymigrate.extras import need
from joymigrate.run.train.reinforcement.writers import ATTEMPT, NAMESPACE, Answers, ours
from joymigrate.run.train.run_folder import QUIET, RunFolder, passing_on

if TYPE_CHECKING:
    from joymigrate.run.train.job import Job


class WriterActor:
    """One engine with the rewards of a job, as a Ray actor."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.device: Any = None
        self.task: Any = None
        self.version: Any = None
        self.writer: Any = None

    def open(self) -> None:
        """Load the rewards. Not in the constructor: Ray keeps no error of it."""
        from joymigrate.run.train import assemble, group

        if self.task is None:
            job = RunFolder(Path(self.folder)).job()
            self.device = group.choose(job.device, print)
            task: Any = assemble.task_of(job)
            task.load_rewards()
            self.task = task

    def process(self) -> int:
        """The process that this is, when it can write."""
        self.open()
        return os.getpid()

    def answers(
        self,
        version: Any,
        weights: Sequence[Any],
        config: Mapping[str, Any],
        batch: Mapping[str, Any],
        seed: int,
        first: int,
    ) -> Answers:
        """Answers to the prompts of a batch by the weights of a version, and what they are worth.

        `weights` holds a reference, which is read only where the version is another one.
        """
        import ray

        self.open()
        if self.version != version:
            tensors = ray.get(weights[0])
            where = self.device.at()
            placed = {name: tensor.to(where) for name, tensor in tensors.items()}
            if self.writer is None:
                self.writer = self.task.engine_writer(config, self.device)
            self.writer.load(placed)
            self.version = version
        found = self.task.written(self.writer, batch, seed, first)
        values = self.task.rewarded(batch, found, self.device.at())
        return found, values


class TrainerActor:
    """One process of the training loop, as a Ray actor."""

    def process(self) -> int:
        """The process that this is."""
        return os.getpid()

    def address(self) -> tuple[str, int]:
        """Where processes may meet: this machine, a free port."""
        with socket.socket() as free:
            free.bind(("", 0))
            return socket.gethostbyname(socket.gethostname()), free.getsockname()[1]

    def train(self, folder: str, environment: Mapping[str, str]) -> int:
        """Train to the end; the exit code as in worker.py."""
        os.environ.update(environment)
        from joymigrate.run.train import worker

        return worker.main(Path(folder))


def control(job: Job, folder: RunFolder, restarts: int, tell: Callable[[str], None]) -> int:
    """Start the actors and watch them until the run has ended; its exit code."""
    try:
        return run_controlled(job, folder, restarts, tell)
    except JoyError as error:
        folder.report(state="failed", message=str(error))
        raise


def run_controlled(job: Job, folder: RunFolder, restarts: int, tell: Callable[[str], None]) -> int:
    """Look at the task's options first, then ask Ray."""
    from joymigrate.run.train import assemble

    writers: int = assemble.task_of(job).options["writers"]
    need("cluster", "ray", what="task.rollouts: actors")
    import ray

    space = f"joymigrate-train-{uuid.uuid4().hex[:12]}"
    os.environ[NAMESPACE] = space
    ours = not ray.is_initialized()
    if ours:
        ray.init(
            namespace=space,
            include_dashboard=False,
            log_to_driver=True,
            logging_level=logging.ERROR,
        )
    try:
        return watch_actors(ray, space, job, folder, writers, restarts, tell)
    finally:
        if ours:
            ray.shutdown()


def watch_actors(
    ray: Any,
    space: str,
    job: Job,
    folder: RunFolder,
    writers: int,
    restarts: int,
    tell: Callable[[str], None],
) -> int:
    """Writers for the whole run, trainers for every attempt."""
    asks = resources(job)
    wait_for(ray.cluster_resources(), asks, writers + job.layout.world, tell)
    made = [
        ray.remote(WriterActor)
        .options(name=f"writer-{number}", namespace=space, max_restarts=-1, max_task_retries=-1,
                 **asks)
        .remote(str(folder.path))
        for number in range(writers)
    ]  # fmt: skip
    try:
        folder.report(writers=ray.get([one.process.remote() for one in made]))
    except ray.exceptions.RayTaskError as error:
        raise ours(error) from None
    for attempt in range(restarts + 1):
        world = job.layout.world
        trainers = [ray.remote(TrainerActor).options(**asks).remote() for _ in range(world)]
        host, port = ray.get(trainers[0].address.remote())
        folder.report(trainers=ray.get([one.process.remote() for one in trainers]))
        given = {
            NAMESPACE: space,
            ATTEMPT: str(attempt),
            "JOYMIGRATE_TRAIN_WRITERS": str(writers),
            **({QUIET: os.environ[QUIET]} if QUIET in os.environ else {}),
        }
        if world > 1:
            given |= {"MASTER_ADDR": host, "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
        # Ray shows each actor its own card alone, the first of those that it sees.
        ranks = [{"RANK": str(rank), "LOCAL_RANK": "0"} if world > 1 else {}
                 for rank in range(world)]  # fmt: skip
        running = [
            one.train.remote(str(folder.path), {**given, **mine})
            for one, mine in zip(trainers, ranks, strict=True)
        ]
        try:
            codes = collect_exits(ray, running, folder)
        except ray.exceptions.RayActorError as error:
            for one in trainers:
                ray.kill(one)
            if folder.status().get("state") == "failed":
                return Exit.ERROR
            why = f"a trainer died: {str(error).splitlines()[0][:160]}"
            if attempt == restarts:
                raise JoyError(
                    why,
                    where=str(folder.path),
                    help="the same command continues from the last checkpoint, and --max-restarts "
                    "does so by itself",
                ) from None
            tell(f"{why}; starting from the last checkpoint")
            continue
        return max(codes)
    raise AssertionError("unreachable")


def collect_exits(ray: Any, running: Sequence[Any], folder: RunFolder) -> list[int]:
    """The exit codes; raises as soon as one trainer is gone."""
    waiting = list(running)
    with passing_on(folder):
        while waiting:
            done, waiting = ray.wait(waiting, timeout=1.0)
            ray.get(done)
    codes: list[int] = ray.get(list(running))
    return codes


def resources(job: Job) -> dict[str, Any]:
    """What an actor takes of Ray: a card where the job runs on cards."""
    from joymigrate.run.train import group

    device = group.choose(job.device, lambda line: None)
    if device.is_cpu:
        return {"num_cpus": 0}
    from joymigrate.chips import get

    assert device.chip is not None
    name = get(device.chip).launch.get("ray_resource", "GPU")
    return {"num_gpus": 1} if name == "GPU" else {"resources": {name: 1}}


def wait_for(
    held: Mapping[str, float], asks: Mapping[str, Any], actors: int, tell: Callable[[str], None]
) -> None:
    """Say what the actors wait for, where Ray has fewer cards than they take."""
    cards = {"GPU": asks.get("num_gpus", 0), **asks.get("resources", {})}
    for name, each in cards.items():
        if actors * each > held.get(name, 0):
            tell(f"note: writers and trainers take {actors * each} {name} of Ray, which has "
                 f"{held.get(name, 0):g}: the run waits for the others")  # fmt: skip
