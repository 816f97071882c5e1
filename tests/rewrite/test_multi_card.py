"""`rewrite --multi-card`: a script for one card trains on several, and as before on one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from joymigrate import chips
from joymigrate.cli._main import run
from joymigrate.model import Scan
from joymigrate.rewrite import scan
from joymigrate.rewrite.cards import MultiCard, multi_card
from joymigrate.rewrite.codemod_check import check

SCRIPT = '''
"""Trains on one card, and writes down what each process saw."""
import atexit, json, os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

@atexit.register
def note_threads():  # the first one registered runs last
    names = [open(f"/proc/self/task/{one}/comm").read() for one in os.listdir("/proc/self/task")]
    with open(f"threads{os.environ.get('RANK', '')}.json", "w") as file:
        json.dump(names, file)

class Net(nn.Module):
    scale = 2.0
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
    def forward(self, x):
        return self.layer(x) * self.scale

def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        return sum(float(model(x).sum()) for x, _ in loader)

def main():
    # the device
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(16, 4), torch.arange(16.0))
    loader = DataLoader(data, batch_size=4, shuffle=True)
    test = DataLoader(data, batch_size=16)
    model = Net().to(device)
    plain, decayed = [], []
    for name, parameter in model.named_parameters():
        (plain if name.endswith("bias") else decayed).append(parameter)
    groups = [{"params": plain}, {"params": decayed, "weight_decay": 0.1}]
    optimiser = torch.optim.SGD(groups, lr=1e-3)
    seen, losses = [], []
    for epoch in range(2):
        model.train()
        for x, y in loader:
            seen.append(sorted(y.tolist()))
            loss = (model(x.to(device)).squeeze() - y.to(device)).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    result = evaluate(model, test) * model.scale
    torch.save(model.state_dict(), "model.pt")
    with open(f"seen{os.environ.get('RANK', '')}.json", "w") as file:
        json.dump([seen, losses, result, model.layer.weight.tolist()], file)

if __name__ == "__main__":
    main()
'''


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cards")
    (folder / "train.py").write_text(SCRIPT)
    start(folder, sys.executable, "train.py")
    (folder / "seen.json").rename(folder / "original.json")
    assert run(["rewrite", "--multi-card", str(folder / "train.py")]) == 0
    return folder


def start(folder: Path, *line: str) -> None:
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_its_example_comes_out() -> None:
    assert [one.fault for one in check(MultiCard)] == [None]


@pytest.mark.slow
def test_on_one_card_nothing_changes(project: Path) -> None:
    start(project, sys.executable, "train.py")
    assert json.loads((project / "seen.json").read_text()) == json.loads(
        (project / "original.json").read_text()
    )


def test_two_processes_share_the_data_and_keep_one_model(project: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    start(project, *torchrun, "--nproc-per-node=2", "train.py")
    first, second = (json.loads((project / f"seen{n}.json").read_text()) for n in (0, 1))
    for epoch in (slice(0, 2), slice(2, 4)):
        rows = sorted(y for seen in (first[0], second[0]) for step in seen[epoch] for y in step)
        assert rows == list(range(16)), "every row once an epoch"
    assert first[0][:2] != first[0][2:], "another order in the second epoch"
    assert first[2:] == second[2:], "one model"
    for rank in (0, 1):
        names = json.loads((project / f"threads{rank}.json").read_text())
        assert not [n for n in names if "gloo" in n], "threads of the group outlive it"
    import torch

    assert list(torch.load(project / "model.pt")) == ["layer.weight", "layer.bias"]


@pytest.mark.slow
def test_the_launch_script_starts_it(project: Path) -> None:
    env = {**os.environ, "CARDS": "2", "OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    env["PATH"] = f"{project}:{env['PATH']}"
    (project / "torchrun").write_text(
        f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n'
    )
    (project / "torchrun").chmod(0o755)
    done = subprocess.run(["sh", "train_cards.sh"], cwd=project, env=env, capture_output=True)
    assert done.returncode == 0, done.stderr


LINE = "import torch\nnet = torch.nn.Linear(1, 1).cuda()\n"
OPT = "opt = torch.optim.SGD(net.parameters())\n"
DATA = "for x in torch.utils.data.DataLoader(d, shuffle=True):\n    net(x).backward()\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (LINE + "net.to('cuda:0')\n" + OPT + DATA, "names one card"),
        (LINE + "net.cuda(1)\n" + OPT + DATA, "names one card"),
        (LINE + OPT + "net.cuda()\n" + DATA, "moves to a device after"),
        (LINE + OPT + "o2 = torch.optim.SGD(other.parameters())\n" + DATA, "several models"),
        ("import accelerate\n" + LINE + OPT + DATA, "accelerate brings several cards"),
        (LINE + "net = torch.nn.DataParallel(net)\n" + OPT + DATA, "knows several cards"),
        (LINE + OPT + DATA.replace("shuffle=True", "sampler=s"), "with a sampler"),
        (LINE + OPT, "no DataLoader"),
        ("import torch\n" + OPT + DATA, "made elsewhere"),
        (LINE.replace("net", "a.net") + OPT.replace("net", "a.net") + DATA, "no variable"),
        (LINE + OPT.replace("net.parameters()", "groups(CFG)") + DATA, "no model is seen behind"),
        (
            LINE + "def make(ps): return torch.optim.SGD(ps)\n" + DATA,
            "no model is seen behind `ps`",
        ),
        (
            LINE
            + "t = torch.nn.Parameter(torch.ones(1))\n"
            + OPT.replace("net.parameters()", "[*net.parameters(), t]")
            + DATA,
            "it trains `t` too",
        ),
        (
            LINE + "two = torch.nn.ModuleList([net])\n" + OPT.replace("net.par", "two.par") + DATA,
            "`two` is a list of models",
        ),
        (LINE + OPT.replace("net.parameters()", "**CFG") + DATA, "arguments of its optimiser"),
    ],
)
def test_what_is_not_understood_stays_as_a_whole(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text)
    (found,) = looked(tmp_path).findings
    assert told in str(found.reason)
    assert not found.edits


@pytest.mark.parametrize(
    "groups",
    [
        "ps = [p for n, p in net.named_parameters() if 'bias' in n]\nps = [{'params': ps}]\n",
        "net.train()\nps = make_groups(net, 0.1)\n",
        "ps = []\nfor n, p in net.named_parameters():\n    ps += [{'params': p, 'lr': 0.1}]\n",
    ],
)
def test_lists_of_groups_are_followed_to_their_model(groups: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        LINE
        + groups
        + OPT.replace("net.parameters()", "ps")
        + DATA
        + "def make_groups(m, d): ...\n"
    )
    assert all(one.edits for one in looked(tmp_path).findings)
    after = multi_card(looked(tmp_path))[0].after
    assert after is not None
    assert b"net = joymigrate_cards.parallel(net)\nopt =" in after


def test_a_trainer_class_keeps_its_model_in_an_attribute(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = (LINE.replace("import torch\n", "") + OPT).replace("net", "self.net").splitlines()
    lines = ["import torch", "class T:", "  def __init__(self):", *(f"    {one}" for one in body)]
    lines += [
        "  def fit(self):",
        *(f"    {one}" for one in DATA.replace("net", "self.net").split("\n")),
    ]
    (tmp_path / "train.py").write_text("\n".join(lines) + "\n")
    assert run(["rewrite", "--multi-card", "--diff", str(tmp_path)]) == 1
    assert "+    self.net = joymigrate_cards.parallel(self.net)" in capfd.readouterr().out


SEVERAL = """
import torch
from torch.utils.data import DataLoader

def evaluate(net, data):
    loader = DataLoader(data, batch_size=2)
    return sum(net(x).sum() for x in loader)

class Judge:
    def __init__(self, data):
        self.loader = DataLoader(data, batch_size=4)

class Trainer:
    def __init__(self, data):
        self.loader = DataLoader(data, batch_size=8)

    def fit(self, net, optimiser):
        for x in self.loader:
            net(x).sum().backward()

def main(data):
    net = torch.nn.Linear(4, 2)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    Trainer(data).fit(net, optimiser)
    loader = DataLoader(data, batch_size=16)
    for x in loader:
        net(x).sum().backward()
"""


def test_a_loader_of_the_same_name_elsewhere_is_not_shared_out(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Evaluation on a part of the data gives other figures."""
    (tmp_path / "train.py").write_text(SEVERAL)
    assert run(["rewrite", "--multi-card", "--diff", str(tmp_path)]) == 1
    added = [line for line in capfd.readouterr().out.splitlines() if "cards.DataLoader" in line]
    assert [line.partition("batch_size=")[2] for line in added] == ["8)", "16)"]


def test_a_diff_says_why_a_script_stays(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(LINE + OPT)
    assert run(["rewrite", "--multi-card", "--diff", str(tmp_path)]) == 0
    assert "train.py:3 stays as it is: no DataLoader" in capfd.readouterr().err


def looked(folder: Path) -> Scan:
    chip, origin = chips.target("ascend"), chips.origin()
    return scan([folder], chip=chip, origin=origin, select=["JM301"], codemods=(MultiCard,))


def test_a_script_without_training_is_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.py").write_text("import torch\n")
    assert run(["rewrite", "--multi-card", str(tmp_path)]) == 2
    assert "no training script" in capfd.readouterr().err
