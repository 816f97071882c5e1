"""What the APIs for text share: how a request is answered, the options of streams, and errors after
the first byte."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

from joymigrate.run.serve.engine.http import resume_request, slow_reads
from joymigrate.run.serve.engine.http.error_events import refusal_of
from joymigrate.run.serve.engine.http.fields import Fields
from joymigrate.run.serve.engine.http.generation import HttpGeneration, TokenTally
from joymigrate.run.serve.engine.http.service import EngineService
from joymigrate.run.serve.web import errors
from joymigrate.run.serve.web.answering import refusal_from
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.messages import DONE, EVENTS, Ask, Reply, data, event


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """`stream_options`: usage in a last event, or in every one."""

    include_usage: bool = False
    continuous: bool = False

    def with_usage(self, made: dict[str, Any], tally: TokenTally) -> dict[str, Any]:
        """The event with what it says about usage: null until the last one, unless continuous."""
        if self.continuous:
            made["usage"] = tally.to_json()
        elif self.include_usage:
            made["usage"] = None
        return made


def stream_options(fields: Fields) -> StreamOptions:
    """Read `stream_options`; they go with `stream: true` only."""
    given = fields.table_of("stream_options")
    if given is None:
        return StreamOptions()
    if not fields.flag("stream"):
        raise HttpRefusal(400, "stream_options go with stream: true", param="stream_options")
    inner = Fields(given, "stream_options.")
    inner.flag("include_obfuscation")  # padding against eavesdroppers; the text is the same
    found = StreamOptions(inner.flag("include_usage"), inner.flag("continuous_usage_stats"))
    inner.close()
    return found


def word_failure(refusal: HttpRefusal) -> bytes:
    """The event that ends a stream which failed, for OpenAI's clients."""
    return event(errors.openai(refusal)) + DONE


async def answer(
    service: EngineService,
    ask: Ask,
    read: Callable[[], tuple[Any, Any]],
    make: Callable[..., Any],
    word: Callable[[HttpRefusal], bytes] = word_failure,
) -> Reply:
    """Answer a request for text, whole or as events: `read` gives the checked request and its
    guide, `make` what words the engine's outputs as its API does."""
    asked, guide = await slow_reads.read(ask, read)
    ask.notes["model"] = asked.model
    generation = HttpGeneration(
        service, ask, asked.prompts, asked.sampling, images=asked.images, guide=guide,
        resume=asked.resume, adapter=service.adapter(asked.model), search=asked.search,
    )  # fmt: skip
    made = make(service, ask, asked, generation)
    if not asked.stream:
        return data(await made.whole())
    told = resume_request.headers(asked.resume)
    return Reply(200, await start_stream(made.events(), word), EVENTS, told)


async def start_stream(
    pieces: AsyncGenerator[bytes, None], word: Callable[[HttpRefusal], bytes] = word_failure
) -> OpenStream:
    """The stream, its first piece made already: what fails before it is an HTTP error, what fails
    later ends the stream with the event that `word` makes of it."""
    try:
        first = await anext(pieces)
    except BaseException:
        await pieces.aclose()
        raise
    return OpenStream(first, pieces, word)


@dataclass(slots=True)
class OpenStream:
    """A stream that has begun. Unlike a generator it closes its source also when never read."""

    first: bytes | None
    pieces: AsyncGenerator[bytes, None]
    word: Callable[[HttpRefusal], bytes] = word_failure
    over: bool = False

    def __aiter__(self) -> OpenStream:
        return self

    async def __anext__(self) -> bytes:
        if self.first is not None:
            first, self.first = self.first, None
            return first
        if self.over:
            raise StopAsyncIteration
        try:
            return await anext(self.pieces)
        except StopAsyncIteration:
            raise
        except Exception as error:
            self.over = True
            return self.word(refusal_from(error, "a stream failed", refusal_of))

    async def aclose(self) -> None:
        """Nobody listens any more."""
        await self.pieces.aclose()
