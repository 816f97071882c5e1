"""A rewritten program's modules keep their names, so a replay of it pairs them by name alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from joymigrate.cli._main import run

PROGRAM = """
import torch
from torch import nn
from apex.normalization import FusedLayerNorm


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cuda_proj = nn.Linear(4, 4).cuda()
        self.nccl = nn.Linear(4, 4)
        self.norm = FusedLayerNorm(4)
        self.cuda_layers = nn.ModuleDict({"cuda": nn.Linear(4, 4), "cuda:0": nn.Linear(4, 4)})
        self.add_module("cudnn", nn.ReLU())
        self.register_buffer("cuda_scale", torch.ones(4, device="cuda"))
        setattr(self, "cuda", nn.Identity())

    def forward(self, x):
        with torch.cuda.amp.autocast():
            return self.norm(self.cuda_layers["cuda"](self.cuda_proj(x.to("cuda"))))
"""


def names(text: str) -> list[str]:
    """What modules and buffers are called: attributes of `self`, keys, and given names."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found += [node.attr] if node.value.id == "self" else []
        elif isinstance(node, ast.Dict):
            found += [ast.unparse(key) for key in node.keys if key is not None]
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("self.add_module", "self.register_buffer"):
                found.append(ast.unparse(node.args[0]))
            elif called == "setattr":
                found.append(ast.unparse(node.args[1]))
    return found


@pytest.mark.parametrize("more", [[], ["--unsafe"]])
def test_a_rewrite_keeps_the_names_of_modules(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "net.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    assert run(["rewrite", "before", "-o", "after", "-j", "1", *more]) == 0
    after = (tmp_path / "after" / "net.py").read_text()
    assert after.count("cuda") < PROGRAM.count("cuda")  # it was rewritten
    assert len(names(after)) > 10
    assert names(after) == names(PROGRAM)
