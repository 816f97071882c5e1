"""Drafts by a smaller model of the same vocabulary (Leviathan et al., Fast Inference from
Transformers via Speculative Decoding, 2023).

The large model checks a whole draft in one step, as it does with those of `drafts.py`: every token
is the one that the sampler chooses from the large model's scores behind the true text, so that the
small model changes when tokens come, and never which. The small one proposes its likeliest tokens.
It has a cache of its own, and reads again what the large one did not take.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Many

import torch

from joymigrate.run.serve.engine.batch import arrange, make_batch
from joymigrate.run.serve.engine.blocks import BlockPool
from joymigrate.run.serve.engine.cache import Cache
from joymigrate.run.serve.engine.models.model import CausalModel
from joymigrate.run.serve.engine.scheduler import Chunk
from joymigrate.run.serve.engine.sequence import Sequence

log = logging.getLogger("joymigrate.serve")


class DraftModel:
    """Proposes tokens for texts; keeps what it has read of each of them.

    `most_tokens` is how many it reads in one pass, `vocabulary` how many ids the large model has.
    """

    def __init__(self, model: CausalModel, cache: Cache, most_tokens: int, vocabulary: int) -> None:
        self.model, self.cache = model, cache
        self.most_tokens = most_tokens
        self.vocabulary = vocabulary
        self.pool = BlockPool(cache.blocks, cache.size, prefix_cache=False)
        self.copies: dict[Sequence, Sequence] = {}
        self.failures = 0

    def keep(self, running: Many[Sequence]) -> None:
        """Forget the texts that run no more."""
        for gone in self.copies.keys() - set(running):
            self.pool.release(self.copies.pop(gone).blocks)

    def draft(self, wanted: Many[tuple[Sequence, int]]) -> list[tuple[int, ...]]:
        """What may follow each text, at most so many tokens; nothing where the model fails."""
        try:
            with torch.inference_mode():
                return self.propose(wanted)
        except Exception:  # whatever it was: the texts do without
            if not self.failures:
                log.warning("the draft model failed; texts go on without drafts", exc_info=True)
            self.failures += 1
            self.keep([])
            return [() for _ in wanted]

    def propose(self, wanted: Many[tuple[Sequence, int]]) -> list[tuple[int, ...]]:
        """All texts together: first what is new in them, then a token each a pass."""
        copies = [self.copy_of(text, most) for text, most in wanted]
        going = [(copy, most) for copy, (_, most) in zip(copies, wanted, strict=True) if copy]
        lengths = {copy: len(copy.ids) for copy, _ in going}
        for copy, _ in going:  # its newest token stays for the first proposal
            while len(copy.ids) - copy.computed > self.most_tokens:
                self.read([Chunk(copy, copy.computed, self.most_tokens)])
        while going:
            for part in self.parts([copy for copy, _ in going]):
                for copy, token in zip(part, self.next_of(part), strict=True):
                    copy.ids.append(token)
            going = [
                (copy, most)
                for copy, most in going
                if len(copy.ids) - lengths[copy] < most and copy.ids[-1] < self.vocabulary
            ]
        return [self.said(copy, lengths) for copy in copies]

    def said(self, copy: Sequence | None, lengths: dict[Sequence, int]) -> tuple[int, ...]:
        """What was proposed behind a text, up to an id that the large model does not have."""
        if copy is None:
            return ()
        found = copy.ids[lengths[copy] :]
        return tuple(found if found[-1] < self.vocabulary else found[:-1])

    def copy_of(self, text: Sequence, most: int) -> Sequence | None:
        """Our own text with the same tokens, and blocks for `most` more; None without room."""
        longest = len(text.ids) + most
        copy = self.copies.get(text)
        if most < 1 or longest > self.model.positions:
            return None
        if copy is None:
            copy = self.copies[text] = Sequence("", [], 0, text.limit)
        same = 0
        for ours, theirs in zip(copy.ids[: copy.computed], text.ids, strict=False):
            if ours != theirs:
                break
            same += 1
        if max(text.ids[same:], default=0) >= self.model.vocabulary:
            return None
        copy.ids = list(text.ids)
        copy.prompt, copy.computed = text.prompt, min(same, len(text.ids) - 1)
        missing = self.pool.needed(longest) - len(copy.blocks)
        if missing > self.pool.available:
            self.pool.release(self.copies.pop(text).blocks)
            return None
        copy.blocks += [self.pool.allocate() for _ in range(missing)]
        return copy

    def parts(self, copies: list[Sequence]) -> list[list[Sequence]]:
        """Texts that fit into one pass together."""
        made: list[list[Sequence]] = []
        room = 0
        for copy in copies:
            width = len(copy.ids) - copy.computed
            if width > room:
                made.append([])
                room = self.most_tokens
            made[-1].append(copy)
            room -= width
        return made

    def next_of(self, copies: list[Sequence]) -> list[int]:
        """The likeliest next token of each text."""
        chunks = [Chunk(c, c.computed, len(c.ids) - c.computed) for c in copies]
        states = self.read(chunks)
        likeliest: list[int] = self.model.logits(states).argmax(-1).tolist()
        ordered = {chunk.sequence: token
                   for chunk, token in zip(arrange(chunks), likeliest, strict=True)}  # fmt: skip
        return [ordered[copy] for copy in copies]

    def read(self, chunks: list[Chunk]) -> torch.Tensor:
        """The states behind the chunks that are their texts' last, in the order of `arrange`."""
        batch = make_batch(arrange(chunks), self.pool.size, self.model.device)
        states = self.model.hidden(batch, self.cache)
        for chunk in chunks:
            chunk.sequence.computed = chunk.start + chunk.count
        return states
