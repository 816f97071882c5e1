"""The engine: a queue, lanes that take batches from it, and answers to the right callers.

A lane is a thread, on a device with a stream of its own. A batch that fails is halved until the
request at fault stands alone; the others are answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from joymigrate.run.serve.ranking import batcher, slicing
from joymigrate.run.serve.ranking.batcher import BatchLimits, Waiting
from joymigrate.run.serve.ranking.cost import CostModel
from joymigrate.run.serve.ranking.merge import MergedBatch, merge, mergeable
from joymigrate.run.serve.ranking.processes import Worker, start_workers, stop_workers
from joymigrate.run.serve.ranking.program import RankingProgram, first_line
from joymigrate.run.serve.ranking.request import RankingRequest
from joymigrate.run.serve.ranking.results import Counts, RankingResult, WeightGate
from joymigrate.run.serve.ranking.tensors import are_scores, as_arrays, close
from joymigrate.run.serve.web.errors import HttpRefusal

log = logging.getLogger("joymigrate.serve")
BASE_VERSION = "1"
COMPARED = 1000  # one merged batch (and one request in pieces) in so many is computed again, alone
SLICED = 3  # tries of a request in pieces while versions come; then it runs whole
THREADS, PROCESSES = "threads", "processes"  # what lanes are


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """A request that waits, and who waits for it."""

    request: RankingRequest
    future: asyncio.Future[RankingResult]
    loop: asyncio.AbstractEventLoop
    arrived: float = field(default_factory=time.monotonic)
    gone: bool = False


Answer = tuple[QueuedRequest, "RankingResult | Exception"]


class RankingEngine:
    """A program behind a queue. Thread-safe; `rank` is for the event loop."""

    def __init__(
        self,
        program: RankingProgram,
        *,
        lanes: int = 1,
        limits: BatchLimits | None = None,
        queue: int = 256,
        alone: str = "",
        whole: str = "",
        kind: str = THREADS,
    ) -> None:
        self.program, self.limits, self.room = program, limits or BatchLimits(), queue
        self.alone = alone or program.signature.alone  # why requests are not merged
        self.whole = whole or program.signature.alone  # why none is cut
        self.merged = self.cut = 0  # batches, requests
        self.version = BASE_VERSION
        self.loaded_at = time.time()
        self.cost = CostModel()
        self.counts = Counts()
        self.gate = WeightGate()
        self.queue: deque[QueuedRequest] = deque()
        self.condition = threading.Condition()
        self.stopping = False
        self.failed: str | None = None
        self.running = 0
        self.kind = kind
        self.workers: list[Worker] = []
        self.local = threading.local()
        self.lanes = [
            threading.Thread(target=self.work, args=(lane,), name=f"lane-{lane}", daemon=True)
            for lane in range(lanes)
        ]

    def start(self) -> None:
        """Let the lanes work. Raises `JoyError` where processes cannot be lanes."""
        if self.kind == PROCESSES:
            self.workers = start_workers(self.program, len(self.lanes))
        for lane in self.lanes:
            lane.start()

    def close(self) -> None:
        """Answer what waits, then end the lanes."""
        with self.condition:
            self.stopping = True
            self.condition.notify_all()
        for lane in self.lanes:
            if lane.is_alive():
                lane.join(timeout=10)
        stop_workers(self.workers)

    async def rank(self, request: RankingRequest) -> RankingResult:
        """The result of a request; raises `HttpRefusal`. Cancelling it takes it out of the queue.

        A request that would hold a lane for long is computed in pieces, where candidates do not
        know of each other.
        """
        parts = [request]
        if not self.whole:
            parts = slicing.pieces(self.program.signature, request, self.cost.predict, self.limits,
                                   time.monotonic())  # fmt: skip
        for _ in range(SLICED if len(parts) > 1 else 0):
            found: list[RankingResult] = []
            for part in parts:
                found.append(await self.queued(part, begun=bool(found)))
                if found[-1].version != found[0].version:
                    break  # new weights came between: the answer is of one version
            else:
                self.counts.sliced += 1
                return await self.compare_whole(request, slicing.whole(found))
        return await self.queued(request)

    async def compare_whole(self, request: RankingRequest, joined: RankingResult) -> RankingResult:
        """The joined pieces; now and then the request is computed whole, too, and that is right."""
        self.cut += 1
        if self.cut % COMPARED != 1:
            return joined
        found = await self.queued(request, begun=True)
        if found.version != joined.version or found.degraded or joined.degraded:
            return joined
        self.counts.compared += 1
        if all(map(close, found.outputs, joined.outputs)):
            return joined
        self.counts.differing += 1
        self.whole = "a request in pieces scored otherwise than whole"
        log.error("no request is cut any more: %s", self.whole)
        return found

    async def queued(self, request: RankingRequest, *, begun: bool = False) -> RankingResult:
        """The result of one request or piece; a piece of what has begun always gets a place."""
        loop = asyncio.get_running_loop()
        entry = QueuedRequest(request, loop.create_future(), loop)
        with self.condition:
            if self.failed is not None:
                raise HttpRefusal(503, f"the engine failed: {self.failed}")
            if len(self.queue) >= self.room and not begun:
                raise HttpRefusal(429, f"{len(self.queue)} requests wait already",
                                  headers={"Retry-After": "1"})  # fmt: skip
            self.queue.append(entry)
            self.condition.notify()
        try:
            return await entry.future
        except asyncio.CancelledError:
            entry.gone = True
            raise

    # The lanes

    def work(self, lane: int) -> None:
        """Take batches and run them, until the engine closes."""
        if self.workers:
            self.local.worker = self.workers[lane]
        with self.stream():
            while True:
                with self.condition:
                    while not self.queue and not self.stopping:
                        self.condition.wait()
                    if not self.queue:
                        return
                    entries, answers = self.take(time.monotonic())
                    self.running += len(entries)
                try:
                    if entries:
                        answers += self.run(entries)
                except Exception as error:  # a fault of ours: nobody waits for ever
                    log.exception("a lane failed")
                    answers += [(entry, error) for entry in entries]
                finally:
                    with self.condition:
                        self.running -= len(entries)
                deliver(answers)

    def stream(self) -> contextlib.AbstractContextManager[Any]:
        """A stream of this lane's own, where the device has streams."""
        device = self.program.device
        if device == "cpu":
            return contextlib.nullcontext()
        import torch

        module = torch.get_device_module(device)
        return module.stream(module.Stream(device))  # type: ignore[no-any-return]

    def take(self, now: float) -> tuple[list[QueuedRequest], list[Answer]]:
        """The next batch, and answers to those who came too late. Holds the lock."""
        late: list[Answer] = []
        while self.queue:
            first = self.queue[0]
            if first.gone or first.future.cancelled():
                self.counts.cancelled += 1
            elif first.request.deadline <= now:
                self.counts.late += 1
                late.append((first, HttpRefusal(504, "the deadline passed before its turn came",
                                                code="deadline", param="deadline")))  # fmt: skip
            else:
                break
            self.queue.popleft()
        if not self.queue:
            return [], late
        front = [
            Waiting(entry.request.sizes, entry.request.deadline)
            for entry, _ in zip(self.queue, range(self.limits.requests), strict=False)
        ]
        count = 1
        if not self.alone and len(front) > 1:
            count = batcher.choose(
                front, now, self.cost.predict, self.limits, self.fits, self.cost.margin
            )
        taken = [self.queue.popleft() for _ in range(count)]
        kept = [entry for entry in taken if not entry.gone]
        self.counts.cancelled += len(taken) - len(kept)
        for entry in kept:
            self.counts.wait_seconds.add(now - entry.arrived)
        return kept, late

    def fits(self, place: int) -> bool:
        """Whether the request at a place of the queue merges with the first one."""
        return mergeable(self.program.signature, self.queue[0].request, self.queue[place].request)

    def run(self, entries: Sequence[QueuedRequest]) -> list[Answer]:
        """The answers of a batch; a request that makes it fail stands alone at the end."""
        try:
            return self.compute(entries)
        except HttpRefusal as refusal:  # the whole batch lacks something: each alone would, too
            return [(entry, refusal) for entry in entries]
        except Exception as error:
            if self.broken(error):
                return [(entry, HttpRefusal(503, f"the engine failed: {self.failed}"))
                        for entry in entries]  # fmt: skip
            if len(entries) == 1:
                with self.condition:
                    self.counts.failed += 1
                return [(entries[0], fault(error))]
            with self.condition:
                self.counts.isolated += 1
        half = len(entries) // 2
        return [*self.run(entries[:half]), *self.run(entries[half:])]

    def compute(self, entries: Sequence[QueuedRequest]) -> list[Answer]:
        """Merge, run, divide."""
        batch = merge(self.program.signature, [entry.request for entry in entries])
        with self.gate.batch():
            version = self.version
            began = time.perf_counter()
            outputs, how = self.execute(batch)
            seconds = time.perf_counter() - began
            degraded = self.take_lost()
            each = [tuple(output[start:stop] for output in outputs) if len(entries) > 1 else outputs
                    for start, stop in batch.spans]  # fmt: skip
            if self.is_due(entries) and not degraded:
                each = self.compare_alone(entries, each)
        self.count(entries, batch, seconds, how, degraded)
        answers: list[Answer] = []
        for entry, parts in zip(entries, each, strict=True):
            if not all(map(are_scores, parts)):
                answers.append((entry, HttpRefusal(500, "the model's answer is not finite",
                                                   code="not_finite")))  # fmt: skip
                continue
            answers.append((entry, RankingResult(parts, version, len(entries), seconds, degraded)))
        return answers

    def take_lost(self) -> tuple[str, ...]:
        """What the last batch of this lane lacked."""
        return self.program.split.take_lost() if self.program.split is not None else ()

    def is_due(self, entries: Sequence[QueuedRequest]) -> bool:
        """Whether this batch is the merged one in `COMPARED` that is computed again."""
        if len(entries) < 2:
            return False
        with self.condition:
            self.merged += 1
            return self.merged % COMPARED == 1

    def compare_alone(
        self, entries: Sequence[QueuedRequest], each: list[tuple[np.ndarray[Any, Any], ...]]
    ) -> list[tuple[np.ndarray[Any, Any], ...]]:
        """Compute each request of a merged batch alone, which is right; a difference ends merging,
        whatever was proven and tried."""
        signature = self.program.signature
        alone = [self.execute(merge(signature, [entry.request]))[0] for entry in entries]
        if self.take_lost():
            return each
        same = all(all(map(close, one, two)) for one, two in zip(alone, each, strict=True))
        with self.condition:
            self.counts.compared += 1
            self.counts.differing += not same
            if not same:
                self.alone = "merged candidates scored otherwise than alone"
        if not same:
            log.error("no requests are merged any more: %s", self.alone)
        return each if same else alone

    def execute(self, batch: MergedBatch) -> tuple[tuple[np.ndarray[Any, Any], ...], str]:
        """Run a batch by compiled code; without it, and for what it refuses, eager."""
        program = self.program
        compiled = program.compiled
        if compiled is not None:
            try:
                return self.computed(batch, compiled), "compiled"
            except HttpRefusal:
                raise
            except Exception as error:
                log.debug("compiled code refused a batch: %s", first_line(error))
        return self.computed(batch, None), "eager"

    def computed(self, batch: MergedBatch, compiled: Any) -> tuple[np.ndarray[Any, Any], ...]:
        """Outputs of a batch; the user's side from its cache where one is kept."""
        worker = getattr(self.local, "worker", None)
        if worker is not None:
            return tuple(worker.run(batch.arrays, compiled is not None))
        users = self.program.users
        if users is not None and any(request.key for request in batch.bringers):
            return users.run(batch, self.version, None if compiled is None else compiled.parts)
        return as_arrays(self.program.run(batch.arrays, compiled))

    def count(
        self,
        entries: Sequence[QueuedRequest],
        batch: MergedBatch,
        seconds: float,
        how: str,
        degraded: tuple[str, ...],
    ) -> None:
        """What this batch was."""
        with self.condition:
            counts = self.counts
            counts.batches += 1
            counts.requests += len(entries)
            counts.candidates += batch.sizes.candidates
            counts.waste += batch.waste
            counts.elements += batch.elements
            counts.shared += batch.shared
            counts.degraded += len(entries) if degraded else 0
            batches, spent = counts.merged.get(len(entries), (0, 0.0))
            counts.merged[len(entries)] = batches + 1, spent + seconds
            counts.last = time.time()
            counts.batch_seconds.add(seconds)
            counts.ran(how)
            self.cost.observe(batch.sizes, seconds)

    def broken(self, error: Exception) -> bool:
        """Whether the device is lost: nothing works on it any more."""
        from joymigrate.run.serve.engine.faults import says_lost

        if self.program.device == "cpu" or not says_lost(error):
            return False
        self.failed = first_line(error)
        return True

    def trouble(self) -> str | None:
        """Why nothing is answered, or None."""
        return f"the engine failed: {self.failed}" if self.failed is not None else None


def fault(error: Exception) -> Exception:
    """What the caller whose request failed alone is told."""
    if isinstance(error, HttpRefusal):
        return error
    if isinstance(error, IndexError) or "out of bounds" in str(error):
        return HttpRefusal(
            400, f"the model refused this request: {first_line(error)}", code="index"
        )
    return HttpRefusal(500, f"the model failed on this request: {first_line(error)}", code="model")


def deliver(answers: Sequence[Answer]) -> None:
    """Hand answers to the event loops that wait for them."""
    loops = {id(entry.loop): entry.loop for entry, _ in answers}
    for loop in loops.values():
        mine = [(entry, found) for entry, found in answers if entry.loop is loop]
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there
            loop.call_soon_threadsafe(settle, mine)


def settle(answers: Sequence[Answer]) -> None:
    """Set the futures; who went away gets nothing."""
    for entry, found in answers:
        if entry.future.done():
            continue
        if isinstance(found, Exception):
            entry.future.set_exception(found)
        else:
            entry.future.set_result(found)


def deadline_of(milliseconds: float | None) -> float:
    """A deadline from now on the engine's clock; None: never."""
    return math.inf if milliseconds is None else time.monotonic() + milliseconds / 1000


def measure_request(engine: RankingEngine, request: RankingRequest) -> float:
    """Seconds of one request alone; the cost model learns from it."""
    batch = merge(engine.program.signature, [request])
    with engine.gate.batch():
        began = time.perf_counter()
        engine.execute(batch)
        seconds = time.perf_counter() - began
    engine.cost.observe(batch.sizes, seconds)
    return seconds
