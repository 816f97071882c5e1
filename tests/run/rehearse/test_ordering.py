"""Which accesses have no order between them: the tables alone, without torch."""

from __future__ import annotations

import itertools
import random

import pytest

from joymigrate.run.rehearse.ordering import Access, Clocks, Ordering, meet, runs_of

NUMBERS = itertools.count(1)


def access(
    start: int, size: tuple[int, ...], stride: tuple[int, ...], *, writes: bool = True,
    stream: int = 1, sequence: int = 1, item: int = 4, loose: str = "",
) -> Access:  # fmt: skip
    low = 4096 + start * item
    length, runs = runs_of(size, stride, item)
    form = (size, stride, item)
    return Access(
        low, low + length, runs, form, writes, stream, sequence, "op", str(next(NUMBERS)), loose
    )


def elements(start: int, size: tuple[int, ...], stride: tuple[int, ...]) -> set[int]:
    places = itertools.product(*(range(n) for n in size))
    return {start + sum(i * s for i, s in zip(at, stride, strict=True)) for at in places}


def test_two_tensors_meet_exactly_when_they_share_an_element() -> None:
    draw = random.Random(3)
    for _ in range(3000):
        pair = []
        for _ in range(2):
            count = draw.randint(1, 3)
            size = tuple(draw.randint(1, 4) for _ in range(count))
            stride = tuple(draw.choice((0, 1, 2, 3, 4, 8, 12)) for _ in range(count))
            pair.append((draw.randint(0, 20), size, stride))
        if not all(len(elements(*one)) == _count(one[1], one[2]) for one in pair):
            continue  # a tensor that overlaps itself
        wanted = bool(elements(*pair[0]) & elements(*pair[1]))
        assert meet(access(*pair[0]), access(*pair[1])) == wanted, pair


def _count(size: tuple[int, ...], stride: tuple[int, ...]) -> int:
    total = 1
    for n, s in zip(size, stride, strict=True):
        total *= n if s else 1
    return total


def test_tensors_with_very_many_gaps_are_compared_as_a_whole_only() -> None:
    columns = access(0, (4000, 1), (8, 8))
    assert runs_of((4000, 1), (8, 8), 4)[1] is None
    assert meet(columns, access(0, (4000, 1), (8, 8)))
    assert not meet(columns, access(1, (4000, 1), (8, 8)))  # other columns
    assert meet(columns, access(0, (32000,), (1,)))  # all of it
    assert not meet(columns, access(8, (8,), (1,)))  # a part: nobody can say


def clocks(own: list[int], host: list[int] | None = None, pool: list[int] | None = None) -> Clocks:
    nothing = [0] * 8
    return Clocks(own, host or nothing, pool or nothing)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_two_streams_without_an_order_race_where_one_writes(first: bool, second: bool) -> None:
    table = Ordering()
    table.check(access(0, (8,), (1,), writes=first, stream=1), clocks([0, 1, 0]))
    later = access(4, (8,), (1,), writes=second, stream=2)
    assert len(table.check(later, clocks([0, 0, 1]))) == (first or second)
    again = access(4, (8,), (1,), writes=second, stream=2, sequence=2)
    assert not table.check(again, clocks([0, 0, 2]))  # said once


def test_an_event_or_a_wait_of_the_host_orders() -> None:
    table = Ordering()
    table.check(access(0, (8,), (1,), stream=1), clocks([0, 1, 0]))
    assert not table.check(access(0, (8,), (1,), stream=2), clocks([0, 1, 1]))
    table.check(access(0, (8,), (1,), stream=1, sequence=2), clocks([0, 2, 1]))
    waited = clocks([0, 2, 2], host=[0, 2, 0])
    assert not table.check(access(0, (8,), (1,), stream=2, sequence=2), waited)


def test_other_bytes_of_the_same_block_do_not_race() -> None:
    table = Ordering()
    table.allocate(4096, 4096 + 64)
    table.check(access(0, (8,), (1,), stream=1), clocks([0, 1, 0]))
    assert not table.check(access(8, (8,), (1,), stream=2), clocks([0, 0, 1]))
    assert table.check(access(7, (2,), (1,), stream=3), clocks([0, 0, 0, 1]))


def test_memory_with_a_new_owner_races_unless_an_allocator_saw_the_end() -> None:
    for pool, found in (([0, 0, 0], [True]), ([0, 1, 0], [])):
        table = Ordering()
        table.allocate(4096, 4096 + 64)
        table.check(access(0, (8,), (1,), writes=False, stream=1), clocks([0, 1, 0]))
        table.allocate(4096, 4096 + 32)
        new = access(0, (8,), (1,), stream=2)
        races = table.check(new, clocks([0, 0, 1], pool=pool))
        assert [race.reused for race in races] == found


def test_a_loose_copy_is_ordered_by_a_wait_only() -> None:
    table = Ordering()
    table.check(access(0, (8,), (1,), stream=1, loose="why"), clocks([0, 1]))
    reading = access(0, (8,), (1,), writes=False, stream=1, sequence=2)
    assert table.check(reading, clocks([0, 2]))
    later = access(0, (8,), (1,), writes=False, stream=1, sequence=3)
    assert not table.check(later, clocks([0, 3], host=[0, 2]))


def test_the_tables_stay_small() -> None:
    table = Ordering()
    for sequence in range(1, 2000):
        table.check(access(0, (8,), (1,), stream=1, sequence=sequence), clocks([0, sequence]))
        table.check(
            access(sequence % 7, (1,), (1,), writes=False, stream=1, sequence=sequence),
            clocks([0, sequence]),
        )
    assert sum(len(block.accesses) for block in table.blocks.values()) <= 64
