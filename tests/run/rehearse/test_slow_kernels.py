"""Kernels on the chip's own CPU are told by a recorded table, and only where it is known."""

from __future__ import annotations

import csv
import json

import pytest

from joymigrate.chips import rules_root
from joymigrate.chips.slow_kernels import SlowKernel, read_slow, slow_for, table_of
from joymigrate.run.rehearse.limits import SLOW, Limits
from tests.run.rehearse.conftest import Run

ROWS = [
    SlowKernel("aclnnSort", frozenset({"910B"}), frozenset({"int64"}), ("Sort",), "here"),
    SlowKernel("aclnnSort", frozenset({"310P"}), frozenset({"int64"}), ("Sort", "Cast"), "here"),
]


def test_a_kernel_is_slow_for_a_dtype_on_a_model() -> None:
    found = slow_for(ROWS, "910B")
    assert found["aclnnSort", "int64"].slow == ("Sort",)
    assert ("aclnnSort", "float32") not in found
    assert slow_for(ROWS, "950") == {}


def test_the_shipped_table_is_what_reading_and_writing_it_gives() -> None:
    path = rules_root() / SLOW
    text = path.read_text(encoding="utf-8")
    assert table_of(read_slow(path)) == text
    assert all(row["source"] for row in csv.DictReader(text.splitlines()))


def test_the_dtype_of_the_first_tensor_decides() -> None:
    limits = Limits("Ascend910B3")
    slow, source = limits.slow(["aclnnAbs T11/1 T11/1"])  # float64
    assert slow == ("Abs",)
    assert source.startswith("host code of ops-math")
    assert limits.slow(["aclnnAbs T0/1 T0/1"]) == ((), "")
    assert limits.slow(["aclnnUnheardOf T11/1"]) == ((), "")
    assert limits.slow(["aclnnAbs"]) == ((), "")


@pytest.mark.compiler
def test_a_report_names_the_line_the_kernel_and_who_says_it(rehearse: Run) -> None:
    done = rehearse(
        "python",
        "-c",
        "import torch, torch_npu\n"
        "x = torch.arange(6, dtype=torch.int16).npu()\n"
        "for _ in range(3): x.abs()\n"
        "for _ in range(12): int(x.sum())\n"
        "x.float().abs()\n",
    )
    assert done.code == 0, done.err
    assert done.report is not None
    rows = done.report["slow_kernels"]
    assert [(row["op"], row["aicpu"], row["calls"]) for row in rows] == [("aten::abs", ["Abs"], 3)]
    assert rows[0]["source"].startswith("host code of ops-math")
    assert "aten::abs runs on the chip's slow CPU (Abs, 3 calls)" in done.err
    assert done.report["host_waits"] == [{"where": "<string>:4", "calls": 12}]
    assert "the host waited for the chip: 12: <string>:4 aten::_local_scalar_dense 12×" in done.err


STEPS = """\
import torch, torch_npu
model = torch.nn.Linear(60, 30).npu()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(64, 60, device="npu")
aligned = torch.randn(128, 128, device="npu")
small = torch.arange(3, dtype=torch.int16).npu()
for _ in range(4):
    loss = model(x).mean()
    x.half()
    x.t().contiguous()
    x.t() + 1
    aligned.t() @ aligned
    aligned[:, ::2] @ aligned[:64]
    small.abs()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
    x[x > 0]
    x.cpu()
    torch.npu.synchronize()
    x.expand(2, 64, 60) + 1
print(loss.item())
"""


@pytest.mark.compiler
def test_overheads_are_counted_per_line_and_per_step(rehearse: Run) -> None:
    done = rehearse("python", "-c", STEPS)
    assert done.code == 0, done.err
    assert done.report is not None
    assert done.report["steps"] == 4
    found = {
        (row["kind"], row["where"].removeprefix("<string>:"), row["op"]): (
            row["what"], row["calls"], row["per_step"],
        )
        for row in done.report["overheads"]
    }  # fmt: skip
    in_program = {key: row for key, row in found.items() if key[1] != "backward pass"}
    assert in_program == {
        ("cast", "9", "aten::copy_"): ("float32 to float16", 4, 1.0),
        ("copy", "10", "aten::clone"): ("float32[60, 64]", 4, 1.0),
        ("strided", "11", "aten::add.Tensor"): ("float32[60, 64]", 4, 1.0),
        ("strided", "13", "aten::matmul"): ("float32[128, 64]", 4, 1.0),
        ("slow", "14", "aten::abs"): ("Abs", 4, 1.0),
        ("unaligned", "8", "aten::addmm"): ("float32[60, 30]", 4, 1.0),
        ("wait", "18", "aten::_local_scalar_dense"): ("", 4, 1.0),
        ("wait", "19", "aten::index.Tensor"): ("", 4, 1.0),
        ("wait", "20", "aten::copy_"): ("", 4, 1.0),
        ("wait", "21", "synchronize"): ("", 4, 1.0),
        ("wait", "23", "aten::_local_scalar_dense"): ("", 1, 0.0),  # not in a step
    }
    assert "the host waited for the chip: 17, 4 per step: <string>:18" in done.err
    assert "casts: 4, 1 per step: <string>:9 aten::copy_ float32 to float16 4×" in done.err


@pytest.mark.compiler
@pytest.mark.slow
def test_the_graph_interface_imports_and_says_that_it_can_not_start(rehearse: Run) -> None:
    done = rehearse(
        "python",
        "-c",
        "import json, torch, torch_npu, torchair\n"
        "from torchair.core import _torchair\n"
        "try:\n"
        "    _torchair.InitializeGraphEngine({'ge.exec.deviceId': '0'})\n"
        "except RuntimeError as error:\n"
        "    print(json.dumps(str(error)))\n",
        report=False,
    )
    assert done.code == 0, done.err[-2000:]
    assert "graph engine is not simulated" in json.loads(done.out.strip().splitlines()[-1])
