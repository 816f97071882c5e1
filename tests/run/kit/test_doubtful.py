"""Predictions and scores of a kit that must not be believed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from joymigrate.errors import JoyError


def test_a_run_on_the_cpu_predicts_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    from joymigrate.chips import get
    from joymigrate.run.kit import make

    rows = [
        {"id": "a", "outcome": "refused", "message": "no such function: torch_npu.npu_swiglu"},
        {"id": "b", "outcome": "accepted", "dtypes": ["float32"]},
    ]

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        target = Path(command[command.index("-o") + 1])
        target.write_text(json.dumps({"results": rows}), encoding="utf-8")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(make.subprocess, "run", run)
    monkeypatch.setattr(make, "files", lambda kit, inputs: {})
    cases = [{"id": name, "section": "operator", "prediction": {}} for name in "ab"]
    for rehearsed, wanted in ((False, [None, "accepted"]), (True, ["refused", "accepted"])):
        kit = {"cases": [dict(case) for case in cases]}
        make.add_predictions(kit, b"", get("ascend"), rehearsed)
        assert [case["prediction"].get("outcome") for case in kit["cases"]] == wanted


def score_of(**changed: object) -> dict[str, object]:
    said = {"outcome": "accepted", "grade": "rehearsed", "losses": [4.6, 4.3]}
    row = {"id": "training", "section": "training", "op": "training", "dtype": "float32",
           "layout": "contiguous", "outcome": "accepted", "losses": [4.6, 4.3],
           "predicted": said, **changed}  # fmt: skip
    return {"schema": "joymigrate.score/1", "kit": "k", "chip": "ascend", "device": "npu",
            "device_name": "Ascend910B3", "versions": {"torch": "2.13.0"},
            "date": "2026-11-20", "rehearsal": False, "results": [row]}  # fmt: skip


def test_a_score_without_its_figures_is_one_clear_error() -> None:
    from joymigrate.chips.calibration import Calibration
    from joymigrate.run.kit import score

    whole = score.check(score_of(), "s.json")
    assert score.judge_rows(whole)[0]["deviations"] == []
    assert score.count_alone(score.calibrate([whole], Calibration("ascend", {}))) == 1
    lacking = score_of()
    del lacking["results"][0]["losses"]  # type: ignore[index]
    with pytest.raises(JoyError, match="'losses' is missing"):
        score.check(lacking, "s.json")
    with pytest.raises(JoyError, match="has 1 values, not 2"):
        score.check(score_of(losses=[4.6]), "s.json")
