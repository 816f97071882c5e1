"""Scores that people contributed: each can be read, is of a chip, and is in what is shipped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from joymigrate import chips
from joymigrate.chips import calibration, load
from joymigrate.chips.calibration import Calibration
from joymigrate.cli._main import run
from joymigrate.run.kit import score

CHIPS = sorted(chips.all_chips())


def lacking(folder: Path, name: str) -> list[str]:
    """Cases of contributed scores that the shipped calibration does not have; JoyError for a score
    that is none."""
    scores = [
        score.check(json.loads(path.read_text()), path.name)
        for path in sorted((folder / "scores").glob("*.json"))
    ]
    assert not any(one["rehearsal"] for one in scores)
    joined = score.calibrate(scores, Calibration(name))
    shipped = calibration.read(folder / calibration.SHIPPED, name)
    return [key for key, row in joined.rows.items() if shipped.get(key) != row]


@pytest.mark.parametrize("name", CHIPS)
def test_every_contributed_score_is_sound_and_shipped(name: str) -> None:
    assert lacking(chips.get(name).folder, name) == []


def one_score(**more: Any) -> dict[str, Any]:
    row = {
        "id": "gelu", "section": "operator", "op": "torch.gelu", "dtype": "float16",
        "layout": "contiguous", "outcome": "refused", "predicted": {"outcome": "accepted"},
    }  # fmt: skip
    return {
        "schema": score.SCHEMA, "kit": "1", "chip": "ascend", "rehearsal": False,
        "device_name": "Ascend910B3", "versions": {"torch_npu": "2.13.0"}, "date": "2026-11-25",
        "environment": {"driver": "25.2.3", "sdk": "9.0.0", "cards": 8},
        "results": [{**row, **more}],
    }  # fmt: skip


def test_a_contributed_score_is_known_to_every_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scores").mkdir()
    path = tmp_path / "scores" / "a.json"
    path.write_text(json.dumps(one_score()))
    assert lacking(tmp_path, "ascend") == ["gelu"]
    shipped = str(tmp_path / calibration.SHIPPED)
    assert run(["kit", "merge", str(path), "--to", "ascend", "-o", shipped]) == 0
    assert lacking(tmp_path, "ascend") == []
    chip = replace(chips.get("ascend"), folder=tmp_path)
    monkeypatch.setattr(load, "all_chips", lambda: {"ascend": chip})
    monkeypatch.setenv(calibration.ENVIRONMENT, str(tmp_path / "mine.json"))
    known = calibration.load("ascend")
    assert known.of_operators(["aten::gelu"])[0]["grade"] == "measured"
    rehearsed = {**dict(known.rows["gelu"]), "grade": "rehearsed", "deviations": []}
    calibration.save(Calibration("ascend", {"gelu": rehearsed}), tmp_path / "mine.json")
    assert calibration.load("ascend").rows["gelu"]["grade"] == "measured"


@pytest.mark.parametrize("lacks", ["driver", "cards", None])
def test_a_score_of_no_named_machine_measures_nothing(
    lacks: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = one_score()
    if lacks is None:
        del made["environment"]
    else:
        made["environment"][lacks] = None
    path, known = tmp_path / "a.json", tmp_path / "known.json"
    path.write_text(json.dumps(made))
    assert run(["kit", "score", str(path), "--calibration", str(known)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "its machine names no" in said.err
    assert not known.exists()
    assert run(["kit", "score", str(path), "--no-calibration"]) == 0
    assert "grade: stated" in capsys.readouterr().out
    assert run(["kit", "merge", str(path), "--check"]) == 2


@pytest.mark.parametrize(
    ("called", "function"),
    [
        ("aten::_softmax", "torch.softmax"), ("aten::gelu.out", "torch.nn.functional.gelu"),
        ("aten::upsample_nearest2d", "torch.nn.functional.interpolate"),
        ("aten::native_layer_norm", "torch.nn.functional.layer_norm"),
        ("aten::convolution", "torch.nn.functional.conv2d"), ("aten::add_.Tensor", "torch.add"),
    ],
)  # fmt: skip
def test_what_a_kit_calls_a_function_is_known_by_its_operator(called: str, function: str) -> None:
    row = {"op": function, "deviations": ["result"]}
    known = Calibration("ascend", {"a": row, "b": {**row, "op": "torch.exp"}})
    assert known.of_operators([called]) == [row]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"message": "at C:\\\\Users\\\\me"}, "a path"),
        ({"message": "10.1.2.3 refused"}, "an address"),
        ({"message": "me@example.com"}, "an address"),
        ({"outcome": "fine"}, "no outcome is called 'fine'"),
        ({"error": float("nan")}, "no figure"),
        ({"predicted": {"message": "/home/me"}}, "a path"),
    ],
)
def test_a_score_that_should_not_be_shared_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], said: str
) -> None:
    path = tmp_path / "score.json"
    path.write_text(json.dumps(one_score(**change)))
    assert run(["kit", "merge", str(path), "--check"]) == 2
    assert said in capsys.readouterr().err


def test_a_rehearsed_score_is_no_contribution(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "score.json"
    path.write_text(json.dumps({**one_score(), "rehearsal": True}))
    assert run(["kit", "merge", str(path), "--check"]) == 2
    assert "simulated chip" in capsys.readouterr().err
