"""Limits are read from data, checked, and laid over each other part by part."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.chips import all_chips, rules_root
from joymigrate.errors import JoyError
from joymigrate.verify.tolerance import Tolerance
from joymigrate.verify.tolerance_file import load

HEAD = "schema: joymigrate.tolerance/1\n"


@pytest.mark.parametrize("chip", [None, *sorted(all_chips())])
def test_every_chip_has_limits(chip: str | None) -> None:
    found = Tolerance.of(chip)
    for op in ("aten::mm", "aten::gelu", "aten::add"):
        for dtype in ("float32", "bfloat16", "float16", "complex64", "float64"):
            limit = found.operator(op, dtype)
            assert limit.floor > 0
            assert limit.ratios
            assert limit.single
            assert limit.source
    assert 0 < found.module_coverage <= 1


def test_ascend_grades_operators() -> None:
    found = Tolerance.of("ascend")
    assert found.operator("aten::mm", "float32").level == "L2"
    assert found.operator("aten::mm", "float32").ratios == {"max": 2, "mean": 1.2, "rmse": 1.2}
    assert found.operator("npu::npu_fusion_attention", "float16").level == "L1"
    assert found.operator("aten::tanh", "float16").level == "L0"
    assert found.operator("aten::mm", "float32", "L0").ratios["max"] == 10
    assert found.operator("aten::mm", "bfloat16").floor == 2**-8


def test_cambricon_bounds_sums_of_errors_by_operator() -> None:
    found = Tolerance.of("cambricon")
    assert found.operator("aten::conv2d", "float32").single == {"diff1": 1e-5, "diff2": 1e-5}
    assert found.operator("aten::tanh", "float32").single == {"diff1": 3e-3, "diff2": 3e-3}
    assert found.operator("aten::add", "float32").single == {"diff3": 0}


def test_without_a_chip_the_limits_are_those_of_torch() -> None:
    limit = Tolerance.of(None).operator("aten::tanh", "float32")
    assert (limit.method, limit.single) == ("allclose", {"rtol": 1.3e-6, "atol": 1e-5})
    assert Tolerance.of("cpu") is Tolerance.of(None)


def test_moving_data_is_exact_on_every_chip() -> None:
    for chip in (None, "ascend", "cambricon", "musa"):
        assert Tolerance.of(chip).operator("aten::cat", "float32").exact


def test_stages_have_limits_and_sources() -> None:
    found = Tolerance.of("ascend")
    assert found.limit("S6", "mean_relative_pass") == 0.01
    assert found.floor("S3", "float32") == 2**-22
    assert all(found.source(f"S{n}") for n in range(3, 9))


def test_a_level_that_is_not_there_is_an_error() -> None:
    with pytest.raises(JoyError, match="no level 'l2'"):
        Tolerance.of("ascend").operator("aten::mm", "float32", "l2")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("schema: other/1\n", "the schema is 'other/1'"),
        (HEAD + "operator: {}\n", "Did you mean 'operators'"),
        (HEAD + "operators: {single: {method: alclose, dtypes: {}, source: x}}\n", "'allclose'"),
        (
            HEAD
            + "operators: {single: {method: allclose, dtypes: {float32: {rto: 1}}, source: x}}\n",
            "'rtol'",
        ),
        (HEAD + "operators: {exact: {ops: []}}\n", "'source' is missing"),
        (HEAD + "stages: {S9: {}}\n", "unknown key 'S9'"),
        (HEAD + "stages: {S6: {envelope: wide}}\n", "takes a number"),
        (HEAD + "stages: {S6: {envelope: -1}}\n", "the least is 0"),
        (
            HEAD + "operators: {double: {default: L9, levels: {L0: {max: 1}}, "
            "floor: {float32: 1}, source: x}}\n",
            "no level 'L9'",
        ),
    ],
)
def test_a_mistake_in_a_file_is_named(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "tolerance.yaml"
    path.write_text(text)
    with pytest.raises(JoyError, match=what) as error:
        load(path)
    assert str(path) in str(error.value)


def test_every_tolerance_file_in_the_rules_is_valid() -> None:
    files = sorted(rules_root().rglob("tolerance.yaml"))
    assert len(files) >= 4
    for path in files:
        load(path)
