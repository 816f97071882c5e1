"""A cause is what an experiment shows to remove the error; without one there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest
import torch

from joymigrate.verify.bundle import open_bundle
from joymigrate.verify.cause import of_operator
from joymigrate.verify.evidence_pack import script, write_pack
from joymigrate.verify.measure import relative_error
from joymigrate.verify.rest_evidence import LoneCall
from joymigrate.verify.wrong_call import EXPLAINED, WrongCallSearch, find_precision, shorten
from tests.verify.faults import FAULTS, PROGRAMS
from tests.verify.harness import record, replay


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bundle = tmp_path_factory.mktemp("experiments") / "base.jmb"
    record(PROGRAMS / "transformer.py", bundle, {"SEED": "0"})
    return bundle


@pytest.mark.parametrize(
    ("name", "cause", "words"),
    [
        ("eps 1e-5", "another argument", "`add(1e-05)`, 1e-06 in the baseline"),
        pytest.param(
            "residual forgotten", "an operator left out", "`add()` left out", marks=pytest.mark.slow
        ),
        pytest.param(
            "fp16 scores",
            "reduced precision",
            "half()",
            marks=pytest.mark.slow,
        ),
        ("norm without weight root", "an operator added", "abs()"),
    ],
)
def test_what_the_wrong_module_calls_otherwise_is_named(
    name: str, cause: str | None, words: str, baseline: Path, tmp_path: Path
) -> None:
    (fault,) = [f for f in FAULTS if f.name == name]
    (tmp_path / "t.py").write_text(fault.source())
    found = replay(baseline, tmp_path / "t.py", tmp_path / "t.jmb", {"SEED": "0"}, noise=1.0)
    first = found.first_divergence
    assert first is not None
    assert first.cause == cause
    assert words in str(first.evidence)


@pytest.mark.slow
def test_the_case_of_a_wrong_module_runs_by_itself(baseline: Path, tmp_path: Path) -> None:
    (fault,) = [f for f in FAULTS if f.name == "gelu for silu"]
    (tmp_path / "t.py").write_text(fault.source())
    target = tmp_path / "t.jmb"
    found = replay(baseline, tmp_path / "t.py", target, {"SEED": "0"})
    rank = open_bundle(target).ranks[0]
    assert "reproduce.py" in write_pack(rank, found, tmp_path / "case")
    said = subprocess.run(
        [sys.executable, tmp_path / "case" / "reproduce.py"], capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
    case = json.loads((tmp_path / "case" / "case.json").read_text())
    assert case["module"] == "layers.0.mlp.act"
    in_float64 = float(said.stdout.split("against the golden: ")[1].split()[0])
    assert in_float64 == pytest.approx(case["error"], rel=0.5)  # a norm by 64 signed sums
    assert "another formula" in (tmp_path / "case" / "README.md").read_text()


def test_a_wrong_call_is_written_as_source() -> None:
    x, w = torch.randn(2, 3), torch.randn(4, 3)
    lone = LoneCall.of("torch.nn.functional.linear", (x, w), {"bias": None})
    assert lone is not None
    assert lone.line == "x2 = torch.nn.functional.linear(x0, x1, bias=None)"
    operator = {"name": "linear", "error": 0.1, "cpu_error": 0.0, "strides": ""}
    case, held = lone.case(operator, x @ w.T, "cpu")
    case |= {"kind": "module", "module": "net", "value": "out", "error": 0.1, "baseline_error": 0.0}
    assert len(script(case).splitlines()) <= 30
    compile(script(case), "reproduce.py", "exec")
    assert held.keys() == {"x0", "x1", "golden", "signs"}
    assert LoneCall.of("torch.relu", (object(),), {}) is None


def test_calls_that_agree_with_float64_are_no_evidence() -> None:
    x = torch.randn(8, 8)
    with WrongCallSearch() as search:
        torch.nn.functional.gelu(x, approximate="tanh")
    assert (search.found, search.count) == (None, 1)


def test_a_product_of_shortened_operands_names_the_type_that_they_are_rounded_to() -> None:
    x, w = torch.randn(16, 64), torch.randn(8, 64)
    linear, exact = torch.nn.functional.linear, (x.double() @ w.double().T)
    for kind, bits in (("bfloat16", 7), ("float16 or TF32", 10), ("HF32", 11)):
        mine = linear(shorten(x, bits).float(), shorten(w, bits).float())
        error = relative_error(mine, exact)
        assert find_precision(linear, (x, w), {}, mine, EXPLAINED * error) == kind
    noisy = exact.float() * (1 + 1e-3 * torch.randn(16, 8))  # as far off, by no such rounding
    error = relative_error(noisy, exact)
    assert find_precision(linear, (x, w), {}, noisy, EXPLAINED * error) == ""
    assert torch.equal(shorten(x, 7), x.bfloat16().double())
    facts = {"name": "linear", "error": 2e-3, "cpu_error": 1e-7, "precision": "bfloat16"}
    assert of_operator(facts).name == "reduced precision"


ON_DEVICE = """
import torch, torch_npu
from joymigrate.verify.wrong_call import find_precision, shorten
table, at = torch.randn(16, 8), torch.arange(5)
mine = shorten(table, 7)[at].float().npu()
print(find_precision(torch.nn.functional.embedding, (at.npu(), table.npu()), {}, mine, 1e-4))
"""


@pytest.mark.compiler
def test_the_type_is_found_beside_operands_of_other_types_on_a_device(tmp_path: Path) -> None:
    """Indices stay no more on the device than what they point into."""
    if PathFinder.find_spec("torch_npu") is None:
        pytest.skip("torch_npu is not installed")
    (tmp_path / "p.py").write_text(ON_DEVICE)
    command = [sys.executable, "-m", "joymigrate", "rehearse", "-q", "--", sys.executable, "p.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.stdout.split()[-1:] == ["bfloat16"], done.stderr


def test_operands_that_cannot_be_shortened_leave_the_wrong_call_found() -> None:
    def refuses(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no float64 here")

    assert find_precision(refuses, (torch.ones(2),), {}, torch.ones(2), 1.0) == ""
