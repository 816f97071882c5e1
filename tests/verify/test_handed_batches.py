"""A program whose loader shuffles only on a chip, judged on the baseline's data."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.verify.bundle import Bundle
from joymigrate.verify.model import Verdict
from tests.verify.harness import record, replay

PROGRAM = """
import random
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
random.seed(0)

class Rows(Dataset):
    def __init__(self):
        self.x = torch.randn(24, 6, generator=torch.Generator().manual_seed(3))
    def __len__(self):
        return 24
    def __getitem__(self, i):
        x = self.x[i] + 0.1 * self.x[random.randrange(24)]
        return {"x": x, "name": f"row {i}"}, (self.x[i].sum() > 0).long()

net = nn.Linear(6, 2)
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
more = {}
for rows, y in DataLoader(Rows(), batch_size=8, **more):
    optimiser.zero_grad()
    loss = nn.functional.cross_entropy(net(rows["x"]), y)
    loss.backward()
    optimiser.step()
print("loss", round(loss.item(), 5))
"""
SHUFFLED = ("more = {}", "more = {'shuffle': True}")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Bundle]:
    folder = tmp_path_factory.mktemp("handed")
    (folder / "train.py").write_text(PROGRAM)
    return folder, record(folder / "train.py", folder / "base.jmb", batches_bytes=1 << 20)


def judged(folder: Path, name: str, *changes: tuple[str, str], give: bool = True) -> Verdict:
    text = PROGRAM
    for old, new in changes:
        text = text.replace(old, new)
    (folder / f"{name}.py").write_text(text)
    target = folder / f"{name}.jmb"
    return replay(folder / "base.jmb", folder / f"{name}.py", target, give_batches=give)


def reasons(verdict: Verdict) -> str:
    return " ".join(str(left) for left in verdict.uncovered)


@pytest.mark.slow
def test_order_of_a_loader_fails_by_itself(base: tuple[Path, Bundle]) -> None:
    verdict = judged(base[0], "own", SHUFFLED, give=False)
    assert verdict.verdict.value == "fail"
    first = verdict.first_divergence
    assert (first.stage, first.cause, str(first.evidence)) == ("S1", None, "the data differ")


def test_program_passes_on_the_baselines_batches_and_says_so(base: tuple[Path, Bundle]) -> None:
    verdict = judged(base[0], "given", SHUFFLED)
    assert verdict.verdict.value == "pass"
    assert "loader 0" in reasons(verdict)
    assert "got the baseline's" in reasons(verdict)


def test_wrong_loss_is_found_behind_another_order(base: tuple[Path, Bundle]) -> None:
    verdict = judged(
        base[0], "wrong", SHUFFLED, ("loss.backward()", "loss = loss * 1.1; loss.backward()")
    )
    assert verdict.verdict.value == "fail"
    assert verdict.first_divergence.module == "loss"


def test_batches_of_another_form_are_not_replaced(base: tuple[Path, Bundle]) -> None:
    verdict = judged(base[0], "form", ("batch_size=8", "batch_size=6"))
    assert verdict.verdict.value == "fail"
    assert "got the baseline's" not in reasons(verdict)


@pytest.mark.slow
def test_same_loader_is_judged_as_ever(base: tuple[Path, Bundle]) -> None:
    verdict = judged(base[0], "same")
    assert verdict.verdict.value == "pass"
    assert "got the baseline's" not in reasons(verdict)


def test_batches_beyond_the_budget_are_not_kept(base: tuple[Path, Bundle]) -> None:
    bundle = record(base[0] / "train.py", base[0] / "small.jmb", batches_bytes=300)
    assert bundle.ranks[0].json("loaders.json")["kept"] == {"loader 0": 1}
    assert "2 more do not fit" in " ".join(bundle.ranks[0].program["notes"])


LARGE = """
import torch
torch.manual_seed(0); torch.set_num_threads(1)
data = torch.randn(2, 200_000)
net = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x in torch.utils.data.DataLoader(data):
    opt.zero_grad(); net(x[:, 4:8]).square().mean().backward(); opt.step()
"""


def test_a_loaders_first_batch_is_compared_whole(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(LARGE)
    record(tmp_path / "p.py", tmp_path / "b.jmb", runs=2)
    (tmp_path / "t.py").write_text(LARGE.replace("net =", "data[0, 1] += 1\nnet =", 1))
    found = replay(tmp_path / "b.jmb", tmp_path / "t.py", tmp_path / "t.jmb").first_divergence
    assert found is not None
    assert (found.stage, str(found.op)) == ("S1", "data loader, batch 0")
