"""An unchanged CUDA program on this machine's CPU, by stand-ins."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from joymigrate.run.door.notes import add
from joymigrate.run.door.settings import DoorSettings

pytest.importorskip("torch")

HERE = Path(__file__).parent / "programs"
SAMPLES = Path(__file__).parents[3] / "../shared/cases/first_contact"
COMMANDS = {
    "old": ["train.py", "--epochs", "1"],
    "proj": ["train.py", "--config", "config.yaml"],
    "hf": ["train.py"],
    "gan": ["gan.py"],
    "func": ["main.py", "--steps", "3"],
}


def baseline(folder: Path, *words: str, cards: int = 1) -> subprocess.CompletedProcess[str]:
    """`joymigrate baseline` of a Python program in `folder`."""
    ours = [sys.executable, "-m", "joymigrate", "baseline", "--cards", str(cards)]
    ours += ["--format", "json", "-o", "report.json", "--", *words]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    return subprocess.run(ours, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.dear
def test_a_program_with_a_cpu_path_computes_the_same_bit_for_bit(tmp_path: Path) -> None:
    through = baseline(tmp_path, "python", str(HERE / "both_ways.py"))
    assert through.returncode == 0, through.stderr
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
    plain = subprocess.run(
        [sys.executable, str(HERE / "both_ways.py")],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert plain.returncode == 0, plain.stderr
    assert len(plain.stdout.splitlines()) > 20
    assert through.stdout == plain.stdout


@pytest.mark.dear
def test_the_cards_answers(tmp_path: Path) -> None:
    done = baseline(tmp_path, "python", str(HERE / "card_only.py"), cards=2)
    assert done.stdout.splitlines() == [
        "mixed: Expected all tensors to be on the same device, but found at least two devices, "
        "cuda:0 and cpu!",
        "numpy: can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the "
        "tensor to host memory first.",
        "ordinal: CUDA error: invalid device ordinal (7 of 2)",
        "graph: torch.cuda.CUDAGraph has no stand-in here: a graph is a recording of kernels, and "
        "here are none",
        "scalar: taken",
        "places: cuda:0 True 0 cpu False",
        "copies: False True cuda:1",
        "type: torch.cuda.FloatTensor True torch.cuda.HalfTensor",
        "host types: cpu cpu",
        "typed: cuda:0 torch.cuda.DoubleTensor",
        "context: cuda:0 cuda:0",
        "current: 1 cuda:1",
        "name: NVIDIA A100-SXM4-80GB (stand-in) 2",
        "capability: (8, 0) 8",
        "accelerator: cuda 2",
        "memory: 4194304 True",
        "freed: True",
        "event: True",
        "autocast: torch.float16 torch.float32 torch.float32",
        "asked: True torch.float16",
        "recurrent: torch.float16 cuda:0",
        "product: True",
        "its own: torch.bfloat16",
        "file: cuda:0 cpu",
        "numbers: cuda:1 cuda:1 cuda:1",
        "beyond: CUDA error: invalid device ordinal (2 of 2)",
        "default: cuda:0 cuda:0",
    ], done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["reference"] == "cpu"
    assert "no TF32" in report["what"]
    (refused,) = report["refused"]
    assert refused["what"] == "torch.cuda.CUDAGraph"
    assert refused["line"].endswith("card_only.py:11")
    assert "no TF32" in done.stderr
    steps = [json.loads(line) for line in (tmp_path / ".joymigrate/ledger.jsonl").open()]
    assert [(one["kind"], one["chip"], one["details"]["what"]) for one in steps] == [
        ("baseline", "cpu", report["what"])
    ]


@pytest.mark.dear
def test_two_processes_train_over_gloo(tmp_path: Path) -> None:
    program = str(HERE / "ranks.py")
    done = baseline(tmp_path, "torchrun", "--standalone", "--nproc_per_node", "2", program)
    lines = done.stdout.splitlines()
    assert len(lines) == 4, done.stderr
    assert all(line.endswith("on cuda:0 by nccl") for line in lines)


@pytest.mark.dear
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_samples_run_to_their_end(name: str, tmp_path: Path) -> None:
    if not SAMPLES.is_dir():
        pytest.skip("the samples of first contact are not here")
    if name == "hf":
        pytest.importorskip("accelerate")
    folder = tmp_path / name
    shutil.copytree(SAMPLES / name, folder)
    done = baseline(folder, "python", *COMMANDS[name])
    assert done.returncode == 0, done.stderr[-2000:]
    assert "loss" in done.stdout.lower()
    assert json.loads((folder / "report.json").read_text())["refused"] == []


@pytest.mark.dear
@pytest.mark.parametrize("kind", ["by parameter", "flat"])
def test_a_module_in_shards_computes_the_same_bit_for_bit(kind: str, tmp_path: Path) -> None:
    start = ["torchrun", "--standalone", "--nproc_per_node", "2", str(HERE / "shards.py"), kind]
    through = baseline(tmp_path, *start, cards=2)
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
    command = [str(Path(sys.executable).parent / "torchrun"), *start[1:], "cpu"]
    plain = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert plain.returncode == 0, plain.stderr
    assert len(plain.stdout.splitlines()) == 3
    assert through.stdout == plain.stdout, through.stderr


@pytest.mark.dear
def test_accelerate_launches_a_process_for_each_card(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    start = ["accelerate", "launch", "--multi_gpu", "--num_processes", "2"]
    done = baseline(tmp_path, *start, str(HERE / "accelerated.py"), cards=2)
    assert done.returncode == 0, done.stderr[-2000:]
    said = [line.partition(" loss ") for line in done.stdout.splitlines() if " loss " in line]
    assert {where for where, _, _ in said} == {"0 of 2 on cuda:0", "1 of 2 on cuda:1"}
    assert len({loss for _, _, loss in said}) == 2  # of two steps, the same on both


@pytest.mark.dear
def test_a_model_is_loaded_onto_the_card_by_its_device_map(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    done = baseline(tmp_path, "python", str(HERE / "infer.py"))
    assert done.returncode == 0, done.stderr[-2000:]
    on, tokens = done.stdout.splitlines()[-2:]
    assert on.startswith("on cuda:0 {device(type='cuda', index=0)}")
    assert tokens.startswith("tokens cuda:0 [[0, 1, 2")
    assert tokens.endswith("True")


def test_notes_of_several_processes_are_added() -> None:
    one = {
        "words": [{"what": "to", "line": "a.py:1", "calls": 2}],
        "refused": [{"what": "graph", "line": "a.py:2", "reason": "none"}],
        "other": {"silu": 1},
    }
    assert add([one, one]) == {
        "words": [{"what": "to", "line": "a.py:1", "calls": 4}],
        "refused": one["refused"],
        "other": {"silu": 2},
    }


def test_settings_reach_children(monkeypatch: pytest.MonkeyPatch) -> None:
    from joymigrate.run.door.settings import ENVIRONMENT, read_settings

    asked = DoorSettings(cards=3, model="H100")
    monkeypatch.setenv(ENVIRONMENT, asked.environment({})[ENVIRONMENT])
    assert read_settings() == asked


CHECKPOINTED = """
import torch
from torch.utils.checkpoint import checkpoint
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).cuda()
x = torch.randn(4, 8, device="cuda", requires_grad=True)
checkpoint(net, x, use_reentrant=False).sum().backward()
print(x.grad.device)
"""


@pytest.mark.dear
def test_activations_that_are_computed_again_are_on_the_same_card(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(CHECKPOINTED)
    done = baseline(tmp_path, "python", "main.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["cuda:0"]


@pytest.mark.parametrize(("value", "kept"), [("", False), ("-1", False), ("0,1", True)])
def test_a_machine_whose_cards_are_hidden_has_stand_ins(value: str, kept: bool) -> None:
    given = DoorSettings().environment({"CUDA_VISIBLE_DEVICES": value})
    assert ("CUDA_VISIBLE_DEVICES" in given) is kept


def test_what_a_stand_in_computes_is_no_call_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import torch, torch.distributed as dist\n"
        "from torch.overrides import TorchFunctionMode\n"
        "class Seen(TorchFunctionMode):\n"
        "    def __torch_function__(self, func, types, args=(), kwargs=None):\n"
        "        names.append(func.__name__)\n"
        "        return func(*args, **(kwargs or {}))\n"
        "names = []\n"
        "dist.init_process_group('nccl', init_method='file://' + __file__ + '.store',\n"
        "                        rank=0, world_size=1)\n"
        "value = torch.ones(2, device='cuda')\n"
        "with Seen():\n"
        "    dist.all_reduce(value, op=dist.ReduceOp.AVG)\n"
        "print(value.tolist(), 'div_' in names)\n"
        "dist.destroy_process_group()\n"
    )
    done = baseline(tmp_path, "python", "program.py")
    assert done.stdout.splitlines() == ["[1.0, 1.0] False"], done.stderr
