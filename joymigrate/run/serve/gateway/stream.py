"""Reads a server-sent event stream while it is relayed: what arrived whole, and what went wrong.

`feed` returns the bytes that may go to the client: whole, well-formed events, byte for byte. A
broken event and everything behind it is held back, so that another backend can take over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from operator import eq
from typing import Any

import orjson

from joymigrate.run.serve.evidence.failures import (
    ERROR_OBJECT,
    GAVE_UP,
    INVALID_JSON,
    MISSING_FINISH,
    OVERSIZED,
    TRUNCATED,
    Garbage,
)
from joymigrate.run.serve.gateway.whole_answers import count_of
from joymigrate.run.serve.web import forms
from joymigrate.run.serve.web.forms import RequestForm

EVENT_BYTES = 8 * 2**20  # the largest single event
BORDER = re.compile(rb"\r\n\r\n|\n\n|\r\r")
BLOCK = 4  # events from which on a block is taken at once
LESSONS = 4  # how often a stream's own frame is looked for
PROBE = "\u2192 probe"
LINES = re.compile(rb"\r\n|\n|\r")


@dataclass(slots=True)
class StreamedToolCall:
    """A tool call as far as it came."""

    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Other:
    """What a choice behind the first one said."""

    pieces: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)

    def add(self, text: str | None, ids: list[int] | None) -> None:
        """Keep a piece."""
        if text:
            self.pieces.append(text)
        if ids:
            self.ids.extend(ids)


class RelayedStream:
    """The state of one relayed stream of a chat or completion API.

    Streams of a `form` that speaks must say why they finished; others only end cleanly. `keep`
    collects the parsed events for someone who rewrites them. `most`: the choices that were asked
    for, None: any.
    """

    __slots__ = (
        "border",
        "calls",
        "channels",
        "chat",
        "done",
        "ended",
        "events",
        "failure",
        "finish",
        "first",
        "form",
        "garbage",
        "highest",
        "ids",
        "ids_text",
        "keep",
        "lessons",
        "loops",
        "loud",
        "most",
        "native",
        "opened",
        "others",
        "ours",
        "pieces",
        "prefix",
        "prompts",
        "rest",
        "strict",
        "suffix",
        "tools",
        "usage",
    )

    def __init__(
        self,
        form: RequestForm | None = forms.EITHER,
        *,
        keep: bool = False,
        most: int | None = None,
    ) -> None:
        self.form = form or forms.ANY
        self.strict, self.chat = self.form.speaks, self.form.chat
        self.native = self.form.event is forms.same
        self.keep, self.most = keep, most
        self.rest = b""
        self.failure: str | None = None
        self.done = False
        self.ours = False  # from an engine of joymigrate
        self.finish: list[str] = []  # one reason per finished choice
        self.opened: set[int] = set()  # choices of which anything was seen
        self.ended: set[int] = set()  # those that are finished
        self.others: dict[int, Other] = {}  # what the choices but the first said
        self.highest = 0  # highest index of a choice
        self.first: dict[str, Any] | None = None
        self.usage: dict[str, Any] | None = None
        self.pieces: list[str] = []  # content
        self.channels: dict[str, list[str]] = {}  # other text: reasoning
        self.ids: list[int] = []
        self.ids_text: list[tuple[int, bool]] = []  # ids so far, and whether text came with them
        self.prompts: dict[int, list[int]] = {}  # ids of the prompt, by choice
        self.tools = False
        self.calls: (
            dict[int, list[StreamedToolCall]] | None
        ) = {}  # by choice; None: not to be followed
        self.loud = False  # something other than plain text was said
        self.garbage, self.loops = Garbage(), False
        self.prefix = self.suffix = self.border = b""  # what the last events had around their text
        self.lessons = 0 if keep or not self.native else LESSONS
        self.events: list[dict[str, Any]] = []

    def feed(self, data: bytes) -> bytes:
        """Take what arrived; return the bytes to relay. Sets `failure` at the first bad event."""
        if self.rest:
            data = self.rest + data
        if b"\r" in data:
            return self.feed_any(data)
        end = data.rfind(b"\n\n")
        if end < 0:
            return self.wait(data)
        good, tried = 0, False
        while good <= end:
            if self.border and not tried:
                tried = True
                good += self.block(data[good:])
                continue
            close = data.find(b"\n\n", good)
            if not self.take(data[good:close]):
                return data[:good]
            good = close + 2
            if self.done:
                return data[:good]  # nothing may follow the end
        self.rest = data[end + 2 :]
        return data if not self.rest else data[: end + 2]

    def feed_any(self, data: bytes) -> bytes:
        """`feed` for streams with carriage returns."""
        good = 0
        for border in BORDER.finditer(data):
            if not self.take(b"\n".join(LINES.split(data[good : border.start()]))):
                return data[:good]
            good = border.end()
            if self.done:
                return data[:good]
        self.wait(data[good:])
        return data[:good]

    def wait(self, rest: bytes) -> bytes:
        """Keep an unfinished event for later."""
        self.rest = rest
        if len(rest) > EVENT_BYTES:
            self.failure = OVERSIZED
        return b""

    def take(self, event: bytes) -> bool:
        """Judge one whole event; False when it must not be relayed."""
        if self.prefix and event.startswith(self.prefix) and event.endswith(self.suffix):
            text = event[len(self.prefix) : -len(self.suffix)]
            if b'"' not in text and b"\\" not in text and self.framed(text):
                return True
        if event[:6] == b"data: " and b"\n" not in event:
            payload = event[6:]
        else:
            lines = [line[5:].lstrip(b" ") for line in event.split(b"\n") if line[:5] == b"data:"]
            if not lines:
                return True  # a comment, or an event without data
            payload = b"\n".join(lines)
        if payload == b"[DONE]":
            return self.close()
        try:
            parsed = orjson.loads(payload)
        except ValueError:
            self.failure = INVALID_JSON
            return False
        last = False
        if not self.native and isinstance(parsed, dict):
            last = parsed.get("type") in self.form.last
            parsed = self.form.event(parsed)
        if self.first is not None and not self.keep and self.plain(parsed):
            if self.lessons:
                self.learn(event)
            return True
        if not isinstance(parsed, dict):
            self.failure = INVALID_JSON
            return False
        if parsed.get("error") or "error" in (parsed.get("type"), parsed.get("object")):
            self.failure = ERROR_OBJECT
            return False
        good = self.read(parsed)
        if not good and self.failure is None:
            self.failure = INVALID_JSON
        return self.close() if good and last else good

    def block(self, data: bytes) -> int:
        """Take many events at once that differ in nothing but their text; how many bytes.

        The same proof as in `framed`, for a whole block: between two borders there is text only.
        The block's last event is left to `take`, as is every block with anything unusual in it.
        """
        if not data.startswith(self.prefix):
            return 0
        parts = data.split(self.border)
        if len(parts) < BLOCK:
            return 0
        texts = [parts[0][len(self.prefix) :], *parts[1:-1]]
        raw = b" ".join(texts)
        if b'"' in raw or b"\\" in raw:
            return 0
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            return 0
        if not text.isprintable() or "!" in text or "\ufffd" in text:
            return 0
        pieces = b"\n".join(texts).decode().split("\n")
        watch = self.garbage
        if not all(pieces) or pieces[0] == watch.last or any(map(eq, pieces, pieces[1:])):
            return 0
        watch.last, watch.repeats, watch.bangs = pieces[-1], 1, 0
        watch.length += len(text) - len(pieces) + 1
        self.pieces += pieces
        return len(data) - len(parts[-1]) - len(self.prefix)

    def framed(self, raw: bytes) -> bool:
        """Take the text of an event that is otherwise equal to one that was parsed.

        Between the quotes of a JSON string, printable text without quotes and backslashes stands
        for itself, so the whole event is known to be good. False, with nothing read, otherwise.
        """
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            return False
        watch = self.garbage
        if not text or text == watch.last or text[0] == "!" or not text.isprintable():
            return False
        if not raw.isascii() and "\ufffd" in text:
            return False
        watch.last, watch.repeats, watch.bangs = text, 1, 0
        watch.length += len(text)
        self.pieces.append(text)
        return True

    def learn(self, event: bytes) -> None:
        """Remember what stands around the text, when it is certain where the text stands."""
        self.lessons -= 1
        raw = self.pieces[-1].encode()
        if event.count(raw) != 1:
            return
        place = event.index(raw)
        prefix, suffix = event[:place], event[place + len(raw) :]
        if not (prefix.startswith(b"data: {") and prefix.endswith(b'"') and suffix[:1] == b'"'):
            return
        try:
            choice = orjson.loads(prefix[6:] + PROBE.encode() + suffix)["choices"][0]
            found = (choice.get("delta") or {}).get("content") or choice.get("text")
        except (ValueError, KeyError, IndexError, TypeError):
            return
        if found == PROBE:
            self.prefix, self.suffix, self.lessons = prefix, suffix, 0
            self.border = suffix + b"\n\n" + prefix

    def plain(self, parsed: Any) -> bool:
        """Read a chunk that holds one piece of ordinary text and nothing else: nearly all do.

        False, with nothing read, for every other event.
        """
        try:
            (choice,) = parsed["choices"]
            delta = choice.get("delta")
            if delta is None:
                text = choice["text"]
            elif len(delta) == 1:
                text = delta["content"]
            else:
                return False
            watch = self.garbage
            if (
                not text
                or type(text) is not str
                or (delta is None) is self.chat
                or text == watch.last
                or text[0] == "!"
                or choice["index"] != 0
                or choice["finish_reason"] is not None
                or "\ufffd" in text
                or "token_ids" in choice
                or "error" in parsed
                or parsed.get("usage")
            ):
                return False
        except (KeyError, TypeError, ValueError, AttributeError):
            return False
        watch.last, watch.repeats, watch.bangs = text, 1, 0
        watch.length += len(text)
        self.pieces.append(text)
        return True

    def read(self, parsed: dict[str, Any]) -> bool:
        """Take note of what an event says; False where it has another shape than this API's. Of an
        odd event nothing is noted: it is not relayed."""
        usage, choices = parsed.get("usage"), parsed.get("choices") or ()
        if (usage and not isinstance(usage, dict)) or not isinstance(choices, list | tuple):
            return False
        if not all(map(self.is_sound, choices)):
            return False
        if self.first is None:
            self.first = parsed
            self.take_prompt(0, parsed.get("prompt_token_ids"))
        if usage:
            self.usage = {**(self.usage or {}), **usage}
        for choice in choices:
            self.read_choice(choice, choice.get("index") or 0)
        if self.keep:
            self.events.append(parsed)
        return True

    def is_sound(self, choice: Any) -> bool:
        """Whether one choice of a chunk has the shape of this API's, and its server goes on."""
        index = (choice.get("index") or 0) if isinstance(choice, dict) else None
        if type(index) is not int or not 0 <= index < (self.most or index + 1):
            return False
        delta, reason = choice.get("delta"), choice.get("finish_reason")
        if not isinstance(delta, dict | None):
            return False
        if not isinstance(choice.get("token_ids"), list | None):
            return False
        if not isinstance(self.text_in(choice), str | list | None):
            return False
        if reason and not isinstance(reason, str):
            return False
        if reason in GAVE_UP:
            self.failure = ERROR_OBJECT
            return False
        return True

    def text_in(self, choice: dict[str, Any]) -> Any:
        """What stands where a choice has its text."""
        delta = choice.get("delta")
        if delta is None or self.chat is False:
            return choice.get("text") if self.chat is not True else None
        return delta.get("content")

    def read_choice(self, choice: dict[str, Any], index: int) -> None:
        """One sound choice of a chunk."""
        self.highest = max(self.highest, index)
        delta, text = choice.get("delta"), self.text_in(choice)
        if delta is not None and self.chat is not False and (len(delta) > 1 or text is None):
            self.read_rest(index, delta)
        if isinstance(text, list):  # parts: passed on, and not read
            self.loud, text = self.loud or bool(text), None
        if choice.get("prompt_token_ids"):
            self.take_prompt(index, choice["prompt_token_ids"])
        if text or choice.get("logprobs") or choice.get("prompt_logprobs"):
            self.loud = True
        self.opened.add(index)
        reason, ids = choice.get("finish_reason"), choice.get("token_ids")
        if reason:
            self.finish.append(reason)
            self.ended.add(index)
        if index:
            self.others.setdefault(index, Other()).add(text, ids)
            return
        if ids:
            self.ids.extend(ids)
            self.ids_text.append((len(self.ids), bool(text)))
        if text:
            self.text(text)

    def take_prompt(self, index: int, ids: Any) -> None:
        """Keep the ids of a choice's prompt, where they are that."""
        if isinstance(ids, list):
            self.prompts[index] = ids

    @property
    def prompt_ids(self) -> list[int] | None:
        """The ids of the first choice's prompt."""
        return self.prompts.get(0)

    def read_rest(self, index: int, delta: dict[str, Any]) -> None:
        """What a delta holds besides its content."""
        if delta.get("tool_calls") or delta.get("function_call"):
            self.tools = self.loud = True
            self.follow_calls(index, delta)
        for channel in ("reasoning_content", "reasoning"):
            thought = delta.get(channel)
            if thought:
                self.loud = True
                if isinstance(thought, str):
                    self.channels.setdefault(channel, []).append(thought)
        if delta.get("refusal") or delta.get("audio"):
            self.loud = True

    def follow_calls(self, index: int, delta: dict[str, Any]) -> None:
        """Keep the pieces of tool calls, or that they cannot be followed."""
        if self.calls is None:
            return
        known = self.calls.setdefault(index, [])
        try:
            for piece in delta["tool_calls"]:
                place, function = piece.get("index"), piece.get("function") or {}
                place = len(known) if place == forms.NEW else place
                if place == len(known):
                    known.append(StreamedToolCall())
                known[place].name += function.get("name") or ""
                known[place].arguments += function.get("arguments") or ""
        except (KeyError, IndexError, TypeError, AttributeError):
            self.calls = None

    def text(self, text: str) -> None:
        """Keep a piece of the answer. One that repeats itself is passed on as it is."""
        self.loops = self.garbage.add(text) or self.loops
        self.pieces.append(text)

    def close(self) -> bool:
        """`[DONE]` arrived."""
        if self.strict and not self.finished:
            self.failure = MISSING_FINISH
            return False
        self.done = True
        return True

    @property
    def functions(self) -> list[tuple[Any, Any]]:
        """Name and arguments of the first choice's tool calls, as far as they can be followed."""
        return [(call.name, call.arguments) for call in (self.calls or {}).get(0, ())]

    @property
    def thoughts(self) -> str:
        """What was said beside the answer itself: reasoning."""
        return "".join(piece for pieces in self.channels.values() for piece in pieces)

    @property
    def spoke(self) -> bool:
        """Whether anything was said that a client would show."""
        return self.loud or bool(self.pieces)

    @property
    def finished(self) -> bool:
        """Whether every choice said why it ended."""
        return len(self.finish) > self.highest

    def end(self) -> str | None:
        """The connection ended in order: the failure that this means, if any."""
        if self.failure or self.done:
            return self.failure
        endless = self.form.last and not self.done
        if endless or (self.strict and not self.finished) or self.rest.strip():
            self.failure = TRUNCATED
        return self.failure

    @property
    def tokens(self) -> int:
        """Generated tokens: as the backend counted them, else the pieces that came."""
        counted = count_of(self.usage, "completion_tokens")
        if counted is not None:
            return counted
        others = sum(len(other.ids) or len(other.pieces) for other in self.others.values())
        return (len(self.ids) or len(self.pieces)) + others

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt; 0 when the backend did not say."""
        count = count_of(self.usage, "prompt_tokens")
        return len(self.prompt_ids or ()) if count is None else count

    def usage_so_far(self) -> tuple[int, int]:
        """Tokens of the answer and of the prompt."""
        return self.tokens, self.prompt_tokens
