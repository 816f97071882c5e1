"""Beam search in a thread of its own; requests join between rounds and answer as futures."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass

from joymigrate.errors import JoyError
from joymigrate.run.beam import BeamAnswer, BeamRequest, BeamSearch
from joymigrate.run.serve.web.errors import HttpRefusal

log = logging.getLogger("joymigrate.serve")


@dataclass(slots=True)
class Caller:
    """Who waits for an answer."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[BeamAnswer]


class BeamLoop:
    """`queue` requests may wait; the next one is refused."""

    def __init__(self, search: BeamSearch, queue: int = 4096) -> None:
        self.search, self.queue = search, queue
        self.callers: dict[int, Caller] = {}
        self.changed = threading.Condition()
        self.ended = False
        self.rounds = 0
        self.thread = threading.Thread(target=self.work, name="beams", daemon=True)
        self.thread.start()

    async def ask(self, request: BeamRequest) -> BeamAnswer:
        """Search; raises `HttpRefusal` when too many wait, `JoyError` where the model fails."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[BeamAnswer] = loop.create_future()
        with self.changed:
            if len(self.search.waiting) >= self.queue:
                raise HttpRefusal(429, f"{self.queue} requests wait already")
            number = self.search.admit(request)
            self.callers[number] = Caller(loop, future)
            self.changed.notify()
        try:
            answer = await future
        finally:
            if not future.done() or future.cancelled():
                with self.changed:
                    self.callers.pop(number, None)
        if answer.error is not None:
            raise answer.error
        return answer

    def work(self) -> None:
        """Rounds while there is something to do."""
        while True:
            with self.changed:
                while self.search.idle and not self.ended:
                    self.changed.wait()
                if self.ended:
                    return
                for number in self.forgotten():
                    self.search.cancel(number)
            try:
                answers = self.search.round()
            except Exception as error:
                log.exception("a round failed; its requests end")
                answers = self.search.drop(JoyError(f"{type(error).__name__}: {error}"))
            self.rounds += 1
            for answer in answers:
                self.give(answer)

    def forgotten(self) -> list[int]:
        """Requests that nobody waits for any more."""
        known = [beams.number for beams in self.search.active]
        known += [number for number, _ in self.search.waiting]
        return [number for number in known if number not in self.callers]

    def give(self, answer: BeamAnswer) -> None:
        """Hand an answer to its caller."""
        with self.changed:
            caller = self.callers.pop(answer.number, None)
        if caller is None:
            return

        def set_result() -> None:
            if not caller.future.done():
                caller.future.set_result(answer)

        caller.loop.call_soon_threadsafe(set_result)

    def close(self) -> None:
        """Stop."""
        with self.changed:
            self.ended = True
            self.changed.notify()
        self.thread.join(10)
