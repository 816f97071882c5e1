"""`kernels list` and the command's errors."""

from __future__ import annotations

import json

import pytest

from joymigrate.cli._main import run


def test_the_list_names_signature_formula_and_why_something_cannot_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["kernels", "list", "--op", "rms_norm", "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    assert "rms_norm(x, weight, eps=1e-6, *, offset=0.0) -> y" in text
    assert "  + torch" in text
    assert "  - vendor  npu_rms_norm  (runs on ascend)" in text


def test_operators_are_named_plainly_or_by_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernels", "check", "swiglu", "--device", "cpu", "--dtype", "float32"]) == 0
    plain = capsys.readouterr().out
    assert run(["kernels", "check", "--op", "swiglu", "--device", "cpu", "--dtype", "float32"]) == 0
    assert capsys.readouterr().out == plain
    assert "skipped swiglu vendor: runs on ascend" in plain
    assert "rms_norm" not in plain


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kernels", "list", "--device", "cpu", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "joymigrate.kernels/1"
    vendor = [row for row in document["kernels"] if row["implementation"] == "vendor"]
    assert {"attention", "rms_norm", "rotary", "swiglu", "quant_matmul"} <= {
        r["op"] for r in vendor
    }
    assert all(row["source"] and row["reason"] for row in vendor)
    assert all(item["formula"] for item in document["operators"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "--op", "swigl"], "Did you mean 'swiglu'?"),
        (["check", "rmsnorm"], "Did you mean 'rms_norm'?"),
        (["list", "--format", "yaml"], "--format does not know 'yaml'"),
        (["check", "--dtype", "float8"], "--dtype does not know 'float8'"),
        (["check", "--device", "tpu"], "there is no device type 'tpu'"),
        (["check", "--device", "npu"], "no Huawei Ascend NPU here"),
        (["bench", "--phase", "trian"], "Did you mean 'train'?"),
        (["list", "--to", "ascent"], "Did you mean 'ascend'?"),
    ],
)
def test_a_mistake_is_one_clear_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["kernels", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_the_benchmark_prints_times_and_speed_ups(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--op", "jagged_to_padded", "--dtype", "float32", "--phase", "infer"]
    command = ["kernels", "bench", *options, "--rounds", "3", "--device", "cpu"]
    assert run([*command, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "joymigrate.kernels-bench/1"
    for row in document["rows"]:
        assert row["speed_up"]["reference"] == 1.0
        assert row["times_us"]["torch"] > 0
        assert row["chosen"] in row["times_us"]
