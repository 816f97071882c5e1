"""Five stages at once: read, copy, route, fetch, compute; with the numbers of one after another.

    pipeline = TablePipeline(model, optimiser, device)       # model(batch) -> (loss, anything)
    while ...:
        output = pipeline.progress(batches)                  # StopIteration behind the last

One thread reads and copies, one finds distinct ids and fetches rows, the caller's computes. What is
fetched ahead stays right: rows of this process are read when they are computed with, their lines
pinned from the fetch to the update; rows of other processes that an update changed meanwhile are
sent again (`staleness=N` leaves that out for rows up to N updates old, by request only).
A process that reads no more (its data ended, a stage failed, `close`) says so to the others: the
numbers of exchanges stay equal, and one that has a batch more gets an error instead of waiting.
A step that fails in one process is told to the others (failures.py).
`pause_every=N` reads nothing ahead of a checkpoint behind every N-th step, so that the tables are
those of that step.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import nn

from joymigrate.errors import JoyError
from joymigrate.run.train.tables.exchange import Fetched
from joymigrate.run.train.tables.failures import Failures
from joymigrate.run.train.tables.keyed_jagged import KeyedJaggedTensor
from joymigrate.run.train.tables.optimisers import collections_of, fuse_marked
from joymigrate.run.train.tables.remote_rows import ShardedExchange
from joymigrate.run.train.tables.table_collection import TableCollection
from joymigrate.run.train.tables.tiers import CacheFull

END = object()
WAIT_S = 0.2  # between looks whether the other side is still there
LEAVE_S = 60.0  # for the other processes to come to the same end
BROKEN_S = 5.0  # the same after a step that failed here alone


OPEN: weakref.WeakSet[TablePipeline] = weakref.WeakSet()


@atexit.register
def close_all() -> None:
    """A thread that is inside a collective while Python ends aborts the process."""
    for pipeline in list(OPEN):
        pipeline.close(BROKEN_S)


@dataclass
class Failure:
    """What went wrong in a stage, to be raised where the step is."""

    error: BaseException


class TablePipeline:
    """Runs a model over batches. TorchRec's `TrainPipelineSparseDist` in use."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        device: torch.device | str = "cpu",
        *,
        staleness: int = 0,
        synchronous: bool = False,
        pause_every: int = 0,
    ) -> None:
        self.model, self.optimizer, self.device = model, optimizer, torch.device(device)
        self.synchronous, self.pause_every = synchronous, pause_every
        fuse_marked(model)
        self.tables = [item for item in collections_of(model) if item.fused()]
        for collection in self.tables:
            exchange = collection.exchange
            if isinstance(exchange, ShardedExchange):
                exchange.pipelined, exchange.staleness = not synchronous, staleness
        self.copied: queue.Queue[Any] = queue.Queue(maxsize=1)
        self.ready: queue.Queue[Any] = queue.Queue(maxsize=1)
        self.changed = threading.Condition()
        self.fetched_batches = self.done_batches = self.asked_batches = 0
        self.stopping = threading.Event()
        self.threads: list[threading.Thread] = []
        self.at = 0  # the collection whose rows are fetched next
        self.source: Iterator[Any] | None = None

    def progress(self, batches: Iterator[Any]) -> Any:
        """One step on the next batch; what the model gave beside the loss.

        Raises `StopIteration` behind the last batch, and what any stage met.
        """
        with self.changed:
            self.asked_batches += 1
            self.changed.notify_all()
        batch = self._next(batches)
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=True)
        try:
            loss, output = self.model(batch)
            self._check_used(batch)
            loss.sum().backward()
            if self.optimizer is not None:
                self.optimizer.step()
        except BaseException as error:
            cause = self._told(error)
            self.close(BROKEN_S)
            if cause is error:
                raise
            raise cause from error
        with self.changed:
            self.done_batches += 1
            self.changed.notify_all()
        return output

    def _told(self, error: BaseException) -> BaseException:
        """Tell the other processes; the error of one of them, where this one only follows."""
        if not any(isinstance(item.exchange, ShardedExchange) for item in self.tables):
            return error
        return Failures.watch().explained(error)

    def _next(self, batches: Iterator[Any]) -> Any:
        if self.synchronous:
            return move(next(batches), self.device)
        if self.source is not None and batches is not self.source:
            raise JoyError(
                "the pipeline reads ahead of another iterator",
                help="make a pipeline for each iterator, or close() it first",
            )
        if self.source is None:
            self._start(batches)
        item = self._get(self.ready)
        if isinstance(item, Failure):
            self.close()
            raise self._told(item.error)
        if item is END:
            self.close()
            raise StopIteration
        return item

    def _start(self, batches: Iterator[Any]) -> None:
        for thread in self.threads:
            if thread.name == self._fetch.__name__:
                thread.join()  # of an earlier iterator; it would take this one's exchanges
        self.source = batches
        OPEN.add(self)
        self.stopping.clear()
        self.threads = [
            threading.Thread(target=self._run, args=(stage, out), daemon=True, name=stage.__name__)
            for stage, out in ((self._read, self.copied), (self._fetch, self.ready))
        ]
        for thread in self.threads:
            thread.start()

    def _run(self, stage: Any, out: queue.Queue[Any]) -> None:
        try:
            stage()
            self._put(out, END)
        except BaseException as error:
            self._put(out, Failure(error))
        if out is self.ready:
            self._leave()

    def _leave(self) -> None:
        """Tell the other processes, where they wait for this one, that nothing follows."""
        if self.tables:
            exchange = self.tables[self.at].exchange
            if isinstance(exchange, ShardedExchange):
                # Whoever is gone by now needs no word.
                with contextlib.suppress(RuntimeError):
                    exchange.leave()

    def _read(self) -> None:
        """Stages 1 and 2: the next batch, and its copy on the device."""
        assert self.source is not None
        for batch in self.source:
            if not self._put(self.copied, (batch, move(batch, self.device))):
                return

    def _fetch(self) -> None:
        """Stages 3 and 4: distinct ids from the batch on the host, and their rows."""
        while True:
            item = self._get(self.copied)
            if item is END or item is None:
                return
            if isinstance(item, Failure):
                raise item.error
            host, batch = item
            self._pause()
            if self.stopping.is_set():
                return
            hosts, copies = keyed_tensors(host), keyed_tensors(batch)
            for number, collection in enumerate(self.tables):
                self.at = number
                at = reader_of(collection, hosts)
                prepared = collection.exchange.fetch(collection.routes(hosts[at]))
                self._bring(collection, prepared)
                if copies[at].prepared is None:
                    copies[at].prepared = {}
                copies[at].prepared[id(collection)] = prepared
            self.at = 0
            self.fetched_batches += 1
            if not self._put(self.ready, batch):
                return

    def _pause(self) -> None:
        """Before the batch behind a checkpoint: until its step is asked for."""
        count = self.fetched_batches
        if not self.pause_every or not count or count % self.pause_every:
            return
        with self.changed:
            while self.asked_batches <= count and not self.stopping.is_set():
                self.changed.wait(WAIT_S)

    def _bring(self, collection: TableCollection, prepared: Fetched) -> None:
        """Bring rows; while the cache is full of rows in flight, wait for steps to end."""
        while True:
            done = self.done_batches
            try:
                return collection.exchange.bring(prepared)
            except CacheFull:
                if done == self.fetched_batches:
                    raise  # nothing else is in flight: the batch alone is too large
            with self.changed:
                while self.done_batches == done and not self.stopping.is_set():
                    self.changed.wait(WAIT_S)
            if self.stopping.is_set():
                if isinstance(collection.exchange, ShardedExchange):
                    collection.exchange.drop(prepared)
                return None

    def _check_used(self, batch: Any) -> None:
        for keyed in keyed_tensors(batch):
            if keyed.prepared:
                keyed.prepared.clear()
                raise JoyError(
                    "the model looks up other keys than those of its batch",
                    help="pass the batch's KeyedJaggedTensor on to the collections as it is, "
                    "or use TablePipeline(..., synchronous=True)",
                )

    def _put(self, out: queue.Queue[Any], item: Any) -> bool:
        while not self.stopping.is_set():
            try:
                out.put(item, timeout=WAIT_S)
                return True
            except queue.Full:
                continue
        return False

    def _get(self, source: queue.Queue[Any]) -> Any:
        while not self.stopping.is_set():
            try:
                return source.get(timeout=WAIT_S)
            except queue.Empty:
                continue
        return None

    def close(self, wait_s: float = LEAVE_S) -> None:
        """Stop reading ahead; batches that were read and not computed are dropped.

        With several processes all of them close at the same step; waits up to `wait_s` seconds.
        """
        self.stopping.set()
        until = time.monotonic() + wait_s
        for thread in self.threads:
            if thread is not threading.current_thread():
                # A reader that waits for data is not waited for: it sends nothing.
                reads = thread.name == self._read.__name__
                thread.join(BROKEN_S if reads else max(0.0, until - time.monotonic()))
        self.threads = [thread for thread in self.threads if thread.is_alive()]
        self.source = None
        for waiting in (self.copied, self.ready):
            while not waiting.empty():
                waiting.get_nowait()
        self.fetched_batches = self.asked_batches = self.done_batches


def reader_of(collection: TableCollection, found: list[KeyedJaggedTensor]) -> int:
    """Which of a batch's keyed tensors a collection reads: the one with all of its features."""
    wanted = {feature for name in collection.fused() for feature in collection.features_of(name)}
    fits = [number for number, item in enumerate(found) if wanted <= set(item.keys())]
    if len(fits) != 1:
        raise JoyError(
            f"{len(fits)} keyed tensors of the batch have the features {', '.join(sorted(wanted))}",
            help="a batch has one KeyedJaggedTensor with them; or use synchronous=True",
        )
    return fits[0]


def keyed_tensors(batch: Any) -> list[KeyedJaggedTensor]:
    """The keyed tensors in a batch: itself, or in its fields, items or entries."""
    if isinstance(batch, KeyedJaggedTensor):
        return [batch]
    return [found for item in members(batch) for found in keyed_tensors(item)]


def members(batch: Any) -> list[Any]:
    """What a container holds."""
    if isinstance(batch, dict):
        return list(batch.values())
    if isinstance(batch, (list, tuple)):
        return list(batch)
    if is_dataclass(batch):
        return [getattr(batch, item.name) for item in fields(batch)]
    return []


def move(batch: Any, device: torch.device) -> Any:
    """A batch on another device: tensors, and containers of them."""
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: move(item, device) for key, item in batch.items()}
    if isinstance(batch, (list, tuple)):
        moved = [move(item, device) for item in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    if is_dataclass(batch) and not isinstance(batch, type):
        return type(batch)(**{f.name: move(getattr(batch, f.name), device) for f in fields(batch)})
    return batch
