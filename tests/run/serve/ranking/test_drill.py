"""Recorded requests, replayed to two servers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joymigrate.cli._main import run
from joymigrate.run.serve.ranking import program
from joymigrate.run.serve.ranking.inputs import draw
from joymigrate.run.serve.ranking.record import RequestRecorder
from tests.run.serve.ranking.conftest import Running

Serve = Callable[..., Running]


@pytest.fixture
def recorded(din: program.RankingProgram, tmp_path: Path) -> Path:
    """What a server writes down, with labels added as a user would."""
    path = tmp_path / "requests.jsonl"
    recorder = RequestRecorder(path)
    for seed in range(60):
        request = draw(din.signature, 6, 9, seed)
        request.key = f"u{seed % 20}"
        recorder.add(request)
    recorder.close()
    random = np.random.default_rng(0)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 60
    labels = (random.random((60, 6)) < 0.4).astype(int).tolist()
    path.write_text("".join(json.dumps({**row, "labels": one}) + "\n"
                            for row, one in zip(rows, labels, strict=True)))  # fmt: skip
    return path


def drill(path: Path, *more: str) -> int:
    return run(["serve", "drill", "--replay", str(path), "--format", "json", *more])


@pytest.mark.dear
def test_two_servers_of_one_model_rank_alike_and_another_model_does_not(
    serve: Serve, din_path: Path, recorded: Path, tmp_path: Path, capsys: Any
) -> None:
    one, two = serve(), serve()
    worse = program.load(din_path)
    for tensor in worse.state.values():
        if tensor.is_floating_point():
            tensor.mul_(-1)
    other = serve(worse)
    answers = tmp_path / "answers"
    code = drill(recorded, "--baseline", one.url, "--target", two.url, "--margin", "60",
                 "--logits", "--answers", str(answers))  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert (code, found["verdict"]) == (0, "pass")
    assert found["ranking"]["largest_difference"] <= 1e-6
    assert found["metrics"]["top-k"]["agreement"]["value"] == 100
    for side in found["sides"].values():
        assert (side["answered"], side["failed"], side["versions"]) == (60, 0, ["1"])
        assert side["p50_ms"] <= side["p99_ms"]
    files = [str(answers / f"{name}.jsonl") for name in ("baseline", "target")]
    assert run(["verify", "task", *files, "--kind", "ranking", "--margin", "60", "--logits"]) == 0
    capsys.readouterr()
    code = drill(recorded, "--baseline", one.url, "--target", other.url, "--logits", "-k", "2")
    found = json.loads(capsys.readouterr().out)
    assert code != 0
    assert found["metrics"]["top-k"]["agreement"]["value"] < 80


def test_a_target_that_fails_never_passes(serve: Serve, recorded: Path, capsys: Any) -> None:
    one = serve()
    code = drill(recorded, "--baseline", one.url, "--target", "http://127.0.0.1:9")
    assert code == 2
    assert "no request was answered" in capsys.readouterr().err
    rows = [json.loads(line) for line in recorded.read_text().splitlines()]
    rows[0]["inputs"]["user"] = [[-1, 0, 0]]
    recorded.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code = drill(recorded, "--baseline", one.url, "--target", one.url, "--margin", "60", "--logits")
    found = json.loads(capsys.readouterr().out)
    assert (code, found["verdict"]) == (1, "fail")
    assert "the id -1 is negative" in found["sides"]["target"]["failures"][0]


@pytest.mark.parametrize("line", ['{"inputs": 3}', "x", '{"inputs": {}, "labels": 1}', ""])
def test_broken_recordings_are_named(tmp_path: Path, line: str, capsys: Any) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(line + "\n")
    assert drill(path, "--baseline", "http://a", "--target", "http://b") == 2
    assert "r.jsonl" in capsys.readouterr().err
    assert drill(path, "--baseline", "a", "--target", "http://b") == 2
