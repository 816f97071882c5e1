"""The command line: what it refuses, what it passes on, what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from joymigrate.cli._main import run as joymigrate
from joymigrate.errors import JoyError
from joymigrate.run.rehearse import options, presence
from tests.run.rehearse.conftest import PROGRAMS, Run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--soc", "910B9", "--", "python", "x.py"], "unknown chip model '910B9'"),
        (["--to", "musa", "--", "python", "x.py"], "cannot be rehearsed"),
        (["--to", "cambricon", "--", "python", "x.py"], "no public wheel"),
        (["--memory", "lots", "--", "python", "x.py"], "no amount of memory"),
        (["--mode", "dri", "--", "python", "x.py"], "Did you mean 'dry'?"),
        (["--inject", "gelu", "--", "python", "x.py"], "names no faulty operator"),
        (["--format", "json", "--", "python", "x.py"], "stdout belongs to the program"),
        (["--", "no-such-program"], "no program 'no-such-program'"),
        ([], "no program to run"),
    ],
)
def test_a_wrong_command_line_is_one_clear_error(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert joymigrate(["rehearse", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "help:" in error
    assert "Traceback" not in error


def test_memory_is_read_with_its_unit() -> None:
    assert options.memory_bytes("64GiB") == 64 << 30
    assert options.memory_bytes("32 GB") == 32 * 10**9
    assert options.memory_bytes("1048576") == 1 << 20
    assert options.soc_name("ascend910b3") == options.soc_name("910B3") == "Ascend910B3"
    assert options.soc_name("910_93").startswith("Ascend910_93")


def test_a_machine_with_the_chips_software_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    with pytest.raises(JoyError, match="nothing to rehearse"):
        presence.refuse_real_chip()
    monkeypatch.delenv("ASCEND_HOME_PATH")
    (tmp_path / "libascendcl.so").write_bytes(b"")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with pytest.raises(JoyError, match="nothing to rehearse"):
        presence.refuse_real_chip()


FALLING = """
import torch
x = torch.rand(3, device="npu") + 1
torch.lgamma(x)
print("done")
"""


@pytest.mark.compiler
def test_operators_without_a_kernel_are_counted_with_their_line(
    rehearse: Run, tmp_path: Path
) -> None:
    (tmp_path / "falling.py").write_text(FALLING)
    done = rehearse("python", "falling.py")
    assert done.out == "done\n"
    assert done.report is not None
    where = f"{tmp_path / 'falling.py'}:4"
    assert done.report["fallbacks"] == [{"op": "aten::lgamma.out", "calls": 1, "where": [where]}]
    assert set(done.report["checked_by"]) == {"vendor_cpp", "reference", "cpu_alias"}
    assert abs(sum(done.report["checked_by"].values()) - 1) < 1e-3
    assert done.report["peak_memory_bytes"]["npu:0"] > 0


@pytest.mark.slow
@pytest.mark.compiler
def test_under_the_policy_error_they_are_refused(rehearse: Run, tmp_path: Path) -> None:
    (tmp_path / "falling.py").write_text(FALLING)
    done = rehearse("python", "falling.py", options=("--policy", "error"))
    assert done.code == 1
    assert "'aten::lgamma.out' is not in the operator list of torch_npu" in done.err
    assert "falling.py:4" in done.err


@pytest.mark.compiler
@pytest.mark.slow
def test_memory_models_and_counts_of_devices_are_the_asked_for_ones(
    rehearse: Run, tmp_path: Path
) -> None:
    (tmp_path / "ask.py").write_text(
        "import torch\n"
        "npu = torch.npu\n"
        "print(npu.device_count(), npu.get_device_name(0), npu.is_bf16_supported())\n"
        "try:\n    torch.empty(3 << 30, dtype=torch.uint8, device='npu')\n"
        "except torch.OutOfMemoryError as error:\n    print(str(error).split('.')[0])\n"
    )
    done = rehearse(
        "python", "ask.py", options=("--devices", "3", "--soc", "910A", "--memory", "2GiB")
    )
    assert done.out == "3 Ascend910A False\nNPU out of memory\n"


@pytest.mark.slow
@pytest.mark.compiler
def test_a_dry_run_counts_chip_kernels_and_the_same_memory(rehearse: Run) -> None:
    program = (str(PROGRAMS / "gpt.py"), "npu", "2")
    wet, dry = rehearse("python", *program), rehearse("python", *program, options=("--mode", "dry"))
    assert wet.report is not None
    assert dry.report is not None
    assert dry.report["kernels"]["aclnnEmbedding"] == 4
    assert dry.report["kernels"]["aclnnGelu"] == 4
    assert dry.report["kernel_sequence"][:2]
    assert dry.report["peak_memory_bytes"] == wet.report["peak_memory_bytes"]


@pytest.mark.slow
@pytest.mark.compiler
def test_precision_and_faults_change_the_numbers_by_what_was_asked(
    rehearse: Run, tmp_path: Path
) -> None:
    (tmp_path / "rounding.py").write_text(
        "import torch\n"
        "torch.manual_seed(0)\n"
        "a, b = torch.randn(64, 128), torch.randn(128, 64)\n"
        "exact = a.double() @ b.double()\n"
        "def off(x):\n"
        "    return float((x.cpu().double() - exact).norm() / exact.norm())\n"
        "plain = off(a.npu() @ b.npu())\n"
        "torch.npu.matmul.allow_hf32 = True\n"
        "allowed = off(a.npu() @ b.npu())\n"
        "g = torch.nn.functional.gelu\n"
        "fault = float((g(a.npu()).cpu() / g(a) - 1).abs().median())\n"
        "print(plain, allowed, fault)\n"
    )
    plain, allowed, fault = map(float, rehearse("python", "rounding.py").out.split())
    assert plain < 1e-6
    assert 1e-5 < allowed < 1e-3  # 11 mantissa bits
    assert fault == 0
    done = rehearse(
        "python", "rounding.py", options=("--precision", "bf16", "--inject", "gelu=1e-2")
    )
    plain, _, fault = map(float, done.out.split())
    assert 1e-3 < plain < 1e-2  # 8 bits
    assert fault == pytest.approx(1e-2, rel=1e-3)


@pytest.mark.slow
@pytest.mark.compiler
def test_the_report_is_written_as_html_and_text_too(rehearse: Run, tmp_path: Path) -> None:
    done = rehearse(
        "python", str(PROGRAMS / "gpt.py"), "npu", "30", options=("-o", str(tmp_path / "r.html"))
    )
    page = (tmp_path / "r.html").read_text()
    assert "<svg" in page
    assert "Simulated" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "checked by the vendor's C++" in done.err
    assert json.loads(done.out)["device"] == "npu"


@pytest.mark.compiler
def test_a_program_killed_by_a_signal_ends_with_its_number(rehearse: Run) -> None:
    done = rehearse("python", "-c", "import os; os.kill(os.getpid(), 15)", report=False)
    assert done.code == 128 + 15


@pytest.mark.compiler
@pytest.mark.slow
def test_a_dry_run_holds_more_memory_than_the_machine_touches(
    rehearse: Run, tmp_path: Path
) -> None:
    (tmp_path / "large.py").write_text(
        "import resource, torch\n"
        "held = [torch.zeros(1 << 30, device='npu') for _ in range(12)]\n"
        "print(torch.npu.max_memory_allocated() >> 30)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 20)\n"
    )
    done = rehearse("python", "large.py", options=("--mode", "dry"))
    assert done.out == "48\n0\n"  # GiB on the device, GiB of this machine


def test_programs_are_found_beside_this_python_first(tmp_path: Path) -> None:
    import sys

    from joymigrate import launching

    here = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for name in ("python", "python3", here):
        assert launching.resolve([name, "x.py"]) == [sys.executable, "x.py"]
    assert launching.resolve(["-m", "x"]) == [sys.executable, "-m", "x"]
    assert Path(launching.resolve(["pytest"])[0]).parent == Path(sys.executable).parent
    script = tmp_path / "plain.py"
    script.write_text("")
    assert launching.resolve([str(script), "a"]) == [sys.executable, str(script), "a"]


def test_the_program_gets_the_callers_own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from joymigrate import chips, launching

    monkeypatch.setattr(chips, "driverless", lambda: ())
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    monkeypatch.setenv("JOYMIGRATE_CALLER_AUTOLOAD", "")
    made = launching.environment(EXTRA="1")
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD" not in made
    assert "JOYMIGRATE_CALLER_AUTOLOAD" not in made
    assert made["EXTRA"] == "1"
    monkeypatch.setenv("JOYMIGRATE_CALLER_AUTOLOAD", "0")
    assert launching.environment()["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
    monkeypatch.setenv("JOYMIGRATE_CALLER_AUTOLOAD", "")
    monkeypatch.setattr(chips, "driverless", lambda: ("torch_npu",))
    assert launching.environment()["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"


def test_a_near_name_of_a_model_is_one_of_its_family() -> None:
    with pytest.raises(JoyError, match=r"Did you mean '310B\d'"):
        options.soc_name("310B9")
    assert options.soc_name("310B4") == "Ascend310B4"
    assert options.soc_name("310P") == "Ascend310P3"
    assert options.soc_name("910C") == "Ascend910_9391"
    assert options.soc_name("910B") == "Ascend910B3"
