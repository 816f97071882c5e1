"""Runs a request's prompts through the engine: admission, length, numbers, and a clean end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.beams import BeamOptions, search
from joymigrate.run.serve.engine.http import resume_request
from joymigrate.run.serve.engine.http.admission import admit
from joymigrate.run.serve.engine.http.service import EngineService
from joymigrate.run.serve.engine.text import Detokeniser
from joymigrate.run.serve.engine.types import EngineOutput, Request, Resume, Sampling, Usage
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.messages import Ask

END: Any = None


@dataclass(slots=True)
class TokenTally:
    """Tokens of one HTTP request, over all its prompts and choices."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    widened: int = 0  # tokens of the prompts as the engine counted them, images included
    first: float | None = None  # seconds on the process's clock
    last: float | None = None
    reasons: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The `usage` of an answer."""
        return {
            "prompt_tokens": max(self.prompt, self.widened),
            "completion_tokens": self.completion,
            "total_tokens": max(self.prompt, self.widened) + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


class HttpGeneration:
    """The outputs of one HTTP request's prompts, in the order in which they come."""

    def __init__(
        self,
        service: EngineService,
        ask: Ask,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        *,
        images: tuple[Any, ...] = (),
        guide: Any = None,
        resume: tuple[Resume | None, ...] = (),
        adapter: str | None = None,
        search: BeamOptions | None = None,
    ) -> None:
        """Check everything that can be refused before the answer begins; raises `HttpRefusal`."""
        self.service, self.ask, self.sampling = service, ask, sampling
        self.search = search
        self.tally = TokenTally(prompt=sum(len(prompt) for prompt in prompts))
        self.resumed = self.tally.completion = sum(len(one.ids) for one in resume if one)
        self.texts = len(prompts) * sampling.n
        refuse_guided(sampling, guide)
        self.requests = []
        for place, prompt in enumerate(prompts):
            told = resume[place * sampling.n : (place + 1) * sampling.n]
            told, chosen = resume_request.of_prompt(told, sampling)
            fitting = fit(service, prompt, chosen)
            more = {"guide": guide} if guide is not None else {}
            name = ask.id if len(prompts) == 1 else f"{ask.id}-{place}"
            self.requests.append(
                Request(name, tuple(prompt), fitting, images, resume=told, adapter=adapter, **more)
            )
        if service.draining:
            raise HttpRefusal(
                503, "stopping: no new requests are taken", headers={"Retry-After": "5"}
            )
        admit(service.engine.stats().waiting, self.texts, service.limits)

    async def outputs(self) -> AsyncGenerator[tuple[int, EngineOutput], None]:
        """(number of the prompt, output). Closing this generator frees what the texts hold."""
        self.service.texts += self.texts
        if self.search is not None:
            source = self.searched(self.search)
        else:
            source = self.single() if len(self.requests) == 1 else self.merged()
        try:
            async for place, output in source:
                self.note(output)
                yield place, output
        finally:
            self.service.texts -= self.texts
            await source.aclose()
            self.close()

    async def single(self) -> AsyncGenerator[tuple[int, EngineOutput], None]:
        stream = self.service.engine.generate(self.requests[0])
        try:
            async for output in stream:
                yield 0, output
        except JoyError as error:
            raise refusal_of(error) from None
        finally:
            await stream.aclose()

    async def searched(
        self, options: BeamOptions
    ) -> AsyncGenerator[tuple[int, EngineOutput], None]:
        """The best texts of each prompt, when its search is over; one prompt after another."""
        service = self.service
        for place, request in enumerate(self.requests):
            made = await search(service.engine, request, options)
            for index, found in enumerate(made):
                ended = found.reason == "stop"
                shown = found.ids[:-1] if ended else found.ids
                text = Detokeniser(
                    service.words, request.prompt, skip_special=request.sampling.skip_special
                )
                yield place, EngineOutput(
                    request.id, index, found.ids, text.feed(shown) + text.finish(), found.reason,
                    usage=Usage(len(request.prompt), len(found.ids)),
                )  # fmt: skip

    async def merged(self) -> AsyncGenerator[tuple[int, EngineOutput], None]:
        """Several prompts at once, as their outputs come."""
        arrived: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()

        async def pump(place: int, request: Request) -> None:
            stream = self.service.engine.generate(request)
            try:
                async for output in stream:
                    arrived.put_nowait((place, output))
            except Exception as error:
                arrived.put_nowait((place, error))
            finally:
                await stream.aclose()
                arrived.put_nowait((place, END))

        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(pump(*row)) for row in enumerate(self.requests)]
        left = len(tasks)
        try:
            while left:
                place, output = await arrived.get()
                if output is END:
                    left -= 1
                elif isinstance(output, JoyError):
                    raise refusal_of(output)
                elif isinstance(output, Exception):
                    raise output
                else:
                    yield place, output
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def note(self, output: EngineOutput) -> None:
        """Count what an output says; raises `HttpRefusal` for a text that the engine gave up."""
        meters, tally = self.service.meters, self.tally
        if output.new_ids:
            now = time.perf_counter()
            if tally.first is None:
                tally.first = now
                meters.ttft.add(now - self.ask.started)
            elif tally.last is not None:
                meters.tpot.add((now - tally.last) / len(output.new_ids))
            tally.last = now
            tally.completion += len(output.new_ids)
        if output.usage is not None and output.index == 0:
            tally.cached += output.usage.cached
            tally.widened += output.usage.prompt
        if output.finish_reason is not None:
            tally.reasons.append(output.finish_reason)
            meters.end(output.finish_reason)
        if output.finish_reason == "error" and output.stop is None:
            raise HttpRefusal(500, output.error or "the engine gave this text up")

    def close(self) -> None:
        """Whatever happened, the numbers are complete."""
        meters, tally = self.service.meters, self.tally
        meters.prompt.add(tally.prompt)
        meters.generated.add(tally.completion - self.resumed)
        whole = len(tally.reasons) == self.texts
        if whole:
            meters.seconds.add(time.perf_counter() - self.ask.started)
        self.ask.notes.update(
            prompt_tokens=tally.prompt,
            completion_tokens=tally.completion,
            cached_tokens=tally.cached,
            finish=sorted(set(tally.reasons)) if whole else ["abort"],
            ttft_seconds=round(tally.first - self.ask.started, 6) if tally.first else None,
        )


def fit(service: EngineService, prompt: Sequence[int], sampling: Sampling) -> Sampling:
    """The sampling with a limit that fits behind the prompt; raises `HttpRefusal`."""
    longest = service.info.max_model_len
    wanted = sampling.max_tokens
    room = longest - len(prompt)
    if not prompt:
        raise HttpRefusal(400, "the prompt is empty: it has no token", param="prompt")
    if room < (1 if wanted is None else wanted):
        asked = f" and {wanted} of the answer" if wanted is not None else ""
        raise HttpRefusal(
            400,
            f"this model's context is {longest} tokens; {len(prompt)} of the prompt{asked} "
            "do not fit",
            code="context_length_exceeded",
            param="max_tokens" if len(prompt) < longest and wanted else "prompt",
        )
    return replace(sampling, max_tokens=service.defaults.limit(wanted, room))


def refusal_of(error: JoyError) -> HttpRefusal:
    """What the engine refused, for the client."""
    return HttpRefusal(409 if error.where == "resume" else 400, error.what, param=error.where)


def refuse_guided(sampling: Sampling, guide: Any) -> None:
    """What contradicts a guide, which alone says where the text ends."""
    if guide is None:
        return
    for name in ("ignore_eos", "min_tokens"):
        if getattr(sampling, name):
            raise HttpRefusal(
                400, f"{name} contradicts a guided answer", code="unsupported_parameter", param=name
            )
