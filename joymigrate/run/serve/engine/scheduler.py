"""What runs in the next step: one budget of tokens, running sequences first, prompts in chunks.

Pure: no clock, no tensor, no thread. `plan` decides, the caller computes, `advance` records. When
blocks run out, the youngest running sequence gives its blocks back and starts over later; with the
prefix cache it finds most of them again.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from joymigrate.run.serve.engine.blocks import BlockPool
from joymigrate.run.serve.engine.drafts import Drafter
from joymigrate.run.serve.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens `start … start+count` of a sequence; `last` when a token follows from it. `drafts`
    are tokens that may follow, computed with it."""

    sequence: Sequence
    start: int
    count: int
    drafts: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """Tokens that are computed."""
        return self.count + len(self.drafts)

    @property
    def last(self) -> bool:
        """Whether the chunk reaches the newest token, so that the next one can be sampled."""
        return self.start + self.count == len(self.sequence.ids)


@dataclass(slots=True, eq=False)
class SequenceScheduler:
    """Sequences that wait and run, over one pool of blocks.

    A sequence must fit into the pool alone: the caller keeps `limit` within
    `pool.count * pool.size`. `drafts`: tokens that a step may try behind a text, where there is
    room; `drafter` says which.
    """

    pool: BlockPool
    max_batch_tokens: int
    max_running: int
    drafts: int = 0
    drafter: Drafter | None = None
    waiting: list[tuple[tuple[int, int], Sequence]] = field(default_factory=list)  # a heap
    running: dict[Sequence, None] = field(default_factory=dict)  # in the order of their start
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self.running and not self.waiting

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises ValueError when it can never fit."""
        if self.pool.needed(sequence.limit) > self.pool.count:
            raise ValueError(f"{sequence.limit} tokens need more than {self.pool.count} blocks")
        heapq.heappush(self.waiting, (sequence.order, sequence))

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, finished or aborted; its blocks are free at once."""
        if sequence in self.running:
            del self.running[sequence]
        else:
            self.waiting = [entry for entry in self.waiting if entry[1] is not sequence]
            heapq.heapify(self.waiting)
        self.give_back(sequence)

    def plan(self) -> list[Chunk]:
        """The next step's chunks: single tokens of running sequences, then prompts.

        Holds the blocks that the chunks need. Empty only when idle.
        """
        chunks: dict[Sequence, Chunk] = {}
        budget = self.max_batch_tokens
        decodes = [sequence for sequence in self.running if sequence.decoding]
        prompts = [sequence for sequence in self.running if not sequence.decoding]
        preempted = self.preemptions
        for sequence in sorted(decodes, key=lambda s: s.order) + sorted(
            prompts, key=lambda s: s.order
        ):
            if budget == 0:
                break
            if sequence not in self.running:  # gave its blocks to an older one
                continue
            count = min(self.piece(sequence), budget)
            if not self.make_room(sequence, sequence.computed + count, chunks):
                continue
            chunks[sequence] = Chunk(sequence, sequence.computed, count)
            budget = self.max_batch_tokens - sum(chunk.count for chunk in chunks.values())
        if self.preemptions == preempted:  # else who was just sent back would push out another
            self.admit(chunks, budget)
        if self.drafter is not None:
            self.add_drafts(chunks, self.drafter)
        return list(chunks.values())

    def add_drafts(self, chunks: dict[Sequence, Chunk], drafter: Drafter) -> None:
        """Let decodes try what may follow, with tokens and blocks that nobody else needs now."""
        drafter.keep(list(self.running))
        budget = self.max_batch_tokens - sum(chunk.count for chunk in chunks.values())
        free = self.pool.available
        wanted: list[tuple[Sequence, int]] = []
        for sequence, chunk in chunks.items():
            if not sequence.decoding or not chunk.last:
                continue
            length, held = len(sequence.ids), len(sequence.blocks)
            room = (held + free) * self.pool.size - length
            most = min(self.drafts, budget, room, sequence.limit - length - 1)
            if most > 0:
                wanted.append((sequence, most))
                budget -= most
                free -= max(0, self.pool.needed(length + most) - held)
        for (sequence, _), found in zip(wanted, drafter.draft(wanted), strict=True):
            if found:
                chunk = chunks[sequence]
                self.extend(sequence, len(sequence.ids) + len(found))
                chunks[sequence] = Chunk(sequence, chunk.start, chunk.count, found)

    def admit(self, chunks: dict[Sequence, Chunk], budget: int) -> None:
        """Start waiting sequences while there are tokens, places and blocks for their prompts."""
        while budget > 0 and self.waiting and len(self.running) < self.max_running:
            sequence = self.waiting[0][1]
            found = self.lookup(sequence)
            held = sum(1 for block in found if not self.pool.references[block])
            wanted = self.pool.needed(len(sequence.ids)) - len(found)
            if wanted > self.pool.available - held:
                return
            heapq.heappop(self.waiting)
            self.start(sequence, found)
            count = min(self.piece(sequence), budget)
            self.extend(sequence, sequence.computed + count)
            chunks[sequence] = Chunk(sequence, sequence.computed, count)
            budget -= count

    def piece(self, sequence: Sequence) -> int:
        """Tokens of a sequence that may be computed at once: with states up to its last full
        block, so that those behind it can be kept."""
        left = len(sequence.ids) - sequence.computed
        if not self.pool.most_states or not self.pool.prefix_cache:
            return left
        whole = (len(sequence.ids) - 1) // self.pool.size * self.pool.size
        return whole - sequence.computed if whole > sequence.computed else left

    def lookup(self, sequence: Sequence) -> list[int]:
        """Cached blocks of the beginning; at least one token is left to compute."""
        if not (self.pool.prefix_cache and sequence.cacheable):
            return []
        return self.pool.find(sequence.digests_of(self.pool.size, len(sequence.ids) - 1))

    def start(self, sequence: Sequence, found: list[int]) -> None:
        """Make a sequence a running one, with the blocks found in the prefix cache."""
        self.pool.hold(found)
        sequence.blocks = list(found)
        sequence.computed = len(found) * self.pool.size
        if found and self.pool.most_states is not None:
            sequence.kept = {sequence.computed: self.pool.states_behind(found[-1])}
        if sequence.cached < 0:
            sequence.cached = min(sequence.computed, sequence.prompt)
            self.prefix_queries += sequence.prompt
            self.prefix_hits += sequence.cached
        self.running[sequence] = None

    def make_room(self, sequence: Sequence, tokens: int, chunks: dict[Sequence, Chunk]) -> bool:
        """Hold blocks for `tokens`, from younger sequences if need be; False: it gave up itself."""
        missing = self.pool.needed(tokens) - len(sequence.blocks)
        while missing > self.pool.available:
            victim = max(self.running, key=lambda s: s.order)
            chunks.pop(victim, None)
            self.preempt(victim)
            if victim is sequence:
                return False
        self.extend(sequence, tokens)
        return True

    def extend(self, sequence: Sequence, tokens: int) -> None:
        """Hold blocks until `tokens` fit."""
        while len(sequence.blocks) * self.pool.size < tokens:
            sequence.blocks.append(self.pool.allocate())

    def preempt(self, sequence: Sequence) -> None:
        """Send a running sequence back to wait; it will compute its tokens again."""
        del self.running[sequence]
        self.give_back(sequence)
        self.preemptions += 1
        heapq.heappush(self.waiting, (sequence.order, sequence))

    def restart(self, sequence: Sequence, root: bytes) -> None:
        """Compute a running sequence anew: what it has was computed as something else."""
        self.give_back(sequence)
        sequence.root = root
        sequence.digests = []

    def give_back(self, sequence: Sequence) -> None:
        """Release the blocks of a sequence."""
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.kept = {}
        sequence.computed = 0

    def advance(self, chunks: list[Chunk]) -> None:
        """Record that the chunks were computed: their full blocks can be found from now on."""
        for chunk in chunks:
            self.reach(chunk.sequence, chunk.start + chunk.count)

    def reach(self, sequence: Sequence, computed: int) -> None:
        """Record that a sequence is computed so far."""
        before = sequence.computed // self.pool.size
        sequence.computed = computed
        digests = sequence.digests_of(self.pool.size, computed)
        for number in range(before, len(digests)):
            self.pool.seal(sequence.blocks[number], digests[number])
        if digests and len(digests) * self.pool.size == computed and computed in sequence.kept:
            self.pool.keep_states(digests[-1], sequence.kept[computed])
