"""Agnostic code runs: the same results as before on a machine without an accelerator."""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from joymigrate import chips
from joymigrate.model import Style
from joymigrate.rewrite import helper
from tests.forked import run_program
from tests.rewrite.projects import move, write

PROGRAM = """\
import argparse
import torch
import torch.nn as nn
from torch.cuda.amp import GradScaler

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
args = parser.parse_args([])
device = torch.device(args.device)
device_type = "cuda" if "cuda" in str(device) else "cpu"
torch.manual_seed(0)
if torch.cuda.is_available():
    torch.cuda.manual_seed_all(0)
model = nn.Linear(4, 2).to(device)
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
print(GradScaler.__name__)
scaler = torch.amp.GradScaler("cuda", enabled=device.type == "cuda")
for step in range(3):
    x = torch.randn(8, 4, device=device)
    with torch.autocast(device_type, enabled=device_type == "cuda"):
        loss = model(x).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimiser)
    scaler.update()
    optimiser.zero_grad()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    print(f"{loss.item():.8f}", x.is_cuda, x.device.type != "cuda", torch.cuda.device_count())
"""


def run(path: Path) -> str:
    return run_program(path, cwd=path.parent)


def test_an_agnostic_program_behaves_as_the_original_did_on_the_cpu(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": PROGRAM})
    before = run(tmp_path / "train.py")
    move(tmp_path, Style.AGNOSTIC)
    text = (tmp_path / "train.py").read_text()
    assert "cuda" not in text.replace("is_cuda", "")
    assert run(tmp_path / "train.py") == before


def test_a_program_with_hard_coded_devices_runs_on_the_cpu(tmp_path: Path) -> None:
    text = (
        "import torch\ntorch.cuda.set_device(0)\n"
        "x = torch.ones(2, device='cuda').cuda(0, non_blocking=True)\n"
        "y = x.to(f'cuda:{0}') + torch.zeros(2).cuda()\ntorch.cuda.synchronize()\n"
        "print(y.sum().item())\n"
    )
    write(tmp_path, {"train.py": text})
    move(tmp_path, Style.AGNOSTIC)
    assert run(tmp_path / "train.py") == "2.0\n"


@pytest.mark.slow
def test_the_helper_lies_where_each_file_can_import_it(tmp_path: Path) -> None:
    files = {
        "pkg/__init__.py": "",
        "pkg/sub/__init__.py": "",
        "pkg/sub/net.py": "import torch\nx = torch.ones(1).cuda()\n",
        "tools/bench.py": "import torch\ntorch.cuda.empty_cache()\n",
        "main.py": "import torch\nfrom pkg.sub import net\nprint(net.x.is_cuda)\n",
    }
    write(tmp_path, files)
    move(tmp_path, Style.AGNOSTIC)
    made = sorted(
        p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("joymigrate_device.py")
    )
    assert made == [
        "pkg/joymigrate_device.py",
        "tools/joymigrate_device.py",
    ]
    assert "from pkg import joymigrate_device as jm" in (tmp_path / "pkg/sub/net.py").read_text()
    assert run(tmp_path / "main.py") == "False\n"
    assert run(tmp_path / "tools/bench.py") == ""


def test_a_program_that_uses_the_short_name_gets_the_long_one(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "import torch\njm = 3\ntorch.cuda.empty_cache()\n"})
    move(tmp_path, Style.AGNOSTIC)
    assert "joymigrate_device.device_module().empty_cache()" in (tmp_path / "a.py").read_text()


@pytest.fixture
def made(tmp_path: Path) -> ModuleType:
    file = tmp_path / "joymigrate_device.py"
    file.write_text(helper.source(chips.origin(), chips.target(None), "0"))
    spec = importlib.util.spec_from_file_location("made_helper", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_an_accelerator_devices_are_the_cpu(made: ModuleType) -> None:
    assert (made.device(), made.device(3), made.device_type()) == ("cpu", "cpu", "cpu")
    assert made.accelerator() == "cuda"
    assert made.dist_backend() == "gloo"
    assert made.accelerator_backend() == "nccl"
    assert made.device_module().is_available() is False


SCRIPTED = """\
import torch
import joymigrate_device as jm

@torch.jit.script
def flag(x: torch.Tensor) -> bool:
    return jm.is_accel(x)

@torch.jit.script
def same(x: torch.Tensor) -> bool:
    return x.device.type == jm.accelerator()

@torch.jit.script
def put(x: torch.Tensor) -> torch.Tensor:
    return x.to(jm.device()).to(jm.device(1))
"""


def test_functions_that_torchscript_compiles_call_the_helper(
    made: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "joymigrate_device", made)
    (tmp_path / "scripted_case.py").write_text(SCRIPTED)
    monkeypatch.syspath_prepend(str(tmp_path))
    scripted = importlib.import_module("scripted_case")
    assert (scripted.flag(torch.ones(1)), scripted.same(torch.ones(1))) == (False, False)
    assert scripted.put(torch.ones(1)).device == torch.device("cpu")
    file = io.BytesIO()
    torch.jit.save(scripted.flag, file)  # what asks for a tensor's device can be saved as before
    assert torch.jit.load(io.BytesIO(file.getvalue()))(torch.ones(1)) is False
    monkeypatch.delitem(sys.modules, "scripted_case")


def test_functions_that_are_compiled_whole_call_the_helper(
    made: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, made.__name__, made)

    def move(x: torch.Tensor) -> torch.Tensor:
        return x if made.is_accel(x) else x.to(made.device()) + 1

    found = torch.compile(move, backend="eager", fullgraph=True)(torch.zeros(1))
    assert found.tolist() == [1.0]


def test_the_helper_refuses_a_device_that_is_not_there(
    made: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOYMIGRATE_DEVICE", "npu")
    with pytest.raises(RuntimeError, match="no such device"):
        made.device()


def test_the_helper_serves_an_accelerator_when_there_is_one(
    made: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made, "_available", lambda name: name == "npu")
    made._find.cache_clear()
    assert (made.device(), made.device(3)) == ("npu", "npu:3")
    assert made.dist_backend(with_cpu=True) == "cpu:gloo,npu:hccl"
    assert made.visible_devices_variable() == "ASCEND_RT_VISIBLE_DEVICES"
    assert made.is_accel("npu:1")
    assert not made.is_accel("cpu")


def test_the_helper_lets_the_driver_sleep_until_cards_are_chosen(
    made: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def is_available() -> bool:
        asked.append(os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK"))
        return True

    monkeypatch.setattr("torch.cuda.is_available", is_available)
    monkeypatch.setattr(made, "PLATFORMS", {"cuda": made.PLATFORMS["cuda"]})
    for visible in (None, "0"):
        made._find.cache_clear()
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        else:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        assert made.device(1) == "cuda:1"
    made._find.cache_clear()
    assert asked == ["1", None]
    assert "PYTORCH_NVML_BASED_CUDA_CHECK" not in os.environ


@pytest.mark.parametrize("form", ["import torch", "if True:\n    import torch"])
def test_a_package_whose_program_is_started_in_its_folder_works_both_ways(
    form: str, tmp_path: Path
) -> None:
    body = 'print("cuda" if torch.cuda.is_available() else "cpu", VALUE)\n'
    files = {
        "pkg/__init__.py": "",
        "pkg/data/__init__.py": "",
        "pkg/data/loader.py": "import torch\nVALUE = torch.cuda.device_count()\n",
        "pkg/main.py": f"{form}\ntry:\n    from data.loader import VALUE\n"
        f"except ImportError:\n    from .data.loader import VALUE\n{body}",
    }
    write(tmp_path, files)
    move(tmp_path, Style.AGNOSTIC)
    assert run(tmp_path / "pkg" / "main.py") == "cpu 0\n"
    done = subprocess.run(
        [sys.executable, "-m", "pkg.main"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == "cpu 0\n", done.stderr
    first = (tmp_path / "pkg" / "main.py").read_text()
    move(tmp_path, Style.AGNOSTIC)
    assert (tmp_path / "pkg" / "main.py").read_text() == first


def test_a_package_whose_folder_names_a_known_package_stays_one(tmp_path: Path) -> None:
    files = {
        "pkg/__init__.py": "",
        "pkg/types.py": "",
        "pkg/main.py": "import types\nimport torch\nprint(torch.cuda.device_count())\n",
    }
    write(tmp_path, files)
    move(tmp_path, Style.AGNOSTIC)
    text = (tmp_path / "pkg" / "main.py").read_text()
    assert "\nfrom pkg import joymigrate_device as jm\n" in text


@pytest.mark.slow
def test_a_script_in_a_package_folder_finds_its_helper(tmp_path: Path) -> None:
    """`python tools/train.py` has tools/ on its path, not the folder above it."""
    text = "import torch\n\nif __name__ == '__main__':\n    print(torch.ones(1, device='cuda'))\n"
    write(tmp_path, {"tools/__init__.py": "", "tools/train.py": text})
    move(tmp_path, Style.AGNOSTIC)
    for command in (["tools/train.py"], ["-m", "tools.train"]):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert "tensor([1.])" in done.stdout


def test_a_program_of_a_package_that_imports_it_stays_with_the_package(tmp_path: Path) -> None:
    text = (
        "import torch\nfrom net import model\nif __name__ == '__main__':\n"
        "    torch.cuda.synchronize()\n"
    )
    write(tmp_path, {"net/__init__.py": "", "net/model.py": "", "net/train.py": text})
    move(tmp_path, Style.AGNOSTIC)
    assert "\nfrom net import joymigrate_device as jm\n" in (tmp_path / "net/train.py").read_text()


@pytest.mark.parametrize(
    "change",
    [
        'sys.path.append("..")',
        'sys.path.insert(0, "..")',
        'sys.path += [".."]',
        'sys.path[:0] = [".."]',
        'sys.path = ["..", *sys.path]',
        'site.addsitedir("..")',
    ],
)
def test_the_helper_is_imported_behind_the_path_that_finds_it(tmp_path: Path, change: str) -> None:
    """A program of a package that is started in its own folder says itself where the package is."""
    text = (
        f"import site\nimport sys\nimport torch\n{change}\nfrom net.model import size\n"
        "torch.cuda.synchronize(size)\n"
    )
    write(tmp_path, {"net/__init__.py": "", "net/model.py": "size = 0\n", "net/train.py": text})
    move(tmp_path, Style.AGNOSTIC)
    after = (tmp_path / "net/train.py").read_text()
    assert f"import torch\n{change}\nfrom net import joymigrate_device as jm\n" in after


@pytest.mark.parametrize(
    "change",
    ["sys.path.append('.')", "if '.' not in sys.path:\n    sys.path.append('.')"],
)
def test_a_script_in_a_folder_finds_the_helper_of_the_root(tmp_path: Path, change: str) -> None:
    """`python tools/train.py` has `tools` alone on the path, until it says more."""
    text = (
        f"import sys\nimport torch\n\ndef go():\n    torch.cuda.synchronize(size)\n\n"
        f"{change}\nfrom net.model import size\nprint(torch.cuda.is_available(), size)\n"
    )
    model = "import torch\nsize = torch.cuda.device_count()\n"
    write(tmp_path, {"net/__init__.py": "", "net/model.py": model, "tools/train.py": text})
    write(tmp_path, {"main.py": "import torch\nfrom net import model\ntorch.cuda.synchronize()\n"})
    move(tmp_path, Style.AGNOSTIC)
    assert "torch.cuda" not in (tmp_path / "tools/train.py").read_text()
    command = [sys.executable, "tools/train.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.stdout == "False 0\n", ran.stderr


def test_the_helper_is_imported_before_the_code_that_needs_it(tmp_path: Path) -> None:
    text = (
        "import sys\nimport torch\nif torch.cuda.is_available():\n    print(1)\n"
        'sys.path.append("..")\nfrom net.model import size\ntorch.cuda.synchronize(size)\n'
    )
    write(tmp_path, {"net/__init__.py": "", "net/model.py": "size = 0\n", "net/train.py": text})
    move(tmp_path, Style.AGNOSTIC)
    after = (tmp_path / "net/train.py").read_text()
    assert after.index("joymigrate_device") < after.index("if ")


def test_the_host_beside_a_device_in_a_list_keeps_them_apart(tmp_path: Path) -> None:
    text = """import torch
from torch import device as dev
devices = [cpu, gpu] = [torch.device("cpu"), torch.device("cuda")]
others = (dev("cpu"), dev("cuda:1"))
alone = [torch.device("cuda")]
"""
    write(tmp_path, {"a.py": text})
    move(tmp_path, Style.AGNOSTIC)
    after = (tmp_path / "a.py").read_text()
    assert '[torch.device("cpu"), torch.device(jm.accelerator())]' in after
    assert '(dev("cpu"), dev(f"{jm.accelerator()}:1"))' in after
    assert "[torch.device(jm.device_type())]" in after


def test_a_test_that_finds_the_project_as_it_runs_has_the_helper_beside_it(tmp_path: Path) -> None:
    """pytest puts the test's own folder on the path, and nothing else before a function runs."""
    test = """\
import sys
from unittest import mock

import torch

def load():
    sys.path.append("..")
    import generate
    return generate

@mock.patch("torch.cuda.is_bf16_supported", return_value=False)
def test_main(supported):
    load()
"""
    files = {"generate.py": "import torch\nx = torch.zeros(1).cuda()\n", "tests/test_it.py": test}
    move(write(tmp_path, files), Style.AGNOSTIC)
    assert "import joymigrate_device as jm" in (tmp_path / "tests/test_it.py").read_text()
    assert (tmp_path / "tests/joymigrate_device.py").is_file()
    assert (tmp_path / "joymigrate_device.py").is_file()
