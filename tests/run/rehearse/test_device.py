"""What the device computes, against the CPU: from inside a rehearsal, and whole programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run.rehearse.conftest import PROGRAMS, Run

pytestmark = pytest.mark.compiler
ROOT = Path(__file__).parents[3]


def losses_on_the_cpu(*arguments: str) -> list[float]:
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "gpt.py"), "cpu", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    losses: list[float] = json.loads(done.stdout)["losses"]
    return losses


def test_the_device_behaves_as_its_checks_say(rehearse: Run) -> None:
    done = rehearse(
        "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(PROGRAMS),
        str(PROGRAMS / "device_checks.py"),
    )  # fmt: skip
    assert done.code == 0, done.out[-4000:]


@pytest.mark.slow
def test_the_boost_library_loads_and_is_computed(rehearse: Run) -> None:
    done = rehearse("python", str(PROGRAMS / "boost.py"))
    assert done.code == 0, done.err[-3000:]
    apart, said = done.out.strip().splitlines()
    assert float(apart.removeprefix("apart ")) < 1e-3
    assert said == "said atb::npu_mla_preprocess has no simulation"
    assert done.report is not None
    assert {"op": "atb::npu_mla_preprocess", "calls": 1} in done.report["unsimulated"]
    # Its kernels are no chip kernels that anybody judged: they are not said to be checked.
    assert done.report["checked_by_operators"]["reference"] >= 2


def test_pyacl_reaches_the_simulated_runtime(rehearse: Run) -> None:
    options = ("--soc", "910B4", "--devices", "2")
    done = rehearse("python", str(PROGRAMS / "pyacl.py"), options=options)
    assert done.code == 0, done.err[-3000:]
    assert done.out.strip().splitlines() == [
        "Ascend910B4 (0, 0) (2, 0)",
        "sixteen bytes up 0",
        "2.0",
        "rehearsal device: acl.rt.launch_kernel has no simulation",
    ]


def test_triton_kernels_run_in_the_interpreter_and_are_named(rehearse: Run) -> None:
    pytest.importorskip("triton")
    done = rehearse("python", str(PROGRAMS / "triton_kernel.py"))
    assert done.code == 0, done.err[-3000:]
    single, half, odd, swapped, refused, fused = done.out.strip().splitlines()
    assert single == "torch.float32 True 0.0"
    assert half == "torch.bfloat16 True 0.0"  # rounded to nearest after every operation
    assert odd == "True"  # blocks of 25
    assert json.loads(swapped) == [0, 1, 2, 3, 0, 1, 2, 3]
    assert "reduces bfloat16 by its bits" in refused
    assert fused == "True"
    assert done.report is not None
    kernels = {row["kernel"].split(".")[-1]: row["calls"] for row in done.report["triton_kernels"]}
    assert kernels == {"scaled_sum": 3, "halves": 1, "summed": 2, "fused": 1}
    assert "triton-ascend judged none of them" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("flags", [pytest.param((), marks=pytest.mark.slow), ("--sdpa",)])
def test_training_a_gpt_gives_the_losses_of_the_cpu(rehearse: Run, flags: tuple[str]) -> None:
    wanted = losses_on_the_cpu("20", *flags)
    done = rehearse("python", str(PROGRAMS / "gpt.py"), "npu", "20", *flags)
    got = json.loads(done.out)["losses"]
    assert len(got) == 20
    assert max(abs(a - b) for a, b in zip(got, wanted, strict=True)) <= 1e-6
    assert got[-1] < got[0] - 1
    assert done.report is not None
    assert done.report["checked_by"]["vendor_cpp"] > 0.9
    assert done.report["unsimulated"] == []


def test_small_models_of_many_kinds_match_the_cpu(rehearse: Run) -> None:
    done = rehearse("python", str(PROGRAMS / "models.py"))
    found = json.loads(done.out)
    assert set(found) == {"llama", "qwen2", "bert", "unet", "ctr"}
    for name, result in found.items():
        assert result["output"] <= 1e-5, name
        assert result["gradient"] <= 1e-5, name
        assert result.get("tokens_equal", True), name


@pytest.mark.slow
def test_torchs_own_operator_samples_agree(rehearse: Run) -> None:
    done = rehearse("python", str(ROOT / "benchmarks" / "rehearse_opinfo.py"), "float32")
    assert done.code == 0, done.out
    agreed, total = [int(word) for word in done.out.split() if word.isdigit()][:2]
    assert agreed >= 650
    assert agreed >= 0.97 * total


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_samples_agree_in_half_precision(rehearse: Run, dtype: str) -> None:
    done = rehearse("python", str(ROOT / "benchmarks" / "rehearse_opinfo.py"), dtype)
    assert done.code == 0, done.out


@pytest.mark.slow
def test_transformers_models_match_the_cpu(rehearse: Run) -> None:
    pytest.importorskip("transformers")
    done = rehearse("python", str(PROGRAMS / "transformers_models.py"))
    assert done.code == 0, done.err
    for name, result in json.loads(done.out.splitlines()[-1]).items():
        assert result["output"] <= 1e-5, name
        assert result["gradient"] <= 1e-5, name
        assert result["tokens_equal"], name


SHARED = """
import torch, torch_npu
import torch.multiprocessing as processes

def work(layer, cell):
    with torch.no_grad():
        layer.weight.add_(1.0)
        cell.fill_(7.0)
    torch.npu.synchronize()

if __name__ == "__main__":
    processes.set_start_method("spawn")
    layer = torch.nn.Linear(3, 2).npu()
    layer.share_memory()
    before, cell = layer.weight.detach().clone(), torch.zeros(4).npu()
    child = processes.Process(target=work, args=(layer, cell))
    child.start()
    child.join()
    print(child.exitcode, (layer.weight - before).mean().item(), cell.tolist())
"""


@pytest.mark.slow
def test_memory_of_the_device_is_shared_with_another_process(rehearse: Run, tmp_path: Path) -> None:
    (tmp_path / "shared.py").write_text(SHARED)
    done = rehearse("python", str(tmp_path / "shared.py"))
    assert done.out.splitlines()[-1] == "0 1.0 [7.0, 7.0, 7.0, 7.0]"


BUILDER = """
import os
class NPUOpBuilder:
    def __init__(self):
        self.path = self.installed_cann_path()
    def installed_cann_path(self):  # as DeepSpeed 0.19 asks
        if "ASCEND_HOME_PATH" in os.environ or os.path.exists(os.environ["ASCEND_HOME_PATH"]):
            return os.environ["ASCEND_HOME_PATH"]
        return None
"""


def test_a_library_that_takes_the_chips_home_for_given_is_told_that_there_is_none(
    rehearse: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "deepspeed" / "ops" / "op_builder" / "npu"
    folder.mkdir(parents=True)
    (folder / "builder.py").write_text(BUILDER)
    program = "import torch\nfrom deepspeed.ops.op_builder.npu.builder import NPUOpBuilder\n"
    (tmp_path / "x.py").write_text(f"{program}print(NPUOpBuilder().path, torch.ones(2).npu())\n")
    done = rehearse("python", "x.py")
    assert done.code == 0, done.err
    assert done.out.startswith("None tensor([1., 1.]")
