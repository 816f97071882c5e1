"""Texts as KServe has them: tensors or JSON in, text out; infer, generate and generate_stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import orjson

from joymigrate.run.serve.engine.http import sampling, slow_reads
from joymigrate.run.serve.engine.http.error_events import refusal_of
from joymigrate.run.serve.engine.http.fields import Fields
from joymigrate.run.serve.engine.http.generation import HttpGeneration
from joymigrate.run.serve.engine.http.service import EngineService
from joymigrate.run.serve.engine.http.streaming import OpenStream
from joymigrate.run.serve.kserve.protocol import (
    InferAnswer,
    InferRequest,
    KserveModel,
    TensorSpec,
    parameters_of,
    statistics_row,
)
from joymigrate.run.serve.kserve.tensors import BYTES, Array
from joymigrate.run.serve.web.answering import refusal_from
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.messages import EVENTS, Ask, Reply, data, event

DEFAULT_TOKENS = 16
TEXT = "text_input"
TYPES = {
    TEXT: BYTES, "max_tokens": "INT32", "temperature": "FP32", "top_k": "INT32", "top_p": "FP32",
    "min_p": "FP32", "min_tokens": "INT32", "repetition_penalty": "FP32",
    "presence_penalty": "FP32", "frequency_penalty": "FP32", "seed": "INT64", "stop": BYTES,
    "ignore_eos": "BOOL", "exclude_input_in_output": "BOOL", "sampling_parameters": BYTES,
    "stream": "BOOL",
}  # fmt: skip
INPUTS = tuple(
    TensorSpec(name, kind, (-1,) if name == "stop" else (1,), optional=name != TEXT)
    for name, kind in TYPES.items()
)
OUTPUTS = (
    TensorSpec("text_output", BYTES),
    TensorSpec("finish_reason", BYTES, optional=True),
    TensorSpec("num_input_tokens", "UINT32", optional=True),
    TensorSpec("num_output_tokens", "UINT32", optional=True),
)
# parameters that steer the protocol, not the model
PROTOCOL = frozenset(
    ("priority", "timeout", "sequence_id", "sequence_start", "sequence_end", "headers",
     "binary_data_output", "triton_enable_empty_final_response")
)  # fmt: skip


@dataclass(slots=True)
class Done:
    """One finished text."""

    text: str = ""
    reason: str = ""
    prompt: int = 0
    completion: int = 0


class TextJob(Protocol):
    """One text that is continued."""

    done: Done
    stream: bool

    def pieces(self) -> AsyncGenerator[str, None]:
        """The text as it comes."""
        ...

    async def run(self) -> Done:
        """The whole text."""
        ...


class TextModel(KserveModel):
    """A model that continues texts."""

    extensions = (*KserveModel.extensions, "generate")
    inputs = INPUTS
    outputs = OUTPUTS

    async def open(
        self, ask: Ask, texts: Sequence[str], rows: Sequence[dict[str, Any]], *, streamed: bool
    ) -> Sequence[TextJob]:
        """Jobs for texts and the settings of each; raises `HttpRefusal`."""
        raise NotImplementedError

    async def infer(self, asked: InferRequest) -> InferAnswer:
        """A batch is one text per element of text_input."""
        refuse_sequences(asked.parameters)
        texts, rows = batch(asked.arrays, asked.parameters)
        jobs = await self.open(asked.ask, texts, rows, streamed=False)
        if any(job.stream for job in jobs):
            raise HttpRefusal(400, "infer answers in one piece; use /generate_stream")
        found = await together(jobs, asked.parameters.get("timeout"))
        shape = asked.arrays[TEXT].shape

        def column(values: list[Any], kind: Any) -> Array:
            made: Array = np.array(values, kind).reshape(shape)
            return made

        return InferAnswer(
            {
                "text_output": column([done.text for done in found], object),
                "finish_reason": column([done.reason for done in found], object),
                "num_input_tokens": column([done.prompt for done in found], np.uint32),
                "num_output_tokens": column([done.completion for done in found], np.uint32),
            }
        )

    async def one(self, ask: Ask, name: str, version: str | None, *, streamed: bool) -> TextJob:
        """The job of a generate request: settings stand beside text_input or in `parameters`."""
        self.check_model(name, version)
        ask.notes["model"] = name
        body = ask.json()
        text = body.pop(TEXT, None)
        if isinstance(text, list) and len(text) == 1:
            text = text[0]
        if not isinstance(text, str):
            told = (
                "text_input is missing" if text is None else f"text_input is a text, got {text!r}"
            )
            raise HttpRefusal(400, told)
        parameters = parameters_of(body, "parameters")
        refuse_sequences(parameters)
        settings = settings_of(parameters) | {
            key: value for key, value in body.items() if key not in ("parameters", "id")
        }
        return (await self.open(ask, [text], [settings], streamed=streamed))[0]


async def generate(model: TextModel, ask: Ask, name: str, version: str | None) -> Reply:
    """POST …/generate."""
    job = await model.one(ask, name, version, streamed=False)
    if job.stream:
        raise HttpRefusal(400, "generate answers in one piece; use generate_stream")
    done = await job.run()
    return data(answer_of(name, done.text, done.reason))


async def generate_stream(model: TextModel, ask: Ask, name: str, version: str | None) -> Reply:
    """POST …/generate_stream: an event per piece; an error after the first byte is an event."""
    job = await model.one(ask, name, version, streamed=True)

    async def events() -> AsyncGenerator[bytes, None]:
        pieces = job.pieces()
        try:
            async for piece in pieces:
                yield event(answer_of(name, piece, job.done.reason))
        except Exception as error:
            refusal = refusal_from(error, "a stream failed", refusal_of)
            yield event({"error": refusal.message})
        finally:
            await pieces.aclose()

    return Reply(200, OpenStream(None, events()), EVENTS)


GENERATE = {"generate": generate, "generate_stream": generate_stream}


class EngineModel(TextModel):
    """Our own engine."""

    def __init__(self, service: EngineService) -> None:
        self.service, self.names = service, service.names

    def trouble(self) -> str | None:
        """Why requests are not taken now."""
        return self.service.trouble()

    def index(self) -> list[dict[str, Any]]:
        """The model under its first name: its others are aliases."""
        return super().index()[:1]

    async def open(
        self, ask: Ask, texts: Sequence[str], rows: Sequence[dict[str, Any]], *, streamed: bool
    ) -> Sequence[TextJob]:
        """Jobs, read beside the event loop where that takes long."""
        return await slow_reads.read(
            ask,
            lambda: [
                InferJob(self.service, number_request(ask, place, len(texts)), text, row)
                for place, (text, row) in enumerate(zip(texts, rows, strict=True))
            ],
        )

    def configure(self, name: str) -> dict[str, Any]:
        """The configuration as Triton words it."""
        info = self.service.info
        said = {
            "max_model_len": str(info.max_model_len), "dtype": info.dtype, "device": info.device,
            "attention": info.attention, "quantisation": info.quantisation or "none",
        }  # fmt: skip
        return {
            **super().configure(name),
            "model_transaction_policy": {"decoupled": True},
            "instance_group": [{"name": f"{name}_0", "count": 1}],
            "version_policy": {"latest": {"num_versions": 1}},
            "parameters": {key: {"string_value": value} for key, value in said.items()},
        }

    def statistics(self) -> dict[str, Any]:
        """Counts and sums since the start, in Triton's words."""
        meters, engine = self.service.meters, self.service.engine.stats()
        ends = engine.finished
        failed = sum(int(n) for reason, n in ends.items() if reason not in ("stop", "length"))
        whole = (meters.seconds.total, meters.seconds.sum)
        sums = {
            "success": whole, "fail": (failed, 0.0), "queue": (meters.ttft.total, meters.ttft.sum),
            "compute_infer": whole, "cache_hit": (engine.prefix_hits, 0.0),
            "cache_miss": (engine.prefix_queries - engine.prefix_hits, 0.0),
        }  # fmt: skip
        done = int(sum(ends.values())) - failed
        return statistics_row(self.service.last_ms, done, engine.steps, sums)


class InferJob:
    """One text to continue, as a prompt and a table of settings."""

    def __init__(
        self, service: EngineService, ask: Ask, text: str, settings: Mapping[str, Any]
    ) -> None:
        fields = Fields(unfold_settings(settings))
        self.echo = not fields.flag("exclude_input_in_output", True)
        self.stream = fields.flag("stream")
        limit = fields.whole("max_tokens", DEFAULT_TOKENS, low=1)
        fields.refuse("use_beam_search", "ask /v1/completions", unless=(False,))
        chosen = sampling.read(fields, service.defaults, max_tokens=limit, logprobs=None, n=1)
        fields.close()
        self.text = text
        ids = service.words.encode(text)
        self.generation = HttpGeneration(service, ask, [ids], chosen)
        self.done = Done(prompt=len(ids))

    async def pieces(self) -> AsyncGenerator[str, None]:
        """The text as it comes; the input before it when that was asked for."""
        first = True
        async with aclosing(self.generation.outputs()) as outputs:
            async for _, output in outputs:
                piece = self.text + output.text if first and self.echo else output.text
                first = first and not piece
                self.done.completion += len(output.new_ids)
                self.done.reason = output.finish_reason or ""
                self.done.text += piece
                if piece or output.finish_reason:
                    yield piece

    async def run(self) -> Done:
        """The whole text."""
        async for _ in self.pieces():
            pass
        return self.done


def unfold_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with those that came as one JSON text (`sampling_parameters`)."""
    found = dict(settings)
    packed = found.pop("sampling_parameters", None)
    if packed is None:
        return found
    try:
        more = orjson.loads(packed) if isinstance(packed, str) else packed
    except orjson.JSONDecodeError:
        more = None
    if not isinstance(more, dict):
        raise HttpRefusal(400, "sampling_parameters is a JSON object")
    return {**more, **found}


def number_request(ask: Ask, place: int, count: int) -> Ask:
    """The request of one text of a batch: the engine needs different ids."""
    if count == 1:
        return ask
    return Ask(ask.method, ask.path, ask.headers, id=f"{ask.id}-{place}", started=ask.started)


async def together(jobs: Sequence[TextJob], timeout_us: Any) -> list[Done]:
    """Run texts side by side; when one fails or the time is over, the others end, too."""
    seconds = timeout_us / 1e6 if isinstance(timeout_us, int) and timeout_us > 0 else None
    tasks = [asyncio.ensure_future(job.run()) for job in jobs]
    try:
        return await asyncio.wait_for(asyncio.gather(*tasks), seconds)
    except (TimeoutError, asyncio.TimeoutError):
        raise HttpRefusal(504, f"not done within the timeout of {timeout_us} us") from None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def refuse_sequences(parameters: Mapping[str, Any]) -> None:
    """What would need state is refused."""
    if parameters.get("sequence_id"):
        raise HttpRefusal(400, "sequences are not supported: every request stands for itself")


def settings_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that are the model's."""
    return {name: value for name, value in parameters.items() if name not in PROTOCOL}


def batch(
    given: Mapping[str, Array], parameters: Mapping[str, Any]
) -> tuple[list[str], list[dict[str, Any]]]:
    """The texts, and the settings of each: a tensor with one element is for all of them."""
    for name, array in given.items():
        if name not in TYPES:
            raise HttpRefusal(
                400, f"unexpected inference input '{name}', there are {', '.join(TYPES)}"
            )
        if array.dtype.hasobject != (TYPES[name] == BYTES):
            raise HttpRefusal(400, f"input '{name}' is {TYPES[name]}, got {array.dtype}")
    if TEXT not in given or not given[TEXT].size:
        raise HttpRefusal(400, f"input '{TEXT}' is missing or empty")
    texts: list[str] = given[TEXT].ravel().tolist()
    rows = [settings_of(parameters) for _ in texts]
    for name, array in given.items():
        values = array.ravel().tolist()
        if name == TEXT or not values:
            continue
        if name != "stop" and len(values) not in (1, len(texts)):
            raise HttpRefusal(
                400, f"input '{name}' has {len(values)} elements for {len(texts)} texts"
            )
        for place, row in enumerate(rows):
            one = values[place if len(values) > 1 else 0] if name != "stop" else values
            row[name] = one
    return texts, rows


def answer_of(model: str, text: str, reason: str) -> dict[str, Any]:
    """One answer or event; the last one says why the text ended."""
    made = {"model_name": model, "model_version": "1", "text_output": text}
    return {**made, "finish_reason": reason} if reason else made
