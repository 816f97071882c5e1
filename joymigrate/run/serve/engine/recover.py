"""A step that fails: computed again in smaller parts, until only what is at fault has failed.

A forward pass changes nothing of a text before it has succeeded, so that its chunks can be computed
again: their keys and values go to the same places. Chunks that fail together are halved. One that
fails alone, again after a pass over made-up tokens succeeded, ends its text with an error. Where
made-up tokens fail, too, the engine is lost, and so it is after many texts in a row that failed.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from joymigrate.run.serve.engine.blocks import BlockPool
from joymigrate.run.serve.engine.faults import says_lost, short_of_memory, word_error
from joymigrate.run.serve.engine.scheduler import Chunk, SequenceScheduler
from joymigrate.run.serve.engine.sequence import Sequence
from joymigrate.run.serve.engine.types import EngineOutput, Lost

IN_A_ROW = 16  # texts that failed with no step between them that succeeded
CALM_STEPS = 256  # after so many the budget of a step that was too large is doubled again
PATIENCE_SECONDS = (0.1, 0.4, 1.5)  # between passes over made-up tokens: memory may come back
log = logging.getLogger("joymigrate.serve.engine")


class Computing(Protocol):
    """The engine whose steps are computed, as far as a recovery needs it."""

    scheduler: SequenceScheduler
    pool: BlockPool

    def compute(self, chunks: list[Chunk]) -> Any:
        """The result of a pass over chunks."""

    def compute_spare(self, count: int) -> None:
        """A pass over made-up tokens."""

    def tell(self, chunks: list[Chunk], found: Any) -> list[EngineOutput]:
        """The outputs that a result means."""

    def give_up(self, sequence: Sequence, why: str) -> list[EngineOutput]:
        """End a text with an error."""


class Recovery:
    """Computes the chunks of an engine's steps, whatever fails. `failures` counts failed passes."""

    def __init__(
        self, engine: Computing, free: Callable[[], None], *, may_retry: bool = True
    ) -> None:
        """`free` gives the allocator's unused memory back. Processes that compute together may not
        retry: the others do not know where this one stopped."""
        self.engine = engine
        self.free = free
        self.may_retry = may_retry
        self.failures = 0
        self.in_a_row = 0
        self.calm = 0  # steps since memory was short, or since the budget grew
        self.logged = False
        self.most = engine.scheduler.max_batch_tokens

    def run(self, chunks: list[Chunk]) -> list[EngineOutput]:
        """The outputs of a step. Raises `Lost` when the engine cannot go on."""
        scheduler = self.engine.scheduler
        self.calm += 1
        if self.calm >= CALM_STEPS and scheduler.max_batch_tokens < self.most:
            scheduler.max_batch_tokens = min(self.most, 2 * scheduler.max_batch_tokens)
            self.calm = 0
        self.logged = False
        return self.attempt(chunks)

    def attempt(self, chunks: list[Chunk]) -> list[EngineOutput]:
        """Compute chunks, in parts if need be."""
        try:
            found = self.engine.compute(chunks)
        except Exception as error:
            self.note(error, chunks)
            fault = error
        else:
            self.in_a_row = 0
            return self.engine.tell(chunks, found)
        if len(chunks) == 1:
            return self.alone(chunks[0], fault)
        middle = len(chunks) // 2
        return self.attempt(chunks[:middle]) + self.attempt(chunks[middle:])

    def note(self, error: Exception, chunks: list[Chunk]) -> None:
        """Count and log a failure; raises `Lost` for one that nothing can follow."""
        self.failures += 1
        tokens = sum(chunk.count for chunk in chunks)
        log.log(
            logging.DEBUG if self.logged else logging.WARNING,  # its parts fail for the same reason
            "a step of %d tokens in %d texts failed: %s",
            tokens, len(chunks), word_error(error), exc_info=not short_of_memory(error),
        )  # fmt: skip
        self.logged = True
        if not self.may_retry or says_lost(error):
            raise Lost(word_error(error)) from error
        self.let_go(error)
        if short_of_memory(error):
            self.calm = 0
            scheduler = self.engine.scheduler
            scheduler.max_batch_tokens = max(1, min(scheduler.max_batch_tokens, tokens // 2))

    def let_go(self, error: BaseException) -> None:
        """Free what a failed pass holds: its frames keep tensors for as long as the error lives."""
        traceback.clear_frames(error.__traceback__)
        if short_of_memory(error):
            self.free()

    def alone(self, chunk: Chunk, error: Exception) -> list[EngineOutput]:
        """What failed by itself: computed in halves where memory is short, else given up."""
        if short_of_memory(error) and chunk.count > 1:
            first = Chunk(chunk.sequence, chunk.start, chunk.count // 2)
            return self.attempt([first])  # the rest is left to later steps
        self.probe(chunk.count, error)
        try:  # once more, now that a pass succeeded: the error may not repeat
            found = self.engine.compute([chunk])
        except Exception as again:
            self.note(again, [chunk])
            fault = again
        else:
            self.in_a_row = 0
            return self.engine.tell([chunk], found)
        return self.blame(chunk, fault)

    def blame(self, chunk: Chunk, error: Exception) -> list[EngineOutput]:
        """End the text of a chunk that fails again while other passes succeed."""
        self.in_a_row += 1
        if self.in_a_row >= IN_A_ROW:
            raise Lost(f"{self.in_a_row} texts in a row failed: {word_error(error)}") from error
        why = "memory is short" if short_of_memory(error) else "the model failed at this text"
        log.error("%s: %s", chunk.sequence.request_id, why)
        return self.engine.give_up(chunk.sequence, f"{why}: {word_error(error)}")

    def probe(self, count: int, error: Exception) -> None:
        """Compute `count` made-up tokens, at most a block; raises `Lost` where that fails."""
        last: Any = error
        for wait in PATIENCE_SECONDS:
            try:
                self.engine.compute_spare(min(count, self.engine.pool.size))
                return
            except Exception as failure:
                last = failure
            if says_lost(last):
                break
            self.let_go(last)
            time.sleep(wait)
        raise Lost(word_error(last)) from last
