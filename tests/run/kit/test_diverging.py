"""`report repro` of an operator that a verdict of `verify ops` found diverging."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from joymigrate.cli._main import run
from joymigrate.run.kit.cases import CaseFields, of_entry
from joymigrate.run.kit.runner.judge import deviations

ROW: dict[str, Any] = {
    "op": "aten::gelu", "overload": "", "dtype": "float16", "shapes": [[4, 6]], "calls": 1,
    "where": None, "module": None, "case": "recorded", "phase": "forward", "level": "L1",
    "inputs": "drawn", "status": "FAIL", "metric": "rmse", "value": 0.02, "limit": 0.01,
    "target_error": 0.02, "reference_error": 1e-4, "reason": None,
}  # fmt: skip


def made(tmp_path: Path, *rows: dict[str, Any]) -> str:
    document = {
        "schema": "joymigrate.verdict/1", "target": {"chip": "ascend"},
        "operators": {"rows": [{**ROW, **row} for row in rows]},
    }  # fmt: skip
    (tmp_path / "v.json").write_text(json.dumps(document))
    return f"{tmp_path}/v.json"


@pytest.mark.parametrize(
    ("row", "exits"),
    [
        ({}, 0),
        ({"limit": 1e-30}, 1),
        ({"limit": 1e-30, "phase": "backward"}, 1),
        ({"phase": "backward", "dtype": "bfloat16"}, 0),
        ({"op": "aten::mm", "shapes": [[3, 4], [4, 2]], "dtype": "float32"}, 0),
        ({"op": "aten::add", "overload": "Tensor", "shapes": [[3], [3]]}, 0),
        ({"metric": "share of unequal elements", "limit": 0.0}, 0),
        ({"op": "aten::add_", "overload": "Tensor", "shapes": [[3], [3]], "dtype": "int64",
          "metric": "share of unequal elements", "limit": 0.0}, 0),
        ({"op": "aten::mm", "shapes": [[3, 4], [4, 2]], "dtype": "float32", "phase": "backward",
          "metric": "share of unequal elements", "limit": 0.0}, 0),
        ({"metric": "diff1 error / reference's", "limit": 2.0}, 0),
    ],
)  # fmt: skip
def test_the_script_of_a_diverging_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: dict[str, Any], exits: int
) -> None:
    source = made(tmp_path, row)
    name = ROW["op"] if "op" not in row else row["op"]
    name += f".{row['overload']}" if row.get("overload") else ""
    script = f"{tmp_path}/repro.py"
    assert run(["report", "repro", name, "--score", source, "-o", script]) == 0
    assert len(Path(script).read_text().splitlines()) <= 30
    monkeypatch.setattr(sys, "argv", [script, "cpu"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(script)
    assert int(ended.value.code or 0) == exits


@pytest.mark.parametrize("metric", [f"{one} error / reference's" for one in ("rmse", "max")])
def test_a_ratio_is_judged_by_the_error_of_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: str
) -> None:
    """A device a thousandth off is ten thousand times worse than the CPU, and 0.001 is below 10."""
    source = made(tmp_path, {"metric": metric, "limit": 10.0, "dtype": "float32"})
    script = tmp_path / "repro.py"
    assert run(["report", "repro", "aten::gelu", "--score", source, "-o", str(script)]) == 0
    monkeypatch.setattr(sys, "argv", [str(script), "cpu"])
    text = script.read_text()
    script.write_text(text.replace("run(device, False)", "run(device, False) * 1.001"))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script))
    assert ended.value.code == 1


@pytest.mark.parametrize(
    ("name", "row", "says"),
    [
        ("aten::gelo", {}, "Did you mean 'aten::gelu'"),
        ("aten::gelu", {"status": "PASS"}, "no finding is called"),
        ("aten::gelu", {"case": "nan"}, "fails with nan inputs alone"),
        ("aten::cumsum", {"op": "aten::cumsum"}, "takes more than tensors"),
        ("aten::gelu", {"metric": "shape", "limit": None}, "by its shape"),
        ("aten::log", {"op": "aten::log"}, "no numbers of values drawn"),
        ("aten::embedding", {"op": "aten::embedding", "shapes": [[9, 4], [3]]}, "values drawn"),
    ],
)
def test_what_has_no_inputs_is_refused_with_the_way_to_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, row: dict[str, Any], says: str
) -> None:
    assert run(["report", "repro", name, "--score", made(tmp_path, row)]) == 2
    said = capsys.readouterr().err
    assert says.lower() in said.lower(), said


@pytest.mark.parametrize(
    ("dtype", "error", "wrong"),
    [("bfloat16", 9.0, True), ("bfloat16", 3.0, False), ("float16", 17.0, True),
     ("float32", 63.0, False), ("float32", 65.0, True)],
)  # fmt: skip
def test_half_types_have_no_room_for_half_of_the_value(
    dtype: str, error: float, wrong: bool
) -> None:
    """64 units of bfloat16 were half of the largest value: a result times 1.5 went through."""
    case = {"section": "vendor", "dtype": dtype}
    said = {"outcome": "accepted", "error": 0.4}
    assert bool(deviations(case, said, {"outcome": "accepted", "error": error})) is wrong


def test_a_case_of_int32_is_called_with_int32() -> None:
    (case,) = of_entry(CaseFields("torch.add", ([2, 3], [2, 3]), ("int32",)), "operator", (), {})
    assert [one["dtype"] for one in case["args"]] == ["int32", "int32"]
