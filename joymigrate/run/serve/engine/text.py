"""Text from tokens as they come: whole characters only, and no word of a stop string.

What is held back: up to three replacement characters at the end (a character of several bytes whose
last ones have not come; byte-fallback tokenizers show one for each byte), and an ending that may
become a stop string.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

REPLACEMENT = "\ufffd"
MOST_HELD = 3
CONTEXT = 5  # prompt tokens before the first one: whether it begins with a space depends on them


class TextDecoder(Protocol):
    """Text of token ids."""

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """The text of `ids`."""
        ...


class Detokeniser:
    """Whole characters of a growing list of tokens."""

    def __init__(self, decoder: TextDecoder, prompt: Sequence[int], *, skip_special: bool) -> None:
        self.decoder = decoder
        self.skip_special = skip_special
        self.ids = list(prompt[-CONTEXT:])  # decoded together, so that spaces come out right
        self.settled = len(self.ids)  # of `ids`, those whose text is complete
        self.sent = len(self.decode())  # characters of their text that were given out

    def decode(self) -> str:
        """The text of the tokens kept."""
        return self.decoder.decode(self.ids, skip_special=self.skip_special)

    def feed(self, new: Sequence[int]) -> str:
        """The characters that are certain now."""
        self.ids += new
        text = self.decode()
        held = len(text) - len(text.rstrip(REPLACEMENT))
        certain = max(self.sent, len(text) - min(held, MOST_HELD))
        piece = text[self.sent : certain]
        self.sent = certain
        if not held:
            self.forget()
        return piece

    def forget(self) -> None:
        """Keep only the newest tokens, as context for the next ones."""
        if self.settled and len(self.ids) - self.settled:
            self.ids = self.ids[self.settled :]
            self.sent = len(self.decode())
        self.settled = len(self.ids)

    def finish(self) -> str:
        """What is left when no more tokens come."""
        piece = self.decode()[self.sent :]
        self.sent += len(piece)
        return piece


@dataclass(slots=True)
class TextStream:
    """The text of one output, up to a stop string."""

    detokeniser: Detokeniser
    stop: Sequence[str] = ()
    include_stop: bool = False
    held: str = ""
    hit: str | None = None

    def feed(self, new: Sequence[int], *, may_stop: bool = True, last: bool = False) -> str:
        """The text that `new` completes. Sets `hit` when it reaches a stop string."""
        piece = self.detokeniser.feed(new)
        if last:
            piece += self.detokeniser.finish()
        if not self.stop:
            return piece
        text = self.held + piece
        if may_stop:
            found = first_of(text, self.stop)
            if found is not None:
                place, self.hit = found
                self.held = ""
                return text[: place + len(self.hit)] if self.include_stop else text[:place]
        keep = 0 if last else longest_start(text, self.stop)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]


def first_of(text: str, stop: Sequence[str]) -> tuple[int, str] | None:
    """Where the first stop string ends soonest: (its place, itself)."""
    found = [(text.find(word) + len(word), text.find(word), word) for word in stop if word in text]
    if not found:
        return None
    _, place, word = min(found)
    return place, word


def longest_start(text: str, stop: Sequence[str]) -> int:
    """Length of the longest end of `text` that begins one of the strings `stop`."""
    most = min(len(text), max(len(word) for word in stop) - 1)
    for length in range(most, 0, -1):
        end = text[-length:]
        if any(word.startswith(end) for word in stop):
            return length
    return 0
