"""Where steps begin and end, for programs of several kinds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from joymigrate.profile.recorder.steps import Steps


def played(events: str, *, optimisers: int = 0) -> Steps:
    """f: top-level forward, b: backward, 1 and 2: an optimiser steps."""
    steps = Steps()
    for _ in range(optimisers):
        steps.on_optimiser_made()
    for event in events:
        if event == "f":
            steps.on_forward()
        elif event == "b":
            steps.on_backward()
        else:
            steps.on_optimiser_step(int(event))
    return steps


def test_training_ends_its_steps_with_the_optimiser() -> None:
    assert played("fb1fb1fb1", optimisers=1).done == 3


def test_accumulated_gradients_are_one_step() -> None:
    assert played("fbfbfb1fbfbfb1", optimisers=1).done == 2


def test_two_optimisers_of_one_round_are_one_step() -> None:
    assert played("fb1fb2fb1fb2fb1", optimisers=2).done == 3


def test_an_evaluation_before_training_belongs_to_the_first_step() -> None:
    assert played("ffff" + "fb1" * 2, optimisers=1).done == 2


def test_inference_begins_a_step_with_each_call() -> None:
    assert played("ffff").done == 3  # the fourth goes on


def test_training_without_an_optimiser_begins_a_step_after_a_backward() -> None:
    steps = played("fbffbf")
    assert steps.done == 2
    assert steps.forwards == 1


def test_without_modules_and_optimisers_a_backward_ends_a_step() -> None:
    steps = Steps()
    ended = []
    for _ in range(3):
        steps.on_backward()
        ended.append(steps.on_backward_done())
    assert ended == [True] * 3
    assert steps.done == 3
    steps.on_forward()
    steps.on_backward()
    assert not steps.on_backward_done()


def test_a_step_function_counts_only_its_own_calls() -> None:
    steps = Steps(explicit=True)
    steps.on_forward()
    steps.on_forward()
    assert not steps.on_optimiser_step(1)
    steps.end()
    assert steps.done == 1


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_every_optimiser_step_of_the_leader_ends_one(rounds: list[int]) -> None:
    events = "".join("fb" * forwards + "1" for forwards in rounds)
    assert played(events, optimisers=1).done == len(rounds)
