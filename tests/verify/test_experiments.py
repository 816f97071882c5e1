"""A cause is what an experiment shows to remove the error; without one there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from joymigrate.verify.bundle import open_bundle
from joymigrate.verify.chance import independent, most_left
from joymigrate.verify.evidence_pack import script, write_call, write_pack
from joymigrate.verify.experiments import (
    TorchCall,
    Try,
    best_of,
    numbers_of,
    on_values,
)
from joymigrate.verify.wrong_call import first_wrong, read, write_arguments
from tests.verify.faults import FAULTS, PROGRAMS
from tests.verify.harness import record, replay


def best(mine: torch.Tensor, golden: torch.Tensor, **known: torch.Tensor) -> tuple[str, str]:
    found = best_of(list(on_values(mine, golden, known)), numbers_of(mine, golden))
    return (found.cause, found.words) if found is not None else ("", "")


def test_a_result_alone_tells_scale_shift_order_and_a_missing_term() -> None:
    g = torch.Generator().manual_seed(0)
    golden, other = torch.randn(6, 8, 8, generator=g), torch.randn(6, 8, 8, generator=g)
    assert best(golden * 1.02, golden)[1] == "the result is the baseline's times 1.02"
    assert best(golden + 0.25, golden)[1] == "the result is shifted by 0.25"
    assert best(golden.transpose(1, 2), golden)[1] == "axes 1 and 2 exchanged"
    assert best(golden.flip(0), golden)[0] == "permutation"
    order = torch.randperm(8, generator=g)
    assert best(golden[..., order], golden) == ("permutation", "the order along axis 2 is another")
    assert best(golden - other, golden, x=other) == ("missing term", "x is missing")
    assert best(golden - 0.5 * other, golden, x=other) == ("eps or scale", "+0.5 × x")
    assert best(golden + 0.3 * other, golden) == ("", "")


def test_what_one_number_would_fit_is_no_cause() -> None:
    assert best(torch.tensor([3.0]), torch.tensor([2.0])) == ("", "")
    one = torch.zeros(50)
    one[7] = 1.0  # one element is wrong, and an input has its largest value there
    assert best(torch.ones(50) + 0.3 * one, torch.ones(50), x=one) == ("", "")
    guesses = [Try(0.05, "activation", str(n)) for n in range(50)]
    assert best_of(guesses, 1.0) is None
    assert best_of(guesses, 20.0) is not None
    assert best_of([*guesses, Try(0.06, "mask", "")], 20.0) is None  # both explain it


def test_an_error_of_no_kind_gets_a_cause_in_less_than_two_cases_of_a_hundred() -> None:
    g = torch.Generator().manual_seed(1)
    named = 0
    for n in range(400):
        size = 1 + n % 12
        golden, other = torch.randn(size, generator=g), torch.randn(size, generator=g)
        named += best(golden + torch.randn(size, generator=g), golden, x=other) != ("", "")
    assert named < 8


def test_the_numbers_of_an_error_are_those_that_are_wrong() -> None:
    assert independent([0.0, 0.0, 0.3]) == 1.0
    assert independent([1.0] * 8 + [0.0] * 56) == 8.0
    assert independent([]) == independent([0.0]) == 0.0
    assert most_left(1.0, 1, 1) == 0.0
    assert most_left(1.0, 0, 10) == pytest.approx(0.001)
    assert most_left(100.0, 1, 50) == 0.1


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
            "an operator added",
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
    assert "relative error of out layers.0.mlp.act" in said.stdout
    assert "another formula" in (tmp_path / "case" / "README.md").read_text()


def test_a_wrong_call_is_written_as_source() -> None:
    import torch.nn.functional as F

    x, w = torch.randn(2, 3), torch.randn(4, 3)
    tensors: dict[str, torch.Tensor] = {}
    call = {
        "name": "torch.nn.functional.linear",
        "device": "cpu",
        "args": write_arguments((x, w), tensors),
        "kwargs": write_arguments({"bias": None}, tensors),
    }
    case = {"module": "net", "call": call}
    assert write_call(call) == 'torch.nn.functional.linear(x("x0"), x("x1"), bias=None)'
    assert len(script(case).splitlines()) <= 30
    compile(script(case), "reproduce.py", "exec")
    assert torch.equal(F.linear(*read(call["args"], tensors)), F.linear(x, w))
    assert write_arguments((object(),), tensors) is None


def test_calls_that_agree_with_float64_are_no_evidence() -> None:
    x = torch.randn(8, 8)
    calls = [TorchCall(0, "gelu", (x,), {"approximate": "tanh"}, torch.nn.functional.gelu)]
    assert first_wrong(calls) is None
