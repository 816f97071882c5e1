"""A request while it runs: its texts, what each has given out, and when each ends."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.sampler import Choosing
from joymigrate.run.serve.engine.sequence import Sequence
from joymigrate.run.serve.engine.text import Detokeniser, TextStream
from joymigrate.run.serve.engine.tokens import FolderTokens, NumberTokens
from joymigrate.run.serve.engine.types import (
    EngineOutput,
    FinishReason,
    Request,
    Resume,
    Stuck,
    TokenLogprob,
    Usage,
)


@dataclass(slots=True, eq=False)
class LiveText:
    """One of a request's texts. `followers` start when its prompt is in the cache."""

    request: Request
    sequence: Sequence
    choosing: Choosing
    stream: TextStream
    ends: frozenset[int]  # tokens that end it, the model's and the request's
    followers: list[LiveText] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] | None = None
    said_cached: bool = False
    pooled: Any = None  # what is made of its states so far, for `pooling`
    vision: Any = None  # embeddings and positions of images

    def take(self, token: int, logprob: TokenLogprob | None) -> EngineOutput:
        """Append a token, and say what it makes certain."""
        sampling, sequence = self.request.sampling, self.sequence
        self.choosing.accept(token)
        sequence.ids.append(token)
        made = self.choosing.made
        reason: FinishReason | None = None
        stop: str | int | None = None
        free = made > sampling.min_tokens
        ended = free and token in self.ends
        full = len(sequence.ids) >= sequence.limit
        new = [] if ended and not sampling.include_stop else [token]
        text = self.stream.feed(new, may_stop=made >= sampling.min_tokens, last=ended or full)
        if self.stream.hit is not None:
            reason, stop = "stop", self.stream.hit
        elif ended:
            reason = "stop"
            stop = token if token in sampling.stop_token_ids else None
        elif full:
            reason = "length"
        return self.output(
            (token,),
            text,
            reason,
            stop=stop,
            logprobs=(logprob,) if logprob is not None else None,
        )

    def output(
        self,
        new: tuple[int, ...],
        text: str,
        reason: FinishReason | None,
        *,
        stop: str | int | None = None,
        logprobs: tuple[TokenLogprob, ...] | None = None,
        error: str | None = None,
    ) -> EngineOutput:
        """What a step gives to the caller."""
        sequence = self.sequence
        cached = max(0, sequence.cached)
        prompt_logprobs = None
        if self.prompt_logprobs is not None and not self.said_cached:
            prompt_logprobs = tuple(self.prompt_logprobs)
        self.said_cached = True
        usage = None
        if reason is not None:
            usage = Usage(sequence.prompt, len(sequence.ids) - sequence.prompt, cached)
        return EngineOutput(
            self.request.id,
            sequence.index,
            new,
            text,
            reason,
            stop,
            logprobs,
            prompt_logprobs,
            usage,
            cached,
            error,
        )

    def cut(self, reason: FinishReason, why: str | Stuck | None = None) -> EngineOutput:
        """The last output of a text that is ended from outside."""
        rest = self.stream.feed([], may_stop=False, last=True)
        if isinstance(why, Stuck):
            return self.output((), rest, reason, stop=f"the grammar leads nowhere: {why}")
        return self.output((), rest, reason, error=why)


def replay(texts: Many[LiveText], resumes: Many[Resume | None]) -> list[EngineOutput | None]:
    """Bring each text to where another engine's stood, None where nothing was said yet. They all
    start at once then, each behind its own tokens. Raises `JoyError`."""
    if resumes:
        texts[0].followers = []
    pairs = zip(texts, resumes, strict=False)
    return [replay_one(text, told) if told is not None else None for text, told in pairs]


def replay_one(text: LiveText, resume: Resume) -> EngineOutput:
    """Bring a text to where another engine's stood: the same tokens chosen, the same text given
    out. Returns what that engine held back, or the end where the last token was one.

    Raises `JoyError` where this engine would not have said so: going on would be another text.
    """
    text.choosing.resumed = resume.ids
    pieces: list[str] = []
    output = text.output((), "", None)
    for place, token in enumerate(resume.ids):
        if output.finish_reason is not None:
            raise differs(f"the text ends here after {place} of {len(resume.ids)} tokens")
        guide = text.choosing.guide
        if guide is not None and not allows(guide.mask(), token):
            raise differs(f"the grammar does not allow token {token} at place {place}")
        output = text.take(token, None)
        pieces.append(output.text)
    made = "".join(pieces)
    given = made if resume.text is None else resume.text
    if not made.startswith(given):
        raise differs("the tokens mean another text here than what was given out")
    return replace(output, new_ids=(), text=made[len(given) :])


def allows(words: Any, token: int) -> bool:
    """Whether a guide's mask has a token."""
    word, bit = divmod(token, 32)
    return word < len(words) and bool((int(words[word]) >> bit) & 1)


def differs(why: str) -> JoyError:
    """The refusal to go on."""
    return JoyError(f"cannot resume: {why}", where="resume")


def texts_of(
    request: Request,
    prompt: Many[int],
    tokens: FolderTokens | NumberTokens,
    ends: tuple[int, ...],
    limit: int,
    *,
    vision: Any = None,
    adapter: int = 0,
) -> list[LiveText]:
    """The `n` texts of a request; all but the first follow it."""
    sampling = request.sampling
    seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
    stops = tuple(sampling.stop_token_ids) + (() if sampling.ignore_eos else ends)
    every = sampling.prompt_logprobs is not None or request.pooling == "mean"
    made = []
    for index in range(sampling.n):
        sequence = Sequence(
            request.id,
            list(prompt),
            len(prompt),
            limit,
            index=index,
            priority=request.priority,
            adapter=adapter,
            cacheable=not (every and index == 0) and request.pooling is None,
            every=every and index == 0,
        )
        text = LiveText(
            request,
            sequence,
            Choosing(
                sampling,
                seed,
                index,
                list(prompt),
                ends=stops,
                guide=request.guide() if request.guide is not None else None,
            ),
            TextStream(
                Detokeniser(tokens, prompt, skip_special=sampling.skip_special),
                sampling.stop,
                include_stop=sampling.include_stop,
            ),
            frozenset(stops),
            prompt_logprobs=[None] if every and index == 0 else None,
            vision=vision,
        )
        sequence.state = text
        made.append(text)
    made[0].followers = made[1:]
    return made


def root_of(*parts: bytes) -> bytes:
    """The start of a hash chain that only sequences with the same `parts` share."""
    if not any(parts):
        return b""
    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        made.update(len(part).to_bytes(8, "little") + part)
    return made.digest()
