"""HTTP in front of a generative recommender: OpenAI completions, KServe v2 and `/v1/rank`.

A prompt is a history: item ids, the oldest first. A choice is an item; its text is the item's id
and its tokens are the codes of its semantic id. All items of a history are known at the same time:
a stream has one event an item, as soon as its history is searched.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from joymigrate.errors import JoyError
from joymigrate.run.beam import BeamAnswer, BeamRequest
from joymigrate.run.serve.engine.http.fields import Fields, is_whole
from joymigrate.run.serve.engine.http.streaming import StreamOptions, start_stream, stream_options
from joymigrate.run.serve.generative.loop import BeamLoop
from joymigrate.run.serve.generative.recommender import ItemRecommender
from joymigrate.run.serve.kserve import tensors
from joymigrate.run.serve.kserve.protocol import (
    InferAnswer,
    InferRequest,
    KserveService,
    TensorSpec,
    kserve_routes,
)
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.keys import Keys
from joymigrate.run.serve.web.limits import HttpLimits
from joymigrate.run.serve.web.messages import DONE, EVENTS, Ask, Reply, data, event
from joymigrate.run.serve.web.paths import HttpRoute, PathTable

LEAST_WIDTH = 32  # beams of a request that names none
PROMPTS = 256  # of a request


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """How a request is searched: `answers` items out of `width` beams."""

    answers: int = 1
    width: int = LEAST_WIDTH
    top_k: int | None = None


@dataclass(frozen=True, slots=True)
class Ranked:
    """Items, best first, with the logarithm of their probability, and those of each code."""

    items: list[int]
    scores: list[float]
    codes: list[list[int]]
    gains: list[list[float]]


@dataclass(slots=True)
class GenerativeService(KserveService):
    """What handlers know. Stands behind the one HTTP server (`Answering`)."""

    platform = "joymigrate_generative"
    inputs = (
        TensorSpec("history", "INT64", (-1,)),
        TensorSpec("candidate", "INT64", (-1,), optional=True, role="candidate"),
    )
    outputs = (TensorSpec("item", "INT64", (-1,)), TensorSpec("score", "FP32", (-1,)))

    served: ItemRecommender
    loop: BeamLoop
    names: tuple[str, ...]
    limits: HttpLimits = field(default_factory=HttpLimits)
    keys: Keys = field(default_factory=Keys)
    draining: bool = False
    counts: dict[str, int] = field(default_factory=dict)

    async def rank(
        self, history: Sequence[int], wanted: SearchRequest, candidates: Sequence[int] | None = None
    ) -> Ranked:
        """Search for one history; with `candidates` among these items only."""
        if self.draining:
            raise HttpRefusal(503, "stopping: no new requests are taken")
        for name, items in (("history", history), ("candidate", candidates or ())):
            unknown = self.served.unknown(items) if len(items) else None
            if unknown is not None:
                raise HttpRefusal(
                    400, f"{name}: the model does not know item {unknown}", param=name
                )
        try:
            rules = None if candidates is None else self.served.narrowed(candidates)
            answer = await self.loop.ask(
                BeamRequest(list(history), wanted.width, wanted.top_k, rules)
            )
        except JoyError as error:
            raise HttpRefusal(400, str(error)) from None
        return rank_items(answer, (rules or self.served.trie), wanted.answers)

    def lives(self) -> bool:
        """Whether the search goes on."""
        return self.loop.thread.is_alive()

    def trouble(self) -> str | None:
        """Why requests are not taken now."""
        if not self.lives():
            return "the search ended"
        return "stopping: no new requests are taken" if self.draining else None

    def paths(self) -> PathTable:
        """What is answered."""
        return PATHS

    def tally(self, outcome: str, seconds: float) -> None:
        """Count a request that was work."""
        self.counts[outcome] = self.counts.get(outcome, 0) + 1

    def describe_start(self) -> dict[str, Any]:
        """What the log says of it beside its address."""
        trie, beams = self.served.trie, self.loop.search.capacity
        return {"kind": "generative", "items": len(trie.items), "rounds": trie.rounds,
                "beams": beams}  # fmt: skip

    async def infer(self, asked: InferRequest) -> InferAnswer:
        """Rank what came as tensors; `n`, `beam_width`, `top_k` are parameters."""
        fields = Fields(asked.parameters, "parameters.")
        wanted = read_wanted(self, fields)
        fields.close()
        found = await self.rank(*read_arrays(asked.arrays, wanted))
        item, score = np.array(found.items, np.int64), np.array(found.scores, np.float32)
        return InferAnswer({"item": item, "score": score})

    async def close(self) -> None:
        """Stop the search."""
        self.loop.close()


def rank_items(answer: BeamAnswer, trie: Any, count: int) -> Ranked:
    """The first items of an answer."""
    items = trie.items_of(answer.nodes)[:count].tolist()
    parts = (answer.scores[:count], answer.tokens[:count], answer.gains[:count])
    scores, codes, gains = (part.tolist() for part in parts)
    return Ranked(items, scores, codes, gains)


async def health(service: GenerativeService, ask: Ask) -> Reply:
    """GET /health: 200 while the search goes on (also while it drains)."""
    works = service.lives()
    return data({"status": "ok" if works else "stopping"}, 200 if works else 503)


async def metrics(service: GenerativeService, ask: Ask) -> Reply:
    """GET /metrics: counters in Prometheus' form."""
    search = service.loop.search
    lines = [
        f'joymigrate_generative_requests_total{{outcome="{outcome}"}} {count}'
        for outcome, count in sorted(service.counts.items())
    ]
    active = sum(len(beams.tokens) for beams in list(search.active))
    lines += [
        f"joymigrate_generative_rounds_total {service.loop.rounds}",
        f"joymigrate_generative_waiting {len(search.waiting)}",
        f"joymigrate_generative_beams {active}",
    ]
    body = ("\n".join(lines) + "\n").encode()
    return Reply(200, body, "text/plain; version=0.0.4; charset=utf-8")


async def models(service: GenerativeService, ask: Ask) -> Reply:
    """GET /v1/models."""
    rows = [{"id": name, "object": "model", "owned_by": "joymigrate"} for name in service.names]
    return data({"object": "list", "data": rows})


def read_wanted(service: GenerativeService, fields: Fields) -> SearchRequest:
    """`n`, `beam_width` and `top_k` of a request."""
    capacity = service.loop.search.capacity
    answers = fields.whole("n", 1, low=1, high=capacity) or 1
    width = fields.whole("beam_width", min(capacity, max(answers, LEAST_WIDTH)), low=1,
                         high=capacity)  # fmt: skip
    assert width is not None
    if answers > width:
        raise HttpRefusal(400, f"n is {answers}, and only {width} beams are searched", param="n")
    return SearchRequest(answers, width, fields.whole("top_k", low=1))


def histories(raw: Any) -> list[list[int]]:
    """The prompts of a completion: ids, lists of ids, or texts with ids between spaces."""
    if isinstance(raw, str):
        return [numbers(raw)]
    if isinstance(raw, list) and raw:
        if all(is_whole(item) for item in raw):
            return [raw]
        if len(raw) <= PROMPTS and all(isinstance(one, str) for one in raw):
            return [numbers(one) for one in raw]
        lists = all(isinstance(one, list) and one and all(map(is_whole, one)) for one in raw)
        if len(raw) <= PROMPTS and lists:
            return [list(one) for one in raw]
    raise HttpRefusal(
        400, f"prompt is a list of item ids, or up to {PROMPTS} such lists", param="prompt",
        code="invalid_type",
    )  # fmt: skip


def numbers(text: str) -> list[int]:
    """The ids of a text."""
    try:
        found = [int(word) for word in text.replace(",", " ").split()]
    except ValueError:
        found = []
    if not found:
        raise HttpRefusal(400, "a text prompt holds item ids between spaces", param="prompt")
    return found


async def completions(service: GenerativeService, ask: Ask) -> Reply:
    """POST /v1/completions."""
    fields = Fields(ask.json())
    model = service.check_model(fields.raw("model"))
    prompts = histories(fields.required("prompt"))
    wanted = read_wanted(service, fields)
    logprobs = fields.whole("logprobs", low=0, high=5)
    rounds = service.served.trie.rounds
    limit = fields.whole("max_tokens", rounds, low=1)
    assert limit is not None
    if limit < rounds:
        raise HttpRefusal(
            400, f"an item is {rounds} tokens, max_tokens is {limit}", param="max_tokens"
        )
    options = stream_options(fields)
    streamed = fields.flag("stream")
    fields.refuse("temperature", "beam search draws nothing", unless=(0, 1))
    fields.close()
    head = {"id": f"cmpl-{ask.id}", "object": "text_completion", "created": int(time.time()),
            "model": model}  # fmt: skip
    if streamed:
        pieces = streaming(service, prompts, wanted, logprobs, head, options)
        return Reply(200, await start_stream(pieces), EVENTS)
    found = await asyncio.gather(*(service.rank(prompt, wanted) for prompt in prompts))
    choices = [
        made for place, one in enumerate(found) for made in items_of(one, place, wanted, logprobs)
    ]
    return data({**head, "choices": choices, "usage": usage(prompts, rounds * len(choices))})


def usage(prompts: Sequence[Sequence[int]], written: int) -> dict[str, int]:
    """Tokens of a request."""
    read = sum(map(len, prompts))
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def items_of(
    found: Ranked, place: int, wanted: SearchRequest, logprobs: int | None
) -> list[dict[str, Any]]:
    """The choices of one history."""
    return [
        choice(place * wanted.answers + index, found, index, logprobs)
        for index in range(len(found.items))
    ]


async def streaming(
    service: GenerativeService,
    prompts: Sequence[list[int]],
    wanted: SearchRequest,
    logprobs: int | None,
    head: dict[str, Any],
    options: StreamOptions,
) -> AsyncGenerator[bytes, None]:
    """One event an item; histories in the order in which they are ready."""

    async def numbered(place: int, prompt: list[int]) -> tuple[int, Ranked]:
        return place, await service.rank(prompt, wanted)

    written, rounds = 0, service.served.trie.rounds
    tasks = [asyncio.ensure_future(numbered(*one)) for one in enumerate(prompts)]
    try:
        for ready in asyncio.as_completed(tasks):
            place, found = await ready
            for made in items_of(found, place, wanted, logprobs):
                written += rounds
                more: dict[str, Any] = {"usage": None} if options.include_usage else {}
                if options.continuous:
                    more = {"usage": usage(prompts, written)}
                yield event({**head, "choices": [made], **more})
        if options.include_usage:
            yield event({**head, "choices": [], "usage": usage(prompts, written)})
        yield DONE
    finally:
        for task in tasks:
            task.cancel()


def choice(number: int, found: Ranked, index: int, logprobs: int | None) -> dict[str, Any]:
    """One item."""
    made: dict[str, Any] = {
        "index": number,
        "text": str(found.items[index]),
        "logprobs": None,
        "finish_reason": "stop",
        "item": found.items[index],
        "score": found.scores[index],
        "token_ids": found.codes[index],
    }
    if logprobs is not None:
        made["logprobs"] = {
            "tokens": [str(code) for code in found.codes[index]],
            "token_logprobs": found.gains[index],
            "top_logprobs": None,
            "text_offset": [0] * len(found.codes[index]),
        }
    return made


async def rank(service: GenerativeService, ask: Ask) -> Reply:
    """POST /v1/rank: `{"inputs": {"history": […], "candidate"?: […]}, "n"?, "beam_width"?}`."""
    fields = Fields(ask.json())
    model = service.check_model(fields.raw("model") or service.names[0])
    inputs = fields.required("inputs")
    wanted = read_wanted(service, fields)
    fields.close()
    if not isinstance(inputs, dict):
        raise HttpRefusal(400, 'inputs is an object: {"history": [ids]}', param="inputs")
    arrays = {
        name: tensors.from_values(name, np.dtype("int64"), None, values)
        for name, values in inputs.items()
    }
    found = await service.rank(*read_arrays(arrays, wanted))
    outputs = {"item": found.items, "score": found.scores}
    return data({"model": model, "model_version": "1", "outputs": outputs})


def read_arrays(
    arrays: dict[str, Any], wanted: SearchRequest
) -> tuple[list[int], SearchRequest, list[int] | None]:
    """The history and the candidates of a request's tensors."""
    for name, array in arrays.items():
        if name not in ("history", "candidate"):
            raise HttpRefusal(400, f"the model has no input '{name}', only history, candidate",
                              param="inputs")  # fmt: skip
        if array.dtype.kind not in "iu" or array.ndim > 2 or (array.ndim == 2 and len(array) != 1):
            raise tensors.refuse(name, "one list of whole numbers")
    if "history" not in arrays or not arrays["history"].size:
        raise HttpRefusal(400, "the input 'history' is missing or empty", param="inputs")
    if "candidate" in arrays and not arrays["candidate"].size:
        raise tensors.refuse("candidate", "it is empty; leave it out to search all items")
    history: list[int] = arrays["history"].ravel().tolist()
    candidates = arrays["candidate"].ravel().tolist() if "candidate" in arrays else None
    return history, wanted, candidates


PATHS = PathTable(
    [
        HttpRoute("GET", "/health", health),
        HttpRoute("GET", "/metrics", metrics),
        HttpRoute("GET", "/v1/models", models),
        HttpRoute("POST", "/v1/completions", completions),
        HttpRoute("POST", "/v1/rank", rank),
        *kserve_routes(),
    ]
)
