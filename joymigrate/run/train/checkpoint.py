"""Checkpoints that training does not wait for, and that open again on another layout.

    keeper = Checkpointer("checkpoints", model, optimiser)
    start = keeper.load()                 # None, or what was saved with the newest checkpoint
    keeper.save(step, step=step)          # returns at once; the optimiser waits for the copy

A save copies the state (staging) in the background of the next forward and backward pass; before
the optimiser changes a weight it waits for that copy. Writing goes on behind it, over a process
group of its own. Nothing is called a checkpoint before all ranks have finished (see shelf.py).
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.train import randomness
from joymigrate.run.train.checkpoint_store import CheckpointStore
from joymigrate.run.train.group import checkpoint_group
from joymigrate.run.train.tables.rowless_state import without_rows

Tell = Callable[[str], None]


@dataclass
class CheckpointCost:
    """What checkpoints cost: `blocked_s` is the time in which training stood still."""

    saves: int = 0
    blocked_s: float = 0.0
    durable_s: float = 0.0  # from the call to the rename, of the last save
    bytes: int = 0  # of the last checkpoint


class Checkpointer:
    """Saves and loads a model, its optimiser and what goes with them.

    `trainable_only` leaves frozen weights out (adapters). Everything here is called by all ranks,
    in the same order. Not thread-safe.
    """

    def __init__(
        self,
        folder: Path | str,
        model: Any,
        optimiser: Any = None,
        *,
        keep: int = 2,
        asynchronous: bool = True,
        trainable_only: bool = False,
        tell: Tell = lambda line: None,
    ) -> None:
        import torch.distributed as dist

        self.model, self.optimiser = model, optimiser
        self.asynchronous, self.trainable_only = asynchronous, trainable_only
        self.tell = tell
        self.group = checkpoint_group()
        self.rank = dist.get_rank() if self.group is not None else 0
        self.shelf = CheckpointStore(Path(folder), keep)
        self.spent = CheckpointCost()
        self.stager: Any = None
        self.staging: Any = None  # the copy that the optimiser waits for
        self.writing: Any = None  # the save in flight
        self.rows = row_files(model)
        self.finished = threading.Event()
        self.failure: BaseException | None = None
        if self.rank == 0:
            self.shelf.clear_partial()
        self.barrier()
        if optimiser is not None and hasattr(optimiser, "register_step_pre_hook"):
            optimiser.register_step_pre_hook(lambda *_: self.staged())

    # -- saving -------------------------------------------------------------------------------

    def save(self, number: int, **extra: Any) -> None:
        """Start a checkpoint; `extra` is anything JSON can hold, and comes back from `load`.

        Waits for the one before if that is still being written: two are never in flight.
        """
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        started = time.monotonic()
        self.wait()
        if self.rank == 0:
            self.shelf.begin(number, extra)
        self.barrier()
        state = self.state()
        place = self.shelf.partial(number)
        if self.rows is not None:
            self.rows.write(place, self.last_whole())
        writer = FileSystemWriter(place, sync_files=True)
        self.finished.clear()
        if not self.asynchronous:
            with alone_is_fine():
                save(state, storage_writer=writer, process_group=self.group, no_dist=self.alone)
            self.publish(number, started)
            self.barrier()
        else:
            self.start(state, writer, number, started)
        self.spent.saves += 1
        self.spent.blocked_s += time.monotonic() - started

    def last_whole(self) -> Path | None:
        """The newest checkpoint on disk, to link unchanged files from."""
        numbers = self.shelf.numbers()
        return self.shelf.place(numbers[-1]) if numbers else None

    def start(self, state: dict[str, Any], writer: Any, number: int, started: float) -> None:
        """Hand the state to the background."""
        import torch
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
        from torch.distributed.checkpoint.state_dict_saver import async_save

        if torch.accelerator.is_available():
            torch.accelerator.synchronize()  # the copy runs on a stream of its own
        if self.stager is None:
            self.stager = DefaultStager(
                StagingOptions(
                    use_pinned_memory=torch.cuda.is_available(),
                    use_shared_memory=False,
                    use_async_staging=True,
                    use_non_blocking_copy=torch.cuda.is_available(),
                )
            )
        with alone_is_fine():
            response: Any = async_save(
                state,
                storage_writer=writer,
                process_group=self.group,
                async_stager=self.stager,
                no_dist=self.alone,
            )
        self.staging, self.writing = response.staging_completion, response.upload_completion
        if any(True for _ in changing_buffers(self.model)):
            self.staged()  # running statistics change in the forward pass already
        self.writing.add_done_callback(lambda future: self.done(future, number, started))

    def done(self, future: Any, number: int, started: float) -> None:
        """Called in the background when this rank's save ended."""
        self.failure = future.exception()
        if self.failure is None:
            try:
                self.publish(number, started)
            except BaseException as error:
                self.failure = error
        self.finished.set()

    def publish(self, number: int, started: float) -> None:
        """Give the checkpoint its name. The first rank's save ends after those of all ranks."""
        if self.rank == 0:
            self.spent.bytes = self.shelf.publish(number)
        self.spent.durable_s = time.monotonic() - started

    def staged(self) -> None:
        """Wait until the state of a running save is copied, so that it may change."""
        if self.staging is not None:
            started = time.monotonic()
            staging, self.staging = self.staging, None
            staging.result()
            self.spent.blocked_s += time.monotonic() - started

    def wait(self) -> None:
        """Wait until the save in flight is on disk under its name, on all ranks."""
        if self.writing is None:
            return
        self.staged()
        self.finished.wait()
        self.writing = None
        failure, self.failure = self.failure, None
        if failure is not None:
            raise JoyError(
                f"the checkpoint could not be written: {failure}",
                where=str(self.shelf.folder),
                help="check space and permissions of that folder",
            ) from failure
        self.barrier()

    def close(self) -> None:
        """Finish what is in flight and release the copy."""
        self.wait()
        if self.stager is not None:
            self.stager.close()
            self.stager = None

    @property
    def alone(self) -> bool:
        """Whether there is only one process."""
        return self.group is None

    def barrier(self) -> None:
        """Wait for all ranks, over the checkpoints' own group."""
        import torch.distributed as dist

        if self.group is not None:
            dist.barrier(group=self.group)

    # -- state --------------------------------------------------------------------------------

    def options(self) -> Any:
        """How states are named: by full names, which do not depend on the layout."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions

        return StateDictOptions(
            ignore_frozen_params=self.trainable_only,
            flatten_optimizer_state_dict=True,
            strict=not self.trainable_only,
        )

    def state(self) -> dict[str, Any]:
        """Model, optimiser and this rank's random states, without copying."""
        from torch.distributed.checkpoint.state_dict import (
            get_model_state_dict,
            get_optimizer_state_dict,
        )

        with without_rows():
            weights = get_model_state_dict(self.model, options=self.options())
        found: dict[str, Any] = {"model": weights}
        if self.optimiser is not None:
            found["optimiser"] = get_optimizer_state_dict(
                self.model, self.optimiser, options=self.options()
            )
        found["random"] = {f"rank{self.rank}": randomness.state()}
        return found

    # -- loading ------------------------------------------------------------------------------

    def newest(self) -> int | None:
        """The number of the newest whole checkpoint, equal on all ranks."""
        import torch
        import torch.distributed as dist

        self.wait()
        number = self.shelf.newest(self.tell) if self.rank == 0 else None
        if self.group is None:
            return number
        told = torch.tensor([-1 if number is None else number])
        dist.broadcast(told, src=0, group=self.group)
        return None if told.item() < 0 else int(told.item())

    def load(self, number: int | None = None) -> dict[str, Any] | None:
        """Load a checkpoint (default: the newest) and return what was saved with it.

        None when there is no checkpoint. The layout may differ from the one that saved it.
        """
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.state_dict import (
            set_model_state_dict,
            set_optimizer_state_dict,
        )
        from torch.distributed.checkpoint.state_dict_loader import load

        chosen = self.newest() if number is None else number
        if chosen is None:
            return None
        place = self.shelf.place(chosen)
        extra = self.shelf.extra(chosen)
        reader = FileSystemReader(place)
        known = reader.read_metadata().state_dict_metadata
        state = self.state()
        randomness.fit(state["random"], known)
        with alone_is_fine():
            load(state, storage_reader=reader, process_group=self.group, no_dist=self.alone)
        with without_rows():
            set_model_state_dict(self.model, state["model"], options=self.options())
        if self.rows is not None:
            self.rows.read(place)
        if self.optimiser is not None:
            set_optimizer_state_dict(
                self.model, self.optimiser, state["optimiser"], options=self.options()
            )
        randomness.restore(state["random"].get(f"rank{self.rank}"))
        self.barrier()
        return extra


def row_files(model: Any) -> Any:
    """What saves the rows of the model's tables; None for a model without tables."""
    if not any(hasattr(module, "local_tables") for module in model.modules()):
        return None
    from joymigrate.run.train.tables.row_files import RowFiles

    return RowFiles(model)


@contextlib.contextmanager
def alone_is_fine() -> Iterator[None]:
    """torch warns where one process saves or loads without a group, which is meant here.

    The filter stays: the background save of the same process warns later, in its own thread.
    """
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    yield


def changing_buffers(model: Any) -> Any:
    """Buffers of a checkpoint that a forward pass may change: running statistics."""
    for module in model.modules():
        if getattr(module, "track_running_stats", False):
            yield from module.buffers(recurse=False)
