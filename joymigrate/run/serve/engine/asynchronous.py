"""The engine in a thread of its own, behind asyncio: what servers and scripts use."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, Literal

from joymigrate import processors
from joymigrate.run.serve.engine.core import Engine
from joymigrate.run.serve.engine.faults import word_error
from joymigrate.run.serve.engine.load import Loaded, load_engine
from joymigrate.run.serve.engine.pooling import Pooling, pooling_of
from joymigrate.run.serve.engine.tokens import FolderTokens, NumberTokens
from joymigrate.run.serve.engine.types import (
    EngineOptions,
    EngineOutput,
    EngineStats,
    Lost,
    ModelInfo,
    Request,
    Sampling,
)

Work = Callable[[], None]
log = logging.getLogger("joymigrate.serve.engine")


class AsyncEngine:
    """`generate` from any event loop. `info` says what was loaded; `failed` why it stopped."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.info: ModelInfo = loaded.info
        self.options: EngineOptions = loaded.engine.options
        self.tokens: FolderTokens | NumberTokens = loaded.engine.tokens
        self.tokenizer: Any = self.tokens.hf
        self.ends: tuple[int, ...] = loaded.engine.ends
        self.config: Any = loaded.engine.model.config
        self.vocabulary: int = loaded.engine.model.vocabulary
        self.max_model_len: int = loaded.engine.max_model_len
        self.vision: bool = hasattr(loaded.engine.model, "look")
        self.pooling: Pooling | None = pooling_of(loaded.folder)
        scores = self.pooling is not None and self.pooling.head is not None
        self.embed: Callable[..., Any] | None = (
            self.embeddings if self.pooling is not None and not scores else None
        )
        self.failed: BaseException | None = None
        self.ended: BaseException | None = None  # what all who come now are told
        self.engine: Engine = loaded.engine
        self.inbox: deque[Work] = deque()
        self.wake = threading.Condition()
        self.closing = False
        self.mailboxes: dict[str, Mailbox] = {}
        self.watching: dict[asyncio.Future[Any], asyncio.AbstractEventLoop] = {}
        self.thread = threading.Thread(target=self.run, name="engine", daemon=True)
        self.thread.start()

    @classmethod
    def load(cls, folder: str | Path, options: EngineOptions | None = None) -> AsyncEngine:
        """An engine for a model folder; blocks until it is ready. Raises `JoyError`."""
        return cls(load_engine(folder, options))

    # -- called from event loops

    async def generate(self, request: Request) -> AsyncGenerator[EngineOutput, None]:
        """The outputs of a request as they come. Closing the generator aborts it.

        Raises `JoyError` when the request can never run here, `Lost` when the engine failed.
        """
        self.refuse_failed()
        box = Mailbox(asyncio.get_running_loop())
        self.put(lambda: self.start(request, box))
        left = request.sampling.n
        try:
            while left:
                for item in await box.take():
                    if isinstance(item, BaseException):
                        raise item
                    left -= item.finish_reason is not None
                    yield item
        finally:
            if left:
                self.put(lambda: self.drop(request.id, box))

    def abort(self, request_id: str) -> None:
        """End a request; its blocks are free after the running step. Its generator gets outputs
        with the reason `abort`."""
        self.put(lambda: self.deliver(self.engine.abort(request_id)))

    async def embeddings(
        self, texts: list[list[int]], adapter: str | None = None
    ) -> list[list[float]]:
        """A vector for each text's tokens, as the folder's pooling says."""
        assert self.pooling is not None
        made = Sampling(max_tokens=0)
        way: Literal["mean", "last"] = "mean" if self.pooling.mean else "last"

        async def one(ids: list[int]) -> list[float]:
            request = Request(uuid.uuid4().hex, tuple(ids), made, adapter=adapter, pooling=way)
            vector: list[float] = []
            async for output in self.generate(request):
                if output.error is not None:
                    raise RuntimeError(output.error)
                vector = output.vector or []
            return vector

        tasks = [asyncio.ensure_future(one(ids)) for ids in texts]
        try:
            rows = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return [self.pooling.finish(row) for row in rows]

    async def until_failed(self) -> BaseException:
        """Return why the engine failed, once it did; waits for ever while it works."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self.watching[future] = loop
        try:
            if self.failed is None:
                await future
        finally:
            self.watching.pop(future, None)
        assert self.failed is not None
        return self.failed

    def stats(self) -> EngineStats:
        """Counters and gauges of now; those of a running step may be a step old."""
        return self.engine.stats()

    async def close(self) -> None:
        """End every request, stop the thread, and free the memory."""
        await asyncio.to_thread(self.stop)

    def stop(self) -> None:
        """As `close`, from a thread without an event loop."""
        with self.wake:
            self.closing = True
            self.wake.notify()
        if self.thread is not threading.current_thread():
            self.thread.join()
        if self.loaded.team is not None:
            self.loaded.team.close(broken=self.failed is not None)

    def refuse_failed(self) -> None:
        """Raise when no step will ever come."""
        if self.failed is not None:
            raise Lost(f"the engine failed: {self.failed}") from self.failed
        if self.closing:
            raise Lost("the engine is closed")

    def put(self, work: Work) -> None:
        """Have the engine's thread do something between two steps; once it has ended, the caller
        does it, and hears why."""
        with self.wake:
            if self.ended is None:
                self.inbox.append(work)
                self.wake.notify()
                return
        work()

    # -- in the engine's thread

    def run(self) -> None:
        """Steps while there is work; sleeps while there is none."""
        set_threads(self.options, self.info.device)
        self.loaded.device.use(self.engine.model.device.index or 0)  # a thread has its own
        try:
            while self.next_work():
                while self.inbox:
                    self.inbox.popleft()()
                self.deliver(self.engine.step())
        except BaseException as error:
            self.failed = error
            log.critical("the engine failed: %s", error, exc_info=True)
            why = str(error) if isinstance(error, Lost) else word_error(error)
            self.fail(Lost(f"the engine failed: {why}"))
            for future, loop in list(self.watching.items()):
                send(loop, lambda f=future: f.done() or f.set_result(None))  # type: ignore[misc]
            return
        self.fail(Lost("the engine is closed"))

    def next_work(self) -> bool:
        """Wait for work; False when closing."""
        with self.wake:
            while not self.inbox and self.engine.idle and not self.closing:
                self.wake.wait()
            return not self.closing

    def start(self, request: Request, box: Mailbox) -> None:
        """Queue a request; a refusal goes to its mailbox."""
        if self.ended is not None:
            box.put([self.ended])
            return
        try:
            self.engine.add(request)
        except Exception as error:  # a guide or an image of the request may raise anything
            box.put([error])
            return
        self.mailboxes[request.id] = box

    def drop(self, request_id: str, box: Mailbox) -> None:
        """End a request that nobody listens to any more."""
        if self.mailboxes.get(request_id) is box:
            self.mailboxes.pop(request_id, None)
            self.engine.abort(request_id)

    def deliver(self, outputs: list[EngineOutput]) -> None:
        """Put outputs into their mailboxes, one wake-up for each event loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Mailbox, EngineOutput]]] = {}
        for output in outputs:
            box = self.mailboxes.get(output.request_id)
            if box is None:
                continue
            by_loop.setdefault(box.loop, []).append((box, output))
        for output in outputs:  # afterwards: several texts of a request may end in one step
            if output.finish_reason is not None and output.request_id not in self.engine.texts:
                self.mailboxes.pop(output.request_id, None)
        for loop, mail in by_loop.items():
            send(loop, lambda mail=mail: hand_out(mail))  # type: ignore[misc]

    def fail(self, error: BaseException) -> None:
        """Tell everybody who waits that nothing more comes, also who came during the last step."""
        with self.wake:
            self.ended = error
            left, self.inbox = self.inbox, deque()
        for work in left:
            work()
        for box in list(self.mailboxes.values()):
            box.put([error])
        self.mailboxes.clear()


class Mailbox:
    """Outputs of one request, from the engine's thread to an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.items: list[Any] = []
        self.arrived = asyncio.Event()

    async def take(self) -> list[Any]:
        """Everything that came; waits for something."""
        await self.arrived.wait()
        self.arrived.clear()
        items, self.items = self.items, []
        return items

    def put(self, items: list[Any]) -> None:
        """Add from another thread."""
        send(self.loop, lambda: self.add(items))

    def add(self, items: list[Any]) -> None:
        """Add in the event loop."""
        self.items += items
        self.arrived.set()


def hand_out(mail: list[tuple[Mailbox, EngineOutput]]) -> None:
    """Put each output into its mailbox."""
    for box, output in mail:
        box.add([output])


def send(loop: asyncio.AbstractEventLoop, call: Callable[[], Any]) -> None:
    """Run something in an event loop; a loop that ended has nobody to tell."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        if not loop.is_closed():
            raise


def set_threads(options: EngineOptions, device: str) -> None:
    """torch's threads for this thread: one processor is left to the server and the system."""
    if device != "cpu":
        return
    import torch

    torch.set_num_threads(options.threads or max(1, processors.available() - 1))
