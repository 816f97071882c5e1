"""/v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from joymigrate.run.serve.engine.beams import BeamOptions
from joymigrate.run.serve.engine.http import (
    beam_fields,
    formats,
    resume_request,
    sampling,
    streaming,
)
from joymigrate.run.serve.engine.http.fields import Fields, is_whole
from joymigrate.run.serve.engine.http.generation import HttpGeneration
from joymigrate.run.serve.engine.http.logprobs import Legacy, of_prompt
from joymigrate.run.serve.engine.http.service import EngineService
from joymigrate.run.serve.engine.http.streaming import StreamOptions, stream_options
from joymigrate.run.serve.engine.types import (
    MAX_LOGPROBS,
    EngineOutput,
    Resume,
    Sampling,
    TokenLogprob,
)
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.messages import DONE, Ask, Reply, event

DEFAULT_TOKENS = 16
MAX_PROMPTS = 2048


@dataclass(slots=True)
class CompletionRequest:
    """A checked request."""

    model: str
    prompts: list[list[int]]
    sampling: Sampling
    stream: bool
    options: StreamOptions
    echo: bool = False
    ids: bool = False  # return_token_ids
    numbers: bool = False  # prompt_logprobs
    texts: list[str] = field(default_factory=list)  # of the prompts, for echo
    resume: tuple[Resume | None, ...] = ()
    search: BeamOptions | None = None
    images: tuple[Any, ...] = ()


def read(service: EngineService, body: dict[str, Any]) -> tuple[CompletionRequest, Any]:
    """The request and its guide; raises `HttpRefusal`."""
    fields = Fields(body)
    model = service.model(fields.raw("model"))
    special = fields.flag("add_special_tokens", True)
    given = prompts(fields.required("prompt"))
    encoded = [encode(service, prompt, special) for prompt in given]
    cut = fields.whole("truncate_prompt_tokens", low=1)
    encoded = [ids[-cut:] for ids in encoded] if cut else encoded
    n = sampling.count(fields)
    logprobs = fields.whole("logprobs", low=0, high=MAX_LOGPROBS)
    echo = fields.flag("echo")
    limit = fields.whole("max_tokens", low=0) if "max_tokens" in body else DEFAULT_TOKENS
    if limit == 0 and not echo:
        raise HttpRefusal(400, "max_tokens is at least 1, unless echo is true", param="max_tokens")
    chosen = sampling.read(fields, service.defaults, max_tokens=limit, logprobs=logprobs, n=n)
    numbers = chosen.prompt_logprobs is not None
    resumed = resume_request.read(fields)
    if echo and logprobs is not None and not numbers:
        chosen = replace(chosen, prompt_logprobs=logprobs)
    fields.refuse("suffix", "there is no text after the answer", unless=("",))
    guide = formats.read(fields, service.guides)
    resume = resume_request.check_resumes(resumed, encoded, chosen)
    others = {"guide": guide is not None, "resume": bool(resume), "echo": echo}
    search = beam_fields.read(fields, service.engine, chosen, others=others)
    asked = CompletionRequest(
        model, encoded, chosen, fields.flag("stream"), stream_options(fields), echo,
        fields.flag("return_token_ids"), numbers, resume=resume, search=search,
    )  # fmt: skip
    fields.close()
    if echo:
        pairs = zip(given, encoded, strict=True)
        asked.texts = [p if isinstance(p, str) else service.words.decode(ids) for p, ids in pairs]
        asked.resume = resume_request.behind(asked.resume, *asked.texts)
    return asked, guide


def prompts(raw: Any, field: str = "prompt") -> list[str | list[int]]:
    """A text, texts, token ids, or lists of token ids, as a list of prompts."""
    if isinstance(raw, str):
        return [raw]
    if not isinstance(raw, list) or not raw:
        raise wrong_prompt(field)
    if all(is_whole(item) for item in raw):
        return [raw]
    if len(raw) > MAX_PROMPTS:
        raise HttpRefusal(400, f"at most {MAX_PROMPTS} prompts in a request", param=field)
    for item in raw:
        ids = isinstance(item, list) and item and all(is_whole(token) for token in item)
        if not isinstance(item, str) and not ids:
            raise wrong_prompt(field)
    return list(raw)


def wrong_prompt(field: str) -> HttpRefusal:
    return HttpRefusal(
        400,
        f"{field} is a text, a list of texts, a list of token ids, or a list of such lists",
        code="invalid_type",
        param=field,
    )


def encode(
    service: EngineService, prompt: str | list[int], special: bool, field: str = "prompt"
) -> list[int]:
    """A prompt as checked ids."""
    if isinstance(prompt, str):
        return service.words.encode(prompt, special=special)
    service.words.check(prompt, field)
    return prompt


def check_lengths(service: EngineService, ids: Sequence[Sequence[int]], field: str) -> None:
    """Refuse texts to embed or to compare that the model cannot take."""
    longest = service.info.max_model_len
    for one in ids:
        if not 0 < len(one) <= longest:
            raise HttpRefusal(400, f"a text has 1 to {longest} tokens, this one {len(one)}",
                              code="context_length_exceeded", param=field)  # fmt: skip


async def answer(service: EngineService, ask: Ask) -> Reply:
    """Answer POST /v1/completions."""
    return await streaming.answer(service, ask, lambda: read(service, ask.json()), Completion)


class Completion:
    """One answer in the making."""

    def __init__(
        self, service: EngineService, ask: Ask, asked: CompletionRequest, generation: HttpGeneration
    ) -> None:
        self.service, self.asked, self.generation = service, asked, generation
        self.head = {
            "id": f"cmpl-{ask.id}",
            "object": "text_completion",
            "created": service.stamp(),
            "model": asked.model,
        }
        asked_logprobs = asked.sampling.logprobs
        count = len(asked.prompts) * asked.sampling.n
        self.legacy = (
            [Legacy(service.words, asked_logprobs) for _ in range(count)]
            if asked_logprobs is not None
            else None
        )
        self.begun: set[int] = set()
        for index, told in enumerate(asked.resume):
            if told is None:
                continue
            self.begun.add(index)
            if self.legacy is not None:
                prompt = asked.prompts[index // asked.sampling.n]
                before = [*prompt, *told.ids] if asked.echo else told.ids
                self.legacy[index].of(before, [None] * len(before))

    def choice(self, place: int, output: EngineOutput) -> dict[str, Any]:
        """What an output adds to its choice."""
        asked = self.asked
        index = place * asked.sampling.n + output.index
        first = index not in self.begun
        self.begun.add(index)
        echoed = first and asked.echo
        made: dict[str, Any] = {
            "index": index,
            "text": asked.texts[place] + output.text if echoed else output.text,
            "logprobs": None,
            "finish_reason": output.finish_reason,
        }
        if output.stop is not None:
            made["stop_reason"] = output.stop
        if self.legacy is not None:
            shown: list[tuple[int, TokenLogprob | None]] = list(
                zip(output.new_ids, output.logprobs or (), strict=False)
            )
            if echoed:
                before = output.prompt_logprobs or (None,) * len(asked.prompts[place])
                shown = [*zip(asked.prompts[place], before, strict=True), *shown]
            made["logprobs"] = self.legacy[index].of([s[0] for s in shown], [s[1] for s in shown])
        if asked.numbers and output.prompt_logprobs:
            made["prompt_logprobs"] = of_prompt(output.prompt_logprobs, self.service.words)
        if asked.ids:
            made["token_ids"] = list(output.new_ids)
            if first:
                made["prompt_token_ids"] = asked.prompts[place]
        return made

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The stream: an event per output, usage at the end when asked for."""
        options = self.asked.options
        async with aclosing(self.generation.outputs()) as outputs:
            async for place, output in outputs:
                if not worth_sending(output, self.asked.ids):
                    continue
                made = {**self.head, "choices": [self.choice(place, output)]}
                yield event(options.with_usage(made, self.generation.tally))
        if options.include_usage:
            yield event({**self.head, "choices": [], "usage": self.generation.tally.to_json()})
        yield DONE

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        pieces: dict[int, list[dict[str, Any]]] = {}
        async with aclosing(self.generation.outputs()) as outputs:
            async for place, output in outputs:
                made = self.choice(place, output)
                pieces.setdefault(made["index"], []).append(made)
        choices = [join_pieces(pieces[index]) for index in sorted(pieces)]
        return {**self.head, "choices": choices, "usage": self.generation.tally.to_json()}


def worth_sending(output: EngineOutput, ids: bool) -> bool:
    """Whether an event says anything: text, the end, numbers, or ids that were asked for."""
    return bool(
        output.text
        or output.finish_reason
        or output.prompt_logprobs
        or (output.new_ids and (ids or output.logprobs))
    )


def join_pieces(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """One choice out of the pieces of its stream."""
    made = dict(pieces[0])
    made["text"] = "".join(piece["text"] for piece in pieces)
    made["finish_reason"] = pieces[-1]["finish_reason"]
    if "stop_reason" in pieces[-1]:
        made["stop_reason"] = pieces[-1]["stop_reason"]
    if "token_ids" in made:
        made["token_ids"] = [id for piece in pieces for id in piece["token_ids"]]
    if made["logprobs"] is not None:
        made["logprobs"] = {
            key: None
            if made["logprobs"][key] is None
            else [item for piece in pieces for item in piece["logprobs"][key]]
            for key in made["logprobs"]
        }
    return made
