"""Reads a server-sent event stream while it is relayed: what arrived whole, and what went wrong.

`feed` returns the bytes that may go to the client: whole, well-formed events, byte for byte. A
broken event and everything behind it is held back, so that another backend can take over.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from joymigrate.run.serve.evidence.failures import (
    ERROR_OBJECT,
    GAVE_UP,
    INVALID_JSON,
    MISSING_FINISH,
    OVERSIZED,
    TRUNCATED,
)
from joymigrate.run.serve.gateway.reader import AnswerReader, ReadChoice, ReadToolCall, called_in
from joymigrate.run.serve.web import forms
from joymigrate.run.serve.web.forms import RequestForm

EVENT_BYTES = 8 * 2**20  # the largest single event
BORDER = re.compile(rb"\r\n\r\n|\n\n|\r\r")
BLOCK = 4  # events from which on a block is taken at once
LESSONS = 4  # how often a stream's own frame is looked for
PROBE = "\u2192 probe"
LINES = re.compile(rb"\r\n|\n|\r")


class RelayedStream(AnswerReader):
    """The state of one relayed stream of a chat or completion API.

    Streams of a `form` that speaks must say why they finished; others only end cleanly. `keep`
    collects the parsed events for someone who rewrites them. `most`: the choices that were asked
    for, None: any.
    """

    __slots__ = (
        "border",
        "chat",
        "done",
        "failure",
        "form",
        "keep",
        "lessons",
        "most",
        "native",
        "ours",
        "pieces",
        "prefix",
        "rest",
        "strict",
        "suffix",
    )

    WHOLE = False

    def __init__(
        self,
        form: RequestForm | None = forms.EITHER,
        *,
        keep: bool = False,
        most: int | None = None,
    ) -> None:
        super().__init__()
        self.form = form or forms.ANY
        self.strict, self.chat = self.form.speaks, self.form.chat
        self.native = self.form.event is forms.same
        self.keep, self.most = keep, most
        self.rest = b""
        self.failure: str | None = None
        self.done = False
        self.ours = False  # from an engine of joymigrate
        self.pieces = self.choice(0).pieces
        self.prefix = self.suffix = self.border = b""  # what the last events had around their text
        self.lessons = 0 if keep or not self.native else LESSONS

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
        raw = b"\n".join((parts[0][len(self.prefix) :], *parts[1:-1]))
        if b'"' in raw or b"\\" in raw:
            return 0
        try:
            pieces = raw.decode().split("\n")
        except UnicodeDecodeError:
            return 0
        if len(pieces) != len(parts) - 1 or not all(pieces) or not "".join(pieces).isprintable():
            return 0
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
        if not text or not text.isprintable():
            return False
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
            if (
                not text
                or type(text) is not str
                or (delta is None) is self.chat
                or choice["index"] != 0
                or choice["finish_reason"] is not None
                or "token_ids" in choice
                or "error" in parsed
                or parsed.get("usage")
            ):
                return False
        except (KeyError, TypeError, ValueError, AttributeError):
            return False
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
        self.note(parsed)
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

    def note_choice(self, said: dict[str, Any], place: int) -> None:
        """One sound choice of a chunk."""
        delta = said.get("delta") if self.chat is not False else None
        self.note_part(self.choice(said.get("index") or 0), said, delta, self.text_in(said))

    def note_calls(self, choice: ReadChoice, delta: dict[str, Any]) -> None:
        """Keep the pieces of tool calls, or that they cannot be followed."""
        if choice.calls is None:
            return
        known = choice.calls
        try:
            for piece in delta["tool_calls"]:
                place, (name, arguments) = piece.get("index"), called_in(piece)
                place = len(known) if place == forms.NEW else place
                if piece.get("id") or place == len(known):
                    choice.call_ids.append(piece.get("id"))
                if place == len(known):
                    known.append(ReadToolCall())
                known[place].name += name or ""
                known[place].arguments += arguments or ""
        except (KeyError, IndexError, TypeError, AttributeError):
            choice.calls = None

    def close(self) -> bool:
        """`[DONE]` arrived."""
        if self.strict and not self.finished:
            self.failure = MISSING_FINISH
            return False
        self.done = True
        return True

    @property
    def highest(self) -> int:
        """The highest index of a choice."""
        return max(self.choices)

    @property
    def ended(self) -> set[int]:
        """The choices that said why they ended."""
        return {index for index, choice in self.choices.items() if choice.finish}

    @property
    def finished(self) -> bool:
        """Whether every choice said why it ended."""
        return len(self.ended) > self.highest

    def end(self) -> str | None:
        """The connection ended in order: the failure that this means, if any."""
        if self.failure or self.done:
            return self.failure
        endless = self.form.last and not self.done
        if endless or (self.strict and not self.finished) or self.rest.strip():
            self.failure = TRUNCATED
        return self.failure

    def count(self, choice: ReadChoice) -> int:
        """Tokens of a choice; without ids, its pieces."""
        return len(choice.ids) or len(choice.pieces)
