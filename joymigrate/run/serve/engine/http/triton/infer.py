"""POST /v2/models/M/infer, /generate and /generate_stream: tensors or JSON in, text out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from joymigrate.run.serve.engine.http import sampling, slow_reads
from joymigrate.run.serve.engine.http.error_events import refusal_of
from joymigrate.run.serve.engine.http.fields import Fields
from joymigrate.run.serve.engine.http.generation import HttpGeneration
from joymigrate.run.serve.engine.http.service import EngineService
from joymigrate.run.serve.engine.http.streaming import OpenStream
from joymigrate.run.serve.engine.http.triton import tensors
from joymigrate.run.serve.engine.http.triton.metadata import INPUTS, OUTPUTS, VERSION, check
from joymigrate.run.serve.engine.http.triton.tensors import BYTES, NamedTensor
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.messages import EVENTS, Ask, Reply, data, event

log = logging.getLogger("joymigrate.serve")
DEFAULT_TOKENS = 16
TYPES = {name: datatype for name, datatype, _ in INPUTS}
# parameters that steer the protocol, not the model
PROTOCOL = frozenset(
    ("binary_data_output", "priority", "timeout", "sequence_id", "sequence_start", "sequence_end",
     "headers", "triton_enable_empty_final_response")
)  # fmt: skip


@dataclass(slots=True)
class Done:
    """One finished text."""

    text: str = ""
    reason: str = ""
    prompt: int = 0
    completion: int = 0


class InferJob:
    """One text to continue, as a prompt and a table of settings."""

    def __init__(
        self, service: EngineService, ask: Ask, text: Any, settings: Mapping[str, Any]
    ) -> None:
        if not isinstance(text, str):
            raise HttpRefusal(400, f"text_input is a text, got {text!r}")
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
        outputs = self.generation.outputs()
        first = True
        try:
            async for _, output in outputs:
                piece = self.text + output.text if first and self.echo else output.text
                first = first and not piece
                self.done.completion += len(output.new_ids)
                self.done.reason = output.finish_reason or ""
                self.done.text += piece
                if piece or output.finish_reason:
                    yield piece
        finally:
            await outputs.aclose()

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


async def infer(service: EngineService, ask: Ask, model: str, version: str | None) -> Reply:
    """Tensors in, tensors out; a batch is one text per element of text_input."""
    check(service, model, version)
    length = ask.headers.get("Inference-Header-Content-Length")
    header, binary = tensors.header_of(ask.body, length)
    given = {tensor.name: tensor for tensor in tensors.read_inputs(header, binary)}
    wanted = outputs_of(header)
    parameters = parameters_of(header)
    texts, rows = batch(given, parameters)
    ask.notes["model"] = model
    jobs = await slow_reads.read(
        ask,
        lambda: [
            InferJob(service, number_request(ask, place, len(texts)), text, row)
            for place, (text, row) in enumerate(zip(texts, rows, strict=True))
        ],
    )
    if any(job.stream for job in jobs):
        raise HttpRefusal(400, "infer answers in one piece; use /generate_stream")
    found = await together(jobs, parameters.get("timeout"))
    shape = given["text_input"].shape
    made = [tensor_of(name, found, shape) for name, _ in wanted]
    head: dict[str, Any] = {"model_name": model, "model_version": VERSION}
    if header.get("id") is not None:
        head["id"] = str(header["id"])
    default = bool((header.get("parameters") or {}).get("binary_data_output"))
    as_bytes = [default if choice is None else choice for _, choice in wanted]
    body, size = tensors.write_body(head, made, as_bytes)
    if size is None:
        return Reply(200, body)
    more = {"Inference-Header-Content-Length": str(size)}
    return Reply(200, body, "application/octet-stream", more)


def number_request(ask: Ask, place: int, count: int) -> Ask:
    """The request of one text of a batch: the engine needs different ids."""
    if count == 1:
        return ask
    return Ask(ask.method, ask.path, ask.headers, id=f"{ask.id}-{place}", started=ask.started)


async def together(jobs: list[InferJob], timeout_us: Any) -> list[Done]:
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


def parameters_of(header: Mapping[str, Any]) -> dict[str, Any]:
    """The request's `parameters`; what would need state is refused."""
    given = header.get("parameters")
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise HttpRefusal(400, "parameters is an object")
    if given.get("sequence_id"):
        raise HttpRefusal(400, "sequences are not supported: every request stands for itself")
    return given


def outputs_of(header: Mapping[str, Any]) -> list[tuple[str, bool | None]]:
    """The outputs that are wanted, and whether in binary (None: as the request says)."""
    raw = header.get("outputs")
    if not raw:
        return [(OUTPUTS[0][0], None)]
    names = [name for name, _, _ in OUTPUTS]
    found: list[tuple[str, bool | None]] = []
    for place, one in enumerate(raw if isinstance(raw, list) else [raw]):
        name = one.get("name") if isinstance(one, dict) else None
        if name not in names:
            raise HttpRefusal(400, f"outputs[{place}]: unexpected inference output {name!r}, "
                              f"there are {', '.join(names)}")  # fmt: skip
        parameters = one.get("parameters") or {}
        if parameters.get("classification"):
            raise HttpRefusal(400, "classification is not supported")
        found.append((str(name), parameters.get("binary_data")))
    return found


def batch(
    given: Mapping[str, NamedTensor], parameters: Mapping[str, Any]
) -> tuple[list[str], list[dict[str, Any]]]:
    """The texts, and the settings of each: a tensor with one element is for all of them."""
    text = given.get("text_input")
    if text is None:
        raise HttpRefusal(400, "input 'text_input' is missing")
    if text.datatype != BYTES:
        raise HttpRefusal(400, f"input 'text_input' is {BYTES}, got {text.datatype}")
    if not text.values:
        raise HttpRefusal(400, "input 'text_input' is empty")
    count = len(text.values)
    rows = [
        {name: value for name, value in parameters.items() if name not in PROTOCOL}
        for _ in range(count)
    ]
    for name, tensor in given.items():
        if name == "text_input":
            continue
        if name not in TYPES:
            raise HttpRefusal(
                400, f"unexpected inference input '{name}', there are {', '.join(TYPES)}"
            )
        if (tensor.datatype == BYTES) != (TYPES[name] == BYTES):
            raise HttpRefusal(400, f"input '{name}' is {TYPES[name]}, got {tensor.datatype}")
        if not tensor.values:
            continue
        if name != "stop" and len(tensor.values) not in (1, count):
            raise HttpRefusal(
                400, f"input '{name}' has {len(tensor.values)} elements for {count} texts"
            )
        for place, row in enumerate(rows):
            if name == "stop":
                row[name] = list(tensor.values)
            else:
                row[name] = tensor.values[place if len(tensor.values) > 1 else 0]
    return list(text.values), rows


def tensor_of(name: str, found: list[Done], shape: tuple[int, ...]) -> NamedTensor:
    """One output, in the shape of the texts that came in."""
    datatype = next(kind for known, kind, _ in OUTPUTS if known == name)
    columns: dict[str, list[Any]] = {
        "text_output": [done.text for done in found],
        "finish_reason": [done.reason for done in found],
        "num_input_tokens": [done.prompt for done in found],
        "num_output_tokens": [done.completion for done in found],
    }
    return NamedTensor(name, datatype, shape, tuple(columns[name]))


def job_of(service: EngineService, ask: Ask, model: str, version: str | None) -> InferJob:
    """The job of a generate request: settings stand beside text_input or in `parameters`."""
    check(service, model, version)
    body = ask.json()
    ask.notes["model"] = model
    text = body.pop("text_input", None)
    if isinstance(text, list) and len(text) == 1:
        text = text[0]
    if text is None:
        raise HttpRefusal(400, "text_input is missing")
    parameters = parameters_of(body)
    body.pop("parameters", None)
    body.pop("id", None)
    kept = {name: value for name, value in parameters.items() if name not in PROTOCOL}
    return InferJob(service, ask, text, {**kept, **body})


async def generate(service: EngineService, ask: Ask, model: str, version: str | None) -> Reply:
    """POST …/generate."""
    job = await slow_reads.read(ask, job_of, service, ask, model, version)
    if job.stream:
        raise HttpRefusal(400, "generate answers in one piece; use generate_stream")
    done = await job.run()
    return data(answer_of(model, done.text, done.reason))


async def generate_stream(
    service: EngineService, ask: Ask, model: str, version: str | None
) -> Reply:
    """POST …/generate_stream: an event per piece; an error after the first byte is an event."""
    job = await slow_reads.read(ask, job_of, service, ask, model, version)

    async def events() -> AsyncGenerator[bytes, None]:
        pieces = job.pieces()
        try:
            async for piece in pieces:
                yield event(answer_of(model, piece, job.done.reason))
        except Exception as error:
            refusal = refusal_of(error)
            if refusal is None:
                log.exception("a stream failed")
                refusal = HttpRefusal(500, f"{type(error).__name__}: {error}")
            yield event({"error": refusal.message})
        finally:
            await pieces.aclose()

    return Reply(200, OpenStream(None, events()), EVENTS)


def answer_of(model: str, text: str, reason: str) -> dict[str, Any]:
    """One answer or event; the last one says why the text ended."""
    made = {"model_name": model, "model_version": VERSION, "text_output": text}
    return {**made, "finish_reason": reason} if reason else made
