"""The references behind the registered operators of npu:0, and behind the package's autograd."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from joymigrate.run.rehearse.refs import registry, signatures
from tests.run.rehearse.conftest import Run

pytestmark = pytest.mark.compiler
HERE = Path(__file__).parent
DRAWS = "its random numbers come from the device's generator"
DEAD = "the package's C++ reads sizes from a temporary that is gone, and asks for petabytes"
ALONE = "the package takes groups of 2 ranks and more: programs/kernels_over_ranks.py"
DIFFERS = {
    "npu::_dropout_with_byte_mask#0": DRAWS,
    "npu::_npu_dropout#0": DRAWS,
    "npu::dropout_with_byte_mask#0": DRAWS,
    "npu::npu_dropout_gen_mask#0": "has no tensor argument, so no kernel of ours is in its way",
    "npu::npu_sim_exponential_#0": DRAWS,
    "npu::slow_conv_dilated2d_backward#0": DEAD,
    "npu::slow_conv_transpose2d_backward#0": DEAD,
    "npu::npu_quant_matmul_reduce_sum#0": "wants a weight in the chip's own layout",
    "npu::npu_all_gather_base_mm#0": ALONE,
    "npu::npu_mm_reduce_scatter_base#0": ALONE,
    "npu::npu_all_gather_quant_mm#0": ALONE,
    "npu::npu_alltoallv_quant_gmm#0": "the package takes groups of 2 ranks and more",
    "npu::npu_quant_gmm_alltoallv#0": "the package takes groups of 2 ranks and more",
    "npu::npu_all_to_all_matmul#0": ALONE,
    "npu::npu_all_to_all_quant_matmul#0": ALONE,
    "npu::npu_matmul_all_to_all#0": ALONE,
    "npu::npu_quant_matmul_all_to_all#0": ALONE,
    "npu::npu_quant_mm_reduce_scatter#0": ALONE,
    "aten::_thnn_fused_gru_cell#0": "the package returns no workspace",
}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    from tests.run.rehearse import conftest

    run: Run = conftest.rehearse.__wrapped__(tmp_path_factory.mktemp("rehearsal"))
    done = run("python", str(HERE / "device_samples.py"), report=False)
    assert done.code == 0, done.err[-3000:]
    found: dict[str, Any] = json.loads(done.out.strip().splitlines()[-1])
    return found


def test_a_registered_operator_gives_what_its_reference_gives(outcome: dict[str, Any]) -> None:
    assert sorted(set(outcome["differ"]) - set(DIFFERS)) == [], outcome["differ"]
    assert outcome["same"] > 495


def test_the_package_registers_every_operator(outcome: dict[str, Any]) -> None:
    assert outcome["unregistered"] == []  # those of atb as well: their library loads


def test_the_schemas_are_those_that_the_package_registers(outcome: dict[str, Any]) -> None:
    for name, registered in outcome["schemas"].items():
        if name.startswith(("npu::", "atb::")):
            ours = str(torch._C.parse_schema(signatures()[name]))
            assert plain(ours) == plain(registered)
    assert set(outcome["schemas"]) <= set(registry())


def plain(schema: str) -> str:
    """A schema without what is only spelling: quotes, digits of a float, `self` or `input`."""
    schema = re.sub(r"\bself\b", "input", schema.replace("'", '"'))
    return re.sub(r"\d\.\d{10,}e-\d+|\d+e-\d+|\d*\.\d+", lambda m: f"{float(m[0]):g}", schema)


@pytest.mark.slow
def test_gradients_through_the_packages_formulas_match_the_cpu(rehearse: Run) -> None:
    done = rehearse(
        *("pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(HERE)),
        str(HERE / "device_gradients.py"),
    )
    assert done.code == 0, done.out[-4000:]
