"""Faults outside of modules are found where they are, and the verdict says what it covers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from joymigrate.verify import scope
from joymigrate.verify.display import Display
from joymigrate.verify.findings import Findings
from joymigrate.verify.judgement import fact_of
from joymigrate.verify.model import Outcome
from joymigrate.verify.rest_stage import EventJudge
from joymigrate.verify.summaries import summary
from tests.verify.harness import record, replay
from tests.verify.whole_faults import PROGRAMS, WHOLE_FAULTS

AUTOCAST = {"MODE": "autocast", "SEED": "0"}
# One of each kind; benchmarks/verify_whole.py runs all of them.
CHOSEN = {
    "range of the clip": "loss",
    "norm without the root": "gradients",
    "target network too fast": "state",
}


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bundle = tmp_path_factory.mktemp("rest") / "rl.jmb"
    record(PROGRAMS / "whole_rl.py", bundle, AUTOCAST, runs=2)
    return bundle


@pytest.mark.parametrize("name", CHOSEN)
def test_a_fault_under_autocast_is_one_failure_in_its_place(
    name: str, baseline: Path, tmp_path: Path
) -> None:
    (fault,) = [f for f in WHOLE_FAULTS if f.name == name]
    program = tmp_path / "target.py"
    program.write_text(fault.source())
    found = replay(baseline, program, tmp_path / "target.jmb", AUTOCAST, noise=1.0)
    assert found.verdict is Outcome.FAIL
    assert found.first_divergence is not None
    assert found.first_divergence.phase == CHOSEN[name]
    assert sum(row.status.failed for row in found.records) == 1


SAMPLER = """
import torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(12, 12), nn.Tanh()
    def forward(self, x, heat):
        return self.two(self.one(x) / heat)
net = Net().to(torch.bfloat16)
betas = torch.linspace(1e-3, 0.05, 5)
signal = torch.cumprod(1 - betas, 0)
x = torch.randn(4, 12).to(torch.bfloat16)
with torch.no_grad():
    for now, before in zip(signal.flip(0), [*signal.flip(0)[1:], torch.tensor(1.0)]):
        noise = net(x, 0.8)
        clean = (x - (1 - now).sqrt() * noise) / now.sqrt()
        x = (before.sqrt() * clean + (1 - before).sqrt() * noise).to(torch.bfloat16)
print("mean", f"{x.float().abs().mean().item() / 2:.4f}")
"""


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sampler")
    (folder / "base.py").write_text(SAMPLER)
    record(folder / "base.py", folder / "base.jmb")
    return folder / "base.jmb"


@pytest.mark.parametrize(
    ("changes", "phase"),
    [
        ({}, None),
        ({"1e-3": "1e-2"}, "input"),
        ({"/ 2:": "/ 2.04:"}, "output"),
        ({"0.8": "0.9"}, "input"),
        ({"0.8": "0.9", "Tanh": "Softsign"}, "forward"),
    ],
    ids=["clean", "table of constants", "printed formula", "plain number", "module beside one"],
)
def test_what_carries_no_rounding_of_a_run_is_judged_by_its_own_digits(
    changes: dict[str, str], phase: str | None, sampled: Path, tmp_path: Path
) -> None:
    text = SAMPLER
    for old, new in changes.items():
        text = text.replace(old, new)
    (tmp_path / "target.py").write_text(text)
    found = replay(sampled, tmp_path / "target.py", tmp_path / "target.jmb", noise=1.0)
    first = found.first_divergence
    assert (first.phase if first is not None else None) == phase
    assert sum(row.status.failed for row in found.records) == bool(phase)


HISTORY = """
import numpy, torch
torch.manual_seed(0); torch.set_num_threads(1)
class Log:
    def __init__(self):
        self.losses, self.scale = make(5.0), make(2.0)
def make(value):
    return torch.from_numpy(numpy.full(6, value, dtype=numpy.float32))
net, log = torch.nn.Linear(6, 2), Log()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    loss = (net(torch.ones(3, 6)) * log.scale[:2]).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
    log.losses[step] = loss.item()
"""


@pytest.mark.parametrize(("constant", "fails"), [("make(5.0)", False), ("make(2.0)", True)])
def test_what_lies_in_memory_before_it_is_written_is_no_constant(
    constant: str, fails: bool, tmp_path: Path
) -> None:
    """`torch.Tensor(6)` has other garbage in every process; a table that is read has none."""
    (tmp_path / "p.py").write_text(HISTORY)
    record(tmp_path / "p.py", tmp_path / "b.jmb", runs=2)
    (tmp_path / "t.py").write_text(HISTORY.replace(constant, "make(2.5)"))
    found = replay(tmp_path / "b.jmb", tmp_path / "t.py", tmp_path / "t.jmb")
    assert found.verdict is (Outcome.FAIL if fails else Outcome.PASS)


def test_a_clean_run_passes_and_says_what_it_covers(baseline: Path, tmp_path: Path) -> None:
    program = PROGRAMS / "whole_rl.py"
    found = replay(baseline, program, tmp_path / "target.jmb", AUTOCAST, noise=1.0)
    assert found.verdict is Outcome.PASS, found.first_divergence
    assert found.covered["steps"] == {"compared": 3, "of": 6}
    assert all(found.covered[part]["of"] for part in ("modes", "loss", "gradients", "state"))
    # Under autocast the results of calls without gradients drift apart: only a jump is judged.
    assert {item["what"] for item in found.uncovered} <= {"result 0", "steps"}
    assert scope.least_share(found.covered) == 1.0
    assert scope.strict(found).verdict is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("errors", "place", "reason"),
    [
        ((0.0, 0.9), "gradient at leaf", "the loss sends back another gradient here"),
        ((0.1, 0.9), "loss", "from the baseline's values this is -2.2, -2 in the baseline"),
    ],
)
def test_a_loss_that_is_the_same_is_no_cause_of_a_gradient(
    errors: tuple[float, float], place: str, reason: str
) -> None:
    """A part that no gradient flows through any more changes no loss."""
    names = ("loss", "gradient at leaf")
    event = {"kind": "loss", "step": 0, "number": 0, "index": 0,
             "sinks": dict.fromkeys(names, summary(-2.0))}  # fmt: skip
    twin = {"rows": {n: {"error": error, "sketch": summary(-2.0 * (1 + error))["sketch"]}
                     for n, error in zip(names, errors, strict=True)}}  # fmt: skip
    rows = EventJudge(event, twin, Display({}), 0, Findings()).rows()
    first = next(row for row in rows if row.status.failed)
    assert (first.op, first.reason, fact_of(first)) == (place, reason, None)


RATIO = """
import torch

torch.manual_seed(0)
net = torch.nn.Linear(4, 4)
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(2):
    x = torch.randn(8, 4)
    one, two = net(x).exp(), net(x + 1).exp()
    loss = torch.div(one, two).sum()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    print(f"step {step} loss {loss.item():.4f}")
"""


@pytest.mark.parametrize(
    ("new", "cause"), [("torch.div(two, one)", None), ("torch.mul(one, two)", "another operator")]
)
def test_a_loss_is_called_another_formula_where_calls_show_it_alone(
    new: str, cause: str | None, tmp_path: Path
) -> None:
    """Else its place and both values are said, and that no cause was found."""
    (tmp_path / "base.py").write_text(RATIO)
    (tmp_path / "target.py").write_text(RATIO.replace("torch.div(one, two)", new))
    record(tmp_path / "base.py", tmp_path / "base.jmb")
    found = replay(tmp_path / "base.jmb", tmp_path / "target.py", tmp_path / "t.jmb", noise=1.0)
    first = found.first_divergence
    assert first is not None
    assert (first.stage, first.op, first.cause) == ("S4R", "loss", cause)
    assert first.line is not None
    said = re.fullmatch(
        r"from the baseline's values this is (\S+), (\S+) in the baseline; no cause found",
        str(first.evidence),
    )
    assert (said is None) == (cause is not None)
    if said is not None:
        mine, golden = map(float, said.groups())
        assert abs(mine - golden) / golden == pytest.approx(first.value, rel=1e-4)


SAVES = """
import torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
start, net = torch.randn(8, 4), nn.Linear(4, 2)
torch.save({"table": start * 3, "net": net.state_dict()}, FILE)
print("rows 8, half 0.5")
"""


def test_what_is_saved_to_a_file_is_a_result_though_what_is_printed_is_right(
    tmp_path: Path,
) -> None:
    program, bundle = tmp_path / "program.py", tmp_path / "base.jmb"
    source = SAVES.replace("FILE", repr(str(tmp_path / "out.pt")))
    program.write_text(source)
    record(program, bundle, runs=1)
    same = replay(bundle, program, tmp_path / "same.jmb")
    assert same.verdict is Outcome.PASS
    assert same.coverage.recorded == same.coverage.compared > 0  # it calls no modules
    program.write_text(source.replace("start * 3", "start * 4"))
    found = replay(bundle, program, tmp_path / "wrong.jmb")
    assert found.verdict is Outcome.FAIL
    assert found.first_divergence is not None
    assert found.first_divergence.phase == "output"
