"""What happens once in a program: a rate that falls at a plateau, weights and buffers that are
changed by hand before the only evaluation."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from joymigrate.verify.bundle.write import RankWriter
from joymigrate.verify.judge import ErrorSeries, Judge
from joymigrate.verify.model import Verdict
from joymigrate.verify.replay_session import ReplaySession
from joymigrate.verify.rest_stage import parting
from joymigrate.verify.settings import RecordingSettings
from joymigrate.verify.tolerance import Tolerance
from tests.verify.harness import record, replay

PROGRAM = """
import torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
class Meter(nn.Module):
    def __init__(self):
        super().__init__(); self.register_buffer("load", torch.zeros(3))
    def forward(self, x):
        if self.training: self.load.mul_(0.8).add_(x.detach().abs().mean(0), alpha=0.2)
        self.last = x  # has a gradient: deepcopy refuses it
        return x
net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3), Meter())
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimiser, factor=0.5, patience=0, threshold=0.01)
for step in range(12):
    x, y = torch.randn(16, 6), torch.randint(0, 3, (16,))
    loss = nn.functional.cross_entropy(net(x), y)
    optimiser.zero_grad(); loss.backward(); optimiser.step()
    if step % 4 == 3:
        plateau.step(1.0 - 0.012 * (step // 4))
net[2].bias.data.add_(0.01)
net.eval()
with torch.no_grad(): net(torch.randn(9, 6))
"""  # noqa: E501  a program, as a table


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rare")
    (folder / "base.py").write_text(PROGRAM)
    record(folder / "base.py", folder / "base.jmb", runs=2)
    return folder / "base.jmb"


def judged(base: Path, folder: Path, old: str, new: str) -> Verdict:
    assert old in PROGRAM
    (folder / "target.py").write_text(PROGRAM.replace(old, new))
    return replay(base, folder / "target.py", folder / "target.jmb", noise=1.0)


@pytest.mark.parametrize(
    ("old", "new", "phase", "module"),
    [
        pytest.param("threshold=0.01", "threshold=0.02", "schedule", "SGD", marks=pytest.mark.slow),
        pytest.param("1.0 - 0.012 *", "1.2 - 0.012 *", "schedule", "SGD", marks=pytest.mark.slow),
        # results that rounding does not move in the baseline's own runs
        pytest.param("1.0 - 0.012 *", "0.95 - 0.009 *", "schedule", "SGD", marks=pytest.mark.slow),
        pytest.param("1.0 - 0.012 *", "1.0 - 0.0095 *", "schedule", "SGD", marks=pytest.mark.slow),
        ("net.eval()", "net[1].running_mean.zero_(); net.eval()", "state", "1"),
        # zeros hide it in the first call; the second is taught with what the first one left
        ("mul_(0.8)", "mul_(0.9)", "forward", "3"),
    ],
)  # fmt: skip
def test_another_rule_another_result_and_another_buffer_fail(
    old: str, new: str, phase: str, module: str, base: Path, tmp_path: Path
) -> None:
    found = judged(base, tmp_path, old, new)
    failed = [(row.module, row.phase) for row in found.records if row.status.failed]
    assert failed == [(module, phase)]


@pytest.mark.slow
@pytest.mark.parametrize("new", ["net[2].bias.data.add_(0.2)", "net[0].weight.data.mul_(0.9)"])
def test_a_weight_changed_by_hand_before_the_only_evaluation_fails(
    new: str, base: Path, tmp_path: Path
) -> None:
    found = judged(base, tmp_path, "net[2].bias.data.add_(0.01)", new)
    failed = [row for row in found.records if row.status.failed]
    assert len(failed) == 1
    assert failed[0].module == new[4]


BROKEN = """
import torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
class Late(torch.optim.SGD):
    def step(self, closure=None):
        if self.tries == 1:
            raise RuntimeError("out of memory")
        return super().step(closure)
net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
optimiser = Late(net.parameters(), lr=0.1)
for step in range(4):
    x, y = torch.randn(16, 6), torch.randint(0, 3, (16,))
    loss = nn.functional.cross_entropy(net(x), y)
    optimiser.zero_grad(); loss.backward()
    optimiser.tries = step
    try:
        optimiser.step()
    except RuntimeError:
        with torch.no_grad():
            for p in net.parameters(): p.sub_(0.05 * p.grad)
"""


@pytest.mark.parametrize(("new", "failed"), [("0.05", 0), ("0.06", 1)])
def test_after_an_update_that_raises_the_tape_goes_on(
    new: str, failed: int, tmp_path: Path
) -> None:
    (tmp_path / "base.py").write_text(BROKEN)
    record(tmp_path / "base.py", tmp_path / "base.jmb")
    (tmp_path / "target.py").write_text(BROKEN.replace("0.05", new))
    found = replay(
        tmp_path / "base.jmb", tmp_path / "target.py", tmp_path / "target.jmb", noise=1.0
    )
    rows = [row for row in found.records if row.status.failed]
    assert len(rows) == failed
    assert all(row.stage == "S4R" and row.step == 1 for row in rows)


HOOKED = """
import torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
layers = [m for _ in range(4) for m in (nn.Linear(16, 16), nn.Tanh())]
net = nn.Sequential(*layers, nn.Linear(16, 3)).to(torch.bfloat16)
net[2].weight.register_hook(lambda g: g * 0.5)
optimiser = torch.optim.AdamW(net.parameters(), lr=0.01)
for step in range(4):
    x, y = torch.randn(16, 16).to(torch.bfloat16), torch.randint(0, 3, (16,))
    loss = nn.functional.cross_entropy(net(x).float(), y)
    optimiser.zero_grad(); loss.backward(); optimiser.step()
"""


@pytest.mark.parametrize(("new", "failed"), [("g * 0.5", []), ("g * 1.0", ["2"])])
def test_a_hook_that_stretches_one_gradient_in_16_bits_fails(
    new: str, failed: list[str], tmp_path: Path
) -> None:
    (tmp_path / "base.py").write_text(HOOKED)
    record(tmp_path / "base.py", tmp_path / "base.jmb", runs=2)
    (tmp_path / "target.py").write_text(HOOKED.replace("g * 0.5", new))
    found = replay(
        tmp_path / "base.jmb", tmp_path / "target.py", tmp_path / "target.jmb", noise=1.0
    )
    assert [row.module for row in found.records if row.status.failed] == failed


TWO = """
import copy, torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
slow = copy.deepcopy(net).requires_grad_(False)
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(6):
    x, y = torch.randn(16, 6), torch.randint(0, 3, (16,))
    loss = nn.functional.cross_entropy(net(x), y)
    optimiser.zero_grad(); loss.backward(); optimiser.step()
    for a, b in zip(slow.parameters(), net.parameters()): a.lerp_(b.detach(), 0.5)
with torch.no_grad(): made = slow(torch.randn(9, 6))
"""


@pytest.mark.parametrize(("new", "failed"), [("slow(torch", 0), ("net(torch", 1)])
def test_another_model_in_place_of_the_average_fails(new: str, failed: int, tmp_path: Path) -> None:
    """Neither model asks whether it is in training mode, which is no reason to let it pass."""
    (tmp_path / "base.py").write_text(TWO)
    record(tmp_path / "base.py", tmp_path / "base.jmb")
    (tmp_path / "target.py").write_text(TWO.replace("slow(torch", new))
    found = replay(
        tmp_path / "base.jmb", tmp_path / "target.py", tmp_path / "target.jmb", noise=1.0
    )
    rows = [row for row in found.records if row.status.failed]
    assert [(row.op, row.reason) for row in rows] == [
        ("mode", "another model is called here")
    ] * failed


def test_a_loss_in_16_bits_fails_though_its_outputs_are_in_16_bits(tmp_path: Path) -> None:
    (tmp_path / "base.py").write_text(HOOKED)
    record(tmp_path / "base.py", tmp_path / "base.jmb")
    narrow = HOOKED.replace("net(x).float(), y)", "net(x), y).float()")
    (tmp_path / "target.py").write_text(narrow)
    found = replay(
        tmp_path / "base.jmb", tmp_path / "target.py", tmp_path / "target.jmb", noise=1.0
    )
    assert [row.phase for row in found.records if row.status.failed] == ["loss"]


class Meter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("load", torch.zeros(3))


def test_one_of_several_processes_is_not_taught_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for the others in its model's own collectives."""
    writer = RankWriter(tmp_path / "rank", {})
    session, meter = ReplaySession(RecordingSettings(bundle=str(tmp_path)), lambda: writer), Meter()
    session.keep_weights("net:", meter)
    assert not session.hides_less("net:", meter)
    meter.load += 1
    assert session.hides_less("net:", meter)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not session.hides_less("net:", meter)


@pytest.mark.parametrize("result", [1.05, 1.5])
@pytest.mark.parametrize("end", [5, math.inf])
def test_a_result_may_move_over_a_threshold_by_as_much_as_in_the_other_runs(
    result: float, end: float
) -> None:
    """The rate falls later, because the result is another one. Where the other runs ended before,
    a fixed distance holds: what they were off by till then says nothing of it."""
    mine, other = (
        {"plateau 0": [[1, "a", 1, 1.0, [0.1], True], [9, "a", 9, late, [rate], True]]}
        for late, rate in ((1.0, 0.1), (result, 0.05))
    )
    null = [(1, 1e-6), (9, 1e-2)]
    nulls = [{("plateau", "0"): ErrorSeries([p for p in null if p[0] < end])}] * 2
    judge = Judge(Tolerance.of(None).judge, nulls, end=end)
    found, words = parting((mine, other), ("a", "a"), 9, judge)
    assert (found, words is None) == ((9, True) if result == 1.05 else (None, False))
