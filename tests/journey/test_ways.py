"""Programs that are started in other ways, and baselines from elsewhere, the whole way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.journey.test_examples import (
    ORDER,
    REPOSITORY,
    copied,
    migrated,
    pytestmark,
    steps_of,
    up_to,
)

pytestmark = [*pytestmark, pytest.mark.slow]

PROGRAM = """
import sys
import torch
from torch import nn

device = sys.argv[2] if len(sys.argv) > 2 else "cuda"
# here
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).to(device)
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(1)
for step in range(3):
    if device == "cuda":
        torch.cuda.synchronize()
    loss = net(torch.randn(4, 6, generator=generator).to(device)).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    print(f"step {step} loss {loss.item():.4f}", flush=True)
"""
ASSERTED = PROGRAM.replace("# here", 'assert torch.cuda.is_available(), "this needs a GPU"')


def project(folder: Path, source: str) -> Path:
    made = folder / "project"
    made.mkdir()
    (made / "train.py").write_text(source)
    (made / "run.sh").write_text("#!/bin/bash\nset -e\npython train.py\n")
    (made / "pyproject.toml").write_text("[tool.joymigrate]\n")
    return made


def test_a_device_that_a_nested_configuration_names_is_found_and_mended_on_a_copy(
    tmp_path: Path,
) -> None:
    told = 'device = yaml.safe_load(open("conf.yaml"))["train"]["device"]'
    source = ASSERTED.replace("import sys\n", "import yaml\n").replace(
        'device = sys.argv[2] if len(sys.argv) > 2 else "cuda"', told
    )
    made = project(tmp_path, source)
    (made / "conf.yaml").write_text("train:\n  device: cuda:0\n")
    steps = steps_of(migrated(made, "python train.py"))
    assert {name: steps[name]["status"] for name in ORDER} == up_to("rehearse")
    told = steps["rehearse"]["help"]
    assert "from outside of the code: conf.yaml:2 `cuda`" in told
    assert "conf.yaml:2 `cuda` → `npu` (JM120): the program runs to its end" in told


WORDS = PROGRAM.replace('else "cuda"', 'else "".join(["cu", "da"])').replace(
    "generator).to(device)", 'generator).to("cu" + "da")'
)


def test_a_word_that_is_made_while_running_stops_it_at_its_lines(tmp_path: Path) -> None:
    made = project(tmp_path, WORDS)
    steps = steps_of(migrated(made, "python train.py"))
    lines = (made / "train.py").read_text().splitlines()  # as rewritten
    places = [f"train.py:{n}" for n, line in enumerate(lines, 1) if ".to(" in line]
    assert {name: steps[name]["status"] for name in ORDER} == up_to("rehearse")
    stop, told = steps["rehearse"]["figures"]["stop"], steps["rehearse"]["help"]
    assert (stop["line"], stop["whose"]) == (places[0], "rewrite")
    assert stop["how_known"].endswith(f"while the program ran, at {', '.join(places)}")
    assert places[0] in stop["next"]
    assert f"only seen while running: {', '.join(places)}" in told
    assert "translated there, the program runs to its end: joymigrate run -- python" in told


def test_run_translates_such_words_on_the_chip(tmp_path: Path) -> None:
    made = project(tmp_path, WORDS)
    words = ["rehearse", "--format", "json", "-o", "r.json", "--"]
    words += [sys.executable, "-m", "joymigrate", "run", "--", "python", "train.py"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-m", "joymigrate", *words],
        cwd=made, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("loss") == 3
    assert "switch: only seen while running" in done.stderr
    assert json.loads((made / "r.json").read_bytes())["peak_memory_bytes"]["npu:0"] > 0


def test_a_script_whose_program_insists_on_a_gpu_is_compared_by_stand_ins(tmp_path: Path) -> None:
    steps = steps_of(migrated(project(tmp_path, ASSERTED), "bash run.sh"))
    assert all(steps[name]["status"] == "done" for name in ORDER), steps
    assert "by stand-ins for its GPU; 3 losses" in steps["baseline"]["found"]
    assert "the GPU's own rounding is not in it" in steps["baseline"]["found"]
    assert steps["coverage"]["figures"]["lacking"] == []  # recorded on the simulated chip
    assert steps["verify"]["verdict"] == steps["train"]["verdict"] == "pass"
    assert "on cpu" in steps["verify"]["found"]


def test_a_program_that_our_recorder_ends_is_not_blamed(tmp_path: Path) -> None:
    watched = 'assert "joymigrate.verify.recorder" not in sys.modules, "somebody is watching"'
    made = project(tmp_path, PROGRAM.replace("# here", watched))
    steps = steps_of(migrated(made, "python train.py --device cpu"))
    assert steps["baseline"]["verdict"] == "inconclusive"
    assert "not under our recorder" in steps["baseline"]["found"]
    assert "fault of joymigrate" in steps["baseline"]["help"]
    assert "not under our recorder" in steps["verify"]["found"]
    assert steps["verify"]["verdict"] == "inconclusive"


def test_a_recording_of_the_original_is_the_baseline(tmp_path: Path) -> None:
    made, bundle = project(tmp_path, PROGRAM), tmp_path / "base.jmb"
    record = ["verify", "record", "-o", str(bundle), "--steps", "0-2"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "joymigrate",
            *record,
            "--",
            "python",
            "train.py",
            "--device",
            "cpu",
        ],
        cwd=made,
        env={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "JOYMIGRATE_SEED": "0",
            "JOYMIGRATE_DRAWS": "1",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    steps = steps_of(migrated(made, "python train.py", "--baseline", str(bundle)))
    assert all(steps[name]["status"] == "done" for name in ORDER), steps
    assert "base.jmb, recorded on CPU, steps 0 to 2" in steps["baseline"]["found"]
    assert "train.py --device cpu" in steps["baseline"]["found"]
    assert "the given baseline (CPU)" in steps["verify"]["found"]
    assert steps["verify"]["verdict"] == steps["train"]["verdict"] == "pass"


def test_the_original_may_be_started_in_its_own_way(tmp_path: Path) -> None:
    own = ("--baseline-entry", "python train.py --device cpu")
    steps = steps_of(migrated(project(tmp_path, PROGRAM), "python train.py", *own))
    assert all(steps[name]["status"] == "done" for name in ORDER), steps
    assert steps["baseline"]["verdict"] == "pass"
    assert "the original on this machine's CPU" in steps["verify"]["found"]
    assert steps["verify"]["verdict"] == steps["train"]["verdict"] == "pass"
    assert steps["train"]["figures"]["losses"] == [3, 3]


TORCHRUN = "torchrun --nproc-per-node 2 train.py --steps 3 --batch-size 4"
CHANNELS_LAST = "model = model.to(memory_format=torch.channels_last)"
CONVERTED = "model = nn.SyncBatchNorm.convert_sync_batchnorm(model)"


def classifier_without(folder: Path, *lines: str) -> Path:
    """A copy of the example without some of its lines."""
    made = copied("classifier", folder)
    text = (made / "train.py").read_text()
    for line in lines:
        assert line in text
        text = text.replace(line, "pass")
    (made / "train.py").write_text(text)
    return made


def test_two_processes_go_through_together(tmp_path: Path) -> None:
    steps = steps_of(migrated(classifier_without(tmp_path, CHANNELS_LAST, CONVERTED), TORCHRUN))
    assert all(steps[name]["status"] == "done" for name in ORDER), steps
    assert steps["rehearse"]["verdict"] == "pass"
    assert steps["verify"]["figures"]["coverage"]["compared"] > 20
    assert steps["verify"]["verdict"] in ("pass", "inconclusive")
    assert steps["train"]["verdict"] == "pass"


def test_a_module_that_only_a_device_gets_is_named_with_both_classes(tmp_path: Path) -> None:
    # Its scaler is on with a device only: no verdict on the losses, and the classes are told.
    steps = steps_of(migrated(classifier_without(tmp_path, CHANNELS_LAST), TORCHRUN))
    assert steps["verify"]["verdict"] == "inconclusive"
    told = " ".join([steps["verify"]["summary"], steps["verify"]["help"] or ""])
    assert "scales its loss by 65536" in told
    assert "another class on the chip: blocks.0.bn1: BatchNorm2d → SyncBatchNorm" in told
