"""Gradients in fewer bits: bytes, rounding, and what it does to the losses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joymigrate.errors import JoyError
from joymigrate.run.train import compress, job
from joymigrate.run.train.run_folder import RunFolder
from tests.forked import run_ranks
from tests.run.train import jobs

PROGRAM = Path(__file__).parent / "programs" / "communication.py"
FORMS = ("fp32:dp", "int8:dp", "bf16:dp", "int8:fsdp", "bf16:fsdp")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("communication")
    path = jobs.write(folder, checkpoint={"every": 0, "export": False})
    ended = run_ranks(PROGRAM, 2, str(path), str(folder), *FORMS)
    assert [one.code for one in ended] == [0, 0], [one.err[-4000:] for one in ended]
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS[1:])
def test_rounded_gradients_hardly_move_the_losses(runs: Path, form: str) -> None:
    exact = jobs.losses(runs / "fp32-dp")
    found = jobs.losses(runs / form.replace(":", "-"))
    worst = max(abs(a - b) / a for a, b in zip(exact, found, strict=True))
    assert 0 < worst < 1e-3  # 0 would mean that nothing was rounded


@pytest.mark.parametrize(("dtype", "limit"), [("int8", 0.27), ("bf16", 0.501)])
@pytest.mark.parametrize("axis", ["dp", "fsdp"])
def test_fewer_bytes_are_sent_and_reported(runs: Path, dtype: str, limit: float, axis: str) -> None:
    told = RunFolder(runs / f"{dtype}-{axis}").status()["communication"]
    assert told["dtype"] == dtype
    assert 0 < told["ratio"] <= limit
    assert told["sent_bytes"] < told["float32_bytes"]
    assert 0 < told["largest_rounding"] < 0.02


def test_full_precision_reports_nothing(runs: Path) -> None:
    assert "communication" not in RunFolder(runs / "fp32-dp").status()


@given(
    st.integers(1, 3), st.integers(1, 700), st.integers(0, 99), st.sampled_from([1e-20, 1.0, 1e20])
)
@settings(max_examples=60, deadline=None)
def test_int8_is_right_to_half_a_step_of_its_root(
    count: int, width: int, seed: int, size: float
) -> None:
    rows = torch.randn(count, width, generator=torch.Generator().manual_seed(seed)) * size
    sent = compress.encode(rows, "int8")
    found = compress.decode(sent, width, "int8")
    assert sent.dtype == torch.int8
    assert found.shape == rows.shape
    for start in range(0, width, compress.BLOCK):
        part = slice(start, start + compress.BLOCK)
        largest = rows[:, part].abs().amax(1, keepdim=True)
        # Roots are rounded to 1/127 of the largest root: half of that, twice the root, and the
        # square; the bfloat16 scale is up to 0.8 % larger.
        half = 0.5 * 1.01 / 127
        root = (rows[:, part].abs() / largest).sqrt()
        allowed = largest * 1.01 * (2 * root * half + half**2)
        assert ((found[:, part] - rows[:, part]).abs() <= allowed).all()


@pytest.mark.parametrize("dtype", ["int8", "bf16"])
def test_values_that_are_no_numbers_stay_visible(dtype: str) -> None:
    """The guard against NaN looks at gradients: rounding must not hide them."""
    rows = torch.ones(1, 600)
    rows[0, 300] = torch.nan  # block 4 of 64
    found = compress.decode(compress.encode(rows, dtype), 600, dtype)
    assert found[0, 256:320].isnan().any()
    assert torch.allclose(found[0, :256], rows[0, :256], rtol=0.01)


def test_zeros_stay_zeros() -> None:
    rows = torch.zeros(2, 300)
    assert torch.equal(compress.decode(compress.encode(rows, "int8"), 300, "int8"), rows)


def test_layouts_that_exchange_otherwise_refuse(tmp_path: Path) -> None:
    path = jobs.write(tmp_path, comm="int8", layout={"dp": 2, "pp": 2}, batch={"size": 8})
    with pytest.raises(JoyError, match=r"comm\.dtype int8 does not go with layout pp2 x dp2"):
        job.load(path)


def test_sgd_steps_on_sharded_parameters(tmp_path: Path) -> None:
    """torch has no rule for its fused SGD there."""
    from torch import nn

    from joymigrate.run.train import optimise

    model = nn.Linear(4, 4)
    made = optimise.optimiser(model, job.Optimiser(name="sgd"), "cpu")
    assert made.defaults["fused"] is True
    model.weight.__dict__["device_mesh"] = None  # what a DTensor has and a tensor has not
    made = optimise.optimiser(model, job.Optimiser(name="sgd"), "cpu")
    assert made.defaults["fused"] is False
