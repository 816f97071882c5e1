"""`report repro`: a script that exits 1 while its finding shows, for every kind of finding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from joymigrate.run.kit import repro
from tests import forked

ROW: dict[str, Any] = {
    "id": "case", "section": "operator", "op": "torch.mul", "dtype": "float32",
    "layout": "contiguous", "call": "torch.mul", "kwargs": {}, "outcome": "accepted",
    "args": [{"tensor": "float_4x6.0"}, {"tensor": "float_4x6.1"}], "message": "",
    "predicted": {"dtypes": ["float32"], "shapes": [[4, 6]], "strides": [[6, 1]]},
}  # fmt: skip
SCORE: dict[str, Any] = {
    "chip": "ascend", "device": "cpu", "device_name": "Ascend910B3", "date": "2026-11-25",
    "versions": {"torch": "2.13.0"},
}  # fmt: skip
NORM = {
    "section": "vendor", "call": "npu_rms_norm", "reference": "rms_norm",
    "args": [{"tensor": "float_4x6.0"}, {"tensor": "float_6.0"}], "kwargs": {"epsilon": 1e-6},
    "deviations": ["result"],
}  # fmt: skip
WRONG = "import torch\ntorch.{0} = (lambda real: lambda *a: {1})(torch.{0})\n"


def run(tmp_path: Path, row: dict[str, Any], before: str = "") -> int:
    """The exit code of the script, where `before` makes torch deviate."""
    text = repro.script(SCORE, {**ROW, **row})
    assert len(text.splitlines()) <= repro.MOST_LINES
    path = tmp_path / "repro.py"
    path.write_text(before + text)
    (ended,) = forked.run_ranks(path, 1, cwd=tmp_path)
    assert ended.code in (0, 1), ended.err
    assert "Traceback" not in ended.err
    return ended.code


@pytest.mark.parametrize(
    ("finding", "wrong"),
    [
        ("refused", "(_ for _ in ()).throw(RuntimeError('no kernel'))"),
        ("result", "real(*a) + (0.01 if a[0].dtype is torch.float32 else 0)"),
        ("gradient", "real(*a).detach() + (a[0] * a[1]).sum() * (a[0].dtype is torch.float32)"),
        ("dtype", "real(*a).half()"),
        ("layout", "real(*a).t().contiguous().t()"),
        ("shape", "real(*a)[:3]"),
        ("fallback", "(__import__('os').write(2, b'fall back to run on the CPU'), real(*a))[1]"),
    ],
)  # fmt: skip
def test_the_script_shows_the_finding_and_nothing_else(
    tmp_path: Path, finding: str, wrong: str
) -> None:
    row = {"deviations": [finding], "outcome": finding if finding in ("refused", "fallback")
           else "accepted"}  # fmt: skip
    assert run(tmp_path, row) == 0
    assert run(tmp_path, row, WRONG.format("mul", wrong)) == 1


def test_a_vendors_function_is_held_against_its_formula(tmp_path: Path) -> None:
    before = (
        "import sys, types, torch\nvendor = types.ModuleType('vendor')\nsys.modules['vendor'] = "
        "vendor\nvendor.npu_rms_norm = lambda x, g, epsilon: x * torch.rsqrt("
        "x.pow(2).mean(-1, keepdim=True) + epsilon) * g{}\nimport vendor\n"
    )
    row = {**NORM, "call": "vendor.npu_rms_norm"}
    assert run(tmp_path, row, before.format("")) == 0
    assert run(tmp_path, row, before.format(" * 1.01")) == 1


def test_sealed_types_and_strides_are_made_again(tmp_path: Path) -> None:
    first = {"tensor": "float_4x6.0", "dtype": "float16", "strides": [1, 4]}
    second = {"tensor": "float_4x6.1", "dtype": "float32", "strides": [0, 1]}
    row = {
        "args": [first, second], "deviations": ["layout"], "call": "torch.ops.aten.mul.Tensor",
        "predicted": {"strides": [[1, 4]]},
    }  # fmt: skip
    assert run(tmp_path, row) == 0
    assert run(tmp_path, {**row, "predicted": {"strides": [[6, 1]]}}) == 1
    cast = {"call": "torch.ops.aten._to_copy.default", "kwargs": {"dtype": {"dtype": "float16"}},
            "args": [{"tensor": "float_4x6.0", "dtype": "float32"}], "deviations": ["dtype"],
            "predicted": {"dtypes": ["float16"]}}  # fmt: skip
    assert run(tmp_path, cast) == 0


@pytest.mark.parametrize("steps", [[2, 12], [0, 1], [1, 4], None])
def test_a_layout_outlives_the_way_to_the_device(steps: list[int] | None) -> None:
    """`to` closes the gaps of a strided tensor: the finding of a layout did not show there."""
    form = {"tensor": "float_4x6.0", "dtype": "float16", **({"strides": steps} if steps else {})}
    row = {**ROW, "args": [form], "deviations": ["refused"], "layout": "strided"}
    text = repro.script({**SCORE, "device": "meta"}, row)
    names: dict[str, Any] = {}
    exec(text.split('"""')[2].partition("try:")[0], names)
    assert names["inputs"][0].is_meta
    assert list(names["inputs"][0].stride()) == (steps or [12, 2])
    assert names["inputs"][0].stride() == names["tensors"][0].stride()
