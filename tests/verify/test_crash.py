"""A target that breaks off is told by its exception, not by what it did not come to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from joymigrate.verify import crash
from joymigrate.verify.bundle import NothingRecorded, open_bundle
from joymigrate.verify.draws import DrawMode, Draws
from joymigrate.verify.run_watch import RunWatch

PROGRAM = """
import torch
from torch import nn
torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 5), nn.Linear(5, 2)
    def forward(self, x):
        hidden = torch.tanh(self.a(x))
        # forward
        return self.b(hidden)

net = Net()
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(1)
for step in range(4):
    loss = net(torch.randn(4, 6, generator=generator)).square().mean()
    # loss
    optimiser.zero_grad()
    loss.backward()
    # update
    optimiser.step()
"""
LINES = PROGRAM.splitlines()


def joy(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "joymigrate", "verify", *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crash")
    (folder / "train.py").write_text(PROGRAM)
    made = joy("record", "-o", "base.jmb", "--", "python", "train.py", cwd=folder)
    assert made.returncode == 0, made.stderr
    return folder / "base.jmb"


def replayed(base: Path, folder: Path, place: str, condition: str) -> dict[str, Any]:
    """The verdict on the program that raises at a place."""
    raising = f'if {condition}: raise RuntimeError("no kernel for this\\n(dtype)")'
    (folder / "train.py").write_text(PROGRAM.replace(f"# {place}", raising))
    words = ("--format", "json", "-o", "v.json", "--", "python", "train.py")
    made = joy("replay", base, *words, cwd=folder)
    assert made.returncode == 3, made.stdout + made.stderr
    document: dict[str, Any] = json.loads((folder / "v.json").read_text())
    return document


@pytest.mark.parametrize(
    ("place", "condition", "step"),
    [
        ("forward", "globals().get('step') == 1", 1),
        pytest.param("loss", "step == 0", 0, marks=pytest.mark.slow),
        pytest.param("update", "step == 2", 2, marks=pytest.mark.slow),
    ],
)
def test_a_crash_is_named_with_its_place(
    place: str, condition: str, step: int, base: Path, tmp_path: Path
) -> None:
    document = replayed(base, tmp_path, place, condition)
    line = next(i for i, text in enumerate(LINES, 1) if text.strip() == f"# {place}")
    assert (document["verdict"], document["first_divergence"]) == ("inconclusive", None)
    assert document["reason"] == (
        f"the target's program broke off in step {step}, at train.py:{line}: "
        "RuntimeError: no kernel for this"
    )
    assert document["target"]["crash"]["step"] == step
    assert document["baseline"]["crash"] is None


@pytest.mark.slow
def test_a_crash_after_the_recorded_steps_is_named_as_well(base: Path, tmp_path: Path) -> None:
    document = replayed(base, tmp_path, "update", "step == 3")
    assert document["verdict"] == "inconclusive"
    assert "RuntimeError: no kernel for this" in document["reason"]


@pytest.mark.slow
def test_a_wrong_result_before_the_crash_is_still_the_finding(base: Path, tmp_path: Path) -> None:
    wrong = PROGRAM.replace("torch.tanh(self.a(x))", "torch.tanh(self.a(x)) * 1.01")
    (tmp_path / "train.py").write_text(wrong.replace("# loss", "if step == 1: raise ValueError"))
    words = ("--format", "json", "-o", "v.json", "--", "python", "train.py")
    assert joy("replay", base, *words, cwd=tmp_path).returncode == 1
    document = json.loads((tmp_path / "v.json").read_text())
    assert document["first_divergence"]["module"] == "net"
    assert document["target"]["crash"]["exception"] == "ValueError"


def test_a_crash_before_the_first_step_is_named(base: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import nowhere_at_all\n")
    made = joy("replay", base, "--", "python", "train.py", cwd=tmp_path)
    assert made.returncode == 2
    assert (
        "error: the program recorded nothing (exit code 1): the program broke off at train.py:1: "
        "ModuleNotFoundError: No module named 'nowhere_at_all'" in made.stderr
    )
    made = joy("record", "-o", "own.jmb", "--", "python", "train.py", cwd=tmp_path)
    assert made.returncode == 1
    assert "exit code 1; nothing was recorded in this bundle: the program broke off" in made.stderr
    with pytest.raises(NothingRecorded, match=r"train\.py:1: ModuleNotFoundError"):
        open_bundle(tmp_path / "own.jmb")
    assert [file.name for file in (tmp_path / "own.jmb").iterdir()] == ["manifest.json"]


def test_the_processes_of_a_launcher_are_told_before_the_launcher(tmp_path: Path) -> None:
    for number, where in ((1, ""), (2, "train.py:7"), (3, "train.py:9")):
        note = {"exception": "ValueError", "message": str(number), "where": where}
        (tmp_path / f"crash-{number}-{number}.json").write_text(json.dumps(note))
    found = crash.collect(tmp_path)
    assert found is not None
    assert found["where"] == "train.py:7"
    assert crash.collect(tmp_path) is None


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "exit code 0"), (137, "exit code 137, killed by SIGKILL"), (200, "exit code 200")],
)
def test_a_signal_is_named(code: int, words: str) -> None:
    assert crash.exit_words(code) == words


def raised(call: Any) -> BaseException:
    """What a call raises."""
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_a_failure_of_the_recorder_is_told_from_one_of_the_program() -> None:
    own = raised(lambda: crash.exit_words("a signal"))  # type: ignore[arg-type]
    assert (crash.of_recorder(own) or "").startswith("crash.py:")
    assert "recorder failed" in str(
        crash.describe({"step": 2, "exception": "KeyError", "message": "a", "recorder": "x.py:3"})
    )
    draws = Draws(lambda: "")
    with DrawMode(draws):
        program = raised(lambda: torch.ones(2, 3) @ torch.ones(2, 3))
    assert crash.of_recorder(program) is None
    assert "recorder failed at crash.py:" in str(crash.recorder_error(own))
    assert crash.recorder_error(program) is None


@pytest.mark.parametrize("kind", [pytest.param("Adam", marks=pytest.mark.slow), "LBFGS"])
def test_what_torch_refuses_inside_a_recorded_step_is_the_programs(
    kind: str, tmp_path: Path
) -> None:
    """A loss of torch's, which calls more of torch by itself; also in an optimiser's closure."""
    (tmp_path / "train.py").write_text(
        "import sys, torch\n"
        "torch.manual_seed(0)\n"
        "layer = torch.nn.Linear(4, 1)\n"
        f"opt = torch.optim.{kind}(layer.parameters(), lr=0.1)\n"
        "wanted = torch.ones(7 if len(sys.argv) > 1 else 5)\n"
        "def loss():\n"
        "    opt.zero_grad()\n"
        "    found = torch.nn.functional.mse_loss(layer(torch.ones(5, 4))[:, 0], wanted)\n"
        "    found.backward()\n"
        "    return found\n"
        "for step in range(3):\n"
        "    opt.step(loss)\n"
    )
    recorded = joy("record", "-q", "-o", "base.jmb", "--", sys.executable, "train.py", cwd=tmp_path)
    assert recorded.returncode == 0, recorded.stderr
    done = joy("replay", "-q", "base.jmb", "--", sys.executable, "train.py", "wrong", cwd=tmp_path)
    assert done.returncode == 3
    assert "program broke off in step 0, at train.py:8: RuntimeError" in done.stdout
    assert "recorder failed" not in done.stdout


def test_weights_that_move_between_devices_are_watched_on() -> None:
    watch = RunWatch()
    layer = torch.nn.Linear(2, 2)
    watch.end_of_step(0, {"layer": layer})
    watch.sampled = {k: (p, now.to("meta")) for k, (p, now) in watch.sampled.items()}
    with pytest.raises(NotImplementedError):  # "meta" has no values to bring back: it was asked for
        watch.end_of_step(1, {"layer": layer})
