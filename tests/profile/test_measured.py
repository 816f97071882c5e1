"""What a chip was measured to do comes before what its documents say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from joymigrate.chips import calibration, get
from joymigrate.evidence import count_grades, weaker_line, weakest
from joymigrate.profile import readers
from joymigrate.profile.coverage import Coverage, cover, distinct_calls
from joymigrate.profile.oplist import of
from joymigrate.run.kit import seal
from joymigrate.verify.tolerance import Tolerance
from tests.cli.joy import joy_with
from tests.profile.test_readers import op, written

HALF = {"Input type": ["c10::Half"], "Input Dims": [[4, 8]], "Input Strides": [[8, 1]]}


def row(name: str, outcome: str, **more: Any) -> dict[str, Any]:
    """A case as a chip with torch_npu 2.13 saw it."""
    source = {"device": "Ascend910B3", "versions": {"torch_npu": "2.13.0"}, "date": "2026-05-01",
              "kit": "k"}  # fmt: skip
    return {"id": f"{name} float16 contiguous", "op": name, "dtype": "float16",
            "layout": "contiguous", "found": {"outcome": outcome}, "deviations": [],
            "grade": "measured", "sources": [source], **more}  # fmt: skip


@pytest.fixture
def know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a calibration that everything reads from then on."""
    file = tmp_path / "known.json"
    monkeypatch.setenv(calibration.ENVIRONMENT, str(file))

    def write(*rows: dict[str, Any]) -> None:
        document = {"schema": calibration.SCHEMA, "chip": "ascend", "rows": list(rows)}
        file.write_text(json.dumps(document))

    return write


def judged(tmp_path: Path, **more: Any) -> Coverage:
    """GELU and exp on half precision."""
    events = [op("aten::gelu", 0, 10, **HALF), op("aten::exp", 20, 10, **HALF)]
    return cover([readers.read(written(tmp_path / "t.json", events))], of("ascend"))


def found(coverage: Coverage) -> dict[str, tuple[str, str]]:
    return {one.name.partition(".")[0]: (one.status.value, one.grade) for one in coverage.ops}


def test_without_a_calibration_all_is_documented(tmp_path: Path, know: Any) -> None:
    coverage = judged(tmp_path)
    assert coverage.grades() == {"documented": 2, "rehearsed": 0, "measured": 0}


def test_what_a_chip_refuses_is_missing(tmp_path: Path, know: Any) -> None:
    know(row("torch.nn.functional.gelu", "refused"), row("torch.exp", "accepted"))
    coverage = judged(tmp_path)
    assert found(coverage) == {"aten::gelu": ("missing", "measured"),
                               "aten::exp": ("native", "measured")}  # fmt: skip
    assert "Ascend910B3, 2026-05-01" in coverage.gaps()[0].note
    assert coverage.share.ops == 0.5


def test_what_ran_in_other_shapes_is_not_measured_in_these(tmp_path: Path, know: Any) -> None:
    know(row("torch.nn.functional.gelu", "accepted", inputs=[[4, 8]]),
         row("torch.exp", "accepted", inputs=[[2, 2]], deviations=["wrong result"]))  # fmt: skip
    coverage = judged(tmp_path)
    assert found(coverage) == {"aten::gelu": ("native", "measured"),
                               "aten::exp": ("native", "documented")}  # fmt: skip
    note = next(str(one.note) for one in coverage.ops if one.name.startswith("aten::exp"))
    assert "wrong result in float16 with shapes 2x2, not tried with these" in note


def test_the_row_of_the_same_shapes_comes_first(tmp_path: Path, know: Any) -> None:
    other = {**row("torch.exp", "refused", inputs=[[2, 2]]), "id": "exp 2x2"}
    know(other, row("torch.exp", "accepted", inputs=[[4, 8]]))
    assert found(judged(tmp_path))["aten::exp"] == ("native", "measured")
    third = {**row("torch.exp", "accepted", inputs=[[3, 3]]), "id": "exp 3x3"}
    know(other, third)  # the dtype is taken in yet other shapes
    assert found(judged(tmp_path))["aten::exp"] == ("native", "documented")
    know(other)  # what is refused in one shape is taken to be refused in its dtype
    assert found(judged(tmp_path))["aten::exp"] == ("missing", "measured")


def test_a_fallback_that_was_seen_is_one(tmp_path: Path, know: Any) -> None:
    know(row("torch.exp", "fallback", grade="rehearsed"))
    assert found(judged(tmp_path))["aten::exp"] == ("cpu_fallback", "rehearsed")


def test_another_version_or_dtype_says_nothing(tmp_path: Path, know: Any) -> None:
    old = row("torch.exp", "refused")
    old["sources"][0]["versions"]["torch_npu"] = "2.1.0"
    know(old, {**row("torch.nn.functional.gelu", "refused"), "dtype": "float32"})
    assert judged(tmp_path).grades()["documented"] == 2


def test_a_gate_asks_for_a_grade(
    tmp_path: Path, know: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    judged(tmp_path)
    joy = joy_with(capsys)
    asked = ("profile", "coverage", tmp_path / "t.json", "--require-grade", "measured")
    told = joy(*asked)
    assert told.code == 1
    assert "2 of 2 statements are weaker" in told.err
    know(row("torch.exp", "accepted"))
    assert joy(*asked, "--fail-under", "50").code == 0
    assert joy(*asked, "--fail-under", "51").code == 1
    know(row("torch.exp", "accepted"), row("torch.nn.functional.gelu", "accepted"))
    assert joy(*asked).code == 0


def test_a_measured_error_is_a_floor_of_the_tolerance(know: Any) -> None:
    before = Tolerance.of("ascend").operator("aten::exp", "float16")
    know(row("torch.exp", "accepted", found={"outcome": "accepted", "error": 40.0}))
    after = Tolerance.of("ascend").operator("aten::exp", "float16")
    assert after.floor == 40 * 2.0**-10 > before.floor
    assert after.source.endswith("measured: Ascend910B3, 2026-05-01")
    know(row("torch.exp", "accepted", found={"error": 900.0}, deviations=["result"]))
    assert Tolerance.of("ascend").operator("aten::exp", "float16").floor == before.floor


def test_the_memory_of_a_card_is_taken_from_a_chip_only(know: Any) -> None:
    seen = row("memory", "accepted", id="memory", found={"total_bytes": 7 << 30})
    know(seen)
    assert calibration.load("ascend").memory_bytes == 7 << 30
    know({**seen, "grade": "rehearsed"})
    assert calibration.load("ascend").memory_bytes is None


def test_a_coverage_seal_holds_shapes_and_grades(tmp_path: Path, know: Any) -> None:
    know(row("torch.exp", "refused"))
    judged(tmp_path)
    calls = distinct_calls([readers.read(tmp_path / "t.json")], of("ascend"))
    sealed = seal.of_coverage({"chip": "ascend", "version": "2.13"}, calls)
    rows = {one["op"]: one for one in sealed["predictions"]["signatures"]}
    assert rows["aten::exp"]["outcome"] == "refused"
    assert rows["aten::exp"]["grade"] == "measured"
    assert rows["aten::gelu"]["args"] == [
        {"tensor": {"dtype": "float16", "shape": [4, 8], "strides": [8, 1]}}
    ]


def test_grades_are_counted_and_never_merged() -> None:
    counts = count_grades(["measured", "documented", "documented"])
    assert counts == {"documented": 2, "rehearsed": 0, "measured": 1}
    assert weakest(["measured", "rehearsed"]) == "rehearsed"
    assert weaker_line(counts, "documented") is None
    assert get("ascend").package == "torch_npu"
