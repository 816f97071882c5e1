"""The engine without threads: requests in, one step at a time, outputs out."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.adapters import Adapters
from joymigrate.run.serve.engine.batch import Batch, arrange, make_batch
from joymigrate.run.serve.engine.blocks import BlockPool
from joymigrate.run.serve.engine.cache import Cache
from joymigrate.run.serve.engine.checking import check
from joymigrate.run.serve.engine.drafts import Drafter, Lookups
from joymigrate.run.serve.engine.findings import ForwardResult, ask_guide, read
from joymigrate.run.serve.engine.live import LiveText, replay, root_of, texts_of
from joymigrate.run.serve.engine.models.model import CausalModel
from joymigrate.run.serve.engine.recover import Recovery
from joymigrate.run.serve.engine.sampler import choose
from joymigrate.run.serve.engine.scheduler import Chunk, SequenceScheduler
from joymigrate.run.serve.engine.sequence import Sequence
from joymigrate.run.serve.engine.tokens import FolderTokens, NumberTokens
from joymigrate.run.serve.engine.types import (
    EngineOptions,
    EngineOutput,
    EngineStats,
    Request,
)

LONG = b"long"
log = logging.getLogger("joymigrate.serve.engine")
Forward = Callable[[Batch], Tensor]


class Engine:
    """One model, its blocks and its requests. Not thread-safe; see `asynchronous.py`."""

    def __init__(
        self,
        model: CausalModel,
        cache: Cache,
        tokens: FolderTokens | NumberTokens,
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
        self.scheduler = SequenceScheduler(
            self.pool,
            max_batch_tokens=options.max_batch_tokens,
            max_running=options.max_running,
            drafts=options.drafts if drafter is not None else 0,
            drafter=drafter,
        )
        self.drafts = self.drafted = self.accepted = 0
        self.forward: Forward = forward or (lambda batch: model.hidden(batch, cache))
        self.recovery = Recovery(self, free, may_retry=may_retry)
        self.texts: dict[str, list[LiveText]] = {}  # of each request, those that have not ended
        self.ready: list[EngineOutput] = []  # outputs that need no step
        self.finished: Counter[str] = Counter()
        self.steps = 0
        self.prompt_tokens = 0
        self.generated = 0
        self.step_seconds = 0.0
        self.last_step = time.monotonic()

    def renew(self, model: CausalModel) -> None:
        """Go on with other weights of the same model: what was cached with the old ones is
        forgotten. Only between requests."""
        if not self.idle:
            raise JoyError("an engine gets other weights between requests only")
        self.model = model
        self.forward = lambda batch: model.hidden(batch, self.cache)
        self.pool.clear()

    # -- requests

    def add(self, request: Request) -> None:
        """Queue a request. Raises `JoyError` when it can never run."""
        check(self, request)
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
        if limit == len(prompt) and not texts[0].sequence.every and request.pooling is None:
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

    def give_up(self, sequence: Sequence, why: str) -> list[EngineOutput]:
        """End a text that cannot be computed; its blocks are free at once."""
        text = sequence.state
        return [self.end(text, text.cut("error", why))]

    def abort(self, request_id: str) -> list[EngineOutput]:
        """End a request; its blocks are free at once. Unknown ids are ended already."""
        texts = self.texts.get(request_id, [])
        self.ready = [output for output in self.ready if output.request_id != request_id]
        return [self.end(text, text.cut("abort")) for text in list(texts)]

    def end(self, text: LiveText, output: EngineOutput) -> EngineOutput:
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

    def release(self, text: LiveText) -> None:
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
    def step(self) -> list[EngineOutput]:
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
        return read(self.model, chunks, batch, hidden)

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

    def tell(self, chunks: list[Chunk], found: ForwardResult) -> list[EngineOutput]:
        """Record that chunks were computed, and give every text what was found for it."""
        self.scheduler.advance(chunks)
        outputs = []
        for chunk, text, states in found.states:
            text.pooled = states
            if chunk.last:
                output = replace(text.cut("stop"), vector=states.tolist())
                outputs.append(self.end(text, output))
        for text, scores in found.prompts:
            assert text.prompt_logprobs is not None
            text.prompt_logprobs += scores
        outputs += [self.end(text, text.cut(reason, why)) for text, reason, why in found.ended]
        chosen = found.chosen
        for i, (text, token) in enumerate(zip(found.sampled, chosen.ids, strict=True)):
            if i in chosen.broken:
                outputs.append(self.end(text, text.cut("error", chosen.broken[i])))
                continue
            outputs.append(self.grow(text, token, chosen.logprobs.get(i)))
        return outputs + self.follow(found)

    def follow(self, found: ForwardResult) -> list[EngineOutput]:
        """Go on through the drafts while each text says what its draft says.

        A token is chosen from the scores behind the true text alone, so drafts change none.
        """
        outputs: list[EngineOutput] = []
        self.drafts += len(found.drafts)
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

    def says(self, text: LiveText, token: int) -> bool:
        """Whether a text that goes on has just said a token."""
        return text.sequence in self.scheduler.running and text.sequence.ids[-1] == token

    def grow(self, text: LiveText, token: int, logprob: Any) -> EngineOutput:
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
            drafts=self.drafts,
        )


def may_draft(model: CausalModel) -> bool:
    """Whether tokens can be tried behind a text: not where positions depend on its length, or on
    images, nor where a layer's state cannot be taken back."""
    return model.changing_base is None and not hasattr(model, "look") and not model.stateful
