"""Every process of a distributed program: its run, its doubts, what the user leaves out. Two
processes are made of recordings of one: the second's files are those of another run, or changed."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from joymigrate.verify.align import NameMap
from joymigrate.verify.bundle import Bundle, Rank, open_bundle
from joymigrate.verify.bundle.write import OUTPUTS
from joymigrate.verify.compare import compare
from joymigrate.verify.model import Outcome, RecordStatus, Verdict
from joymigrate.verify.tolerance import Tolerance
from tests.verify.harness import record, replay

PROGRAM = """
import torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x = torch.randn(8, 4)
    loss = (model(x) - x[:, :1]).square().mean()
    optimiser.zero_grad(); loss.backward(); optimiser.step()
    print("score 0.500")
"""
Change = Callable[[Any], None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("processes")
    (folder / "p.py").write_text(PROGRAM)
    (folder / "wrong.py").write_text(PROGRAM.replace("nn.Tanh()", "nn.Sigmoid()"))
    record(folder / "p.py", folder / "b.jmb", runs=2)
    for name in ("p", "wrong"):
        replay(folder / "b.jmb", folder / f"{name}.py", folder / f"{name}.jmb")
    return folder


def two(first: Path, second: Path) -> Bundle:
    """A recording of two processes."""
    bundle, other = open_bundle(first), open_bundle(second).ranks[0]
    ranks = [bundle.ranks[0], Rank(other.folder, {**other.manifest, "rank": 1})]
    return replace(bundle, ranks=ranks)


def judged(folder: Path, second: Path, names: NameMap | None = None) -> Verdict:
    base = two(folder / "b.jmb", folder / "b.jmb")
    return compare(base, two(folder / "p.jmb", second), Tolerance.of(None), names=names)


def changed(folder: Path, tmp_path: Path, file: str, change: Change) -> Verdict:
    """The verdict where one file of the second process is another one."""
    shutil.copytree(folder / "p.jmb", tmp_path / "t.jmb")
    base, target = (two(folder / name, folder / name) for name in ("b.jmb", "p.jmb"))
    target.ranks[1].folder = tmp_path / "t.jmb" / "rank-0"
    content = target.ranks[1].json(file)
    change(content)
    (target.ranks[1].folder / file).write_text(json.dumps(content))
    return compare(base, target, Tolerance.of(None))


def test_every_stage_counts_the_other_process_once(folder: Path) -> None:
    base, target = (open_bundle(folder / name) for name in ("b.jmb", "p.jmb"))
    alone = compare(base, target, Tolerance.of(None))
    found = judged(folder, folder / "p.jmb")
    assert (alone.verdict, found.verdict) == (Outcome.PASS, Outcome.PASS), found.reason
    assert found.covered["processes"] == {"compared": 2, "of": 2}
    one, both = ({s.stage: s.compared for s in v.stages} for v in (alone, found))
    assert len(both) == len(found.stages)
    assert one["S5W"] > 0
    assert {name for name in both if both[name] == 2 * one[name]} >= {"S1", "S3", "S4"}
    assert both["S5W"] >= 2 * one["S5W"]  # S5 judges the updates of the first process alone


def test_a_run_of_another_process_that_departs_fails_its_one_stage(
    folder: Path, tmp_path: Path
) -> None:
    def change(watch: Any) -> None:
        watch["series"]["random torch"][-1][1] += 1

    found = changed(folder, tmp_path, "watch.json", change)
    assert found.verdict is Outcome.FAIL
    assert found.first_divergence is not None
    assert found.first_divergence.stage == "S5W"
    assert str(found.first_divergence.evidence).startswith("in process 1: ")
    assert max(Counter(s.stage for s in found.stages).values()) == 1
    assert next(s for s in found.stages if s.stage == "S5W").verdict is Outcome.FAIL


@pytest.mark.parametrize(
    ("file", "old", "new", "stage"),
    [("log.json", "0.1", "0.2", "S4R"), ("printed.json", "score 0.500", "score 0.900", "S5P")],
)
def test_settings_and_prints_of_another_process_are_compared(
    folder: Path, tmp_path: Path, file: str, old: str, new: str, stage: str
) -> None:
    def change(content: Any) -> None:
        held = json.loads(json.dumps(content).replace(old, new))
        assert held != content
        content.update(held)

    found = changed(folder, tmp_path, file, change)
    assert found.verdict is Outcome.FAIL
    assert found.first_divergence is not None
    assert found.first_divergence.stage == stage
    assert "in process 1: " in str(found.first_divergence.evidence)
    assert sum(row.status.failed for row in found.records) == 1
    assert next(s for s in found.stages if s.stage == stage).verdict is Outcome.FAIL


def test_a_process_that_could_not_run_a_pass_leaves_a_doubt(folder: Path, tmp_path: Path) -> None:
    def change(replayed: Any) -> None:
        for lesson in replayed["lessons"]:
            lesson |= {"error": "no room", "rows": []}

    found = changed(folder, tmp_path, "replay.json", change)
    assert found.verdict is Outcome.INCONCLUSIVE
    assert "in process 1" in str(found.reason)
    assert "no room" in str(found.reason)


def test_what_is_left_out_of_another_process_alone_is_said(folder: Path, tmp_path: Path) -> None:
    def change(watch: Any) -> None:
        watch["series"]["random torch"][0][1] += 1

    left = [
        str(item["reason"]) for item in changed(folder, tmp_path, "watch.json", change).uncovered
    ]
    assert len(left) == 1
    assert left[0].startswith("in process 1: it changes, and does not begin")


def test_what_the_user_leaves_out_is_left_out_in_every_process(folder: Path) -> None:
    def modules(names: NameMap | None) -> list[str]:
        rows = judged(folder, folder / "wrong.jmb", names).records
        return [r.module for r in rows if r.stage in ("S3", "S4") and r.status is RecordStatus.FAIL]

    assert modules(None)
    assert not modules(NameMap({}, ("*",)))


def test_what_a_lost_process_would_have_had_is_no_other_data(folder: Path) -> None:
    """The first process alone left a recording: its part of the batch is not the whole."""
    base, target = two(folder / "b.jmb", folder / "b.jmb"), two(folder / "p.jmb", folder / "p.jmb")
    for rank in (*base.ranks, *target.ranks):
        rank.manifest = {**rank.manifest, "world": 2}
    halve(base.ranks, target.ranks)
    for kept in target.ranks:
        found = compare(base, replace(target, ranks=[kept]), Tolerance.of(None))
        assert found.verdict is Outcome.INCONCLUSIVE, found.first_divergence
        assert str(found.reason) == "processes of the target that left no recording: 1"
        assert not any(row.status.failed for row in found.records)
        assert found.covered["processes"] == {"compared": 1, "of": 2}
    whole = compare(base, target, Tolerance.of(None))
    assert whole.verdict is Outcome.PASS, whole.reason


def test_a_process_that_is_lost_where_the_numbers_differ_is_no_other_data(folder: Path) -> None:
    """A baseline of one process; of a target of two, or a baseline of two, one alone is there."""
    base, target = two(folder / "b.jmb", folder / "b.jmb"), two(folder / "p.jmb", folder / "p.jmb")
    halve(target.ranks)
    for rank in target.ranks:
        rank.manifest = {**rank.manifest, "world": 2}
    for kept in target.ranks:
        one = replace(base, ranks=base.ranks[:1])
        found = compare(one, replace(target, ranks=[kept]), Tolerance.of(None))
        assert found.verdict is Outcome.INCONCLUSIVE, found.first_divergence
        assert str(found.reason) == "processes of the target that left no recording: 1"
        assert not any(row.status.failed for row in found.records)
    halve(base.ranks)
    base.ranks[0].manifest = {**base.ranks[0].manifest, "world": 2}
    whole = open_bundle(folder / "p.jmb")
    found = compare(replace(base, ranks=base.ranks[:1]), whole, Tolerance.of(None))
    assert not any(row.status.failed for row in found.records), found.first_divergence
    assert "they left no recording in the baseline" in [str(i["reason"]) for i in found.uncovered]


def test_a_process_that_is_lost_on_both_sides_is_said(folder: Path) -> None:
    sides = [two(folder / name, folder / name) for name in ("b.jmb", "p.jmb")]
    for side in sides:
        side.ranks[0].manifest = {**side.ranks[0].manifest, "world": 2}
    base, target = (replace(side, ranks=side.ranks[:1]) for side in sides)
    found = compare(base, target, Tolerance.of(None))
    assert found.covered["processes"] == {"compared": 1, "of": 2}
    (left,) = [item for item in found.uncovered if item["what"] == "processes"]
    assert left["count"] == 1
    assert str(left["reason"]) == "neither side has a recording of them"


def test_files_that_a_lost_process_may_write_are_left_out(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "b.jmb", tmp_path / "b.jmb")
    base, target = two(tmp_path / "b.jmb", folder / "b.jmb"), open_bundle(folder / "p.jmb")
    written = {"files": {"log.txt": {"kind": "text", "lines": ["score 0.5"]}}}
    (tmp_path / "b.jmb" / OUTPUTS).write_text(json.dumps(written))
    base.manifest = {**base.manifest, "files": {**base.manifest["files"], OUTPUTS: {}}}
    for rank in (*base.ranks, *target.ranks):
        rank.manifest = {**rank.manifest, "world": 2}
    found = compare(base, target, Tolerance.of(None))
    assert found.verdict is Outcome.INCONCLUSIVE, found.first_divergence
    assert any(item["what"] == "files" for item in found.uncovered)


def halve(*sides: list[Rank]) -> None:
    """Each process has its part of every batch and of every loss."""
    for ranks in sides:
        for part, rank in enumerate(ranks):
            for step in rank.steps:
                table = rank.table(step)
                table.spread = [f"batch {part},2" if k == "in" else "" for k in table.kind]


def test_a_fault_beside_a_lost_process_is_still_the_finding(folder: Path) -> None:
    base, target = (two(folder / f"{name}.jmb", folder / "b.jmb") for name in ("b", "wrong"))
    for rank in (*base.ranks, *target.ranks):
        rank.manifest = {**rank.manifest, "world": 2}
    found = compare(base, replace(target, ranks=target.ranks[:1]), Tolerance.of(None))
    assert found.verdict is Outcome.FAIL
    assert found.first_divergence is not None
    assert found.first_divergence.stage == "S3"


NORMED = PROGRAM.replace("nn.Tanh()", "nn.BatchNorm1d(8)")
OWN = """
    import ctypes  # as no call of torch: a wrapper sends buffers by itself
    (ctypes.c_float * 8).from_address(model[1].running_mean.data_ptr())[0] = 9.0 if step else 0.5
"""


def test_buffers_that_a_process_beside_the_first_keeps_for_itself_are_judged(
    tmp_path: Path,
) -> None:
    (tmp_path / "p.py").write_text(NORMED)
    (tmp_path / "own.py").write_text(NORMED + OWN)
    record(tmp_path / "p.py", tmp_path / "b.jmb", runs=2)
    for name in ("p", "own"):
        replay(tmp_path / "b.jmb", tmp_path / f"{name}.py", tmp_path / f"{name}.jmb")
    base = two(tmp_path / "b.jmb", tmp_path / "b.jmb")
    clean, own = (
        compare(base, two(tmp_path / "p.jmb", tmp_path / f"{name}.jmb"), Tolerance.of(None))
        for name in ("p", "own")
    )
    assert clean.verdict is Outcome.PASS, clean.reason
    first = own.first_divergence
    assert first is not None
    assert (first.module, first.phase, first.step) == ("1", "state", 0)
    assert str(first.evidence).startswith("in process 1: ")
