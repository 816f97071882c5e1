"""Jobs that come after others, and keys that other programs are for."""

from __future__ import annotations

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.cluster import dependencies, plan
from joymigrate.run.cluster.events import Cancelled, Ended
from joymigrate.run.cluster.explain import explain
from joymigrate.run.cluster.scheduler import Scheduler
from tests.run.cluster.cases import job, nodes, scheduler, started, submit, workload

ONE = "[{name: a, kind: gpu-8}]"


def reason(one: Scheduler, name: str) -> str:
    refusal = one.why(name)
    assert refusal is not None
    return refusal.reason


@pytest.mark.parametrize(
    ("condition", "well", "starts"),
    [
        ("afterok", True, True),
        ("afterok", False, False),
        ("afternotok", False, True),
        ("afternotok", True, False),
        ("afterany", True, True),
        ("afterany", False, True),
    ],
)
def test_a_job_comes_after_another_as_its_condition_says(
    condition: str, well: bool, starts: bool
) -> None:
    one = scheduler(nodes(ONE))
    submit(one, job("first"), job("then", after=[f"{condition}:first"]))
    assert "then" not in one.running
    assert "first" in reason(one, "then")
    actions = one.on(Ended("first", 5.0, well))
    assert started(actions) == (["then"] if starts else [])
    if not starts:
        refusal = one.why("then")
        assert refusal is not None
        assert refusal.permanent


def test_after_waits_for_the_start_only() -> None:
    one = scheduler(nodes(ONE))
    submit(one, job("full", cards_per_pod=8), job("first"), job("then", after=["after:first"]))
    assert set(one.running) == {"full"}
    assert started(one.on(Ended("full", 1.0))) == ["first", "then"]


def test_jobs_of_one_file_may_stand_in_any_order_but_not_in_a_circle() -> None:
    file = workload("jobs: [{name: b, kind: gpu-8, after: a}, {name: a, kind: gpu-8, minutes: 5}]")
    data = plan.plan(nodes(ONE), file)
    assert [placed["job"] for placed in data["placements"]] == ["a"]
    (waits,) = data["waiting"]
    assert waits["reason"] == "comes after job a (afterok), which has not ended well yet"
    assert waits["start"]["in_s"] == 300
    circle = workload("jobs: [{name: b, kind: gpu-8, after: a}, {name: a, kind: gpu-8, after: b}]")
    with pytest.raises(JoyError, match="a after b after a"):
        plan.plan(nodes(ONE), circle)


def test_a_job_after_one_that_nobody_knows_or_that_was_cancelled_never_starts() -> None:
    one = scheduler(nodes(ONE))
    submit(one, job("lone", after=["afterany:ghost"]))
    assert reason(one, "lone") == "comes after job ghost (afterany), which is not known here"
    submit(one, job("first"), job("then", after=["first"]))
    one.on(Cancelled("first", 1.0))
    assert reason(one, "then") == "comes after job first (afterok), which failed or was cancelled"
    data = explain(one, "then", 1.0)
    assert data is not None
    assert data["permanent"]
    assert data["start"]["in_s"] is None
    submit(one, job("first"))
    assert not one.why("then").permanent  # type: ignore[union-attr]


def test_a_dependency_on_a_chain_of_jobs_is_foreseen() -> None:
    one = scheduler(nodes(ONE))
    submit(
        one,
        job("a", minutes=10),
        job("b", minutes=20, after=["a"]),
        job("c", minutes=5, after=["b", "afterany:a"]),
    )
    data = explain(one, "c", 0.0)
    assert data is not None
    assert data["start"]["in_s"] == 1800
    assert [end["job"] for end in data["enough"]["ends"]] == ["a", "b"]


def test_how_jobs_ended_is_known_while_others_wait_for_it() -> None:
    one = scheduler(nodes(ONE))
    submit(one, job("bad"), job("gate", cards_per_pod=8), job("then", after=["bad", "gate"]))
    one.on(Ended("bad", 1.0, False))
    for number in range(2 * dependencies.KEPT + 10):
        one.gate.ended(f"other{number}", True)
    assert reason(one, "then") == "comes after job bad (afterok), which failed or was cancelled"
    assert len(one.gate.over) <= 2 * dependencies.KEPT


def test_a_condition_that_nobody_knows_is_refused_with_the_nearest() -> None:
    with pytest.raises(JoyError, match="afterok"):
        workload("jobs: [{name: s, kind: gpu-8, after: 'aftrok:x'}]")


@pytest.mark.parametrize(("key", "where"), [("array: 0-9", "sbatch --array"),
                                            ("reservations: []", "scontrol")])  # fmt: skip
def test_a_key_that_another_program_is_for_is_refused_with_its_name(key: str, where: str) -> None:
    text = f"{{name: s, kind: gpu-8, {key}}}"
    for file in (text, f"jobs: [{text}]"):
        with pytest.raises(JoyError, match="is not read here") as found:
            workload(file)
        assert where in str(found.value.help)
