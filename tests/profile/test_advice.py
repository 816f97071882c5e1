"""Advice: each rule finds its planted program, and is silent about the clean twin."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest

from joymigrate import chips
from joymigrate.errors import JoyError
from joymigrate.profile import capture
from joymigrate.profile.advice import AdviceSubject, advise, advise_all, load_rules
from joymigrate.profile.advice.support import ChipSupport
from joymigrate.profile.oplist import lists
from joymigrate.report.advice import describe
from joymigrate.report.renderers.text import render
from tests.report.sarif_schema import LOG

PROGRAMS = Path(__file__).parent / "programs"
# Rules about time need some; one about composites needs the profiler's tree of calls.
TIMED = {
    "DATALOADER": 1,
    "DATA-SUPPLY": 1,
    "GC": 1,
    "LAUNCH": 1,
    "FUSE-RMSNORM": 1,
    "HOST-GAP": 1,
}
ON_DEVICE = ("D2H", "H2D", "SMALL-UPLOADS", "HOST-MADE", "SYNC-CALL", "SYNC-BN")
ENVIRONMENT = {
    "ENV-BLOCKING": ("ASCEND_LAUNCH_BLOCKING", "1", "0"),
    "ENV-LOG": ("ASCEND_GLOBAL_LOG_LEVEL", "0", "3"),
    "ENV-LOG-STDOUT": ("ASCEND_SLOG_PRINT_TO_STDOUT", "1", "0"),
    "ENV-QUEUE": ("TASK_QUEUE_ENABLE", "0", "2"),
    "ENV-CACHE": ("ACLNN_CACHE_LIMIT", "100", "100000"),
    "ENV-ALLOC": (
        "PYTORCH_NPU_ALLOC_CONF",
        "expandable_segments:False",
        "expandable_segments:True",
    ),
    "ENV-HCCL-ALGO": ("HCCL_ALGO", "level0:NA;level1:ring", ""),
}
CHIP = chips.target("ascend")
RULES = load_rules(CHIP)


def planted() -> dict[str, Any]:
    """The planted programs, by rule."""
    spec = importlib.util.spec_from_file_location("joytest_slow", PROGRAMS / "slow.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Any] = module.PROGRAMS
    return found


SLOW = planted()


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def support() -> ChipSupport:
    return ChipSupport(lists.of(CHIP))


def recorded(rule: str, kind: str, folder: Path, **options: Any) -> Path:
    """A recording of one planted program."""
    from joymigrate.profile.recorder.in_process import record_step
    from joymigrate.profile.recorder.settings import RecorderSettings

    steps = TIMED.get(rule, 0)
    settings = RecorderSettings(
        folder, folder, steps=steps, timing=steps > 0, stack=False, **options
    )
    return record_step(SLOW[rule][kind](), folder / f"{rule}.{kind}.jsonl", settings)


def given(path: Path, support: ChipSupport) -> dict[str, Any]:
    """The advice on one recording, by rule."""
    subject = AdviceSubject(capture.load(path), CHIP, support)
    return {advice.rule.id: advice for advice in advise(subject, RULES)}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rule", SLOW)
def test_the_rule_finds_the_planted_program(
    rule: str, tmp_path: Path, support: ChipSupport
) -> None:
    found = given(recorded(rule, "slow", tmp_path), support)
    assert rule in found
    places = [place.where for place in found[rule].places if place.where]
    assert all("slow.py:" in where for where in places)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rule", SLOW)
def test_the_rule_is_silent_about_the_clean_twin(
    rule: str, tmp_path: Path, support: ChipSupport
) -> None:
    assert rule not in given(recorded(rule, "clean", tmp_path), support)


@pytest.fixture(scope="module")
def on_device(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings of the programs that need a device: one rehearsal for all."""
    if PathFinder.find_spec("torch_npu") is None:
        pytest.skip("torch_npu is not installed")
    folder = tmp_path_factory.mktemp("on_device")
    command = [sys.executable, "-m", "joymigrate", "rehearse", "-q", "--", "python"]
    subprocess.run(
        [*command, str(PROGRAMS / "slow_on_device.py"), str(folder)], check=True, timeout=240
    )
    return folder


@pytest.mark.compiler
@pytest.mark.parametrize("rule", ON_DEVICE)
def test_rules_about_the_device_tell_slow_from_clean(
    rule: str, on_device: Path, support: ChipSupport
) -> None:
    assert rule in given(on_device / f"{rule}.slow.jsonl", support)
    assert rule not in given(on_device / f"{rule}.clean.jsonl", support)


@pytest.mark.parametrize("rule", ENVIRONMENT)
def test_rules_about_the_environment_read_what_was_recorded(
    rule: str, tmp_path: Path, support: ChipSupport, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, bad, good = ENVIRONMENT[rule]
    monkeypatch.setenv(name, bad)
    bad_path = recorded("IDX-PUT", "clean", tmp_path, variables=(name,))
    assert rule in given(bad_path, support)
    monkeypatch.setenv(name, good) if good else monkeypatch.delenv(name)
    good_path = recorded("IDX-PUT", "clean", tmp_path, variables=(name,))
    assert rule not in given(good_path, support)


def test_a_chip_without_fallback_is_told_apart(tmp_path: Path) -> None:
    musa = chips.target("musa")
    subject = AdviceSubject(
        capture.load(recorded("OP-FALLBACK", "slow", tmp_path)),
        musa,
        ChipSupport(lists.of(musa)),
    )
    found = {advice.rule.id for advice in advise(subject, load_rules(musa))}
    assert "OP-FALLBACK" not in found
    plain = AdviceSubject(
        capture.load(recorded("OP-FALLBACK", "clean", tmp_path)), musa, subject.support
    )
    assert "OP-MISSING" not in {advice.rule.id for advice in advise(plain, load_rules(musa))}


def test_a_backward_made_of_its_out_variant_is_named_with_what_to_use(tmp_path: Path) -> None:
    out = tmp_path / "own.jsonl"
    head = {"schema": "joymigrate.trace/1", "device": "cpu", "steps": 1, "environment": {}}
    line = {"kind": "op", "id": 0, "op": "aten::huber_loss_backward", "overload": "", "args": [],
            "kwargs": {}, "outputs": [], "calls": 1, "self_us": 5.0, "phase": "backward",
            "where": "own.py:3", "module": "head"}  # fmt: skip
    out.write_text(f"{json.dumps(head)}\n{json.dumps(line)}\n", encoding="utf-8")
    said = render(describe(advise_all([out], CHIP), CHIP, ["own.jsonl"]))
    assert "\n  own.py:3  head        1   5\n      aten::huber_loss_backward; instead: " in said


HOST, NPU = ({"dtype": "int64", "shape": [3, 8], "stride": [8, 1], "device": device}
             for device in ("cpu", "npu:0"))  # fmt: skip
PART = {"shape": [3, 2]}  # of the columns, with the strides of the whole


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        ([("zeros", (), HOST, []), ("copy_", (NPU, HOST, True), NPU, [-1, 0])], {"HOST-MADE"}),
        ([("zeros", (), NPU, []), ("copy_", (NPU, HOST, True), NPU, [0, -1])], set()),
        ([("zeros", (), HOST, []), ("slice", (HOST, 1, 0, 2), HOST | PART, [0]),
          ("copy_", (HOST | PART, HOST | PART), HOST | PART, [1, -1]),
          ("copy_", (NPU, HOST, True), NPU, [-1, 0])], set()),
        ([("copy_", (NPU | PART, HOST | PART, True), NPU | PART, [-1, -1])], {"H2D"}),
        ([("copy_", (NPU | PART, HOST, True), NPU | PART, [-1, -1])], set()),
    ],
    ids=["made", "of-the-target", "refilled", "part-of-a-buffer", "whole-source"],
)  # fmt: skip
def test_a_copy_to_the_device_is_judged_by_its_source(
    calls: list[Any], found: set[str], tmp_path: Path
) -> None:
    out = tmp_path / "own.jsonl"
    head = {"schema": "joymigrate.trace/1", "device": "npu", "steps": 1, "environment": {}}
    lines: list[Any] = [head]
    for at, (name, args, output, _) in enumerate(calls):
        overload = "Tensor" if name == "slice" else ""
        lines.append({"kind": "op", "id": at, "op": f"aten::{name}", "overload": overload,
                      "args": args, "kwargs": {}, "outputs": [output], "calls": 1, "self_us": 0.0,
                      "phase": "other", "where": f"own.py:{at}"})  # fmt: skip
    order = [[at, made] for at, (*_, made) in enumerate(calls)]
    lines.append({"kind": "stream", "first": 0, "calls": order})
    out.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    told = advise_all([out], CHIP, wanted=["H2D", "HOST-MADE"])
    assert {one.rule.id for one in told} == found


def decoding(rounds: int) -> Any:
    """A step that waits for a stand-in for decord: its class and call, not its work."""
    import torch

    class VideoReader:
        def get_batch(self, indices: list[int]) -> torch.Tensor:
            for _ in range(rounds):
                torch.rand(64, 64) @ torch.rand(64, 64)
            return torch.rand(len(indices), 8)

    module = ModuleType("decord")
    module.VideoReader = VideoReader  # type: ignore[attr-defined]
    sys.modules["decord"] = module
    reader, weight, x = VideoReader(), torch.rand(8, 8), torch.rand(512, 512)

    def step() -> Any:
        for _ in range(6):
            x @ x
        return reader.get_batch([0, 1, 2, 3]) @ weight

    return step


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("rounds", "rule"), [(2000, "DATALOADER"), (0, "DATA-SUPPLY")])
def test_a_known_library_gets_a_verdict_in_samples_per_second(
    rounds: int, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from joymigrate.profile.recorder.in_process import record_step
    from joymigrate.profile.recorder.settings import RecorderSettings

    monkeypatch.setitem(sys.modules, "decord", ModuleType("decord"))
    step = decoding(rounds)
    settings = RecorderSettings(tmp_path, tmp_path, steps=2, timing=True, stack=False)
    made = record_step(step, tmp_path / "own.jsonl", settings)
    header = json.loads(made.read_text(encoding="utf-8").splitlines()[0])
    assert "decord" in header["imports"]
    assert header["samples"] == 4
    assert header["spans"]["loader_us"] > 0
    assert sys.modules["decord"].VideoReader.get_batch.__name__ == "get_batch"
    assert not hasattr(sys.modules["decord"].VideoReader.get_batch, "__wrapped__")
    if not rounds:  # a busy machine may take the processor away in the wait itself
        _, _, rest_of = made.read_text(encoding="utf-8").partition("\n")
        waited = min(header["spans"]["loader_us"], 0.01 * sum(header["step_us"]) / 2, 5000.0)
        header["spans"]["loader_us"] = waited
        made.write_text(f"{json.dumps(header)}\n{rest_of}", encoding="utf-8")
    (found,) = advise_all([made], CHIP, wanted=["DATALOADER", "DATA-SUPPLY"])
    assert found.rule.id == rule
    lines = "\n".join(place.what for place in found.places)
    assert "decord is used" in lines
    rest = sum(header["step_us"]) / 2 - header["spans"]["loader_us"]
    assert f"{4e6 / rest:.3g} samples/s needed" in lines
    assert f"{4e6 / header['spans']['loader_us']:.3g} samples/s delivered" in lines
    # The Chrome trace alone tells the same, without the size of a batch.
    (found,) = advise_all([tmp_path / header["chrome"]], CHIP, wanted=["DATALOADER", "DATA-SUPPLY"])
    assert found.rule.id == rule
    assert "batches/s needed" in found.places[0].what


def test_a_library_without_a_measured_wait_gets_no_verdict(tmp_path: Path) -> None:
    head = {"schema": "joymigrate.trace/1", "device": "cuda", "steps": 1, "step_us": [5000.0],
            "spans": {}, "imports": ["nvidia.dali"], "environment": {}}  # fmt: skip
    out = tmp_path / "own.jsonl"
    out.write_text(f"{json.dumps(head)}\n", encoding="utf-8")
    (found,) = advise_all([out], CHIP, wanted=["DATALOADER", "DATA-SUPPLY"])
    said = " ".join(place.what for place in found.places)
    assert found.rule.id == "DATA-SUPPLY"
    assert "no verdict" in said
    assert "nvidia.dali is used; it works on the GPU" in said
    assert "DVPP" in said  # the chip's own advice on that package


def missing_operator(folder: Path) -> Path:
    """A recording of an operator that the chip without a fallback lacks."""
    lacking = next(
        (op, overload)
        for op, overload, found in lists.of("musa").rows()
        if found.status.value == "missing" and op.startswith("aten::")
    )
    tensor = {"dtype": "float32", "shape": [4], "stride": [1], "device": "cpu"}
    lines = [
        {"schema": "joymigrate.trace/1", "device": "cpu", "steps": 0, "chrome": None},
        {"kind": "op", "id": 0, "op": lacking[0], "overload": lacking[1], "args": [tensor]},
    ]
    path = folder / "missing.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def test_an_operator_that_raises_is_an_error(tmp_path: Path) -> None:
    found = advise_all([missing_operator(tmp_path)], chips.target("musa"))
    assert [advice.rule.id for advice in found if advice.rule.level == "error"] == ["OP-MISSING"]


# Profiles made on the chip: written here, in the columns that the vendor's profiler writes.

COLUMNS = (
    "Name", "Type", "Accelerator Core", "Duration(us)", "Block Dim", "Input Shapes",
    "Input Data Types", "aic_mac_ratio", "aic_mte2_ratio", "aic_fixpipe_ratio", "aiv_vec_ratio",
    "aiv_mte3_ratio",
)  # fmt: skip


def profile(folder: Path, rows: list[dict[str, Any]], **files: Any) -> Path:
    """A profile with the given kernels, and other files as JSON."""
    folder.mkdir(exist_ok=True)
    with (folder / "kernel_details.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="N/A")
        writer.writeheader()
        writer.writerows(rows)
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    return folder


def kernel(kind: str, us: float, **columns: Any) -> dict[str, Any]:
    """A row; busy in its unit, on all cores, unless said otherwise."""
    row = {
        "Name": f"aclnn{kind}",
        "Type": kind,
        "Accelerator Core": "AI_VECTOR_CORE",
        "Duration(us)": us,
        "Block Dim": 40,
        "Input Shapes": "64,64",
        "aiv_vec_ratio": 0.9,
    }
    return {**row, **columns}


CUBE = {"Accelerator Core": "AI_CORE", "Block Dim": 20, "aiv_vec_ratio": 0.0}
GOOD_MATMUL = kernel("MatMulV2", 100, **CUBE, aic_mac_ratio=0.9, aic_mte2_ratio=0.5)


def event(name: str, us: float) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": 1, "tid": 1, "ts": "1.5", "dur": us}


def links(link: str, size: float, count: int) -> dict[str, Any]:
    spread = {"Size Distribution": {str(size): [count, 1.0]}}
    return {
        "step": {"collective": {"all_reduce": {"Communication Bandwidth Info": {link: spread}}}}
    }


PROFILES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "NPU-AICPU": (
        {"rows": [GOOD_MATMUL, kernel("Cast", 80, **{"Accelerator Core": "AI_CPU"})]},
        {"rows": [GOOD_MATMUL]},
    ),
    "NPU-CAST": (
        {"rows": [GOOD_MATMUL, kernel("Cast", 30)]},
        {"rows": [GOOD_MATMUL, kernel("Cast", 2)]},
    ),
    "NPU-TRANSDATA": (
        {"rows": [GOOD_MATMUL, kernel("TransData", 30)]},
        {"rows": [GOOD_MATMUL, kernel("TransData", 2)]},
    ),
    "NPU-BLOCK-DIM": (
        {"rows": [kernel("Add", 50, **{"Block Dim": 33})]},
        {"rows": [kernel("Add", 50)]},
    ),
    "NPU-NO-BOUND": (
        {"rows": [kernel("Add", 50, aiv_vec_ratio=0.3)]},
        {"rows": [kernel("Add", 50)]},
    ),
    "NPU-CUBE": (
        {"rows": [kernel("MatMulV2", 100, **CUBE, aic_mac_ratio=0.4, aic_mte2_ratio=0.6)]},
        {"rows": [GOOD_MATMUL]},
    ),
    "NPU-FA": (
        {"rows": [kernel("FlashAttentionScore", 100, **CUBE | {"aiv_vec_ratio": 0.3})]},
        {"rows": [kernel("FlashAttentionScore", 100, **CUBE | {"aiv_vec_ratio": 0.8})]},
    ),
    "NPU-VECTOR": (
        {"rows": [kernel("Add", 50, aiv_vec_ratio=0.3, aiv_mte3_ratio=0.2)]},
        {"rows": [kernel("Add", 50, aiv_vec_ratio=0.3, aiv_mte3_ratio=0.8)]},
    ),
    "NPU-SMALL": (
        {"rows": [kernel("Add", 2)] * 300},
        {"rows": [kernel("Add", 200)] * 300},
    ),
    "NPU-COMPILE": (
        {"rows": [GOOD_MATMUL], "trace_view": [event("AscendCL@aclopCompileAndExecute", 900)] * 25},
        {"rows": [GOOD_MATMUL], "trace_view": [event("AscendCL@aclopCompileAndExecute", 900)] * 3},
    ),
    "NPU-DYNAMIC": (
        {"rows": [kernel("Add", 50, **{"Input Shapes": f"{n},8"}) for n in range(40)]},
        {"rows": [kernel("Add", 50)] * 40},
    ),
    "NPU-BLOCKING": (
        {
            "rows": [GOOD_MATMUL],
            "trace_view": [event("Node@launch", 5), event("aclrtSynchronizeStream", 9)] * 30,
        },
        {"rows": [GOOD_MATMUL], "trace_view": [event("Node@launch", 5)] * 30},
    ),
    "NPU-MALLOC": (
        {"rows": [GOOD_MATMUL], "trace_view": [event("aclMallocMemInner", 6000)] * 2},
        {"rows": [GOOD_MATMUL], "trace_view": [event("aclMallocMemInner", 60)] * 2},
    ),
    "NPU-PACKETS": (
        {"rows": [GOOD_MATMUL], "communication": links("SDMA", 2.0, 90)},
        {"rows": [GOOD_MATMUL], "communication": links("SDMA", 64.0, 90)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", PROFILES)
def test_rules_about_profiles_of_the_chip_tell_slow_from_clean(rule: str, tmp_path: Path) -> None:
    slow, clean = PROFILES[rule]
    found = [advise_all([profile(tmp_path / n, **p)], CHIP) for n, p in (("a", slow), ("b", clean))]
    assert rule in {advice.rule.id for advice in found[0]}
    assert rule not in {advice.rule.id for advice in found[1]}


EVEN = {"Computing": 8000, "Communication(Not Overlapped)": 500, "Overlapped": 1500, "Free": 200,
        "Bubble": 100}  # fmt: skip
RANKS: dict[str, tuple[dict[str, float], float]] = {  # what the last rank's step has, and its GB/s
    "RANK-COMPUTE": ({"Computing": 9000}, 20),
    "RANK-HOST": ({"Free": 900}, 20),
    "RANK-LINK": ({}, 12),
    "RANK-EXPOSED": ({"Communication(Not Overlapped)": 1500}, 20),
    "RANK-BUBBLE": ({"Communication(Not Overlapped)": 1600, "Bubble": 1200}, 20),
}


def rank_folders(folder: Path, last: dict[str, float], speed: float, made: int = 0) -> Path:
    """What four ranks leave: each step in its table twice, and one link."""
    for rank in range(4):
        name = f"node_{rank}_{made + rank}_ascend_pt" if made else f"node_{rank}_ascend_pt"
        parts = EVEN | (last if rank == 3 else {})
        sizes = {"Transit Size(MB)": 100.0, "Transit Time(ms)": 100 / (speed if rank == 3 else 20),
                 "Size Distribution": {"64.0": [10, 1.0]}}  # fmt: skip
        spread = {"step1": {"collective": {"a": {"Communication Bandwidth Info": {"RDMA": sizes}}}}}
        inner = folder / name / "ASCEND_PROFILER_OUTPUT"
        inner.mkdir(parents=True)
        (inner.parent / f"profiler_info_{rank}.json").write_text("{}")
        (inner / "communication.json").write_text(json.dumps(spread))
        with (inner / "step_trace_time.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["Step", *parts])
            writer.writeheader()
            writer.writerows([{"Step": step, **parts} for step in (1, 2)])
    return folder


@pytest.mark.parametrize("rule", [*RANKS, "none"])
def test_the_ranks_of_a_job_are_compared(rule: str, tmp_path: Path) -> None:
    found = advise_all([rank_folders(tmp_path, *RANKS.get(rule, ({}, 20)))], CHIP)
    assert {one.rule.id for one in found} == {rule} - {"none"}
    assert all("rank 3" in str(one.places[0].what) for one in found)
    assert [one.places[0].self_us for one in found] == {
        "RANK-COMPUTE": [1000.0], "RANK-HOST": [700.0], "RANK-LINK": [0.0],
        "RANK-EXPOSED": [1400.0], "RANK-BUBBLE": [1200.0], "none": [],
    }[rule]  # fmt: skip


def test_time_of_a_rank_is_a_share_of_one_step_and_not_of_all_ranks_together(
    tmp_path: Path,
) -> None:
    (gap,) = advise_all([rank_folders(tmp_path / "gap", {"Computing": 9000}, 20)], CHIP)
    assert gap.share == pytest.approx(1000 / 8950)  # steps of 8,700, 8,700, 8,700 and 9,700 µs
    waits = rank_folders(tmp_path / "all", {}, 20)
    for table in waits.rglob("step_trace_time.csv"):
        table.write_text("Step,Computing,Communication(Not Overlapped),Free\n1,800,200,0\n")
    (exposed,) = advise_all([waits], CHIP)
    assert (len(exposed.places), exposed.share) == (4, 0.2)  # they wait at the same time


FIRST_RUN, LAST_RUN = 20260105101500000, 20260105101740000


def test_of_several_runs_in_a_folder_each_ranks_newest_is_compared(tmp_path: Path) -> None:
    rank_folders(tmp_path, {"Computing": 12000}, 20, FIRST_RUN)
    rank_folders(tmp_path, {"Free": 900}, 20, LAST_RUN)
    assert [one.rule.id for one in advise_all([tmp_path], CHIP)] == ["RANK-HOST"]


def test_recordings_of_one_process_are_no_ranks(tmp_path: Path) -> None:
    """A schedule that records twice, of a process without a rank; with and without its file."""
    rank_folders(tmp_path, {"Computing": 12000}, 20)
    names = [f"node_7_{made}_ascend_pt" for made in (FIRST_RUN, LAST_RUN)]
    for old, name in zip(("node_0_ascend_pt", "node_3_ascend_pt"), names, strict=True):
        (tmp_path / old).rename(tmp_path / name)
    for folder in (tmp_path / "node_1_ascend_pt", tmp_path / "node_2_ascend_pt"):
        shutil.rmtree(folder)
    for info in tmp_path.rglob("profiler_info_*.json"):
        info.rename(info.with_name("profiler_info.json"))
    assert advise_all([tmp_path], CHIP) == []
    for info in tmp_path.rglob("profiler_info.json"):
        info.unlink()
    assert advise_all([tmp_path], CHIP) == []


@pytest.mark.parametrize("names", [("node_3_{}_ascend_pt",) * 2, ("before", "after")])
def test_runs_that_nobody_can_pair_are_refused_with_their_names(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    """One rank has a run that the others do not have, or nothing says which run is the newer."""
    rank_folders(tmp_path, {}, 20)
    old = tmp_path / names[0].format(FIRST_RUN)
    (tmp_path / "node_3_ascend_pt").rename(old)
    shutil.copytree(old, tmp_path / names[1].format(LAST_RUN))
    with pytest.raises(JoyError, match="rank 3 has several profiles") as refused:
        advise_all([tmp_path], CHIP)
    assert old.name in str(refused.value.where)


def test_every_rule_has_a_planted_program() -> None:
    planted = {*SLOW, *ON_DEVICE, *ENVIRONMENT, *PROFILES, *RANKS}
    planted_rules = planted | {"OP-MISSING", "SHAPES-CHANGE"}
    assert {rule.id for rule in RULES} == planted_rules


def test_every_name_that_a_rule_tells_to_call_exists_and_is_not_deprecated() -> None:
    spec = PathFinder.find_spec("torch_npu")
    if spec is None or spec.origin is None:
        pytest.skip("torch_npu is not installed")
    package, oplist = Path(spec.origin).parent, lists.of(CHIP)
    for rule in RULES:
        for api in rule.api:
            name = api.rpartition(".")[2]
            support = oplist.status(f"npu::{name}")
            assert not support.alternative or "deprecated" not in support.note, (rule.id, api)
            if support.status.value != "native":
                files = package.rglob("*.py")
                text = "\n".join(f.read_text(encoding="utf-8", errors="replace") for f in files)
                assert re.search(rf"\b(def|class) {name}\b|['\"]{name}['\"]", text), api


def test_names_of_the_chip_in_examples_are_names_to_check() -> None:
    for rule in RULES:
        named = set(re.findall(r"torch_npu\.(npu_\w+)", rule.after + rule.action))
        assert named <= {api.rpartition(".")[2] for api in rule.api}, rule.id


def test_every_rule_says_what_to_do_and_where_its_thresholds_come_from() -> None:
    for rule in RULES:
        assert rule.source
        assert rule.action
        assert bool(rule.before) == bool(rule.after), rule.id


def test_what_rewrite_is_told_to_do_are_its_rules() -> None:
    from joymigrate.rewrite import rules

    known = rules.load(CHIP, chips.origin())
    assert {rule.select for rule in RULES if rule.select} <= set(known)


def test_the_common_rules_name_no_chip() -> None:
    common = [rule for rule in RULES if "common" in rule.file]
    for rule in common:
        assert "torch_npu." not in f"{rule.before}{rule.after}{rule.action}", rule.id


def test_an_unknown_name_is_an_error_with_the_nearest(tmp_path: Path) -> None:
    path = missing_operator(tmp_path)
    with pytest.raises(JoyError, match="Did you mean 'IDX-PUT'"):
        advise_all([path], CHIP, wanted=["IDX-PUTT"])


def test_a_file_of_another_kind_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("hello", encoding="utf-8")
    with pytest.raises(JoyError, match="not a trace"):
        advise_all([tmp_path / "x.txt"], CHIP)
    with pytest.raises(JoyError, match="no such file"):
        advise_all([tmp_path / "y.jsonl"], CHIP)


def test_a_trace_of_the_profiler_gives_fusion_advice_without_data_flow(tmp_path: Path) -> None:
    import torch

    x, w = torch.rand(64, 64), torch.ones(64)
    with torch.profiler.profile(record_shapes=True) as recording:
        x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w
    path = tmp_path / "trace.json"
    recording.export_chrome_trace(str(path))
    assert "FUSE-RMSNORM" in {advice.rule.id for advice in advise_all([path], CHIP)}


@pytest.mark.parametrize("form", ["text", "json", "md", "html", "sarif"])
def test_the_command_writes_every_format(form: str, tmp_path: Path) -> None:
    trace = recorded("FUSE-ROTARY", "slow", tmp_path)
    out = tmp_path / f"advice.{form}"
    command = [sys.executable, "-m", "joymigrate", "profile", "advise", str(trace)]
    subprocess.run(
        [*command, "--format", form, "-o", str(out)],
        check=True,
        env={**os.environ, "JOYMIGRATE_TO": "ascend"},
    )
    text = out.read_text(encoding="utf-8")
    assert "npu_rotary_mul" in text
    if form == "json":
        document = json.loads(text)
        assert document["schema"] == "joymigrate.advice/1"
        assert ":" in document["advice"][0]["places"][0]["where"]
    if form == "sarif":
        jsonschema.validate(json.loads(text), LOG)
        results = json.loads(text)["runs"][0]["results"]
        assert results[0]["locations"][0]["physicalLocation"]["region"]["startLine"] > 0


LENGTHS = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
optimiser = torch.optim.SGD(model.parameters(), 0.1)
for step in range(12):
    optimiser.zero_grad()
    model(torch.rand({length}, 4)).square().mean().backward()
    optimiser.step()
"""


@pytest.mark.parametrize(
    ("length", "found"),
    [("3 * 4 ** (step % 6)", True), pytest.param("16", False, marks=pytest.mark.slow)],
)
def test_shapes_that_change_over_the_run_are_seen(
    length: str, found: bool, tmp_path: Path, support: ChipSupport
) -> None:
    program, out = tmp_path / "train.py", tmp_path / "run.jsonl"
    program.write_text(LENGTHS.format(length=length))
    command = [sys.executable, "-m", "joymigrate", "profile", "record", "-o", str(out), "--"]
    subprocess.run([*command, sys.executable, str(program)], check=True, timeout=120)
    assert ("SHAPES-CHANGE" in given(out, support)) is found


def event(name: str, ts: float, dur: float, cat: str = "cpu_op", **args: Any) -> dict[str, Any]:
    """One event of a Chrome trace."""
    track = 7 if cat in ("kernel", "gpu_memcpy") else 1
    return {"ph": "X", "cat": cat, "name": name, "pid": track, "tid": track, "ts": ts, "dur": dur,
            "args": args}  # fmt: skip


def copies_of_nsys(path: Path) -> None:
    """An export of Nsight Systems: a kernel, and a copy whose way is a number."""
    columns = "start, end, correlationId, globalPid"
    base = sqlite3.connect(path)
    base.executescript(f"""
        CREATE TABLE StringIds (id, value);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({columns}, demangledName);
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY ({columns}, copyKind);
        INSERT INTO StringIds VALUES (1, 'gemm');
        INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (0, 9000, 1, 0, 1);
        INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (9000, 15000, 2, 0, 2);
    """)
    base.commit()
    base.close()


MEMORY = (
    "Time (%),Total Time (ns),Count,Avg (ns),Operation\n"
    "90.0,9000,3,3000,[CUDA memcpy Host-to-Device]\n10.0,1000,3,300,[CUDA memset]\n"
)
MOVED = (
    "Kind,Direction,Correlation_Id,Start_Timestamp,End_Timestamp\n"
    "MEMORY_COPY,MEMORY_COPY_DEVICE_TO_HOST,1,0,900\n"
)


@pytest.mark.parametrize(
    ("made", "rule"),
    [(copies_of_nsys, "D2H"), (MEMORY, "H2D"), (MOVED, "D2H"),
     (MOVED.replace("TO_HOST", "TO_DEVICE"), "")],
)  # fmt: skip
def test_copies_in_tables_and_databases_have_a_way(made: Any, rule: str, tmp_path: Path) -> None:
    path = tmp_path / "own"
    made(path) if callable(made) else path.write_text(made)
    found = {one.rule.id for one in advise_all([path], CHIP)} & {"D2H", "H2D"}
    assert found == ({rule} if rule else set())


def foreign(change: int, optimiser: str, copy_us: float) -> list[dict[str, Any]]:
    """Four steps of a trace: an operator of changing length, an optimiser's step, a copy back."""
    events = []
    for step in range(4):
        at = 1e4 * step
        dims = [[8 + change * step, 16]]
        events += [
            event(f"ProfilerStep#{step}", at, 4e3, "user_annotation"),
            event("aten::relu", at + 10, 50, **{"Input Dims": dims, "Input type": ["float"]},
                  **{"External id": step * 9 + 1}),
            event("cudaLaunchKernel", at + 20, 5, "cuda_runtime", correlation=step * 9 + 1),
            event("gemm", at + 30, 1000, "kernel", correlation=step * 9 + 1),
            event("Optimizer.step#AdamW.step", at + 1100, 900, "user_annotation"),
            event("aten::copy_", at + 3000, 50, **{"External id": step * 9 + 2}),
            event("cudaMemcpyAsync", at + 3010, 5, "cuda_runtime", correlation=step * 9 + 2),
            event("Memcpy DtoH (Device -> Pageable)", at + 3020, copy_us, "gpu_memcpy",
                  correlation=step * 9 + 2),
        ]  # fmt: skip
        names = [optimiser] if optimiser.startswith("aten::_") else [optimiser] * 20
        events += [event(name, at + 1110 + 9 * i, 5) for i, name in enumerate(names)]
    return events


@pytest.mark.parametrize(
    ("made", "rules"),
    [
        (foreign(4, "aten::_fused_adamw_", 20.0), {"SHAPES-CHANGE"}),
        (foreign(0, "aten::addcdiv_", 20.0), {"OPT-FORLOOP", "FUSE-OPTIMISER"}),
        (foreign(0, "aten::_fused_adamw_", 900.0), {"D2H"}),
        (foreign(0, "aten::_fused_adamw_", 20.0), set()),
    ],
)  # fmt: skip
def test_traces_of_other_tools_show_shapes_optimisers_and_copies(
    made: list[dict[str, Any]], rules: set[str], tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"traceEvents": made}))
    assert {one.rule.id for one in advise_all([path], CHIP)} == rules


def test_advice_without_the_chip_s_times_says_that_it_is_structural(
    tmp_path: Path, support: ChipSupport
) -> None:
    subject = AdviceSubject(
        capture.load(recorded("CHANNELS-LAST", "slow", tmp_path)), CHIP, support
    )
    found = list(advise(subject, RULES))
    assert {one.basis for one in found} == {"structural"}
    assert "structure alone" in render(describe(found, CHIP, ["t"]))


# What one process alone cannot show, and how the simulated chip says so.
FOR_TWO = {
    "FUSE-ALLGATHER-MM": "has 1 ranks, not 2", "FUSE-MM-REDUCE-SCATTER": "has 1 ranks, not 2",
}  # fmt: skip


@pytest.mark.compiler
def test_every_example_of_the_chip_s_package_runs_on_the_simulated_chip(tmp_path: Path) -> None:
    if PathFinder.find_spec("torch_npu") is None:
        pytest.skip("torch_npu is not installed")
    examples = {rule.id: str(rule.after) for rule in RULES if f"{CHIP.package}." in str(rule.after)}
    examples["FUSE-CLIP"] = str(next(rule.after for rule in RULES if rule.id == "FUSE-CLIP"))
    given_, out = tmp_path / "examples.json", tmp_path / "results.json"
    given_.write_text(json.dumps(examples))
    command = [sys.executable, "-m", "joymigrate", "rehearse", "-q", "--", "python"]
    program = str(PROGRAMS / "advice_examples.py")
    subprocess.run([*command, program, str(given_), str(out)], check=True, timeout=240)
    raised = {rule: text for rule, text in json.loads(out.read_text()).items() if text}
    assert set(raised) == set(FOR_TWO), raised
    assert {rule: text for rule, text in raised.items() if FOR_TWO[rule] not in text} == {}
