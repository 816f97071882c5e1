"""Every step of a run by a few numbers, what is printed, and files that are written."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from joymigrate.verify import repeat_runs, run_watch, series, watch_stage
from joymigrate.verify.files_stage import judge_files, observe_files
from joymigrate.verify.findings import Findings
from joymigrate.verify.free_stage import why_apart
from joymigrate.verify.identity import unequal
from joymigrate.verify.judge import ErrorSeries, Judge
from joymigrate.verify.measure import rounding_error
from joymigrate.verify.model import Difference, Outcome, RecordStatus
from joymigrate.verify.module_stage import ModuleStage
from joymigrate.verify.series import (
    find_restarted,
    log_ratio,
    observe_run,
    usual_size,
    value_error,
)
from joymigrate.verify.text_numbers import columns, counterparts, distances, read
from joymigrate.verify.tolerance import Tolerance
from joymigrate.verify.written_files import collect
from tests.verify.harness import record, replay
from tests.verify.whole_faults import PROGRAMS, WHOLE_FAULTS

PLAIN = {"MODE": "float32", "SEED": "0"}


def judge_by(*nulls: dict[Any, ErrorSeries], tests: int = 100) -> Judge:
    return Judge(Tolerance.of(None).judge, nulls, tests)


def test_rounding_that_grows_as_in_the_baselines_own_runs_is_none() -> None:
    def run(factor: float, jump: float = 1.0) -> dict[Any, ErrorSeries]:
        points = [(s, factor * 1e-6 * 3.0**s * (jump if s > 5 else 1)) for s in range(12)]
        return {("loss", "0"): ErrorSeries(points)}

    judge = judge_by(run(1.0), run(1.4))
    assert judge.decide(("loss", "0"), run(2.0)["loss", "0"]).at is None
    assert judge.decide(("loss", "0"), run(1.0, 1e4)["loss", "0"]).at == 6
    assert judge.decide(("loss", "0"), run(1e5)["loss", "0"]).at == 0  # from its first step on
    wide = judge_by(run(1.0), run(40.0))  # the less the runs agree, the less they tell
    key = ("loss", "0")
    assert wide.factor(key) > 2 * judge.factor(key)
    many = judge_by(run(1.0), run(1.4), tests=1_000_000)  # one rate for all that is looked at
    assert many.factor(key) > judge.factor(key)


def test_a_few_series_that_part_by_much_widen_the_limits_of_the_run_alone() -> None:
    """Weights whose gradient is rounding go either way, in some runs by ten times more."""

    def run(number: int, kind: str, rare: float) -> dict[Any, ErrorSeries]:
        sizes = [1e-6 * (1.1**number if n % 20 else rare) for n in range(200)]
        return {(kind, str(n)): ErrorSeries([(0, size)]) for n, size in enumerate(sizes)}

    even = [run(n, "record", 1.1**n) for n in (0, 1)]
    rare = [run(n, "held", 10.0**n) for n in (0, 1)]
    judge = judge_by(*(a | b for a, b in zip(even, rare, strict=True)))
    assert judge.factor(("record", "0 0")) < 6
    assert judge.factor(("held", "0")) > 20


def test_how_far_a_weight_in_16_bits_moves_is_told_by_the_digits_that_it_has() -> None:
    moved = [[step, 4e-3, 1.0] for step in range(4)]  # by one unit in the last place of its norm
    twice = [[step, 8e-3, 1.0] for step in range(4)]
    exact = judge_by({("update", "w"): series.update_errors(moved, moved)})
    coarse = dataclasses.replace(exact, weights=2.0**-10, known={})
    for judge, told in ((exact, 0), (coarse, None)):
        assert judge.decide(("update", "w"), series.update_errors(moved, twice)).at == told


def test_a_choice_that_rounding_flips_shows_in_any_loss_of_its_step() -> None:
    one = {("loss", "0"): [(3, 1e-7), (4, 4e-4)], ("loss", "1"): [(3, 1e-7), (4, 1e-7)]}
    nulls = [repeat_runs.share_siblings({k: ErrorSeries(v) for k, v in one.items()})] * 2
    judge = judge_by(*nulls)
    assert judge.decide(("loss", "1"), ErrorSeries([(4, 2e-4)])).at is None
    assert judge.decide(("loss", "1"), ErrorSeries([(3, 2e-4)])).at == 3  # no run has it so early


def test_what_the_baselines_own_runs_make_otherwise_is_not_told() -> None:
    key, same, other = ("shapes", "net:"), [(0, 0.0), (1, 0.0)], [(0, 0.0), (1, 1.0)]
    once, departs = judge_by(), judge_by({key: ErrorSeries(other, exact=True)})
    assert once.decide(key, ErrorSeries(same, exact=True)).at is None
    assert once.decide(key, ErrorSeries(other, exact=True)).at == 1
    told = departs.decide(key, ErrorSeries(other, exact=True))
    assert (told.at, told.untold) == (None, 1)
    numbers = once.decide(("loss", "0"), ErrorSeries([(0, 0.5)]))
    assert (numbers.at, numbers.untold) == (None, -math.inf)  # nobody knows how far is far


def test_a_complex_weight_is_watched_by_both_of_its_parts() -> None:
    weight = torch.tensor([1 + 2j, 3 - 4j])
    assert run_watch.sample_strided(weight.conj(), 8).tolist() == [1.0, -2.0, 3.0, 4.0]


def test_weights_that_the_program_computes_may_differ_by_rounding() -> None:
    weight = {"shape": [2], "dtype": "float32", "kind": "parameter"}
    found = [unequal(weight, weight, {"cast": False, "error": e})[0] for e in (1e-7, 1e-5)]
    assert found == [RecordStatus.WARN, RecordStatus.FAIL]
    never = torch.tensor([0.5, -1e9, 0.25, -1e9])  # a mask must not hide what is beside it
    assert rounding_error(torch.tensor([0.45, -1e9, 0.25, -1e9]), never) > 0.05
    many = torch.linspace(1.0, 2.0, 100_000)
    one = many.clone()
    one[7] *= 1.001
    assert rounding_error(one, many) > 2.0**-20
    assert rounding_error(many * (1 + 2.0**-23), many) < 2.0**-20


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_same_value_that_is_not_finite_is_no_error(value: float) -> None:
    assert value_error(value, value, 1.0) == 0.0
    assert value_error(1.0, value, 1.0) == value_error(value, 1.0, 1.0) == math.inf
    assert value_error(math.inf, -math.inf, 1.0) == math.inf
    assert usual_size([value, -2.0, 3.0, 2.0]) == 2.0


def test_numbers_of_a_line_go_by_the_words_around_them() -> None:
    (loss, took), lines = columns(["step: loss 0.25, took 3.1 s"]), ["v1.2.3 /tmp/a12 12:30:01"]
    assert (loss.measures, took.measures) == (False, True)
    assert columns(lines) == {}
    close = distances([read("0.25")], [read("0.26")])
    assert close.points[0][1] <= close.floor  # printed so
    assert distances([read("0.25")], [read("0.30")]).points[0][1] > 0.1
    assert distances([read("1.0")], [read("nan")]).points == [(0, math.inf)]


def test_a_line_that_names_the_machine_is_compared_number_by_number() -> None:
    line = "step {} loss {} tokens_per_s {} peak_mib {} device {}"
    mine = columns([line.format(0, 2.6, 231, None, "cpu")])
    other = columns([line.format(0, 2.6, 277, 13.3, "npu:0")])
    same = counterparts(mine, other)
    assert [c.words.split()[0] for c in mine if c in same] == ["step", "loss"]
    assert [c.measures for c in mine] == [False, False, True]  # "tokens" is not the loss's unit
    sizes = columns(["SMs: 108", "multiprocessors: 40", "samples: 8"])
    assert [c.measures for c in sizes] == [True, True, False]
    words = columns(["SMS spam accuracy: 0.98", "SM loss 0.3", "a GPU of 132 SMs", "SM count: 9"])
    assert [c.measures for c in words] == [False, False, True, True]
    # Two lines with the same words: nobody knows which is which.
    assert not counterparts(columns(["a loss 1 x", "b loss 2 x"]), columns(["c loss 1 x"]))


def watched(states: list[list[int]], **more: Any) -> dict[str, Any]:
    series = {"random torch": states, **more}
    return {"series": series, "own": [], "shapes": {}, "steps": 6, "chooses": False}


def judged(
    a: dict[str, Any], b: dict[str, Any], *nulls: dict[str, Any]
) -> tuple[list[Any], list[Any]]:
    found = Findings()
    view: Any = lambda place: place  # noqa: E731
    judge = judge_by(*(observe_run(a, one, {}) for one in nulls))
    return list(watch_stage.RunJudge(a, b, {}, view, judge, found, 6).rows()), found.uncovered


def test_a_state_that_begins_alike_and_departs_fails_and_another_start_is_named() -> None:
    same = watched([[-1, 5], [2, 6], [4, 7]])
    assert [row.status for row in judged(same, same)[0]] == [RecordStatus.PASS]
    rows, _ = judged(same, watched([[-1, 5], [2, 6], [3, 9]]))
    assert [(row.status, row.step) for row in rows] == [(RecordStatus.FAIL, 3)]
    rows, left = judged(same, watched([[-1, 4], [2, 6], [4, 7]]))
    assert rows == []
    assert "no seed" in left[0]["reason"]


def test_a_departure_after_another_start_is_not_put_down_to_rounding() -> None:
    ours = {"random torch": [[-1, 5], [2, 6]], "random numpy": [[-1, 1]]}  # numpy draws nothing
    theirs = {"random torch": [[-1, 4], [2, 7]], "random numpy": [[-1, 2]]}
    departs = Difference("body", 0, "forward", "output", "relative_l2", 0.096)
    for other, generators in ((theirs, ["torch"]), (ours, [])):
        begins = find_restarted(ours, other)
        assert begins == generators
        words = str(why_apart(departs, ModuleStage(), begins))
        assert ("torch's random numbers begin in another state" in words) is bool(generators)
        assert ("rounding" in words) is not bool(generators)


def test_seeds_that_only_one_side_sets_again_are_named() -> None:
    often, once = ({"seed generator 0": items} for items in ([[0, 1], [2, 3]], [[0, 1]]))
    rows, left = judged(watched([], **often), watched([], **once))
    assert [row.status for row in rows] == [RecordStatus.PASS]
    assert [item["reason"] for item in left] == ["one side gives it another seed more often"]
    later = {"seed generator 0": [[0, 1], [6, 3]]}  # in a step that is not compared
    assert judged(watched([], **later), watched([], **once))[1] == []
    rows, _ = judged(watched([], **often), watched([], **{"seed generator 0": [[0, 1], [2, 4]]}))
    assert [(row.status, row.step) for row in rows] == [(RecordStatus.FAIL, 2)]


def test_a_model_that_is_called_once_is_held_to_the_baselines_own_runs() -> None:
    def run(norm: float, held: float = 1.0) -> dict[str, Any]:
        series = {"input net: 0 0": [[5, 3.0, norm]], "held net:w": [[5, held, 2.0]]}
        return watched([], **series, **{"result net: 0 0": [[5, 5.0 * held, 10.0]]})

    null = run(9.0 + 1e-6, 1 + 1e-6), run(9.0 - 1e-6, 1 - 1e-6)
    rows, _ = judged(run(9.0), run(8.0), *null)
    assert [(row.op, row.step) for row in rows if row.status.failed] == [("input 0", 5)]
    rows, _ = judged(run(9.0), run(9.0 + 3e-6, 1 + 3e-6), *null)
    assert not [row for row in rows if row.status.failed]
    rows, _ = judged(run(9.0), run(9.0, 1.01), *null)
    assert str(next(row for row in rows if row.status.failed).op) == "w at a call in a new way"


def test_a_choice_that_may_have_fallen_otherwise_makes_a_doubt_of_a_departure() -> None:
    def run(loss: float, choice: int = 3) -> dict[str, Any]:
        series = {"choice": [[2, 1, choice]], "loss 0": [[0, 1.0], [2, loss], [3, loss]]}
        return {**watched([], **series), "chooses": True, "blind": False}

    null = run(1 + 1e-6), run(1 - 1e-6)
    statuses = [
        [row.status for row in judged(run(1.0), other, *null)[0]]
        for other in (run(1.0), run(1.1), run(1.1, choice=4))
    ]
    assert statuses == [[RecordStatus.PASS], [RecordStatus.FAIL], [RecordStatus.WARN]]


def test_a_weight_that_is_scaled_in_a_step_that_is_not_recorded_is_seen() -> None:
    def run(factor: float) -> dict[str, Any]:
        torch.manual_seed(0)
        layer, watch = torch.nn.Linear(8, 8), run_watch.RunWatch()
        net = torch.nn.ModuleDict({"layer": layer})
        watch.sampled["other"] = layer.bias, layer.bias.detach().clone()
        for step in range(8):
            with torch.no_grad():
                layer.weight.add_(0.001)
                if step == 5:
                    layer.weight.mul_(factor)
            watch.end_of_step(step, {"net": net}, exact=step < 3)
        assert [item[0] for item in watch.to_json()["series"]["weight net:layer.weight"]] == [5]
        return watch.to_json()

    # With room for no weight that is looked at in every step.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_watch, "MOST_PARAMETERS", 0)
        base, same, other = run(0.999), run(0.999), run(0.99)
    assert not any(row.status.failed for row in judged(base, same, same, same)[0])
    wrong = [row for row in judged(base, other, same, same)[0] if row.status.failed]
    assert (wrong[0].op, wrong[0].step) == ("norm of weight", 5)


def test_files_are_judged_by_shape_words_and_distance(tmp_path: Path) -> None:
    def written(values: Any, text: dict[str, Any]) -> dict[str, Any]:
        np.save(tmp_path / "scores.npy", values)
        (tmp_path / "result.json").write_text(json.dumps(text))
        return collect(["*.npy", "result.json"], tmp_path, 0.0)

    values = np.linspace(0.0, 1.0, 500)
    base = written(values, {"accuracy": 0.5, "rows": [1, 2]})

    def failed(found: dict[str, Any], *nulls: dict[str, Any]) -> list[str]:
        judge = judge_by(*(observe_files(base, one) for one in nulls))
        rows = judge_files(base, found, judge, Findings())
        return [r.module for r in rows if r.status.failed]

    assert failed(base) == []
    plain = {"accuracy": 0.5, "rows": [1, 2]}
    close = written(values * 1.001, plain)
    null = written(values * 1.0005, plain), written(values * 0.9993, plain)
    assert failed(close, *null) == []
    assert failed(close, base, base) == ["scores.npy"]
    assert failed(written(values[::-1], plain), *null) == ["scores.npy"]
    assert failed(written(values, {"accuracy": 0.4, "rows": [1, 2]}), *null) == ["result.json"]
    assert failed(written(values, {"accuracy": 0.5, "rows": [1]})) == ["result.json"]
    assert failed({**base, "files": {}}) == ["scores.npy"]  # and what follows is a warning
    judge = judge_by(observe_files(base, base))
    doubted = judge_files(base, written(values[::-1], plain), judge, Findings(chosen=0))
    assert [row.status for row in doubted if row.module == "scores.npy"] == [RecordStatus.WARN]


def test_a_pattern_that_fits_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1.0")
    kept = collect(["a.txt", "b/*"], tmp_path, 0.0)
    assert kept["matched"] == {"a.txt": 1, "b/*": 0}
    found = Findings()
    judge_files(kept, kept, judge_by(), found)
    assert [str(item["reason"]) for item in found.uncovered] == [
        "b/*: the baseline wrote no such file"
    ]


def test_a_file_that_is_older_than_the_run_was_not_written_by_it(tmp_path: Path) -> None:
    np.save(tmp_path / "scores.npy", np.zeros(3))
    assert collect(["*.npy"], tmp_path, 0.0)["files"].keys() == {"scores.npy"}
    stale = collect(["*.npy"], tmp_path, (tmp_path / "scores.npy").stat().st_mtime + 60)
    assert (stale["files"], stale["stale"]) == ({}, ["scores.npy"])


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    (folder / "out").mkdir()
    environment = {**PLAIN, "OUT": str(folder / "out")}
    out = folder / "out"
    record(PROGRAMS / "whole_loader.py", folder / "base.jmb", environment, out, runs=2)
    return folder


@pytest.mark.parametrize(
    ("name", "stage", "outcome"),
    [
        ("random state set back after an epoch", "S5W", Outcome.FAIL),
        # Shares of right answers: choices fall in steps whose choices are not looked at.
        ("accuracy over the wrong count", "S5P", Outcome.INCONCLUSIVE),
        ("scores of the file reversed", "S5F", Outcome.INCONCLUSIVE),
    ],
)
def test_a_late_fault_is_named_once(
    name: str, stage: str, outcome: Outcome, baseline: Path, tmp_path: Path
) -> None:
    (fault,) = [f for f in WHOLE_FAULTS if f.name == name]
    (tmp_path / "train.py").write_text(fault.source())
    out = baseline / "out"
    environment = {**PLAIN, "OUT": str(out)}
    target = tmp_path / "t.jmb"
    found = replay(baseline / "base.jmb", tmp_path / "train.py", target, environment, out)
    assert found.verdict is outcome
    assert found.first_divergence is not None
    assert found.first_divergence.stage == stage
    assert sum(row.status.failed for row in found.records) == (outcome is Outcome.FAIL)


CHOICES = """
import os
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
scores = model(torch.randn(64, 4)).argmax(-1)
if os.environ["FLIP"] == "1":
    scores[50] = (scores[50] + 1) % 4
right = sum(int(score.item() == 0) for score in scores)
"""


def test_all_choices_of_a_step_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(CHOICES)
    told = []
    for flip in "010":
        environment = {**PLAIN, "FLIP": flip}
        made = record(tmp_path / "program.py", tmp_path / f"{len(told)}.jmb", environment)
        watched = made.rank(0).json("watch.json")
        assert (watched["chooses"], watched["blind"]) == (True, False)
        told.append(watched["series"]["choice"])
    assert told[0] == told[2] != told[1]


def test_sizes_that_are_not_finite_on_both_sides_are_alike() -> None:
    nan, inf = math.nan, math.inf
    assert [log_ratio(a, b, 1.0) for a, b in ((nan, nan), (inf, nan), (1.0, 1.0))] == [0, 0, 0]
    assert log_ratio(1.0, nan, 1.0) == log_ratio(inf, 1.0, 1.0) == inf


RANKS = """
import os
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
scores = model(torch.randn(64, 4))
if os.environ["FLIP"] == "1":
    scores = scores.detach().clone()
    scores[3, 0] = -9.0
place = (scores[:, 1:] > scores[:, :1]).sum(-1) + 1
print((1 / place.float()).mean().item())
"""


def test_comparisons_behind_a_number_are_choices(tmp_path: Path) -> None:
    """Nothing whole is read: the mean of reciprocal ranks moves by a comparison that flips."""
    (tmp_path / "program.py").write_text(RANKS)
    told = []
    for flip in "010":
        environment = {**PLAIN, "FLIP": flip}
        made = record(tmp_path / "program.py", tmp_path / f"{len(told)}.jmb", environment)
        watched = made.rank(0).json("watch.json")
        assert (watched["chooses"], watched["blind"]) == (True, False)
        told.append(watched["series"]["choice"])
    assert told[0] == told[2] != told[1]


def test_sparse_inputs_are_left_alone() -> None:
    watch, sparse = run_watch.RunWatch(), torch.eye(3).to_sparse()
    watch.call("net:", 0, {"0": torch.ones(2), "1": sparse}, None)
    watch.batch(torch.nn.Identity(), [sparse])  # anything that can be referred to weakly
    assert "input net: 0 0" in watch.to_json()["series"]


def test_batches_are_seen_where_the_vendor_has_a_next_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.utils.data import DataLoader, dataloader

    from joymigrate.verify import watch

    class Seen:
        count, fetching = 0, False

        def batch(self, iterator: Any, value: Any) -> None:
            self.count += 1

    owner = dataloader._SingleProcessDataLoaderIter
    real, recorder, undo = owner.__next__, Seen(), []
    watch.watch_loaders(recorder, undo)  # type: ignore[arg-type]
    monkeypatch.setattr(owner, "__next__", lambda self: real(self))
    assert len(list(DataLoader([1.0, 2.0, 3.0]))) == recorder.count == 3
    for put_back in undo:
        put_back()
    assert len(list(DataLoader([1.0]))) + 2 == recorder.count
