"""Beam search of a fixed number of rounds, for requests that come and go between rounds.

`admit` takes a request at any time; `round` begins those that fit, and moves all by one code in one
call of the model. A request ends after as many rounds as an id has codes: there is nothing to wait
for, so none holds up another.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run.beam.choose import PLACES, choose
from joymigrate.run.beam.trie import CodeTrie
from joymigrate.run.beam.writer import BeamWriter


@dataclass(frozen=True, slots=True)
class BeamRequest:
    """What is asked: `width` beams are kept a round, each looks at its `top_k` best codes."""

    prompt: Any
    width: int
    top_k: int | None = None
    rules: CodeTrie | None = None  # default: those of the search

    def __post_init__(self) -> None:
        for name, value in (("width", self.width), ("top_k", self.top_k)):
            if value is not None and value < 1:
                raise JoyError(f"{name} is 1 or more, got {value}")


@dataclass(frozen=True, slots=True, eq=False)
class BeamAnswer:
    """What came out of request `number`, best first; or why nothing did.

    scores [W'] are sums of `gains` [W', K]; `tokens` [W', K]; `nodes` [W'] of the rules.
    """

    number: int
    scores: Tensor
    gains: Tensor
    tokens: Tensor
    nodes: Tensor
    error: JoyError | None = None


@dataclass(slots=True)
class BeamState:
    """One request between two rounds."""

    number: int
    request: BeamRequest
    rules: CodeTrie
    state: Any
    logits: Tensor
    scores: Tensor
    nodes: Tensor
    gains: Tensor
    tokens: Tensor


class BeamSearch:
    """`capacity` beams are searched at the same time, over all requests."""

    def __init__(
        self, writer: BeamWriter, rules: CodeTrie, *, capacity: int = 4096, places: int = PLACES
    ) -> None:
        self.writer, self.rules = writer, rules
        self.capacity, self.places = capacity, places
        self.waiting: collections.deque[tuple[int, BeamRequest]] = collections.deque()
        self.active: list[BeamState] = []
        self.admitted = 0
        self.reading: list[int] = []  # requests whose prompts the model reads just now

    def admit(self, request: BeamRequest) -> int:
        """Queue a request; its number. Raises `JoyError` where it can never run."""
        if request.width > self.capacity:
            raise JoyError(f"a request of {request.width} beams, this search holds {self.capacity}")
        self.admitted += 1
        self.waiting.append((self.admitted, request))
        return self.admitted

    def cancel(self, number: int) -> None:
        """Forget a request."""
        self.waiting = collections.deque(one for one in self.waiting if one[0] != number)
        self.active = [one for one in self.active if one.number != number]

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.waiting and not self.active

    @torch.no_grad()
    def round(self) -> list[BeamAnswer]:
        """Begin what fits, one code for everybody, and the answers of those that are done."""
        self.begin()
        done: list[BeamAnswer] = []
        going: list[tuple[BeamState, Tensor, Tensor]] = []
        for beams in self.active:
            try:
                parents, tokens = self.extend(beams)
            except JoyError as error:
                done.append(fail(beams, error))
                continue
            if beams.tokens.shape[1] >= beams.rules.rounds or not len(beams.tokens):
                done.append(answer_of(beams))
                continue
            going.append((beams, parents, tokens))
        self.active = [beams for beams, _, _ in going]
        if going:
            logits = self.writer.step(
                [beams.state for beams in self.active],
                [parents for _, parents, _ in going],
                [tokens for _, _, tokens in going],
            )
            for beams, rows in zip(self.active, logits, strict=True):
                beams.logits = rows
        return done

    def begin(self) -> None:
        """Requests that fit beside those that run, in their order."""
        held = sum(beams.request.width for beams in self.active)
        new: list[tuple[int, BeamRequest]] = []
        while self.waiting and held + self.waiting[0][1].width <= self.capacity:
            held += self.waiting[0][1].width
            new.append(self.waiting.popleft())
        if not new:
            return
        self.reading = [number for number, _ in new]
        read = self.writer.begin([request.prompt for _, request in new])
        for (number, request), (state, logits) in zip(new, read, strict=True):
            device = logits.device
            self.active.append(
                BeamState(
                    number,
                    request,
                    request.rules or self.rules,
                    state,
                    logits[None],
                    torch.zeros(1, device=device),
                    torch.zeros(1, dtype=torch.long, device=device),
                    torch.zeros(1, 0, device=device),
                    torch.zeros(1, 0, dtype=torch.long, device=device),
                )
            )

        self.reading = []

    def drop(self, error: JoyError) -> list[BeamAnswer]:
        """End what was running when the model failed; what waits stays."""
        none = torch.zeros(0), torch.zeros(0, 0), torch.zeros(0, 0, dtype=torch.long)
        numbers = [*self.reading, *(beams.number for beams in self.active)]
        self.active, self.reading = [], []
        nodes = torch.zeros(0, dtype=torch.long)
        return [BeamAnswer(number, *none, nodes, error) for number in dict.fromkeys(numbers)]

    def extend(self, beams: BeamState) -> tuple[Tensor, Tensor]:
        """Choose one request's new beams; the parents and codes that the model has to know."""
        found = choose(
            beams.scores,
            beams.logits,
            beams.nodes,
            beams.rules,
            beams.request.width,
            beams.request.top_k,
            self.places,
        )
        beams.scores, beams.nodes = found.scores, found.nodes
        beams.gains = torch.cat([beams.gains[found.parents], found.gains[:, None]], 1)
        beams.tokens = torch.cat([beams.tokens[found.parents], found.tokens[:, None]], 1)
        return found.parents, found.tokens

    def run(
        self, requests: list[BeamRequest], each: Callable[[BeamAnswer], None] | None = None
    ) -> list[BeamAnswer]:
        """Search for all of them; answers in the order of the requests."""
        numbers = [self.admit(request) for request in requests]
        found: dict[int, BeamAnswer] = {}
        while not self.idle:
            for answer in self.round():
                found[answer.number] = answer
                if each is not None:
                    each(answer)
        return [found[number] for number in numbers]


def answer_of(beams: BeamState) -> BeamAnswer:
    """What a request ends with."""
    return BeamAnswer(beams.number, beams.scores, beams.gains, beams.tokens, beams.nodes)


def fail(beams: BeamState, error: JoyError) -> BeamAnswer:
    """A request that ends without an answer; the others go on."""
    empty = (beams.scores[:0], beams.gains[:0], beams.tokens[:0], beams.nodes[:0])
    return BeamAnswer(beams.number, *empty, error)
