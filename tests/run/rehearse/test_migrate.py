"""Unchanged CUDA programs run to their end on the rehearsed chip, where the vendor's shim fails."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.forked import run_program
from tests.run.rehearse.conftest import Outcome, Run

SAMPLES = Path(__file__).parents[2] / "samples" / "cuda"
ALONE = ("amp_train.py", "ctr.py", "generate.py", "options.py")
NUMBER = re.compile(r"loss (\d+\.\d+)")
pytestmark = pytest.mark.compiler


def migrate(rehearse: Run, folder: Path, script: str, *options: str) -> Outcome:
    """A sample under `rehearse --migrate`, started as a user starts it.

    In a folder of its own: where it stands, the whole of joymigrate would be scanned with it.
    """
    project = folder / "project"
    shutil.copytree(SAMPLES, project)
    (project / "pyproject.toml").touch()
    path = str(project / script)
    start = ["torchrun", "--nproc-per-node", "2"] if script == "ddp_train.py" else ["python"]
    return rehearse(*start, path, options=("--migrate", *options))


def on_cpu(script: str, folder: Path) -> str:
    """What the sample prints on the CPU: the same source with the device's name taken out.

    It asks for the accelerator on purpose, so the test for it goes too. The chip's package stays
    out of this process.
    """
    text = (SAMPLES / script).read_text(encoding="utf-8")
    text = re.sub(r"\.cuda\([^()]*\)", "", text)
    text = text.replace("from torch.cuda.amp import GradScaler, autocast", "")
    text = text.replace("autocast(dtype", "torch.autocast('cpu', dtype")
    text = text.replace("GradScaler(", "torch.amp.GradScaler('cpu', ")
    text = re.sub(r"torch\.cuda\.(synchronize|manual_seed_all)\([^()]*\)", "None", text)
    text = text.replace("torch.cuda.max_memory_allocated()", "1")
    text = re.sub(r"raise RuntimeError\(.*\)", "pass", text)
    path = folder / f"cpu_{script}"
    path.write_text(text, encoding="utf-8")
    return run_program(path)


# Losses are compared to a CPU's where the program prints them, to 4 decimals. Mixed precision casts
# other operators on the two devices, which was seen to move a loss by 1e-4.
@pytest.mark.parametrize(
    ("script", "tolerance"),
    [
        pytest.param("amp_train.py", 5e-3, marks=pytest.mark.slow),
        pytest.param("ctr.py", 1.1e-4, marks=pytest.mark.slow),
        ("generate.py", None),
        pytest.param("options.py", None, marks=pytest.mark.slow),
    ],
)
def test_an_unchanged_program_runs_to_its_end_on_the_chips_device(
    rehearse: Run, tmp_path: Path, script: str, tolerance: float | None
) -> None:
    done = migrate(rehearse, tmp_path, script)
    assert done.code == 0, done.err
    assert done.out.rstrip().endswith("done")
    # The programs raise when a tensor is elsewhere; the count shows that the device computed.
    assert done.report is not None
    assert done.report["rehearsal"] is True
    assert done.report["operators"] > 5
    if tolerance is not None:
        cpu = [float(text) for text in NUMBER.findall(on_cpu(script, tmp_path))]
        chip = [float(text) for text in NUMBER.findall(done.out)]
        assert len(cpu) == len(chip) > 0
        assert chip == pytest.approx(cpu, abs=tolerance)


def test_values_lie_on_the_chips_device_and_nowhere_else(rehearse: Run, tmp_path: Path) -> None:
    text = (
        "import torch\nx = torch.ones(2).cuda()\nassert x.device.type == 'cuda'\n"
        "y = x.to(f'cuda:{torch.cuda.current_device()}')\n"
        "import torch_npu\nprint(repr(y.device), torch_npu.__file__)\n"
    )
    (tmp_path / "main.py").write_text(text)
    done = rehearse("python", "main.py", options=("--migrate",))
    assert "device(type='npu', index=0)" in done.out, done.err
    assert "site-packages/torch_npu/__init__.py" in done.out


def test_dropout_trains_in_layers_and_in_attention_without_a_false_warning(
    rehearse: Run, tmp_path: Path
) -> None:
    text = (
        "import torch\nimport torch.nn.functional as F\ntorch.manual_seed(0)\n"
        "x = torch.ones(64, 64).cuda().requires_grad_()\n"
        "F.dropout(x, 0.2).sum().backward()\nprint(sorted(set(x.grad.flatten().tolist())))\n"
        "q = torch.randn(1, 2, 8, 16).cuda().requires_grad_()\n"
        "F.scaled_dot_product_attention(q, q, q, dropout_p=0.2).sum().backward()\n"
        "print(bool(torch.isfinite(q.grad).all()))\n"
    )
    (tmp_path / "main.py").write_text(text)
    done = rehearse("python", "main.py", options=("--migrate",))
    assert done.out == "[0.0, 1.25]\nTrue\n", done.err
    assert done.report is not None
    assert "(documented:" not in done.err


@pytest.mark.slow
def test_data_parallel_training_over_nccl_runs_in_two_processes(
    rehearse: Run, tmp_path: Path
) -> None:
    done = migrate(rehearse, tmp_path, "ddp_train.py")
    assert done.code == 0, done.err
    assert done.out.rstrip().endswith("over 2 ranks done")


@pytest.mark.slow
@pytest.mark.parametrize("script", [*ALONE, "ddp_train.py"])
def test_the_vendors_shim_alone_does_not_reach_the_end(
    rehearse: Run, tmp_path: Path, script: str
) -> None:
    done = migrate(rehearse, tmp_path, script, "--switch", "vendor")
    assert done.code != 0
    assert not done.out.rstrip().endswith("done")
