"""The vendor's operators, called through its own package on the simulated chip."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.compiler
PROGRAM = Path(__file__).parent / "programs" / "vendor.py"
CALLED = {
    "adamw", "add_rms_norm", "attention", "cross_entropy", "fused_linear_cross_entropy",
    "int4_matmul", "matmul_add_fp32", "quant_matmul", "rms_norm", "rotary", "swiglu",
}  # fmt: skip


def rehearsed(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command on the simulated chip, as a user would."""
    pytest.importorskip("transformers")
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
    for name in ("JOYMIGRATE_REHEARSE", "JOYMIGRATE_CALLER_AUTOLOAD", "PYTEST_ADDOPTS"):
        environment.pop(name, None)
    return subprocess.run(
        [sys.executable, "-m", "joymigrate", "rehearse", "-q", "--", *command],
        capture_output=True, text=True, cwd=folder, env=environment, timeout=300,
    )  # fmt: skip


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `joymigrate rehearse -- joymigrate kernels check` found."""
    folder = tmp_path_factory.mktemp("checked")
    options = ["--format", "json", "-o", "check.json"]
    done = rehearsed("joymigrate", "kernels", "check", *options, folder=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads((folder / "check.json").read_text())
    return found


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program recorded of its calls."""
    folder = tmp_path_factory.mktemp("seen")
    done = rehearsed("python", str(PROGRAM), "seen.json", folder=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads((folder / "seen.json").read_text())
    return found


@pytest.mark.slow
def test_the_check_says_that_it_was_a_rehearsal(checked: dict[str, Any]) -> None:
    assert (checked["rehearsal"], checked["device"], checked["chip"]) == (True, "npu", "ascend")


@pytest.mark.parametrize("op", sorted(CALLED))
def test_the_vendors_operator_is_right_forward_and_backward(
    checked: dict[str, Any], op: str
) -> None:
    rows = [r for r in checked["kernels"] if (r["op"], r["implementation"]) == (op, "vendor")]
    counts = Counter(row["status"] for row in rows)
    assert counts["fail"] == 0
    assert counts["pass"] >= 2
    assert {r["reason"] for r in rows if r["status"] == "skipped"} <= {"does not take float32"}
    passed = {row["phase"] for row in rows if row["status"] == "pass"}
    forward_only = ("adamw", "int4_matmul", "matmul_add_fp32", "quant_matmul")
    assert passed == ({"forward"} if op in forward_only else {"forward", "backward"})


@pytest.mark.slow
def test_causal_counts_from_the_lower_right_with_the_fixed_mask(seen: dict[str, Any]) -> None:
    causal = seen["causal"]
    assert causal["args"][3:] == [4, "BNSD"]
    assert causal["kwargs"]["sparse_mode"] == 3
    assert causal["kwargs"]["atten_mask"] == {"shape": [2048, 2048], "dtype": "bool"}
    assert seen["causal mask is the upper triangle"]
    assert causal["kwargs"]["scale"] == pytest.approx(0.25)


def test_without_a_mask_none_is_given(seen: dict[str, Any]) -> None:
    assert {*seen["full"]["kwargs"]} == {"scale"}


def test_a_window_is_a_band_that_counts_the_query_itself(seen: dict[str, Any]) -> None:
    options = seen["window"]["kwargs"]
    assert (options["sparse_mode"], options["pre_tockens"], options["next_tockens"]) == (4, 2, 0)


def test_a_mask_given_as_a_tensor_is_inverted(seen: dict[str, Any]) -> None:
    assert seen["dense"]["kwargs"]["sparse_mode"] == 1
    assert seen["dense"]["kwargs"]["atten_mask"]["shape"] == [2, 1, 5, 9]
    assert seen["dense mask is inverted"]


def test_packed_sequences_come_as_tnd_with_ends_and_without_empty_ones(
    seen: dict[str, Any],
) -> None:
    jagged = seen["jagged"]
    assert jagged["args"][3:] == [4, "TND"]
    assert jagged["kwargs"]["actual_seq_qlen"] == [5, 12]
    assert jagged["kwargs"]["actual_seq_kvlen"] == [5, 12]
    assert jagged["kwargs"]["sparse_mode"] == 3
    assert seen["chosen for jagged"] == "vendor"


def test_what_the_vendors_attention_has_no_form_for_is_refused(seen: dict[str, Any]) -> None:
    refused = seen["refused"]
    assert "at least as many keys as queries" in refused["more queries than keys"]
    assert "not for jagged candidates" in refused["packed candidates"]


def test_rotary_and_gate_arguments(seen: dict[str, Any]) -> None:
    assert seen["rotary"]["kwargs"] == {"rotary_mode": "interleave"}
    assert [arg["shape"] for arg in seen["rotary"]["args"]] == [
        [2, 2, 3, 8],
        [1, 1, 3, 8],
        [1, 1, 3, 8],
    ]
    assert seen["swiglu"]["args"][0]["shape"] == [3, 64]
    assert seen["swiglu"]["kwargs"] == {"dim": -1}


def test_quantised_products_get_the_weight_turned_and_a_scale_a_row(seen: dict[str, Any]) -> None:
    codes, weight, scale = seen["quant_matmul"]["args"]
    assert (codes["dtype"], codes["shape"]) == ("int8", [3, 32])
    assert (weight["dtype"], weight["shape"]) == ("int8", [32, 8])
    assert scale["shape"] == [8]
    assert seen["quant_matmul"]["kwargs"]["pertoken_scale"] == {"shape": [3], "dtype": "float32"}
    assert seen["quant_matmul"]["kwargs"]["output_dtype"] == "torch.bfloat16"


def test_four_bit_weights_go_in_as_k_by_n(seen: dict[str, Any]) -> None:
    x, weight, scale, offset = seen["int4_matmul"]["args"]
    assert (weight["dtype"], weight["shape"]) == ("int32", [32, 2])
    assert (scale["shape"], offset["shape"]) == ([16], [16])
    assert seen["int4_matmul"]["kwargs"] == {"antiquant_group_size": 0}
    assert x["shape"] == [3, 32]


def test_gradients_are_accumulated_in_one_group(seen: dict[str, Any]) -> None:
    call = seen["matmul_add_fp32"]
    assert call["args"][0] == {"shape": [32, 32], "dtype": "float32"}
    assert call["args"][3] == {"shape": [1], "dtype": "int64"}
    assert (call["kwargs"]["transpose_x"], call["kwargs"]["group_type"]) == (True, 2)


def test_the_optimiser_gets_the_powers_before_the_step(seen: dict[str, Any]) -> None:
    assert seen["adamw"]["args"][:2] == pytest.approx([0.9, 0.999])


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_a_patched_model_on_the_chip_computes_the_same(seen: dict[str, Any], family: str) -> None:
    found = seen["models"][family]
    assert found["loss"] < 2e-6
    assert found["undone"] == 0.0
    assert found["gradient"] < 2e-6
    assert {tuple(item) for item in found["replaced"]} >= {
        ("attention", "vendor"),
        ("rms_norm", "vendor"),
        ("rotary", "vendor"),
        ("swiglu", "vendor"),
    }
