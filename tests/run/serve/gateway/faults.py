"""Seeded schedules of faults: which request to a fake backend goes wrong, and how."""

from __future__ import annotations

import random
from dataclasses import dataclass

KINDS: dict[str, str] = {
    "refuse": "the connection is dropped without an answer",
    "status_500": "500 instead of an answer",
    "status_503": "503 without Retry-After",
    "busy": "429 with Retry-After: back-pressure, not a failure",
    "error_after_200": "200, then an error object as the first event",
    "error_midway": "an error object in the middle of the stream",
    "truncate": "the stream ends in order, but too early",
    "missing_finish": "[DONE] without a finish_reason",
    "cut": "the connection closes in the middle of an event",
    "reset": "the connection is reset in the middle of the stream",
    "hang": "nothing is ever sent",
    "hang_midway": "the stream stops and the connection stays open",
    "drip": "events come slowly, but they come",
    "invalid_json": "an event that is not JSON",
    "garbage": "the text turns into !!!!!!!!",
    "status_400": "every question is a bad request",
    "status_401": "the key is not accepted",
    "status_404": "the path or the model is not there",
    "redirect": "302 to a page for people to sign in",
    "html": "200 with a page for people instead of an answer",
    "no_body": "200 without a body",
    "no_content": "204",
    "bare_object": "200 with {}",
    "wrong_type": "the right answer, said to be plain text",
    "silent": "an answer without a word",
    "refusing": "the model declines to answer",
    "short": "the text ends after its first token",
    "other_text": "another model answers",
    "slow": "the answer comes late, but whole",
    "no_usage": "counts of tokens are left out",
    "zero_usage": "the prompt's tokens are counted as 0",
    "other_name": "the answer names another model",
    "no_logprobs": "log probabilities that were asked for are left out",
    "flat_logprobs": "log probabilities are those of another temperature",
    "no_role": "a chat's message does not say whose it is",
    "no_model": "the answer names no model",
    "other_finish": "the answer ends for another reason",
}
HARMLESS = ("drip", "busy", "slow")  # what the gateway must not count as a failure


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of a schedule: `share` of the requests number `first` to `last`."""

    kind: str
    share: float = 1.0
    first: int = 1
    last: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"no such fault: {self.kind}")

    def covers(self, number: int) -> bool:
        """Whether request `number` (from 1) can be hit."""
        return number >= self.first and (self.last is None or number <= self.last)


@dataclass(slots=True)
class Schedule:
    """The faults of one backend. Equal seeds give equal faults for equal request numbers."""

    faults: tuple[Fault, ...] = ()
    seed: int = 0
    name: str = ""

    def of(self, number: int) -> tuple[str | None, random.Random]:
        """What happens to request `number`, and a generator for the details."""
        rng = random.Random(f"{self.seed} {self.name} {number}")
        for fault in self.faults:
            if fault.covers(number) and rng.random() < fault.share:
                return fault.kind, rng
        return None, rng
