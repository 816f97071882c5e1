"""A program on two processes, held against its recording on one: DDP, FSDP2, FSDP1 and tensor
parallel, and two of them at once on four, over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import os, torch, torch.nn as nn, torch.distributed as dist
torch.manual_seed(0); torch.set_num_threads(1)
world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.a = nn.Linear(8, 70); self.b = nn.Linear(70, 3); self.c = nn.Linear(3, 1)
    def forward(self, x): return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))
model = Net()
if world > 1:
    dist.init_process_group("gloo")
    if os.environ["WRAP"] == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif os.environ["WRAP"] == "tp":
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
        plan = {"a": ColwiseParallel(), "b": RowwiseParallel()}
        parallelize_module(model, dist.init_device_mesh("cpu", (world,)), plan)
    elif os.environ["WRAP"].startswith("flat"):  # FSDP1: the optimiser gets flat tensors, or names
        from torch.distributed.fsdp import FullyShardedDataParallel
        facts = dict(use_orig_params=os.environ["WRAP"] == "flat-named", device_id=torch.device("cpu"))
        model.a, model.b = FullyShardedDataParallel(model.a, **facts), FullyShardedDataParallel(model.b, **facts)
        model = FullyShardedDataParallel(model, **facts)
    elif os.environ["WRAP"] == "both":  # tensor parallel in pairs, and FSDP2 over the pairs
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        parallelize_module(model, mesh["tensor"], {"a": ColwiseParallel(), "b": RowwiseParallel()})
        for part in (model.a, model.b, model): fully_shard(part, mesh=mesh["data"])
    else:  # one process holds nothing of `c`, whose weight has one row
        from torch.distributed.fsdp import fully_shard
        mesh = dist.init_device_mesh("cpu", (world,))
        for part in (model.a, model.b, model): fully_shard(part, mesh=mesh)
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
g = torch.Generator().manual_seed(5)
for step in range(3):
    x, y = torch.randn(8, 8, generator=g), torch.randn(8, 1, generator=g)
    parts = {"tp": 1, "both": 2}.get(os.environ.get("WRAP"), world)
    n, rank = 8 // parts, int(os.environ.get("RANK", "0")) * parts // world; x, y = x[rank * n : (rank + 1) * n], y[rank * n : (rank + 1) * n]
    loss = nn.functional.mse_loss(model(x), y)
    optimiser.zero_grad(); loss.backward(); optimiser.step()
if world > 1: dist.destroy_process_group()
"""  # noqa: E501  a program, as a table


def joy(folder: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "joymigrate", "verify", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **environment},
        check=False,
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    (folder / "p.py").write_text(PROGRAM)
    made = joy(folder, "record", "-o", "one.jmb", "--", sys.executable, "p.py")
    assert made.returncode == 0, made.stderr
    return folder


def replayed(base: Path, folder: Path, wrap: str, text: str = PROGRAM) -> tuple[int, Any]:
    (folder / "p.py").write_text(text)
    made = joy(
        folder,
        *("replay", base / "one.jmb", "--format", "json", "-o", "v.json"),
        *("--", "torchrun", "--nproc-per-node", "4" if wrap == "both" else "2", "p.py"),
        WRAP=wrap,
    )
    assert (folder / "v.json").is_file(), made.stderr
    return made.returncode, json.loads((folder / "v.json").read_text())


@pytest.mark.parametrize(
    "wrap",
    [
        "fsdp",
        *(
            pytest.param(way, marks=pytest.mark.slow)
            for way in ("ddp", "tp", "flat", "flat-named", "both")
        ),
    ],
)
def test_two_processes_equal_one_in_every_kind_of_record(
    wrap: str, base: Path, tmp_path: Path
) -> None:
    code, document = replayed(base, tmp_path, wrap)
    assert (code, document["verdict"]) == (0, "pass"), document["reason"]
    free = [r for r in document["records"] if r["stage"] == "S5" and r["metric"] == "relative_l2"]
    # What a tensor-parallel module is fed is a part of which nothing tells where it lies.
    parts = [r for r in free if r["status"] == "UNCOMPARED"]
    local = {"tp": {("b", "in 0")}, "both": {("a", "out"), ("a", "gout"), ("b", "in 0")}}
    assert {(r["module"], r["op"]) for r in parts} == local.get(wrap, set())
    free = [r for r in free if r not in parts]
    assert {r["status"] for r in free} <= {"IDENTICAL", "PASS"}, free
    assert document["coverage"]["modules"] == 1.0
    # Three steps of six parameters, and two tensors of Adam's state for each.
    kinds = Counter(r["op"].split()[0] for r in free)
    assert (kinds["grad"], kinds["param"], kinds["state"]) == (18, 18, 36)
    assert max(r["value"] for r in free) < 4e-6  # float32 sums of eight rows in another order
    assert kinds["loss"] == 3


@pytest.fixture(scope="module")
def two(base: Path) -> Path:
    launch = ("torchrun", "--nproc-per-node", "2", "p.py")
    made = joy(base, "record", "-o", "two.jmb", "--", *launch, WRAP="ddp")
    assert made.returncode == 0, made.stderr
    return base / "two.jmb"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "stage", "module", "reason"),
    [
        ("", "", None, "", ""),
        ("self.b(torch.tanh(", "self.b(torch.sigmoid(", "S3", "model", ""),
        ("mse_loss(model(x), y)", "mse_loss(model(x), y) * (1 + 0.1 * (rank > 0))", "S4R",
         "loss", "in process 1: "),
        ("x, y = x[rank * n", "rank = 0; x, y = x[rank * n", "S4R", "model", "in process 1: "),
    ],
    ids=["clean", "module", "loss of one process", "data of one process"],
)  # fmt: skip
def test_every_process_is_judged_alone(
    old: str, new: str, stage: str | None, module: str, reason: str, two: Path, tmp_path: Path
) -> None:
    (tmp_path / "p.py").write_text(PROGRAM.replace(old, new, 1) if old else PROGRAM)
    launch = ("torchrun", "--nproc-per-node", "2", "p.py")
    arguments = ("replay", two, "--format", "json", "-o", "v.json", "--", *launch)
    made = joy(tmp_path, *arguments, WRAP="ddp")
    document = json.loads((tmp_path / "v.json").read_text())
    assert document["covered"]["processes"] == {"compared": 2, "of": 2}
    judged = {s["stage"]: s["compared"] for s in document["stages"]}
    assert judged["S3"] > 0 and judged["S4"] > 0, made.stderr  # noqa: PT018
    first = document["first_divergence"]
    if stage is None:
        assert document["verdict"] == "pass", document["reason"]
        return
    assert (first["stage"], first["module"]) == (stage, module), first
    failed = [r for r in document["records"] if r["status"] == "FAIL"]
    assert len(failed) == 1
    assert str(failed[0]["reason"]).startswith(reason)


@pytest.mark.slow
@pytest.mark.parametrize("wrap", ["fsdp", "tp", "flat", "both"])
def test_a_fault_of_a_sharded_program_is_named_by_the_module(
    wrap: str, base: Path, tmp_path: Path
) -> None:
    fault = PROGRAM.replace("self.b(torch.tanh(", "self.b(torch.sigmoid(")
    code, document = replayed(base, tmp_path, wrap, fault)
    failed = [r for r in document["records"] if r["status"] == "FAIL"]
    assert (code, len(failed)) == (1, 1)
    first = document["first_divergence"]
    assert (first["stage"], first["module"]) == ("S3", "model")


@pytest.mark.slow
@pytest.mark.parametrize("wrap", ["fsdp", "tp"])
def test_sharded_runs_are_held_against_sharded_ones(wrap: str, base: Path, tmp_path: Path) -> None:
    launch = ("torchrun", "--nproc-per-node", "2", "p.py")
    (tmp_path / "p.py").write_text(PROGRAM)
    made = joy(tmp_path, "record", "-o", "two.jmb", "--", *launch, WRAP=wrap)
    assert made.returncode == 0, made.stderr
    for old, new in (("", ""), ("self.c(torch.tanh(", "self.c(torch.relu(")):
        (tmp_path / "p.py").write_text(PROGRAM.replace(old, new, 1) if old else PROGRAM)
        arguments = ("replay", "two.jmb", "--format", "json", "-o", "v.json", "--", *launch)
        made = joy(tmp_path, *arguments, WRAP=wrap)
        document = json.loads((tmp_path / "v.json").read_text())
        judged = {s["stage"]: s["compared"] for s in document["stages"]}
        assert judged["S3"] > 0, document
        assert judged["S4"] > 0, document
        failed = [(r["stage"], r["module"]) for r in document["records"] if r["status"] == "FAIL"]
        assert failed == ([("S3", "model")] if old else []), made.stderr


COUNTS_ITS_PART = """
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.a = nn.Linear(8, 70); self.b = nn.Linear(70, 3); self.c = nn.Linear(3, 1)
        self.parts = int(os.environ.get("WORLD_SIZE", "1"))
    def forward(self, x):
        h = torch.tanh(self.a(x))
        h = h / h.shape[-1] / self.parts
        return self.c(torch.tanh(self.b(h)))
"""  # noqa: E501  a program, as a table


@pytest.mark.slow
def test_code_that_counts_with_its_part_is_not_taught(tmp_path: Path) -> None:
    """With whole weights such a module computes something else: nothing of it is a failure."""
    begin, end = PROGRAM.index("class Net"), PROGRAM.index("model = Net()")
    text = PROGRAM[:begin] + COUNTS_ITS_PART.lstrip() + PROGRAM[end:]
    (tmp_path / "p.py").write_text(text)
    made = joy(tmp_path, "record", "-o", "one.jmb", "--", sys.executable, "p.py")
    assert made.returncode == 0, made.stderr
    _, document = replayed(tmp_path, tmp_path, "tp", text)
    assert document["verdict"] == "pass", document["reason"]
    assert any("it is not taught" in str(item["reason"]) for item in document["uncovered"])
