"""Beam search with ends: the most probable whole texts, as transformers' `generate` finds them.

`joymigrate.run.beam` searches for a fixed number of rounds over valid ids; here texts end where
they like, so that finished and running ones are kept apart. Each round asks the engine for one
token behind every running text: the prefix cache keeps what they share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from joymigrate.run.serve.engine.types import (
    MAX_LOGPROBS,
    FinishReason,
    Request,
    Sampling,
    TokenLogprob,
)


@dataclass(frozen=True, slots=True)
class BeamOptions:
    """`width` texts run at once. A finished text's score is its log-probability divided by its
    length to the power `length_penalty`. `early`: end as soon as `width` texts have finished."""

    width: int
    length_penalty: float = 1.0
    early: bool = False


@dataclass(frozen=True, slots=True)
class FinishedBeam:
    """A finished text: its tokens, the end included; its score, and its log-probability."""

    ids: tuple[int, ...]
    score: float
    logprob: float
    reason: FinishReason


@dataclass(slots=True)
class SequenceBeams:
    """The state of a search. `limit` is the number of tokens that a text may have."""

    options: BeamOptions
    ends: Collection[int]
    limit: int
    running: list[tuple[tuple[int, ...], float]] = field(default_factory=lambda: [((), 0.0)])
    finished: list[FinishedBeam] = field(default_factory=list)

    @property
    def wanted(self) -> int:
        """Continuations of each text that are looked at: enough for `width` that do not end."""
        return max(2, 1 + len(self.ends)) * self.options.width

    def step(self, tops: Sequence[Sequence[tuple[int, float]]]) -> bool:
        """Go on by one token; `tops` are (token, log-probability) behind each running text.

        Returns whether the search goes on.
        """
        width, power = self.options.width, self.options.length_penalty
        rows = [
            ((*ids, token), total + logprob)
            for (ids, total), top in zip(self.running, tops, strict=True)
            for token, logprob in top
        ]
        rows.sort(key=lambda row: -row[1])
        del rows[self.wanted :]
        length = len(rows[0][0])
        over = length >= self.limit
        for ids, total in rows[:width]:  # those below are there to go on with, not to end
            if over or ids[-1] in self.ends:
                reason: FinishReason = "stop" if ids[-1] in self.ends else "length"
                self.finished.append(FinishedBeam(ids, total / length**power, total, reason))
        self.finished = sorted(self.finished, key=lambda one: -one.score)[:width]
        self.running = [row for row in rows if row[0][-1] not in self.ends][:width]
        if over or not self.running:
            return False
        if len(self.finished) < width:
            return True
        best = self.running[0][1] / length**power
        return not self.options.early and best > self.finished[-1].score


def most_width(ends: int) -> int:
    """The widest search, with so many tokens that end a text: the engine gives `MAX_LOGPROBS`."""
    return MAX_LOGPROBS // max(2, 1 + ends)


def ends_of(engine: Any, sampling: Sampling) -> set[int]:
    """The tokens that end a text of a request, for an `AsyncEngine`."""
    return set(sampling.stop_token_ids) | (
        set() if sampling.ignore_eos else set(engine.engine.ends)
    )


async def search(engine: Any, request: Request, options: BeamOptions) -> list[FinishedBeam]:
    """The best texts behind a request's prompt, best first; `engine` is an `AsyncEngine`.

    Of the request's sampling `max_tokens`, `stop_token_ids` and `ignore_eos` count.
    """
    asked = request.sampling
    assert asked.max_tokens is not None
    beams = SequenceBeams(options, ends_of(engine, asked), asked.max_tokens)
    one = Sampling(max_tokens=1, temperature=0.0, logprobs=beams.wanted, ignore_eos=True)
    going, round = True, 0
    while going:
        asks = [
            Request(
                f"{request.id}-{round}-{i}", (*request.prompt, *ids), one,
                priority=request.priority, adapter=request.adapter,
            )
            for i, (ids, _) in enumerate(beams.running)
        ]  # fmt: skip
        tasks = [asyncio.ensure_future(top_of(engine, ask)) for ask in asks]
        try:
            tops = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        going, round = beams.step(tops), round + 1
    return beams.finished


async def top_of(engine: Any, request: Request) -> list[tuple[int, float]]:
    """The most probable tokens behind a text, with their log-probabilities."""
    found: TokenLogprob | None = None
    async with aclosing(engine.generate(request)) as stream:
        async for output in stream:
            if output.finish_reason == "error":
                raise RuntimeError(output.error or "the engine gave this text up")
            if output.logprobs:
                found = output.logprobs[0]
    if found is None:
        raise RuntimeError("the engine ended a text of the search")
    return list(found.top)
