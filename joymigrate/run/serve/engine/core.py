"""The engine without threads: requests in, one step at a time, outputs out."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.adapters import Adapters
from joymigrate.run.serve.engine.batch import Batch, arrange, make_batch
from joymigrate.run.serve.engine.blocks import BlockPool
from joymigrate.run.serve.engine.cache import Cache
from joymigrate.run.serve.engine.drafts import Drafter, Lookups
from joymigrate.run.serve.engine.live import Text, replay, root_of, texts_of
from joymigrate.run.serve.engine.models.model import Model
from joymigrate.run.serve.engine.recover import Recovery
from joymigrate.run.serve.engine.sampler import Chosen, choose, logprobs
from joymigrate.run.serve.engine.scheduler import Chunk, Scheduler
from joymigrate.run.serve.engine.sequence import Sequence
from joymigrate.run.serve.engine.tokens import Numbers, Tokens
from joymigrate.run.serve.engine.types import (
    EngineOptions,
    EngineStats,
    FinishReason,
    Output,
    Request,
    Resume,
    TokenLogprob,
)

LONG = b"long"
log = logging.getLogger("joymigrate.serve.engine")
Forward = Callable[[Batch], Tensor]


@dataclass(slots=True, eq=False)
class Embedding:
    """A text whose states are wanted instead of a continuation."""

    done: Callable[[Tensor], None]
    failed: Callable[[str], None]
    mean: bool
    total: Tensor | None = None


@dataclass(slots=True)
class ForwardResult:
    """What a forward pass says about each of its texts, before any of them is told. `drafts` are
    (place in `sampled`, tokens that were tried, the scores behind each [K, V])."""

    states: list[tuple[Chunk, Embedding, Tensor]] = field(default_factory=list)
    prompts: list[tuple[Text, list[TokenLogprob]]] = field(default_factory=list)
    ended: list[tuple[Text, FinishReason, str | None]] = field(default_factory=list)
    sampled: list[Text] = field(default_factory=list)
    chosen: Chosen = field(default_factory=lambda: Chosen([]))
    drafts: list[tuple[int, tuple[int, ...], Tensor]] = field(default_factory=list)


class Engine:
    """One model, its blocks and its requests. Not thread-safe; see `asynchronous.py`."""

    def __init__(
        self,
        model: Model,
        cache: Cache,
        tokens: Tokens | Numbers,
        ends: tuple[int, ...],
        options: EngineOptions,
        max_model_len: int,
        forward: Forward | None = None,
        *,
        adapters: Adapters | None = None,
        free: Callable[[], None] = lambda: None,
        may_retry: bool = True,
        drafter: Drafter | None = None,
    ) -> None:
        """`free` gives back memory that the allocator holds and does not use; `may_retry` says
        whether a step that failed can be computed again; `drafter` proposes tokens (none:
        prompt lookup, where `options` ask for it)."""
        self.model = model
        self.cache = cache
        self.tokens = tokens
        self.ends = ends
        self.options = options
        self.max_model_len = max_model_len
        self.adapters = adapters or Adapters()
        self.pool = BlockPool(
            cache.blocks,
            cache.size,
            prefix_cache=options.prefix_cache,
            states=options.max_running if model.stateful else None,
        )
        if drafter is None and options.prompt_lookup and may_draft(model):
            drafter = Lookups()
        self.scheduler = Scheduler(
            self.pool,
            max_batch_tokens=options.max_batch_tokens,
            max_running=options.max_running,
            drafts=options.drafts if drafter is not None else 0,
            drafter=drafter,
        )
        self.drafted = self.accepted = 0
        self.forward: Forward = forward or (lambda batch: model.hidden(batch, cache))
        self.recovery = Recovery(self, free, may_retry=may_retry)
        self.texts: dict[str, list[Text]] = {}  # of each request, those that have not ended
        self.ready: list[Output] = []  # outputs that need no step
        self.finished: Counter[str] = Counter()
        self.steps = 0
        self.prompt_tokens = 0
        self.generated = 0
        self.step_seconds = 0.0
        self.last_step = time.monotonic()

    # -- requests

    def check(self, request: Request) -> None:
        """Raise `JoyError` for a request that can never run here."""
        count = len(request.prompt)
        if not count:
            raise JoyError("the prompt is empty: it has no token", where="prompt")
        outside = next((t for t in request.prompt if not 0 <= t < self.model.vocabulary), None)
        if outside is not None:
            raise JoyError(
                f"token {outside} is outside the vocabulary of {self.model.vocabulary}",
                where="prompt",
            )
        if count + (1 if request.sampling.max_tokens != 0 else 0) > self.max_model_len:
            raise JoyError(
                f"the prompt has {count} tokens, the model takes {self.max_model_len} with the "
                "output",
                where="prompt",
                help="--max-model-len, more memory for keys and values, or a shorter prompt",
            )
        if getattr(self.model, "scores", False):
            raise JoyError("this model scores texts, it makes none", where="model")
        if request.images and not hasattr(self.model, "look"):
            raise JoyError(f"{self.model.family} does not read images", where="images")
        self.adapters.number(request.adapter)
        if request.id in self.texts:
            raise JoyError(f"the request id '{request.id}' is in use", where="id")
        if request.resume and len(request.resume) != request.sampling.n:
            raise JoyError(
                f"{len(request.resume)} texts are resumed where {request.sampling.n} are asked for",
                where="resume",
            )
        for resume in request.resume:
            if resume is not None:
                self.check_resume(request, resume)
        for token in (*request.sampling.logit_bias, *request.sampling.stop_token_ids):
            if not 0 <= token < self.model.vocabulary:
                raise JoyError(
                    f"token {token} is outside the vocabulary of {self.model.vocabulary}",
                    where="logit_bias",
                )
        if len(self.scheduler.waiting) >= self.options.max_waiting:
            raise JoyError(f"{self.options.max_waiting} requests wait already", where="queue")

    def check_resume(self, request: Request, resume: Resume) -> None:
        """Raise `JoyError` for tokens that no engine has made for this request."""
        outside = next((t for t in resume.ids if not 0 <= t < self.model.vocabulary), None)
        if outside is not None:
            raise JoyError(
                f"token {outside} is outside the vocabulary of {self.model.vocabulary}",
                where="resume",
            )
        most = request.sampling.max_tokens
        if most is not None and len(resume.ids) > most:
            raise JoyError("a text of at most max_tokens is resumed", where="resume")
        if len(request.prompt) + len(resume.ids) > self.max_model_len:
            raise JoyError(
                f"{len(request.prompt)} tokens of the prompt and {len(resume.ids)} of the output "
                f"are more than the model's {self.max_model_len}",
                where="resume",
            )

    def add(self, request: Request) -> None:
        """Queue a request. Raises `JoyError` when it can never run."""
        self.check(request)
        prompt, vision, seen = list(request.prompt), None, b""
        if request.images:
            prompt, vision, seen = self.model.look(prompt, request.images)  # type: ignore[attr-defined]
            if len(prompt) >= self.max_model_len:
                raise JoyError(
                    f"the prompt has {len(prompt)} tokens with its images, the model takes "
                    f"{self.max_model_len}",
                    where="images",
                )
        wanted = request.sampling.max_tokens
        room = self.max_model_len - len(prompt)
        limit = len(prompt) + (room if wanted is None else min(wanted, room))
        adapter = self.adapters.number(request.adapter)
        texts = texts_of(
            request,
            prompt,
            self.tokens,
            self.ends,
            limit,
            vision=vision,
            adapter=adapter,
        )
        replayed = replay(texts, request.resume)
        for text in texts:
            long = self.rotation(len(prompt), limit, text.choosing.made)
            text.sequence.root = root_of(seen, long, self.adapters.root(adapter))
        self.texts[request.id] = list(texts)
        self.prompt_tokens += len(prompt)
        if limit == len(prompt) and not texts[0].sequence.every:
            for text in texts:
                self.ready.append(self.end(text, text.cut("length")))
            return
        for text, output in zip(texts, replayed, strict=False):
            if output is not None:
                over = output.finish_reason is not None
                self.ready.append(self.end(text, output) if over else output)
        for text in [text for text in texts if text not in texts[0].followers]:
            if text in self.texts.get(request.id, []):
                self.scheduler.add(text.sequence)

    def rotation(self, prompt: int, limit: int, made: int = 0) -> bytes:
        """What tells texts apart whose rotary embeddings depend on their lengths; empty for the
        usual ones, and for texts that stay short."""
        base = self.model.changing_base
        if base is None or limit <= base:
            return b""
        if self.model.starts_over:
            return LONG if prompt + made > base else b""
        return str(prompt).encode()

    def embed(
        self,
        ids: list[int],
        done: Callable[[Tensor], None],
        failed: Callable[[str], None],
        *,
        mean: bool,
        adapter: str | None = None,
    ) -> Sequence:
        """Queue a text whose last state, or mean of states, goes to `done`, float32 [hidden].

        `failed` is told why there is none. `drop` ends it earlier.
        """
        if not 0 < len(ids) <= self.max_model_len:
            raise JoyError(f"a text has 1 to {self.max_model_len} tokens, not {len(ids)}")
        number = self.adapters.number(adapter)
        sequence = Sequence("", list(ids), len(ids), len(ids), adapter=number, cacheable=False)
        sequence.root, sequence.every = root_of(self.adapters.root(number)), mean
        sequence.state = Embedding(done, failed, mean)
        self.scheduler.add(sequence)
        return sequence

    def drop(self, sequence: Sequence) -> None:
        """End a text to embed; one that ended already is left alone."""
        if isinstance(sequence.state, Embedding):
            sequence.state = None
            self.scheduler.remove(sequence)

    def give_up(self, sequence: Sequence, why: str) -> list[Output]:
        """End a text that cannot be computed; its blocks are free at once."""
        state = sequence.state
        if isinstance(state, Embedding):
            self.drop(sequence)
            state.failed(why)
            return []
        return [self.end(state, state.cut("error", why))]

    def abort(self, request_id: str) -> list[Output]:
        """End a request; its blocks are free at once. Unknown ids are ended already."""
        texts = self.texts.get(request_id, [])
        self.ready = [output for output in self.ready if output.request_id != request_id]
        return [self.end(text, text.cut("abort")) for text in list(texts)]

    def end(self, text: Text, output: Output) -> Output:
        """Forget a text; who followed it may start."""
        if text.sequence in self.scheduler.running or text.sequence.state is text:
            self.scheduler.remove(text.sequence)
        self.release(text)
        left = self.texts.get(text.request.id, [])
        if text in left:
            left.remove(text)
        if not left:
            self.texts.pop(text.request.id, None)
        self.finished[output.finish_reason or "stop"] += 1
        return output

    def release(self, text: Text) -> None:
        """Let the texts that waited for this one's prompt start."""
        for follower in text.followers:
            if follower in self.texts.get(text.request.id, []):
                self.scheduler.add(follower.sequence)
        text.followers = []

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return self.scheduler.idle and not self.ready

    # -- a step

    @torch.inference_mode()
    def step(self) -> list[Output]:
        """Compute the next step; returns what it added to each text."""
        outputs, self.ready = self.ready, []
        chunks = arrange(self.scheduler.plan())
        if not chunks:
            return outputs
        began = time.perf_counter()
        outputs += self.recovery.run(chunks)
        self.steps += 1
        self.step_seconds = time.perf_counter() - began
        self.last_step = time.monotonic()
        return outputs

    def compute(self, chunks: list[Chunk]) -> ForwardResult:
        """Everything of a step that can fail: until it is done no text has changed."""
        batch = self.batch_of(chunks)
        hidden = self.forward(batch)
        return self.read(chunks, batch, hidden)

    def compute_spare(self, count: int) -> None:
        """A forward pass over `count` made-up tokens, at most a block; its result is dropped."""
        sequence = Sequence("", [0] * count, count, count)
        sequence.blocks = [self.cache.blocks]  # the block that no text ever gets
        hidden = self.forward(self.batch_of([Chunk(sequence, 0, count)]))
        self.model.logits(hidden).argmax(-1).tolist()  # waits for the device

    def batch_of(self, chunks: list[Chunk]) -> Batch:
        """The tensors of a step, with the embeddings and positions of images."""
        batch = make_batch(
            chunks,
            self.pool.size,
            self.model.device,
            spans=self.model.changing_base is not None,
            whole=self.model.starts_over,
        )
        visions = [getattr(chunk.sequence.state, "vision", None) for chunk in chunks]
        if any(visions) or hasattr(self.model, "look"):
            self.model.place(batch, chunks, visions)  # type: ignore[attr-defined]
        return batch

    def read(self, chunks: list[Chunk], batch: Batch, hidden: Tensor) -> ForwardResult:
        """Sample for the chunks that reach their newest token; take the others' states."""
        found = ForwardResult()
        rows: list[int] = []
        behind: list[int] = []
        tried: list[tuple[int, Chunk]] = []
        for chunk, (first, last) in zip(chunks, batch.ranges, strict=True):
            state = chunk.sequence.state
            if isinstance(state, Embedding):
                found.states.append((chunk, state, pooled(chunk, state, hidden[first:last])))
                continue
            if chunk.sequence.every and chunk.start < chunk.sequence.prompt:
                found.prompts.append((state, self.score_prompt(chunk, state, hidden[first:last])))
            if not chunk.last:
                continue
            if len(chunk.sequence.ids) >= chunk.sequence.limit:  # only the prompt was wanted
                found.ended.append((state, "length", None))
                continue
            refusal = ask_guide(state)
            if refusal is not None:
                found.ended.append((state, "error", refusal))
                continue
            if chunk.drafts:
                tried.append((len(rows), chunk))
                behind += range(last - len(chunk.drafts), last)
            found.sampled.append(state)
            rows.append(last - 1 - len(chunk.drafts))
        if found.sampled:
            wanted = rows + behind
            whole = wanted == list(range(hidden.shape[0]))
            logits = self.model.logits(hidden if whole else hidden[wanted])
            found.chosen = choose(logits[: len(rows)], [text.choosing for text in found.sampled])
            scores = torch.split(logits[len(rows) :], [len(chunk.drafts) for _, chunk in tried])
            found.drafts = [
                (place, chunk.drafts, part)
                for (place, chunk), part in zip(tried, scores, strict=True)
            ]
        return found

    def tell(self, chunks: list[Chunk], found: ForwardResult) -> list[Output]:
        """Record that chunks were computed, and give every text what was found for it."""
        self.scheduler.advance(chunks)
        for chunk, wish, states in found.states:
            wish.total = states
            if chunk.last:
                self.drop(chunk.sequence)
                wish.done(states)
        for text, scores in found.prompts:
            assert text.prompt_logprobs is not None
            text.prompt_logprobs += scores
        outputs = [self.end(text, text.cut(reason, why)) for text, reason, why in found.ended]
        chosen = found.chosen
        for i, (text, token) in enumerate(zip(found.sampled, chosen.ids, strict=True)):
            if i in chosen.broken:
                outputs.append(self.end(text, text.cut("error", chosen.broken[i])))
                continue
            outputs.append(self.grow(text, token, chosen.logprobs.get(i)))
        return outputs + self.follow(found)

    def follow(self, found: ForwardResult) -> list[Output]:
        """Go on through the drafts while each text says what its draft says.

        A token is chosen from the scores behind the true text alone, so drafts change none.
        """
        outputs: list[Output] = []
        self.drafted += sum(len(drafts) for _, drafts, _ in found.drafts)
        going = [
            (found.sampled[i], drafts, scores)
            for i, drafts, scores in found.drafts
            if i not in found.chosen.broken and self.says(found.sampled[i], drafts[0])
        ]
        depth = 0
        while going:
            refused = {i: why for i, row in enumerate(going) if (why := ask_guide(row[0]))}
            for i, why in refused.items():
                outputs.append(self.end(going[i][0], going[i][0].cut("error", why)))
            going = [row for i, row in enumerate(going) if i not in refused]
            if not going:
                break
            try:
                scores = torch.stack([scores[depth] for _, _, scores in going])
                chosen = choose(scores, [text.choosing for text, _, _ in going])
            except Exception:  # nothing has changed: the next step computes these tokens anew
                log.warning("drafts are left: their scores cannot be read", exc_info=True)
                break
            depth += 1
            left = []
            for i, ((text, drafts, scores), token) in enumerate(
                zip(going, chosen.ids, strict=True)
            ):
                if i in chosen.broken:
                    outputs.append(self.end(text, text.cut("error", chosen.broken[i])))
                    continue
                self.accepted += 1
                self.scheduler.reach(text.sequence, text.sequence.computed + 1)
                outputs.append(self.grow(text, token, chosen.logprobs.get(i)))
                if depth < len(drafts) and self.says(text, drafts[depth]):
                    left.append((text, drafts, scores))
            going = left
        return outputs

    def says(self, text: Text, token: int) -> bool:
        """Whether a text that goes on has just said a token."""
        return text.sequence in self.scheduler.running and text.sequence.ids[-1] == token

    def grow(self, text: Text, token: int, logprob: Any) -> Output:
        """Append a token to a text; one that fails at it ends, and the others go on."""
        self.generated += 1
        text.sequence.every = False  # the prompt's states were handed out
        try:
            output = text.take(token, logprob)
        except Exception as error:
            log.warning("a token cannot be appended", exc_info=True)
            why = f"a token cannot be appended: {type(error).__name__}: {error}"
            output = text.output((), "", "error", error=why)
        if output.finish_reason is not None:
            return self.end(text, output)
        if self.model.starts_over and len(text.sequence.ids) - 1 == self.model.changing_base:
            adapter = self.adapters.root(text.sequence.adapter)
            self.scheduler.restart(text.sequence, root_of(b"", LONG, adapter))
        if text.followers:
            self.release(text)
        return output

    def score_prompt(self, chunk: Chunk, text: Text, hidden: Tensor) -> list[TokenLogprob]:
        """Log-probabilities of the prompt's tokens that follow those of a chunk, but for those
        that are known already."""
        assert text.prompt_logprobs is not None
        done = len(text.prompt_logprobs) - 1  # after a preemption some are known already
        ids = text.sequence.ids[chunk.start + 1 : min(chunk.start + chunk.count + 1,
                                                      text.sequence.prompt)]  # fmt: skip
        skip = max(0, done - chunk.start)
        wanted = ids[skip:]
        if not wanted:
            return []
        scores = self.model.logits(hidden[skip : skip + len(wanted)])
        most = text.request.sampling.prompt_logprobs or 0
        return logprobs(scores, wanted, [most] * len(wanted))

    # -- numbers

    def stats(self) -> EngineStats:
        """Counters and gauges of now."""
        scheduler, pool = self.scheduler, self.pool
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            blocks_total=pool.count,
            blocks_used=pool.used,
            blocks_cached=pool.cached,
            steps=self.steps,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated,
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
            preemptions=scheduler.preemptions,
            finished=dict(self.finished),
            step_seconds=self.step_seconds,
            last_step=self.last_step,
            failures=self.recovery.failures,
            drafted=self.drafted,
            accepted=self.accepted,
        )


def may_draft(model: Model) -> bool:
    """Whether tokens can be tried behind a text: not where positions depend on its length, or on
    images, nor where a layer's state cannot be taken back."""
    return model.changing_base is None and not hasattr(model, "look") and not model.stateful


def pooled(chunk: Chunk, wish: Embedding, hidden: Tensor) -> Tensor:
    """The states of a text to embed so far, or at its end what is made of them, on the CPU."""
    if not wish.mean:
        return hidden[-1].float().cpu() if chunk.last else hidden.new_empty(0)
    total = hidden.float().sum(0).cpu()
    if chunk.start and wish.total is not None:  # None again where it started over
        total = total + wish.total
    return total / len(chunk.sequence.ids) if chunk.last else total


def ask_guide(text: Text) -> str | None:
    """Get what a text's guide allows next. Why the text cannot go on, where the guide fails: that
    is no reason to end the others."""
    guide = text.choosing.guide
    if guide is None:
        return None
    try:
        text.choosing.allowed = guide.mask()
    except Exception as error:
        return f"the grammar cannot be followed: {error}"
    return None
