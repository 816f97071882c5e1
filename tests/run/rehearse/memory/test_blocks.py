"""Blocks of memory, told apart from an allocator's record and marks."""

from __future__ import annotations

from joymigrate.run.rehearse.memory.blocks import (
    CATEGORIES,
    BlockEvent,
    MemoryMark,
    at,
    composition,
    events_of,
)


def came(address: int, size: int) -> BlockEvent:
    return BlockEvent(address, size)


def went(address: int) -> BlockEvent:
    return BlockEvent(address, None)


def at_peak(events: list[BlockEvent], marks: list[MemoryMark]) -> dict[str, int]:
    return dict(zip(CATEGORIES, composition(events, marks).peak[1], strict=True))


WEIGHT, BATCH, ACTIVATION, TEMPORARY, GRADIENT, STATE = 1000, 2000, 3000, 4000, 5000, 6000
STEP = [
    came(WEIGHT, 100), came(BATCH, 10), came(TEMPORARY, 5), went(TEMPORARY), came(ACTIVATION, 40),
    # backward begins after 4 came and 1 went
    came(TEMPORARY, 7), came(GRADIENT, 100), went(TEMPORARY), went(ACTIVATION),
    # the step begins after 6 and 3
    came(STATE, 200), came(TEMPORARY, 30), went(TEMPORARY),
    # and ends after 8 and 4
    went(BATCH), went(GRADIENT),
]  # fmt: skip
MARKS = [
    MemoryMark("backward begins", 4, 1, {"weights": [WEIGHT]}),
    MemoryMark("backward ends", 6, 3, {"weights": [WEIGHT], "gradients": [GRADIENT]}),
    MemoryMark("step begins", 6, 3, {}),
    MemoryMark("step ends", 8, 4, {"optimiser": [STATE]}),
]


def test_a_training_step_is_told_apart_at_its_peak() -> None:
    assert at_peak(STEP, MARKS) == {
        "weights": 100,
        "gradients": 100,
        "optimiser": 200,
        "activations": 10,  # the batch: held when the backward pass began
        "other": 30,
    }


def test_the_total_of_every_point_is_what_is_held() -> None:
    found = composition(STEP, MARKS)
    totals = [sum(held) for _, held in found.points]
    assert totals == [100, 110, 115, 110, 150, 157, 257, 250, 210, 410, 440, 410, 400, 300]
    assert found.steps == 1
    assert [x for x, _ in found.points][:2] == [0.0, round(1 / 12, 4)]
    assert sum(found.peak[1]) == 440


def test_what_was_there_before_the_first_pass_and_stays_is_no_activation() -> None:
    table = came(7000, 64)
    marks = [MemoryMark(m.kind, m.came + 1, m.went, m.owners) for m in MARKS]
    assert at_peak([table, *STEP], marks)["other"] == 30 + 64


def test_a_later_pass_keeps_its_activations_though_they_are_not_released() -> None:
    again = [came(8000, 3), came(9000, 1)]
    marks = [
        *MARKS,
        MemoryMark("backward begins", 9, 6, {}),
        MemoryMark("backward ends", 10, 6, {}),
    ]
    last = composition([*STEP, *again], marks).points[-1][1]
    assert dict(zip(CATEGORIES, last, strict=True))["activations"] == 3


def test_an_address_inside_of_a_block_names_it_and_one_outside_names_none() -> None:
    events = [came(1000, 100), came(2000, 50)]
    marks = [MemoryMark("look", 2, 0, {"weights": [1040, 1100, 2050, 999]})]
    assert at_peak(events, marks) == {
        "weights": 100, "gradients": 0, "optimiser": 0, "activations": 0, "other": 50,
    }  # fmt: skip


def test_an_address_that_is_used_again_is_another_block() -> None:
    events = [came(1000, 100), went(1000), came(1000, 60)]
    marks = [MemoryMark("look", 1, 0, {"weights": [1000]})]
    points = composition(events, marks).points
    assert [held[0] for _, held in points] == [100, 0, 0]
    assert [held[-1] for _, held in points] == [0, 0, 60]


def test_long_records_are_thinned_and_keep_the_peak_of_each_stretch() -> None:
    events = [event for n in range(4000) for event in (came(n, 1 + (n == 1777) * 99), went(n))]
    found = composition(events, [])
    assert len(found.points) <= 241
    assert max(sum(held) for _, held in found.points) == 100
    assert found.peak[0] == 2.0 * 1777


def test_a_block_that_went_before_the_record_began_is_no_matter() -> None:
    assert at_peak([went(5), came(6, 1)], [])["other"] == 1


def test_places_count_in_optimiser_steps() -> None:
    assert [at(place, [4, 8], 10) for place in (0, 2, 4, 7, 8, 9)] == [0, 0.5, 1, 1.75, 2, 2.5]


def test_only_what_comes_and_goes_is_read_from_a_trace() -> None:
    trace = [
        {"action": "segment_alloc", "addr": 1, "size": 2097152},
        {"action": "alloc", "addr": 1, "size": 64},
        {"action": "free_requested", "addr": 1, "size": 64},
        {"action": "free_completed", "addr": 1, "size": 64},
    ]
    assert events_of(trace) == [BlockEvent(1, 64), BlockEvent(1, None)]
