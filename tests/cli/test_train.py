"""`joymigrate train`: what a person types, and what comes back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.joy import Joy, joy_with
from tests.run.train import jobs


@pytest.fixture
def joy(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Joy:
    monkeypatch.chdir(tmp_path)
    return joy_with(capsys)


def test_a_job_is_written_trained_and_looked_at(joy: Joy, tmp_path: Path) -> None:
    jobs.write(tmp_path)
    done = joy("train", "job.yaml", "--set", "steps=6")
    assert done.code == 0, done.err
    assert "run " in done.err
    assert "step 6/6" in done.err
    told = joy("train", "status", "--plot")
    assert "finished  step 6/6" in told.out
    assert "⠀" in told.out
    found = json.loads(joy("train", "status", "runs/job", "--format", "json").out)
    assert found["schema"] == "joymigrate.runs/1"
    assert found["runs"][0]["state"] == "finished"
    assert joy("train", "status", "runs/job", "-o", "loss.svg").code == 0
    assert (tmp_path / "loss.svg").read_text().startswith("<svg")
    assert joy("train", "status", "runs/job", "-o", "run.html").code == 0
    assert "polyline" in (tmp_path / "run.html").read_text()
    assert joy("train", "export", "runs/job", "-o", "out").out.strip() == "out"
    assert (tmp_path / "out/model.safetensors").is_file()
    (tmp_path / "out/mine.txt").write_text("keep me")
    refused = joy("train", "export", "runs/job", "-o", "out")
    assert refused.code == 2
    assert "--force" in refused.err
    assert (tmp_path / "out/mine.txt").exists()
    assert joy("train", "export", "runs/job", "-o", "out", "--force").code == 0
    assert not (tmp_path / "out/mine.txt").exists()


def test_init_writes_a_file_once(joy: Joy, tmp_path: Path) -> None:
    assert joy("train", "init", "new.yaml", "--model", "m", "--data", "d.jsonl").code == 0
    assert "path: m " in (tmp_path / "new.yaml").read_text()
    again = joy("train", "init", "new.yaml")
    assert again.code == 2
    assert "the file exists" in again.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("train", "none.yaml"), "cannot read the job"),
        (("train", "job.yaml", "--set", "task=stf"), "unknown task 'stf'. Did you mean 'sft'"),
        (("train", "job.yaml", "--device", "ascent"), "Did you mean 'ascend'"),
        (("train", "job.yaml", "--set", "data.train=no.jsonl"), "no such data file"),
        (("train", "job.yaml", "--nproc", "3"), "does not divide over 3 processes"),
        (("train", "job.yaml", "--nodes", "2"), "several machines need a place to meet"),
        (("train", "status", "nowhere"), "no run there"),
        (("train", "export", "nowhere"), "not a run folder"),
        (("train", "init", "x.yaml", "--task", "sf"), "unknown task 'sf'"),
    ],
)
def test_a_mistake_gives_one_error_and_exit_code_2(
    joy: Joy, tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    jobs.write(tmp_path)
    told = joy(*arguments)
    assert told.code == 2
    assert expected in told.err
    assert told.err.count("error:") == 1
    assert "Traceback" not in told.err
