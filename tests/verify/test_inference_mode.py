"""A serving loop in inference mode under autocast: its modules are taught like any others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.verify.harness import record, replay

PROGRAM = """
import torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
    def forward(self, x, cache, at):
        q, k, v = self.qkv(x).chunk(3, -1)
        cache[0][:, at], cache[1][:, at] = k[:, 0], v[:, 0]
        score = q @ cache[0][:, : at + 1].mT * 16**-0.5
        return x + self.out(score.softmax(-1) @ cache[1][:, : at + 1])
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.block, self.head = nn.Embedding(20, 16), Block(), nn.Linear(16, 20)
    def forward(self, ids, cache, at):
        return self.head(self.block(self.embed(ids), cache, at))
model = Model().eval()
with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
    cache = [torch.zeros(3, 9, 16) for _ in range(2)]
    ids = torch.tensor([[3], [5], [7]])
    for at in range(9):
        ids = model(ids, cache, at).float().argmax(-1)
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inference")
    (folder / "base.py").write_text(PROGRAM)
    record(folder / "base.py", folder / "base.jmb")
    return folder / "base.jmb"


@pytest.mark.parametrize(("new", "failed"), [("16**-0.5", []), ("8**-0.5", ["block"])])
def test_modules_are_taught(base: Path, tmp_path: Path, new: str, failed: list[str]) -> None:
    (tmp_path / "target.py").write_text(PROGRAM.replace("16**-0.5", new))
    found = replay(base, tmp_path / "target.py", tmp_path / "target.jmb", noise=1.0)
    assert [row.module for row in found.records if row.status.failed] == failed
    assert not [u for u in found.uncovered if u["what"] == "baseline"], found.uncovered
    if failed:
        assert found.first_divergence is not None
        assert found.first_divergence.cause == "another argument"
