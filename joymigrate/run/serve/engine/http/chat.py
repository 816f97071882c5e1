"""/v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from joymigrate.run.serve.engine.beams import BeamOptions
from joymigrate.run.serve.engine.http import (
    beam_fields,
    conversation,
    formats,
    logprobs,
    resume_request,
    sampling,
    streaming,
    thoughts,
    tools,
)
from joymigrate.run.serve.engine.http.call_pieces import CallPiece
from joymigrate.run.serve.engine.http.completions import worth_sending
from joymigrate.run.serve.engine.http.fields import Fields
from joymigrate.run.serve.engine.http.generation import HttpGeneration
from joymigrate.run.serve.engine.http.service import EngineService
from joymigrate.run.serve.engine.http.streaming import StreamOptions, stream_options
from joymigrate.run.serve.engine.http.templates import RESERVED
from joymigrate.run.serve.engine.http.thoughts import INSIDE, START, ThoughtReader
from joymigrate.run.serve.engine.http.tools import CallReader, Toolbox, ToolCall
from joymigrate.run.serve.engine.types import MAX_LOGPROBS, EngineOutput, Resume, Sampling
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.messages import DONE, Ask, Reply, event

MAX_TOP = 20  # of the OpenAI API
TAIL = 64  # characters of a prompt that show whether it opened the reasoning


@dataclass(slots=True)
class ChatRequest:
    """A checked request."""

    model: str
    prompt: list[int]
    images: tuple[Any, ...]
    sampling: Sampling
    stream: bool
    options: StreamOptions
    box: Toolbox | None
    ids: bool  # return_token_ids
    echo: str = ""  # the text that is continued, when it is to be repeated
    resume: tuple[Resume | None, ...] = ()
    given: tuple[Resume | None, ...] = ()  # what another engine gave out, with `resume`
    search: BeamOptions | None = None
    marks: tuple[str, str] | None = None  # around reasoning, where it is told apart
    thinks: bool = False  # the prompt has opened it

    @property
    def prompts(self) -> list[list[int]]:
        """The one prompt of a chat."""
        return [self.prompt]


def read(service: EngineService, body: dict[str, Any]) -> tuple[ChatRequest, Any]:
    """The request and its guide; raises `HttpRefusal`."""
    fields = Fields(body)
    model = service.model(fields.raw("model"))
    refuse_what_is_missing(fields)
    n = sampling.count(fields)
    limit = fields.whole("max_tokens", low=1)
    limit = fields.whole("max_completion_tokens", limit, low=1)
    chosen = sampling.read(fields, service.defaults, max_tokens=limit, logprobs=top(fields), n=n)
    box = tools.read(fields, service.templates.source(tools=bool(body.get("tools"))))
    guide = formats.read(fields, service.guides)
    enforced = box.guide(service.guides) if box else None
    if guide is not None and box is not None:
        raise HttpRefusal(400, "response_format or tools, not both", param="response_format")
    prompt, images, echo, end = write_prompt(service, fields, box)
    marks = (
        None if guide or enforced else thoughts.find_marks(service.templates.source(tools=False))
    )
    resume = resume_request.check_resumes(resume_request.read(fields), [prompt], chosen)
    resume = resume_request.behind(resume, echo)
    given = resume
    if box is not None:  # words and calls are told apart here, not in the engine
        resume = tuple(told and replace(told, text="") for told in resume)
    others = {"guide": guide is not None, "images": bool(images), "tools": box is not None,
              "resume": bool(resume), "echo": bool(echo)}  # fmt: skip
    search = beam_fields.read(fields, service.engine, chosen, others=others)
    asked = ChatRequest(
        model, prompt, images, chosen, fields.flag("stream"), stream_options(fields), box,
        fields.flag("return_token_ids"), echo, resume, given, search, marks,
        marks is not None and end.endswith(marks[0]),
    )  # fmt: skip
    fields.close()
    return asked, guide or enforced


def read_as(
    service: EngineService, meant: dict[str, Any], called: Mapping[str, str]
) -> tuple[ChatRequest, Any]:
    """A request of another API that means this chat; its refusals name that API's fields, which
    `called` has by a chat's."""
    try:
        return read(service, meant)
    except HttpRefusal as refusal:
        name, dot, rest = (refusal.param or "").partition(".")
        base = name.partition("[")[0]
        if base in called:
            refusal.param = called[base] + name[len(base) :] + dot + rest
        raise


def refuse_what_is_missing(fields: Fields) -> None:
    """What OpenAI's chat API has and this one does not."""
    fields.refuse("modalities", "answers are text", unless=(["text"],))
    fields.refuse("audio", "answers are text")
    fields.refuse("web_search_options", "there is no search")
    fields.refuse("verbosity", "the model has no such setting", unless=("medium",))
    fields.refuse("chat_template", "the operator chooses it: serve --chat-template FILE")
    fields.refuse("documents", "put them into a message", unless=([],))
    fields.refuse("moderation", "answers are not checked")


def top(fields: Fields) -> int | None:
    """`logprobs` and `top_logprobs` as one number."""
    wanted = fields.flag("logprobs")
    count = fields.whole("top_logprobs", low=0, high=min(MAX_TOP, MAX_LOGPROBS))
    if count and not wanted:
        raise HttpRefusal(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    return (count or 0) if wanted else None


def write_prompt(
    service: EngineService, fields: Fields, box: Toolbox | None
) -> tuple[list[int], tuple[Any, ...], str, str]:
    """The prompt's ids, its images, the text that is to be repeated in the answer, and how the
    prompt ends."""
    template = service.templates.source(tools=box is not None)
    talk = conversation.read(
        fields.required("messages"), vision=service.vision, developer="developer" in template
    )
    variables = dict(fields.table_of("chat_template_kwargs") or {})
    effort = fields.raw("reasoning_effort")
    if effort is not None:
        if "reasoning_effort" not in template:
            fields.refuse("reasoning_effort", "this model's chat template does not know it")
        variables["reasoning_effort"] = effort
    continued = fields.flag("continue_final_message")
    prompted = fields.flag("add_generation_prompt", not continued)
    if continued and prompted:
        raise HttpRefusal(
            400,
            "continue_final_message contradicts add_generation_prompt",
            param="continue_final_message",
        )
    for name in variables:
        if name in RESERVED:
            raise HttpRefusal(400, f"chat_template_kwargs does not set {name}",
                              param="chat_template_kwargs")  # fmt: skip
    text = service.templates.render(
        service.words.guard(talk.messages),
        tools=service.words.guard(box.tools) if box else None,
        generation_prompt=prompted,
        continue_final=continued,
        variables=variables,
    )
    ids = service.words.encode(text, special=fields.flag("add_special_tokens", False))
    cut = fields.whole("truncate_prompt_tokens", low=1)
    echo = talk.messages[-1]["content"] if fields.flag("echo") and continued else ""
    return (ids[-cut:] if cut else ids), tuple(talk.images), echo, text[-TAIL:].rstrip()


async def answer(service: EngineService, ask: Ask) -> Reply:
    """Answer POST /v1/chat/completions."""
    return await streaming.answer(service, ask, lambda: read(service, ask.json()), ChatAnswer)


class ChatAnswer:
    """One answer in the making."""

    def __init__(
        self, service: EngineService, ask: Ask, asked: ChatRequest, generation: HttpGeneration
    ) -> None:
        self.service, self.asked, self.generation = service, asked, generation
        self.head = {
            "id": f"chatcmpl-{ask.id}",
            "object": "chat.completion.chunk" if asked.stream else "chat.completion",
            "created": service.stamp(),
            "model": asked.model,
            "system_fingerprint": None,
        }
        n = asked.sampling.n
        self.readers = (
            [CallReader(asked.box, stream=asked.stream) for _ in range(n)] if asked.box else []
        )
        self.thoughts: list[ThoughtReader] = []
        if asked.marks is not None:
            begin, end = asked.marks
            place = INSIDE if asked.thinks else START
            self.thoughts = [ThoughtReader(begin, end, place) for _ in range(n)]
        self.called = [0] * n
        self.behind = self.opened() if asked.box is not None else set()

    def opened(self) -> set[int]:
        """The choices of which another engine has said something."""
        return {index for index, told in enumerate(self.asked.resume) if told is not None}

    def delta(self, output: EngineOutput) -> dict[str, Any]:
        """The thoughts, words and calls that an output adds."""
        thought, text = "", output.text
        if self.thoughts:
            thought, text = self.thoughts[output.index].feed(
                text, len(output.new_ids), last=output.finish_reason is not None
            )
        found = self.spoken(output, text)
        return {"reasoning_content": thought, **found} if thought else found

    def spoken(self, output: EngineOutput, text: str) -> dict[str, Any]:
        """The words and calls in the text of an output."""
        if not self.readers:
            return {"content": text} if text else {}
        reader = self.readers[output.index]
        pieces = reader.feed(text)
        if output.finish_reason:
            pieces += reader.finish()
        words = "".join(piece for piece in pieces if isinstance(piece, str))
        calls = []
        for piece in pieces:
            if isinstance(piece, CallPiece):
                calls.append(piece.to_json())
                self.called[output.index] = piece.index + 1
            if isinstance(piece, ToolCall):
                calls.append({"index": self.called[output.index], **piece.to_json()})
                self.called[output.index] += 1
        if output.index in self.behind:
            self.behind.discard(output.index)
            given = self.asked.given[output.index]
            assert given is not None
            words, calls = resume_request.remaining(given, words, calls)
        delta: dict[str, Any] = {"content": words} if words else {}
        return {**delta, "tool_calls": calls} if calls else delta

    def reason(self, output: EngineOutput) -> str | None:
        """Why a choice ended; calls are a reason of their own, unless one function was named."""
        named = self.asked.box is not None and self.asked.box.choice == tools.NAMED
        if output.finish_reason == "stop" and self.called[output.index] and not named:
            return "tool_calls"
        return output.finish_reason

    def choice(self, output: EngineOutput) -> dict[str, Any]:
        """One choice of an event."""
        made: dict[str, Any] = {
            "index": output.index,
            "delta": self.delta(output),
            "logprobs": None,
            "finish_reason": self.reason(output),
        }
        if output.stop is not None:
            made["stop_reason"] = output.stop
        if self.asked.sampling.logprobs is not None and output.logprobs:
            made["logprobs"] = {
                "content": logprobs.chat(output.logprobs, self.service.words),
                "refusal": None,
            }
        if self.asked.ids:
            made["token_ids"] = list(output.new_ids)
        return made

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The stream: the role, an event per output, usage at the end when asked for."""
        options, tally = self.asked.options, self.generation.tally
        begun = self.opened()
        async with aclosing(self.generation.outputs()) as outputs:
            async for _, output in outputs:
                if output.index not in begun:
                    begun.add(output.index)
                    yield event(options.with_usage(self.opening(output.index), tally))
                silent = not worth_sending(output, self.asked.ids)
                if silent and output.index not in self.behind:
                    continue
                choice = self.choice(output)
                if not choice["delta"] and not worth_without_text(choice):
                    continue
                made = {**self.head, "choices": [choice]}
                yield event(options.with_usage(made, tally))
        if options.include_usage:
            yield event({**self.head, "choices": [], "usage": tally.to_json()})
        yield DONE

    def opening(self, index: int) -> dict[str, Any]:
        """The first event of a choice."""
        delta = {"role": "assistant", "content": self.asked.echo}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        made: dict[str, Any] = {**self.head, "choices": [choice]}
        if self.asked.ids:
            made["prompt_token_ids"] = self.asked.prompt
        return made

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        pieces: dict[int, list[dict[str, Any]]] = {}
        before = None
        async with aclosing(self.generation.outputs()) as outputs:
            async for _, output in outputs:
                pieces.setdefault(output.index, []).append(self.choice(output))
                before = before or output.prompt_logprobs
        choices = [join_pieces(pieces[index], self.asked.echo) for index in sorted(pieces)]
        used = self.generation.tally.to_json()
        made: dict[str, Any] = {**self.head, "choices": choices, "usage": used}
        if self.asked.ids:
            made["prompt_token_ids"] = self.asked.prompt
        if before and self.asked.sampling.prompt_logprobs is not None:
            made["prompt_logprobs"] = logprobs.of_prompt(before, self.service.words)
        return made


def worth_without_text(choice: dict[str, Any]) -> bool:
    """Whether an event without words still says something."""
    return bool(choice["finish_reason"] or choice["logprobs"] or choice.get("token_ids"))


def join_pieces(pieces: list[dict[str, Any]], echo: str) -> dict[str, Any]:
    """One choice out of the pieces of its stream."""
    text = echo + "".join(piece["delta"].get("content") or "" for piece in pieces)
    calls = [call for piece in pieces for call in piece["delta"].get("tool_calls") or ()]
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if thought := "".join(piece["delta"].get("reasoning_content") or "" for piece in pieces):
        message["reasoning_content"] = thought
    if calls:
        message["content"] = text.strip() or None
        message["tool_calls"] = [{k: v for k, v in c.items() if k != "index"} for c in calls]
    last = pieces[-1]
    made = {**last, "message": message}
    del made["delta"]
    numbers = [piece["logprobs"]["content"] for piece in pieces if piece["logprobs"]]
    if numbers:
        made["logprobs"] = {"content": [row for part in numbers for row in part], "refusal": None}
    if "token_ids" in made:
        made["token_ids"] = [id for piece in pieces for id in piece["token_ids"]]
    return made
