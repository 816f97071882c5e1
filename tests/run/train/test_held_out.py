"""Held-out data while training: figures, the best checkpoint, early stopping, resuming."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joymigrate.errors import JoyError
from joymigrate.run.train import build, launch, records, tokenizer
from joymigrate.run.train import evaluate as evaluating
from joymigrate.run.train import job as jobs_of
from joymigrate.run.train.checkpoint_store import CheckpointStore
from joymigrate.run.train.held_out import BestModel, Evaluator
from joymigrate.run.train.job import EvaluationSettings
from joymigrate.run.train.run_folder import RunFolder
from joymigrate.run.train.status import status
from joymigrate.run.train.tokens import open_cache
from tests.run.train import jobs

DATA = {"train": "text.jsonl", "eval": "held.jsonl", "max_length": 64}


def write(folder: Path, name: str = "job", wish: Any = 5, **changes: Any) -> Path:
    changes = {"data": DATA, "eval": wish, "run": f"runs/{name}", **changes}
    path = jobs.write(folder, name, **changes)
    lines = (folder / "text.jsonl").read_text().splitlines(keepends=True)
    (folder / "held.jsonl").write_text("".join(lines[:21]))
    return path


def run(path: Path, *sets: str) -> int:
    start = launch.LaunchOptions(quiet=True, project=path.parent)
    return launch.launch(jobs_of.load(path, sets), start, lambda line: None)


def evaluations(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]


def figures(folder: Path) -> list[tuple[int, float, float]]:
    return [(one["step"], one["loss"], one["token_accuracy"]) for one in evaluations(folder)]


def scripted(monkeypatch: pytest.MonkeyPatch, values: dict[int, float]) -> None:
    """What the evaluations of some steps give; those of step 0 come first."""
    left = iter(values.values())
    monkeypatch.setattr(Evaluator, "measure", lambda self: {"loss": next(left)})


def test_the_figures_are_those_of_train_evaluate_and_change_no_step(tmp_path: Path) -> None:
    assert run(write(tmp_path)) == 0
    assert run(write(tmp_path, "plain", None)) == 0
    folder = tmp_path / "runs/job"
    assert jobs.losses(folder) == jobs.losses(tmp_path / "runs/plain")
    found = evaluations(folder)
    assert [one["step"] for one in found] == [0, 5, 10, 15, 20]
    known = evaluating.evaluate(folder, None, [tmp_path / "held.jsonl"]).metrics
    for name in ("loss", "perplexity", "token_accuracy"):
        assert found[-1][name] == pytest.approx(known[name], rel=1e-5)
    assert found[-1]["loss"] < found[0]["loss"]
    assert status(folder).document["evaluation"]["step"] == 20


@pytest.mark.parametrize("size", [0.1, 20])
def test_records_that_are_held_out_are_not_trained_on(tmp_path: Path, size: float) -> None:
    drawn = {"train": "text.jsonl", "holdout": size, "max_length": 64}
    assert run(write(tmp_path, "drawn", data=drawn)) == 0
    lines = (tmp_path / "text.jsonl").read_text().splitlines(keepends=True)
    held = {*np.random.default_rng(0).permutation(200)[:20].tolist()}
    for name, kept in (("held", held), ("rest", {*range(200)} - held)):
        (tmp_path / f"{name}.jsonl").write_text("".join(lines[n] for n in sorted(kept)))
    named = {"train": "rest.jsonl", "eval": "held.jsonl", "max_length": 64}
    path = jobs.write(tmp_path, "named", data=named, eval=5, run="runs/named")
    assert run(path) == 0
    assert figures(tmp_path / "runs/drawn") == figures(tmp_path / "runs/named")
    assert jobs.losses(tmp_path / "runs/drawn") == jobs.losses(tmp_path / "runs/named")


def test_a_run_keeps_to_what_it_holds_out(tmp_path: Path) -> None:
    drawn = {"train": "text.jsonl", "holdout": 0.1, "max_length": 64}
    flat = {"name": "constant"}
    path = write(tmp_path, data=drawn, schedule=flat)
    whole = write(tmp_path, "whole", data=drawn, schedule=flat)
    assert run(path, "steps=7") == 0
    assert run(path) == run(whole) == 0
    assert jobs.losses(tmp_path / "runs/job") == jobs.losses(tmp_path / "runs/whole")
    for changed in ("data.holdout=0.2", "seed=1"):
        with pytest.raises(JoyError, match="was started with another"):
            run(path, "steps=25", changed)
    assert run(path, "data.holdout=200", "run=runs/none") == 2


def test_a_build_of_some_records_that_was_interrupted_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = np.arange(200) % 3 > 0
    known = tokenizer.load(tokenizer.BYTES, None)

    def one(record: records.TrainingRecord) -> list[Any]:
        if len(seen) == 50 and not broken:
            broken.append(True)
            raise KeyboardInterrupt
        seen.append(record.where)
        return [{"tokens": np.asarray(known(record.text("text"))["input_ids"])}]

    seen, broken = list[str](), list[bool]()
    monkeypatch.setattr(build, "FLUSH_RECORDS", 20)
    file = jobs.texts(tmp_path / "text.jsonl")
    recipe = build.Recipe((file,), {"tokens": "uint16"}, "x", one, taken=taken)
    with pytest.raises(KeyboardInterrupt):
        open_cache(tmp_path / "tokens", recipe)
    cache = open_cache(tmp_path / "tokens", recipe)
    assert len(cache) == cache.manifest.records == taken.sum()
    assert [int(one.rpartition(":")[2]) for one in seen[-93:]] == [
        number + 1 for number in np.flatnonzero(taken)[-93:]
    ]


def test_without_a_number_the_ends_of_epochs_are_looked_at(tmp_path: Path) -> None:
    data = {**DATA, "packing": False, "train": "chat.jsonl", "eval": "talk.jsonl"}
    path = write(tmp_path, wish={}, steps=None, epochs=3, task="sft", data=data)
    jobs.chats(tmp_path / "talk.jsonl", 5)
    assert run(path) == 0  # 100 samples, 8 a step
    assert [one["step"] for one in evaluations(tmp_path / "runs/job")] == [0, 13, 25, 38]


def test_the_best_checkpoint_stays_and_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, {0: 9.0, 3: 3.0, 6: 2.0, 9: 5.0, 12: 4.0, 15: 3.5, 18: 3.0, 20: 2.5})
    path = write(tmp_path, wish={"every": 3, "metric": "loss"},
                 checkpoint={"every": 4, "keep": 2, "export": True})  # fmt: skip
    assert run(path) == 0
    folder = tmp_path / "runs/job"
    assert CheckpointStore(folder / "checkpoints").numbers() == [6, 16, 20]
    assert status(folder).document["best"]["step"] == 6
    from safetensors.torch import load_file

    from joymigrate.run.train.export import export
    from joymigrate.run.train.run_folder import RunFolder

    export(RunFolder(folder), tmp_path / "sixth", 6)
    theirs, ours = (
        load_file(p / "model.safetensors") for p in (tmp_path / "sixth", folder / "model")
    )
    assert all(bool((ours[name] == theirs[name]).all()) for name in theirs)


def test_patience_ends_a_run_and_goes_on_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {0: 9.0, 2: 3.0, 4: 3.1, 6: 3.2, 8: 2.9, 10: 3.0, 12: 3.0, 14: 3.0}
    wish = {"every": 2, "metric": "loss", "patience": 3}
    scripted(monkeypatch, values)
    assert run(write(tmp_path, wish=wish)) == 0
    whole = status(tmp_path / "runs/job")
    assert whole.document["step"] == 14
    assert whole.document["ended_early"]
    assert whole.state == "finished"
    assert whole.document["best"] | {"data": ""} == {
        "metric": "loss", "data": "", "value": 2.9, "step": 8, "worse": 3}  # fmt: skip
    before = (tmp_path / "runs/job/status.json").read_text()
    assert run(tmp_path / "job.yaml") == 0  # nothing more to do
    assert (tmp_path / "runs/job/status.json").read_text() == before
    # the same in two parts: patience and the best of the first count in the second
    scripted(monkeypatch, values)
    cut = write(tmp_path, "cut", wish, steps=10)
    assert run(cut) == 0
    cut.write_text(cut.read_text().replace("steps: 10", "steps: 20"))
    scripted(monkeypatch, {12: 3.0, 14: 3.0})
    assert run(cut) == 0
    parts = status(tmp_path / "runs/cut").document
    assert (parts["step"], parts["best"]) == (14, whole.document["best"])
    # a run that waits longer goes on
    scripted(monkeypatch, {16: 3.0, 18: 1.0, 20: 2.0})
    assert run(cut, "eval.patience=5") == 0
    assert status(tmp_path / "runs/cut").document["best"]["step"] == 18


def test_a_run_that_ended_early_says_what_continues_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {**DATA, "train": "chat.jsonl", "eval": "talk.jsonl", "packing": False}
    wish = {"every": 1, "metric": "loss", "patience": 1}
    path = write(tmp_path, wish=wish, steps=None, epochs=2, task="sft", data=data)
    jobs.chats(tmp_path / "talk.jsonl", 5)
    scripted(monkeypatch, {0: 9.0, 1: 3.0, 2: 4.0})
    assert run(path) == 0
    folder = tmp_path / "runs/job"

    def said(*sets: str) -> str | None:
        made = jobs_of.load(path, sets)
        return launch.explain_end(made, RunFolder(folder), launch.LaunchOptions())

    for sets in ((), ("epochs=5",), ("eval.batch=2",)):
        assert "a higher eval.patience continues it" in str(said(*sets))
    for sets in (("eval.patience=2",), ("eval.metric=token_accuracy",), ("eval.limit=3",)):
        assert said(*sets) is None
    held = (tmp_path / "talk.jsonl").read_text()
    jobs.chats(tmp_path / "talk.jsonl", 6)
    assert said() is None
    (tmp_path / "talk.jsonl").write_text(held)
    assert said() is not None
    chat = (tmp_path / "chat.jsonl").read_text()
    (tmp_path / "chat.jsonl").write_text(chat + chat)
    assert said() is None
    scripted(monkeypatch, {3: 2.0, 4: 5.0})
    assert run(path) == 0
    assert [status(folder).document[key] for key in ("step", "ended_early")] == [4, True]
    assert status(folder).document["best"]["step"] == 3


DIES = """
import os, signal, sys
from pathlib import Path
from joymigrate.run.train import held_out, job, launch, probes

path, (place, name), call = Path(sys.argv[1]), sys.argv[2].split("."), int(sys.argv[3])
place = {"probes": probes, "Evaluator": held_out.Evaluator}[place]
real, calls = getattr(place, name), []

def last(*given):
    calls.append(given)
    if len(calls) == call:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*given)

setattr(place, name, last)
launch.launch(job.load(path), launch.LaunchOptions(quiet=True, project=path.parent), print)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("within", "call"), [("Evaluator.forward", 8), ("probes.logits_of", 2)])
def test_killed_during_a_look_or_a_probe_it_continues_exactly(
    tmp_path: Path, within: str, call: int
) -> None:
    """The eighth pass is the second one of the look behind step 10: 21 samples, 8 a pass."""
    wish = {"every": 5, "metric": "loss", "patience": 9}
    saving = {"every": 4, "export": False}
    assert run(write(tmp_path, "plain", wish, checkpoint=saving)) == 0
    path = write(tmp_path, "job", wish, checkpoint=saving)
    command = [sys.executable, "-c", DIES, str(path), within, str(call)]
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert subprocess.run(command, env=environment).returncode == -signal.SIGKILL
    assert run(path) == 0
    folder = tmp_path / "runs/job"
    assert jobs.losses(folder) == jobs.losses(tmp_path / "runs/plain")
    assert figures(folder) == figures(tmp_path / "runs/plain")


@pytest.mark.slow
@pytest.mark.parametrize("layout", [{"dp": 2}, {"fsdp": 2}, {"tp": 2}])
def test_processes_agree(tmp_path: Path, layout: dict[str, int]) -> None:
    wish = {"every": 4, "metric": "token_accuracy", "batch": 4}
    assert run(write(tmp_path, "one", wish, steps=8)) == 0
    assert run(write(tmp_path, "two", wish, steps=8, layout=layout)) == 0
    for a, b in zip(figures(tmp_path / "runs/one"), figures(tmp_path / "runs/two"), strict=True):
        assert a == pytest.approx(b, abs=2e-5)
    best = [status(tmp_path / f"runs/{name}").document["best"] for name in ("one", "two")]
    assert best[0]["step"] == best[1]["step"]
    pairs = zip(jobs.losses(tmp_path / "runs/one"), jobs.losses(tmp_path / "runs/two"), strict=True)
    assert max(abs(a - b) for a, b in pairs) < 1e-5


def test_what_cannot_be_looked_at_is_named(tmp_path: Path, capsys: Any) -> None:
    for changes, named in (
        ({"data": {"train": "text.jsonl"}}, "data.eval names no file"),
        ({"data": {**DATA, "eval": "text.jsonl"}}, "trained on and held out: .*text.jsonl"),
        ({"layout": {"pp": 2}}, "no evaluation while training with layout"),
        ({"wish": {"patience": 2}}, "about a metric"),
    ):
        with pytest.raises(JoyError, match=named):
            jobs_of.load(write(tmp_path, **changes))
    assert run(write(tmp_path, wish={"metric": "tokn_accuracy"})) == 2
    assert "Did you mean 'token_accuracy'" in capsys.readouterr().err
    best = BestModel(EvaluationSettings(metric="own"), "")
    with pytest.raises(JoyError, match="whether a high 'own' is good"):
        best.on(0, {"own": 1.0})


def test_other_held_out_data_or_a_lost_best_count_for_nothing() -> None:
    wish = EvaluationSettings(metric="click.auc", margin=0.1)
    best = BestModel(wish, "a")
    assert [best.on(n, {"click.auc": v}) for n, v in enumerate((0.9, 0.5, 0.55, 0.7))] == [
        False, True, False, True]  # fmt: skip
    saved = best.document()
    again = BestModel(wish, "a")
    assert again.restore(saved, lambda step: step == 3) is None
    assert again == best
    assert "changed" in str(BestModel(wish, "b").restore(saved, lambda step: True))
    assert "is gone" in str(again.restore(saved, lambda step: False))
    assert again.step is None
