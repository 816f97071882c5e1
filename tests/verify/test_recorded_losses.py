"""S6 of a replay: what the losses of a few recorded steps may say, and of a whole curve."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from joymigrate.verify.bundle.table import Table
from joymigrate.verify.curve_stage import judge_curve, losses
from joymigrate.verify.model import Difference, Outcome, StageResult, Status
from joymigrate.verify.tolerance import Tolerance


def rank(values: Sequence[float], spread: str = "") -> Any:
    """What one process recorded: a loss per step."""
    tables = {
        step: Table(
            step, ["loss:"], [0], ["loss"], [""], ["float32"], [(1,)], [spread],
            np.array([[value, value, value, abs(value)]], np.float32),
            np.zeros((1, 64), np.float32),
        )
        for step, value in enumerate(values)
    }  # fmt: skip
    return SimpleNamespace(steps=list(tables), table=tables.__getitem__)


def bundle(*ranks: Any) -> Any:
    return SimpleNamespace(ranks=list(ranks))


def judged(
    ours: Any, theirs: Any, explained: str | None = None, random: Sequence[str] = ()
) -> tuple[StageResult, list[Difference]]:
    return judge_curve(
        ours, theirs, Tolerance.of(None), explained=explained, random=random, taught=True
    )


def curve(steps: int, off: float = 0.0) -> Any:
    return bundle(rank([2.0 * (1 + off) / (1 + step) for step in range(steps)]))


def test_losses_that_agree_pass_and_three_steps_are_called_short() -> None:
    stage, rows = judged(curve(3), curve(3, 1e-4))
    assert (stage.stage, stage.verdict, stage.compared) == ("S6", Outcome.PASS, 3)
    assert rows[0].status is Status.PASS
    assert stage.details["short"]
    assert "verify loss" in (stage.reason or "")


def test_one_step_is_no_curve() -> None:
    stage, rows = judged(curve(1), curve(1))
    assert (stage.verdict, rows) == (Outcome.SKIPPED, [])


def test_three_steps_far_apart_warn_and_fail_nothing() -> None:
    stage, rows = judged(curve(3), curve(3, 0.3))
    assert (stage.verdict, rows[0].status) == (Outcome.PASS, Status.WARN)


def test_a_whole_curve_far_apart_fails_at_its_first_step_outside() -> None:
    stage, rows = judged(curve(12), curve(12, 0.03))
    assert (stage.verdict, rows[0].status, rows[0].step) == (Outcome.FAIL, Status.FAIL, 0)
    assert not stage.details["short"]


def test_a_whole_curve_of_a_model_that_draws_numbers_warns() -> None:
    stage, rows = judged(curve(12), curve(12, 0.03), random=["net"])
    assert (stage.verdict, rows[0].status) == (Outcome.PASS, Status.WARN)


def test_what_another_stage_has_failed_explains_the_losses() -> None:
    for steps in (3, 12):
        stage, rows = judged(curve(steps), curve(steps, 0.3), explained="layers.0")
        assert stage.verdict is Outcome.PASS
        assert (rows[0].status, rows[0].consequence_of) == (Status.WARN, "layers.0")


def test_a_loss_that_is_not_finite_on_one_side_alone_fails_a_short_curve_too() -> None:
    stage, rows = judged(curve(3), bundle(rank([2.0, 1.0, float("nan")])))
    assert (stage.verdict, rows[0].status, rows[0].step) == (Outcome.FAIL, Status.NAN_MISMATCH, 2)
    assert not stage.details["short"]


def test_the_shares_of_two_processes_add_up_to_the_loss_of_one() -> None:
    two = bundle(rank([0.5, 0.3], "partial"), rank([0.7, 0.2], "partial"))
    assert losses(two)[0] == pytest.approx({0: 1.2, 1: 0.5})
    stage, _ = judged(bundle(rank([1.2, 0.5])), two)
    assert stage.verdict is Outcome.PASS


def test_a_step_that_one_process_did_not_record_is_not_compared() -> None:
    two = bundle(rank([0.5, 0.3, 0.1], "partial"), rank([0.7, 0.2], "partial"))
    assert sorted(losses(two)[0]) == [0, 1]


def test_every_backward_pass_is_a_row_and_the_figures_count_them() -> None:
    """Two passes per step: the first differs, the second would be its consequence."""

    def passes(steps: int, off: float) -> Any:
        tables = {}
        for step in range(steps):
            values = [2.0 * (1 + off) / (1 + step), 1.0 / (1 + step)]
            tables[step] = Table(
                step, ["loss:"] * 2, [0, 1], ["loss"] * 2, [""] * 2, ["float32"] * 2,
                [(1,)] * 2, [""] * 2,
                np.array([[v, v, v, abs(v)] for v in values], np.float32),
                np.zeros((2, 64), np.float32),
            )  # fmt: skip
        return bundle(SimpleNamespace(steps=list(tables), table=tables.__getitem__))

    stage, rows = judged(passes(12, 0.0), passes(12, 0.0))
    assert [row.module for row in rows] == ["loss", "loss of backward pass 2"]
    assert (stage.compared, stage.recorded) == (24, 24)
    assert sum(stage.counts.values()) == 2
    stage, rows = judged(passes(12, 0.0), passes(12, 0.2))
    assert (stage.verdict, rows[0].status) == (Outcome.FAIL, Status.FAIL)
    assert not rows[1].status.failed
    assert "12 steps" in (stage.reason or "")
