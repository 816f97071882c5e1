"""Lanes that are processes of their own: no interpreter is shared, and a crash ends one lane only.

A worker loads the program and then reads the weights in the memory of the serving process, so that
a version that is written there is written for all. A worker that dies is started again; its batch
is tried once more, for the death may have been nobody's fault.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joymigrate.errors import JoyError
from joymigrate.run.serve.ranking.program import WHOLE_FILE, RankingProgram, load, share
from joymigrate.run.serve.ranking.tensors import as_arrays

if TYPE_CHECKING:
    import torch

log = logging.getLogger("joymigrate.serve")
Outputs = tuple["np.ndarray[Any, Any]", ...]
DIED = "the process of this lane ended while it computed this request"


class WorkerError(RuntimeError):
    """What a worker's model said about a batch."""


class Worker:
    """One process; used by one lane's thread at a time."""

    def __init__(self, program: RankingProgram) -> None:
        self.program = program
        self.process: Any = None
        self.pipe: Any = None
        self.folder = ""  # of compiled code
        self.restarts = 0
        self.lock = threading.Lock()

    def start(self) -> None:
        """Start the process and wait until its model is loaded. Raises `JoyError`."""
        import torch
        import torch.multiprocessing

        context = torch.multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=work, args=(theirs, str(self.program.path), self.program.state,
                               torch.get_num_threads()), daemon=True,
        )  # fmt: skip
        self.process.start()
        theirs.close()
        try:
            self.pipe.recv()
            if self.folder:
                self.ask("load", self.folder)
        except (EOFError, OSError) as error:
            raise JoyError("a lane's process ended before its model was loaded",
                           where=str(self.program.path)) from error  # fmt: skip

    def ask(self, what: str, *more: Any) -> Any:
        """One question and its answer; raises `EOFError`, `OSError` when the process ended."""
        self.pipe.send((what, *more))
        fine, said = self.pipe.recv()
        if not fine:
            raise said if isinstance(said, IndexError) else WorkerError(str(said))
        return said

    def run(self, arrays: dict[str, np.ndarray[Any, Any]], compiled: bool) -> Outputs:
        """Outputs of a batch."""
        with self.lock:
            for attempt in range(2):
                try:
                    found: Outputs = self.ask("run", arrays, compiled)
                    return found
                except (EOFError, OSError):
                    log.warning("a lane's process ended (%s); it is started again",
                                self.process.exitcode)  # fmt: skip
                    self.restarts += 1
                    self.start()
                    if attempt:
                        raise WorkerError(DIED) from None
        raise WorkerError(DIED)

    def load(self, folder: Path) -> None:
        """Load compiled code."""
        with self.lock:
            self.folder = str(folder)
            self.ask("load", self.folder)

    def stop(self) -> None:
        """End the process."""
        if self.process is not None and self.process.is_alive():
            self.process.kill()
            self.process.join(timeout=5)


def start_workers(program: RankingProgram, count: int) -> list[Worker]:
    """Workers on shared weights. Raises `JoyError` where a program cannot be run so."""
    if program.device != "cpu" or program.split is not None or program.users is not None:
        raise JoyError("lanes as processes are for whole models on a CPU",
                       help="--lane-kind threads")  # fmt: skip
    for tensor in program.state.values():
        held: Any = tensor
        held.share_memory_()
    workers = [Worker(program) for _ in range(count)]
    for worker in workers:
        worker.start()
    return workers


def work(pipe: Any, path: str, state: dict[str, torch.Tensor], threads: int) -> None:
    """The process: load the program, read the shared weights, answer until the pipe ends."""
    import torch

    torch.set_num_threads(threads)
    program = load(Path(path))
    if state:
        eager: Any = program.eager
        eager.load_state_dict(state, strict=False, assign=True)
        program.state = state
    pipe.send(os.getpid())
    while True:
        try:
            what, *more = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            if what == "load":
                program.compiled = load_package(program, Path(more[0]))
                pipe.send((True, None))
            else:
                arrays, compiled = more
                run = program.compiled if compiled else None
                pipe.send((True, as_arrays(program.run(arrays, run))))
        except IndexError as error:
            pipe.send((False, IndexError(str(error))))
        except Exception as error:
            pipe.send((False, f"{type(error).__name__}: {error}"))


def load_package(program: RankingProgram, folder: Path) -> Any:
    """The compiled package of a folder, on the program's weights."""
    from torch._inductor.package.package import load_package

    compiled = load_package(str(folder / WHOLE_FILE))
    share(program, compiled)
    return compiled


def stop_workers(workers: Sequence[Worker]) -> None:
    """End all processes."""
    for worker in workers:
        worker.stop()
