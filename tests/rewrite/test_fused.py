"""Fused calls written into programs: the same numbers on a CPU, and on the simulated chip."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from joymigrate import chips
from joymigrate.rewrite.patch import patches
from joymigrate.rewrite.project import scan
from tests.forked import run_program

PROGRAM = """
import math
import sys
import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))
        self.eps = eps

    def forward(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        return self.weight * x


def norm(x, weight, eps=1e-6):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def rope(q, cos, sin):
    return q * cos + rotate_half(q) * sin


class FeedForward(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.w1 = nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)
        self.w3 = nn.Linear(width, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


def gate(a, b):
    return F.silu(a) * b


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.0)

    def forward(self, q, k, v, mask):
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(mask == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        att = self.drop(att)
        y = att @ v
        return y


def attend(q, k, v, mask, d):
    return torch.softmax(q @ k.transpose(-2, -1) / d ** 0.5 + mask, dim=-1) @ v


def clip(x, y):
    x = x.clone()
    x[x > 0.5] = 0.0
    x[x < 0.1] = y[x < 0.1]
    x[x > 0.3] *= 2
    return x


def main(device):
    torch.manual_seed(0)
    make = lambda *shape: torch.rand(*shape).to(device).requires_grad_()
    x, weight = make(2, 8, 32), make(32)
    q, k, v = (make(2, 4, 16, 32) for _ in range(3))
    cos, sin = torch.rand(1, 1, 16, 32).to(device), torch.rand(1, 1, 16, 32).to(device)
    causal = torch.tril(torch.ones(16, 16)).to(device)
    bias = torch.rand(1, 1, 16, 16).to(device)
    forward = FeedForward(32, 64).to(device)
    results = {
        "module norm": RMSNorm(32).to(device)(x),
        "norm": norm(x, weight),
        "rope": rope(q, cos, sin),
        "feed forward": forward(x),
        "gate": gate(x, x * 2),
        "broadcast gate": gate(x, weight),
        "attention": Attention().to(device)(q, k, v, causal),
        "attend": attend(q, k, v, bias, 32),
        "clip": clip(x, x * 3),
    }
    sum(value.square().mean() for value in results.values()).backward()
    gradients = {name: t.grad for name, t in dict(x=x, weight=weight, q=q, k=k, v=v).items()}
    return {name: t.detach().cpu() for name, t in (results | gradients).items()}


if __name__ == "__main__":
    torch.save(main(sys.argv[1]), sys.argv[2])
"""


@pytest.fixture(scope="module")
def rewritten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with every fused call written in, beside the original."""
    root = tmp_path_factory.mktemp("fused")
    (root / "plain.py").write_text(PROGRAM, encoding="utf-8")
    (root / "model.py").write_text(PROGRAM, encoding="utf-8")
    found = scan([root], chip=chips.target("ascend"), origin=chips.origin(), jobs=1)
    for patch in patches(found, unsafe=True):
        if patch.path.name == "model.py" and patch.after is not None:
            patch.path.write_bytes(patch.after)
    return root


def run(program: Path, device: str, *before: str) -> dict[str, object]:
    """The program's results."""
    import torch

    out = program.with_suffix(f".{device}.pt")
    if before:
        command = [sys.executable, *before, str(program), device, str(out)]
        subprocess.run(command, check=True, timeout=240)
    else:
        run_program(program, device, str(out))
    found: dict[str, object] = torch.load(out)
    return found


def test_every_form_is_rewritten(rewritten: Path) -> None:
    text = (rewritten / "model.py").read_text(encoding="utf-8")
    assert text.count("torch.ops.npu.npu_rms_norm") == 2
    assert text.count("torch.ops.npu.npu_rotary_mul") == 1
    assert text.count("torch.ops.npu.npu_swiglu") == 2
    assert text.count("scaled_dot_product_attention") == 2
    assert text.count("masked_fill_(") == 1
    assert text.count(".copy_(torch.where(") == 2


def test_a_second_rewrite_changes_nothing(rewritten: Path) -> None:
    found = scan([rewritten], chip=chips.target("ascend"), origin=chips.origin(), jobs=1)
    assert not [f for f in found.findings if f.path == "model.py" and f.edits]


def test_a_chip_without_fused_calls_gets_none(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(PROGRAM, encoding="utf-8")
    found = scan([tmp_path], chip=chips.target("musa"), origin=chips.origin(), jobs=1)
    assert not [f for f in found.findings if f.rule in ("JM231", "JM232", "JM233", "JM234")]


def test_on_a_cpu_the_numbers_are_the_same_to_the_bit(rewritten: Path) -> None:
    import torch

    before, after = run(rewritten / "plain.py", "cpu"), run(rewritten / "model.py", "cpu")
    for name, value in before.items():
        assert torch.equal(after[name], value), name  # type: ignore[call-overload]


@pytest.mark.slow
@pytest.mark.compiler
def test_on_the_simulated_chip_the_numbers_agree(rewritten: Path) -> None:
    import torch

    if PathFinder.find_spec("torch_npu") is None:
        pytest.skip("torch_npu is not installed")
    before = run(rewritten / "plain.py", "cpu")
    after = run(rewritten / "model.py", "npu", "-m", "joymigrate", "rehearse", "-q", "--", "python")
    for name, value in before.items():
        # Single precision, sums of 32 terms: a few units of 6e-8 relative to values near 1.
        torch.testing.assert_close(after[name], value, rtol=2e-5, atol=2e-6, msg=name)


NORM = "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w"


@pytest.mark.parametrize(
    "text",
    [
        f"w, x = torch.ones(2, 3).unbind(\n    ); y = {NORM}\n",
        f"w, x = torch.ones(2, 3).unbind(); \\\n    y = {NORM}\nz = 1\n",
        f"w, x = torch.ones(2, 3).unbind()\nif True: y = {NORM}",
    ],
)
def test_a_place_on_a_line_that_another_statement_ends_or_continues_is_written(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / "a.py").write_text(f"import torch\n{text}")
    found = scan([tmp_path], chip=chips.target("ascend"), origin=chips.origin(), jobs=1)
    (patch,) = patches(found, unsafe=True)
    assert patch.after is not None
    assert patch.after.count(b"npu_rms_norm(x, w, 1e-6)") == 1
    compile(patch.after, "a.py", "exec")


def test_a_method_that_is_one_norm_gets_one_call(tmp_path: Path) -> None:
    program = PROGRAM[: PROGRAM.index("def norm")]
    body = (
        "        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight\n"
    )
    program = program[: program.index("        variance")] + body
    (tmp_path / "a.py").write_text(program)
    found = scan([tmp_path], chip=chips.target("ascend"), origin=chips.origin(), jobs=1)
    (patch,) = patches(found, unsafe=True)
    assert patch.after is not None
    assert patch.after.count(b"npu_rms_norm") == 1
