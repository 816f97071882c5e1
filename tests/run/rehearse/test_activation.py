"""Every way a program can be started takes part in the rehearsal, and none of it shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run.rehearse.conftest import PROGRAMS, Run

pytestmark = pytest.mark.compiler

SHOW = """
import sys, torch
if __name__ == "__main__":
    device = torch.ones(2).npu().device
    print(__name__, __file__, sys.argv[1:], sys.path[0], device)
    sys.exit(int(sys.argv[1]))
"""


def test_a_script_is_main_keeps_its_paths_and_its_exit_code(rehearse: Run, tmp_path: Path) -> None:
    script = tmp_path / "show.py"
    script.write_text(SHOW)
    done = rehearse("python", str(script), "3", "--flag")
    assert done.code == 3
    assert done.out == f"__main__ {script} ['3', '--flag'] {tmp_path} npu:0\n"
    assert done.report is not None
    assert done.report["exit_code"] == 3
    assert done.report["rehearsal"] is True
    assert "simulated" in done.err


@pytest.mark.slow
def test_a_module_is_run_with_and_without_python(rehearse: Run, tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    for command in (("python", "-m", "show", "4"), ("-m", "show", "4")):
        done = rehearse(*command)
        assert done.code == 4
        assert done.out.startswith("__main__ ")


@pytest.mark.slow
def test_shebang_scripts_and_pytest_take_part(rehearse: Run, tmp_path: Path) -> None:
    script = tmp_path / "tool"
    script.write_text("#!/usr/bin/env python\nimport torch\nprint(torch.ones(2).npu().device)\n")
    script.chmod(0o755)
    assert rehearse("./tool").out == "npu:0\n"
    test = "import torch\ndef test_it():\n    assert torch.ones(2, device='npu').sum() == 2\n"
    (tmp_path / "test_it.py").write_text(test)
    done = rehearse("pytest", "-q", "-p", "no:cacheprovider", "test_it.py")
    assert done.code == 0, done.out
    assert "1 passed" in done.out


SPAWN = """
import torch, torch.multiprocessing as mp
from torch.utils.data import DataLoader

def child(rank):
    print("child", rank, torch.full((2,), float(rank), device="npu").sum().item(), flush=True)

if __name__ == "__main__":
    mp.spawn(child, nprocs=1)
    data = [torch.tensor([float(i)]) for i in range(8)]
    for context in ("fork", "spawn"):
        loader = DataLoader(data, batch_size=4, num_workers=1, pin_memory=True,
                            multiprocessing_context=context)
        print(context, sum(batch.npu().sum().item() for batch in loader), flush=True)
"""


def test_spawned_children_and_data_workers_take_part(rehearse: Run, tmp_path: Path) -> None:
    (tmp_path / "spawn.py").write_text(SPAWN)
    done = rehearse("python", "spawn.py")
    assert done.code == 0, done.err
    assert sorted(done.out.splitlines()) == [
        "child 0 0.0",
        "fork 28.0",
        "spawn 28.0",
    ]
    assert done.report is not None
    assert done.report["processes"] >= 3


ORDER = """
import os
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch
try:
    torch.ones(1, device="npu")
except RuntimeError:
    print("not before the program asks for it")
import torch_npu
print(torch.ones(1, device="npu").device, "site-packages" in torch_npu.__file__)
"""


@pytest.mark.slow
def test_a_program_that_loads_the_package_itself_decides_when(
    rehearse: Run, tmp_path: Path
) -> None:
    (tmp_path / "order.py").write_text(ORDER)
    done = rehearse("python", "order.py")
    assert done.out.splitlines() == ["not before the program asks for it", "npu:0 True"]


@pytest.mark.slow
def test_an_isolated_python_takes_part_through_the_entry_point(rehearse: Run) -> None:
    done = rehearse("python", "-I", "-c", "import torch; print(torch.ones(1).npu().device)")
    assert done.out == "npu:0\n", done.err


def test_the_users_own_sitecustomize_still_runs(rehearse: Run, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.mine = 'ran'\n")
    (tmp_path / "tell.py").write_text(
        "import sys\nprint(sys.mine, any('start' in p for p in sys.path))\n"
    )
    os.environ["PYTHONPATH"] = str(tmp_path)
    try:
        done = rehearse("python", "tell.py")
    finally:
        del os.environ["PYTHONPATH"]
    assert done.out == "ran False\n"
    assert done.report is not None
    assert done.report["processes"] == 0
    assert "no process of the program loaded the device" in done.err


def test_a_switch_hook_runs_before_the_program(rehearse: Run, tmp_path: Path) -> None:
    (tmp_path / "hook.py").write_text("import sys\ndef begin():\n    sys.hooked = True\n")
    (tmp_path / "tell.py").write_text("import sys\nprint(sys.hooked)\n")
    os.environ["JOYMIGRATE_SWITCH"], os.environ["PYTHONPATH"] = "hook:begin", str(tmp_path)
    try:
        assert rehearse("python", "tell.py").out == "True\n"
    finally:
        del os.environ["JOYMIGRATE_SWITCH"], os.environ["PYTHONPATH"]


def test_outside_a_rehearsal_the_entry_point_loads_nothing() -> None:
    code = (
        "import sys\n"
        "from joymigrate.run.rehearse.activate import autoload\n"
        "autoload()\n"
        "assert 'torch_npu' not in sys.modules and 'torch' not in sys.modules\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "JOYMIGRATE_REHEARSE"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_two_rehearsals_side_by_side_do_not_disturb_each_other(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "joymigrate", "rehearse", "-q", "--", "python"]
    program = str(PROGRAMS / "gpt.py")
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    running = [
        subprocess.Popen(
            [*command, program, "npu", "2"], stdout=subprocess.PIPE, env=environment, text=True
        )
        for _ in range(2)
    ]
    losses = [process.communicate(timeout=120)[0].split('"seconds"')[0] for process in running]
    assert losses[0] == losses[1] != ""
