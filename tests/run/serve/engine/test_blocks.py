"""Blocks and scheduler under any order of operations: nothing leaks, nothing is shared wrongly."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from joymigrate.run.serve.engine.blocks import BlockPool, chain
from joymigrate.run.serve.engine.scheduler import SequenceScheduler
from joymigrate.run.serve.engine.sequence import Sequence

SIZE, BLOCKS, BUDGET, PLACES = 4, 12, 10, 5


class Machine(RuleBasedStateMachine):
    """Requests come, steps run, texts end or are aborted. Beside every block stands what a real
    cache would hold there: the tokens that were computed into it."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS, SIZE)
        self.scheduler = SequenceScheduler(self.pool, max_batch_tokens=BUDGET, max_running=PLACES)
        self.written: list[list[tuple[int, ...] | None]] = [[None] * SIZE for _ in range(BLOCKS)]
        self.alive: list[Sequence] = []

    @rule(
        prefix=st.integers(0, 3),
        length=st.integers(1, 30),
        more=st.integers(1, 12),
        priority=st.integers(0, 2),
        cacheable=st.booleans(),
    )
    def add(self, prefix: int, length: int, more: int, priority: int, cacheable: bool) -> None:
        ids = [prefix] * length if prefix else list(range(10, 10 + length))
        limit = min(length + more, BLOCKS * SIZE)
        sequence = Sequence("", ids, length, limit, priority=priority, cacheable=cacheable)
        self.scheduler.add(sequence)
        self.alive.append(sequence)

    @precondition(lambda self: self.alive)
    @rule(token=st.integers(0, 3))
    def step(self, token: int) -> None:
        chunks = self.scheduler.plan()
        assert chunks, "something is alive, but nothing runs"
        assert sum(chunk.count for chunk in chunks) <= BUDGET
        assert len(self.scheduler.running) <= PLACES
        for chunk in chunks:
            sequence = chunk.sequence
            assert chunk.count >= 1
            assert chunk.start == sequence.computed
            assert sequence in self.scheduler.running
            for place in range(chunk.start, chunk.start + chunk.count):
                block = sequence.blocks[place // SIZE]
                self.written[block][place % SIZE] = tuple(sequence.ids[: place + 1])
        # An old token's keys may only be read where they were written for the same beginning.
        for chunk in chunks:
            for place in range(chunk.start + chunk.count):
                block = chunk.sequence.blocks[place // SIZE]
                want = tuple(chunk.sequence.ids[: place + 1])
                assert self.written[block][place % SIZE] == want
        self.scheduler.advance(chunks)
        for chunk in chunks:
            sequence = chunk.sequence
            if sequence.computed == len(sequence.ids):
                sequence.ids.append(token)
                if len(sequence.ids) >= sequence.limit:
                    self.end(sequence)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(self.alive)))

    def end(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        self.alive.remove(sequence)

    @invariant()
    def every_block_is_free_or_held(self) -> None:
        held = [0] * BLOCKS
        for sequence in self.alive:
            for block in sequence.blocks:
                held[block] += 1
        assert held == self.pool.references
        assert set(self.pool.free) == {b for b in range(BLOCKS) if not held[b]}
        assert self.pool.cached == sum(not held[b] for b in self.pool.by_digest.values())

    @invariant()
    def what_is_found_is_what_was_written(self) -> None:
        for digest, block in self.pool.by_digest.items():
            assert self.pool.digest[block] == digest
            content = self.written[block]
            last = content[-1]
            assert last is not None
            parent = b""
            for start in range(0, len(last), SIZE):
                parent = chain(parent, last[start : start + SIZE])
            assert parent == digest

    def teardown(self) -> None:
        for sequence in list(self.alive):
            self.end(sequence)
        assert self.pool.used == 0
        assert self.scheduler.idle


TestMachine = Machine.TestCase
# 200 runs of 50 operations: 10,000 of them.
TestMachine.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)


def test_the_longest_unused_block_is_taken_first() -> None:
    pool = BlockPool(3, 2)
    blocks = [pool.allocate() for _ in range(3)]
    for block in blocks:
        pool.seal(block, bytes([block]))
    pool.release([blocks[1]])
    pool.release([blocks[0]])
    pool.release([blocks[2]])
    assert [pool.allocate() for _ in range(3)] == [blocks[1], blocks[0], blocks[2]]


def test_the_end_of_a_prefix_is_reused_before_its_beginning() -> None:
    pool = BlockPool(2, 2)
    first, second = pool.allocate(), pool.allocate()
    pool.seal(first, b"1")
    pool.seal(second, b"2")
    pool.release([first, second])
    assert pool.allocate() == second
    assert pool.find([b"1", b"2"]) == [first]


def test_a_block_without_findable_content_is_taken_before_a_cached_one() -> None:
    pool = BlockPool(2, 2)
    cached, plain = pool.allocate(), pool.allocate()
    pool.seal(cached, b"1")
    pool.release([cached])
    pool.release([plain])
    assert pool.allocate() == plain


def test_a_shared_block_stays_until_its_last_owner_lets_go() -> None:
    pool = BlockPool(1, 2)
    block = pool.allocate()
    pool.hold([block])
    pool.release([block])
    assert pool.used == 1
    pool.release([block])
    assert pool.used == 0


def test_the_same_tokens_after_another_beginning_have_another_hash() -> None:
    assert chain(chain(b"", [1, 2]), [3, 4]) != chain(chain(b"", [2, 1]), [3, 4])


def test_decodes_come_before_prompts_and_the_rest_of_the_budget_is_a_chunk() -> None:
    scheduler = SequenceScheduler(BlockPool(20, 4), max_batch_tokens=8, max_running=4)
    first = Sequence("a", [1, 2, 3], 3, 10)
    scheduler.add(first)
    scheduler.advance(scheduler.plan())
    first.ids.append(9)
    second = Sequence("b", list(range(20)), 20, 24)
    scheduler.add(second)
    plan = scheduler.plan()
    assert [(c.sequence, c.start, c.count) for c in plan] == [(first, 3, 1), (second, 0, 7)]


def test_when_blocks_run_out_the_youngest_starts_over() -> None:
    scheduler = SequenceScheduler(BlockPool(4, 4), max_batch_tokens=64, max_running=4)
    old, young = Sequence("a", [1] * 8, 8, 16), Sequence("b", [2] * 8, 8, 16)
    for sequence in (old, young):
        scheduler.add(sequence)
    scheduler.advance(scheduler.plan())
    for sequence in (old, young):
        sequence.ids.append(5)
    plan = scheduler.plan()
    assert [c.sequence for c in plan] == [old]
    assert young.computed == 0
    assert scheduler.preemptions == 1


def test_a_prompt_with_a_known_beginning_computes_the_rest() -> None:
    scheduler = SequenceScheduler(BlockPool(20, 4), max_batch_tokens=64, max_running=4)
    first = Sequence("a", [1, 2, 3, 4, 5, 6, 7, 8, 9], 9, 12)
    scheduler.add(first)
    scheduler.advance(scheduler.plan())
    second = Sequence("b", [1, 2, 3, 4, 5, 6, 7, 8], 8, 12)
    scheduler.add(second)
    chunks = {c.sequence: c for c in scheduler.plan()}
    assert (chunks[second].start, chunks[second].count) == (4, 4)  # one token is always computed
    assert second.blocks[0] == first.blocks[0]
    assert (scheduler.prefix_hits, scheduler.prefix_queries) == (4, 17)
