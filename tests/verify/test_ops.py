"""Operators replayed on the CPU: what is found, what is left out with a reason, and no noise."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from joymigrate.device import Device
from joymigrate.errors import JoyError
from joymigrate.verify.arguments import ArgumentRecorder
from joymigrate.verify.bundle.write import RankWriter, complete, create
from joymigrate.verify.model import Outcome, RecordStatus
from joymigrate.verify.ops import ReplayOptions, ReplayResult, ReplayTarget, read_calls, replay
from joymigrate.verify.ops import judge as judging
from joymigrate.verify.ops.case_store import kept_of
from joymigrate.verify.ops.document import document, row, verdict
from joymigrate.verify.ops.target import read_faults
from joymigrate.verify.ops.worker import WorkerOrder, work
from joymigrate.verify.tolerance import Tolerance

HEAD = {"schema": "joymigrate.trace/1", "device": "cpu", "torch": "2.13", "steps": 1}


def tensor(*shape: int, dtype: str = "float32", grad: bool = False) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "device": "cuda:0", "requires_grad": grad}


def op(name: str, *args: Any, overload: str = "", **kwargs: Any) -> dict[str, Any]:
    return {"kind": "op", "op": f"aten::{name}", "overload": overload, "args": list(args),
            "kwargs": kwargs, "outputs": [], "calls": 2, "where": "train.py:3"}  # fmt: skip


def trace(folder: Path, *ops: dict[str, Any]) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (HEAD, *ops)))
    return path


def run(path: Path, target: ReplayTarget | None = None, **options: Any) -> list[ReplayResult]:
    made = target or ReplayTarget(Device("cpu"))
    found = replay(read_calls(path), made, Tolerance.of("ascend"), ReplayOptions(**options))
    return [result for _, results in found for result in results]


def statuses(results: Sequence[ReplayResult]) -> set[RecordStatus]:
    return {result.finding.status for result in results}


LINEAR = op("addmm", tensor(16, grad=True), tensor(8, 32, grad=True), tensor(32, 16, grad=True))
MANY = (
    LINEAR,
    op("gelu", tensor(8, 16, grad=True)),
    op("native_layer_norm", tensor(4, 16, grad=True), [16], tensor(16, grad=True), None, 1e-5),
    op("embedding", tensor(50, 8, grad=True), tensor(4, 6, dtype="int64")),
    op("_softmax", tensor(4, 16, grad=True), -1, False),
    op("convolution", tensor(2, 3, 8, 8, grad=True), tensor(4, 3, 3, 3, grad=True), None, [1, 1],
       [0, 0], [1, 1], False, [0, 0], 1),
    op("sum", tensor(8, 16, grad=True), [1], overload="dim_IntList"),
    op("add_", tensor(8, 16), tensor(8, 16), overload="Tensor"),
    op("gather", tensor(8, 16, grad=True), 1, tensor(8, 4, dtype="int64")),
    op("topk", tensor(8, 16, dtype="bfloat16"), 4),
    op("nonzero", tensor(8, 16)),
    op("log", tensor(8, 16, grad=True)),
    op("mul", tensor(8, 16, dtype="float16"), 0.5, overload="Tensor"),
    op("_foreach_add_", [tensor(8), tensor(4)], [tensor(8), tensor(4)], overload="List"),
    op("to", tensor(8), {"torch": "bfloat16"}, overload="dtype"),
)  # fmt: skip


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trace(tmp_path_factory.mktemp("many"), *MANY)


def test_the_cpu_against_itself_is_identical_in_every_case(many: Path) -> None:
    results = run(many)
    assert statuses(results) <= {RecordStatus.IDENTICAL, RecordStatus.PASS}
    assert {r.case for r in results} == {
        "recorded", "large", "tiny", "special", "zeros", "empty", "non-contiguous",
    }  # fmt: skip
    assert {r.call.op for r in results if r.phase == "backward"} >= {"aten::addmm", "aten::gelu"}


def test_rounding_noise_is_no_failure(many: Path) -> None:
    for seed in (1, 2, 3):
        results = run(many, ReplayTarget(Device("cpu"), noise=1, seed=seed))
        assert not [r for r in results if r.finding.status.failed]
        assert RecordStatus.PASS in statuses(results)


@pytest.mark.parametrize("name", ["gelu", "addmm", "_softmax", "sum", "convolution", "log"])
def test_a_fault_is_found_and_nothing_else(many: Path, name: str) -> None:
    results = run(many, ReplayTarget(Device("cpu"), noise=1, faults={name: 1e-2}), edges=False)
    assert {r.call.op for r in results if r.finding.status.failed} == {f"aten::{name}"}


def test_a_small_fault_in_fp32_is_at_least_a_warning(many: Path) -> None:
    results = run(many, ReplayTarget(Device("cpu"), faults={"gelu": 3e-5}), edges=False)
    odd = {r.call.op: r.finding for r in results if r.finding.status is RecordStatus.WARN}
    assert list(odd) == ["aten::gelu"]


def test_an_error_looks_like_the_format_that_makes_it(tmp_path: Path) -> None:
    path = trace(tmp_path, op("mm", tensor(64, 256), tensor(256, 64)))
    (result,) = run(path, ReplayTarget(Device("cpu"), faults={"mm": 1e-3}), edges=False)
    assert result.finding.status is RecordStatus.FAIL
    assert "TF32" in str(result.finding.reason)


@pytest.mark.parametrize(
    ("call", "status", "reason"),
    [
        (op("rand", [64, 64]), RecordStatus.RANDOM, "mean and spread agree"),
        (op("native_dropout", tensor(64, 64), 0.5, True), RecordStatus.RANDOM, "mean and spread"),
        (op("native_dropout", tensor(8, 8), 0.0, True), RecordStatus.IDENTICAL, None),
        (op("no_such_operator", tensor(4)), RecordStatus.UNCOMPARED, "no such operator"),
        (
            op("add", tensor(4), tensor(4), overload="Nothing"),
            RecordStatus.UNCOMPARED,
            "no overload",
        ),
        (op("set_", tensor(4), overload="source_Tensor"), RecordStatus.UNCOMPARED, "storages"),
        (op("mm", tensor(4, 5), tensor(4, 5)), RecordStatus.UNCOMPARED, "no golden on the CPU"),
        (op("empty_like", tensor(4, 5)), RecordStatus.IDENTICAL, None),
    ],
)
def test_what_cannot_be_compared_says_why(
    tmp_path: Path, call: dict[str, Any], status: RecordStatus, reason: str | None
) -> None:
    first, *_ = run(trace(tmp_path, call), edges=False)
    assert first.finding.status is status
    if reason:
        assert reason in str(first.finding.reason)


def test_collectives_need_their_other_ranks(tmp_path: Path) -> None:
    call = {**op("x", tensor(4)), "op": "c10d::allreduce_"}
    (result,) = run(trace(tmp_path, call))
    assert "other ranks" in str(result.finding.reason)


def test_too_large_a_call_is_left_out(many: Path) -> None:
    results = run(many, max_elements=10, edges=False)
    assert "--max-elements" in str(results[0].finding.reason)


def test_attention_of_one_platform_is_compared_as_the_operator(tmp_path: Path) -> None:
    part = tensor(2, 4, 16, 8, grad=True)
    call = op("_scaled_dot_product_flash_attention", part, part, part, 0.0, True, scale=0.3)
    results = run(trace(tmp_path, call), edges=False)
    assert {r.call.op for r in results} == {"aten::scaled_dot_product_attention"}
    assert {r.phase for r in results} == {"forward", "backward"}
    assert statuses(results) == {RecordStatus.IDENTICAL}


def fused(name: str, *shapes: tuple[int, ...], layout: str, **named: Any) -> dict[str, Any]:
    parts = [tensor(*shape, dtype="float16") for shape in shapes]
    call = op(name, *parts, 4, layout, **named)
    return {**call, "op": f"npu::{name}"}


def test_fused_attention_of_the_chip_is_held_against_torchs_own(tmp_path: Path) -> None:
    q, kv, joined, sums = (2, 4, 16, 8), (2, 2, 24, 8), (2, 16, 32), (2, 4, 16, 8)
    mask, statistics = tensor(2048, 2048, dtype="bool"), tensor(*sums)
    seen = tensor(16, 16, dtype="bool")
    forward, v3, grad = (f"npu_fusion_attention{end}" for end in ("", "_v3", "_grad_v3"))
    made = {"softmax_max": statistics, "softmax_sum": statistics, "scale_value": 0.3}
    made["attention_in"] = tensor(*q, dtype="float16")
    calls = (
        fused(v3, q, q, q, layout="BNSD", atten_mask=mask, scale=0.3, sparse_mode=2),
        fused(forward, q, kv, kv, layout="BNSD", atten_mask=mask, scale=0.3, sparse_mode=3),
        fused(forward, joined, joined, joined, layout="BSH", scale=0.3),
        fused(v3, q, q, q, layout="BNSD", atten_mask=seen, pre_tockens=5, next_tockens=3),
        fused(grad, q, q, q, q, layout="BNSD", atten_mask=mask, sparse_mode=2, **made),
        fused(v3, q, q, q, layout="BNSD", keep_prob=0.9),
        fused(v3, q, q, q, layout="BNSD", pse=tensor(2, 4, 16, 16, dtype="float16")),
    )
    order = WorkerOrder(str(trace(tmp_path, *calls)), device="npu", chip="ascend")
    start = [sys.executable, "-m", "joymigrate", "rehearse", "-q", "--"]
    found = work(order, start).rows
    assert [one["status"] for one in found] == ["PASS"] * 5 + ["UNCOMPARED"] * 2
    assert [str(one["reason"]).rpartition(" ")[2] for one in found[5:]] == ["dropout", "pse"]
    wrong = work(replace(order, faults={v3: 0.01, grad: 0.1}), start).rows
    assert [one["status"] for one in wrong[:5]] == ["FAIL", "PASS", "PASS", "FAIL", "FAIL"]


def test_equal_calls_are_replayed_once(tmp_path: Path) -> None:
    (call,) = read_calls(trace(tmp_path, LINEAR, LINEAR))
    assert call.calls == 4


def test_inputs_are_the_same_every_time(many: Path) -> None:
    def errors() -> list[float | None]:
        target = ReplayTarget(Device("cpu"), noise=1)
        return [r.finding.target_error for r in run(many, target, edges=False)]

    assert errors() == errors()


def test_a_chrome_trace_with_concrete_inputs_is_read(tmp_path: Path) -> None:
    profile = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    )
    with profile, torch.no_grad():
        a = torch.randn(8, 16)
        torch.nn.functional.gelu(a @ torch.randn(16, 4)).sum(dim=1)
        torch.cat([a, a], dim=1)
    path = tmp_path / "trace.json"
    profile.export_chrome_trace(str(path))
    results = run(path, edges=False)
    compared = {r.call.op for r in results if r.finding.status.compared}
    assert compared >= {"aten::mm", "aten::gelu", "aten::sum", "aten::cat"}
    assert not [r for r in results if r.finding.status.failed]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("hello", "neither a trace"),
        ("{}", "no operator call"),
        ("[", "not JSON"),
        (json.dumps(HEAD) + '\n{"kind": "op"}\n', "not a line of a trace"),
        (json.dumps(HEAD) + "\n", "no operator call"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(JoyError, match=what):
        read_calls(path)


def test_a_fault_needs_a_number() -> None:
    assert read_faults(["gelu=1e-2"]) == {"gelu": 0.01}
    with pytest.raises(JoyError, match="OPERATOR=SIZE"):
        read_faults(["gelu"])


def limit(op_name: str = "aten::tanh", dtype: str = "float32", chip: str | None = "ascend") -> Any:
    return Tolerance.of(chip).operator(op_name, dtype)


def test_inf_and_nan_must_stand_where_the_golden_has_them() -> None:
    golden = torch.tensor([1.0, float("inf"), float("nan")], dtype=torch.float64)
    same = golden.float()
    assert judging.judge(same, same.clone(), golden, limit()).status is RecordStatus.IDENTICAL
    other = torch.tensor([1.0, 3.0e38, float("nan")])
    assert judging.judge(other, same, golden, limit()).status is RecordStatus.NAN_MISMATCH


def test_where_the_reference_overflows_itself_nothing_is_demanded() -> None:
    golden = torch.tensor([1.0, 1.0e30], dtype=torch.float64)
    reference = torch.tensor([1.0, float("inf")])
    target = torch.tensor([1.0, float("nan")])
    assert not judging.judge(target, reference, golden, limit()).status.failed


def test_subnormal_numbers_may_become_zero() -> None:
    golden = torch.tensor([1.0, 1e-40], dtype=torch.float64)
    found = judging.judge(torch.tensor([1.0, 0.0]), golden.float(), golden, limit())
    assert found.status is RecordStatus.PASS
    assert "subnormal" in str(found.reason)


def test_another_shape_or_dtype_is_a_failure() -> None:
    golden = torch.ones(4, dtype=torch.float64)
    assert judging.judge(torch.ones(2), torch.ones(4), golden, limit()).metric == "shape"
    assert judging.judge(torch.ones(4).half(), torch.ones(4), golden, limit()).metric == "dtype"


def test_without_a_reference_the_single_limit_decides() -> None:
    golden = torch.linspace(1, 2, 100, dtype=torch.float64)
    assert not judging.judge(golden.float() * (1 + 1e-4), None, golden, limit()).status.failed
    assert judging.judge(golden.float() * 1.01, None, golden, limit()).status is RecordStatus.FAIL


@pytest.mark.parametrize("chip", [None, "cambricon", "musa", "ascend"])
def test_every_chips_limits_judge(chip: str | None) -> None:
    golden = torch.linspace(1, 2, 1000, dtype=torch.float64)
    good = golden.float() * (1 + torch.finfo(torch.float32).eps)
    right = golden.float()
    assert not judging.judge(good, right, golden, limit(chip=chip)).status.failed
    assert judging.judge(right * 1.05, right, golden, limit(chip=chip)).status is RecordStatus.FAIL


def test_indices_of_equal_values_may_differ(tmp_path: Path) -> None:
    results = run(trace(tmp_path, op("topk", tensor(4, 64, dtype="bfloat16"), 8)), edges=False)
    assert statuses(results) == {RecordStatus.IDENTICAL}


def test_a_verdict_needs_most_of_the_calls(tmp_path: Path) -> None:
    results = run(trace(tmp_path, op("mm", tensor(4, 5), tensor(4, 5)), LINEAR), edges=False)
    rows = [row(result) for result in results]
    found = verdict(rows, 0.9, {"device": "cpu"})
    assert found.verdict is Outcome.INCONCLUSIVE
    assert document(found, rows)["operators"]["rows"][0]["status"] == "UNCOMPARED"


def test_a_failed_call_has_its_line() -> None:
    given = {
        "case": "recorded",
        "phase": "forward",
        "op": "aten::mul",
        "overload": "",
        "shapes": "4",
    }
    more = {"dtype": "float32", "metric": "dtype", "value": None, "limit": None, "reason": "other"}
    errors = {"target_error": None, "reference_error": None, "level": "", "inputs": "random"}
    rows = [
        {**given, **more, **errors, "status": status, "where": where}
        for status, where in (("PASS", "a.py:3"), ("FAIL", "a.py:4"))
    ]
    found = verdict(rows, 0.9, {"device": "cpu"})
    assert found.reason == "1 result of aten::mul"
    assert found.first_divergence is not None
    assert found.first_divergence.line == ("a.py:4", "a.py:4")


@pytest.mark.dear
def test_a_call_that_kills_the_process_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    # The worker dies by a signal in the middle of an operator, and is started again behind it.
    path = trace(tmp_path, LINEAR, op("gelu", tensor(8, 16)))
    hook = tmp_path / "sitecustomize.py"
    hook.write_text(
        "import importlib, os\n"
        "replay = importlib.import_module('joymigrate.verify.ops.replay')\n"
        "plain = replay.outputs\n"
        "seen = {}\n"
        "def outputs(operator, args, kwargs):\n"
        "    seen[operator.name] = seen.get(operator.name, 0) + 1\n"
        "    if operator.name == 'addmm' and seen['addmm'] == 3: os.abort()\n"
        "    return plain(operator, args, kwargs)\n"
        "replay.outputs = outputs\n"
    )
    order = WorkerOrder(str(path), edges=False, backward=False)
    outcome = work(order, ["env", "TORCH_DEVICE_BACKEND_AUTOLOAD=0", f"PYTHONPATH={tmp_path}"])
    found = {one["op"]: (one["status"], one["metric"]) for one in outcome.rows}
    assert found == {"aten::addmm": ("FAIL", "crash"), "aten::gelu": ("IDENTICAL", "bits")}
    assert outcome.deaths == 1


def test_a_bundle_with_arguments_is_replayed_by_its_own_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, case, given = tmp_path / "base.jmb", tmp_path / "case", torch.full((2, 4), 3.0)
    create(base, {"command": [], "level": "ops", "steps": [0, 0]})
    kept = ArgumentRecorder(["aten::gelu", "head"], 10_000)
    for func, module, args in (
        (torch.ops.aten.gelu.default, "net:act", (given,)),
        (torch.ops.aten.addmm.default, "net:head", (torch.ones(3), given, torch.ones(4, 3))),
        (torch.ops.aten.mm.default, "net:other", (given, torch.ones(4, 3))),
    ):
        held = kept.before(func, module, args, {})
        if held is not None:
            kept.after(held, func(*args))
    writer = RankWriter(base / "rank-0", {"rank": 0, "world": 1})
    kept.write(writer)
    writer.commit()
    complete(base, {"command": [], "level": "ops", "steps": [0, 0]})

    calls = read_calls(base)
    assert [(c.op, c.module, c.kept) for c in calls] == [
        ("aten::gelu", "act", True),
        ("aten::addmm", "head", True),
    ]
    faulty = ReplayTarget(Device("cpu"), faults={"gelu": 1e-2})
    options = ReplayOptions(edges=False, backward=False)
    limits, held_there = Tolerance.of("ascend"), kept_of(base, case)
    found = [
        (one.call.op, one.inputs, one.finding.status)
        for _, results in replay(calls, faulty, limits, options, kept=held_there)
        for one in results
    ]
    assert found == [
        ("aten::gelu", "recorded", RecordStatus.FAIL),
        ("aten::addmm", "recorded", RecordStatus.IDENTICAL),
    ]
    assert len((case / "reproduce.py").read_text().splitlines()) <= 30
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["reproduce.py"])
        runpy.run_path(str(case / "reproduce.py"))
    _, *now = capsys.readouterr().out.splitlines()
    assert [float(line.split()[-1]) < 1e-6 for line in now] == [True, True]
    assert json.loads((case / "case.json").read_text())["error"] > 1e-4


def test_arguments_that_do_not_fit_are_counted() -> None:
    kept = ArgumentRecorder(["aten::*"], 100)
    func = torch.ops.aten.mm.default
    small, large = torch.ones(2, 2), torch.ones(9, 9)
    for tensor_ in (small, large):
        held = kept.before(func, "net:", (tensor_, tensor_), {})
        if held is not None:
            kept.after(held, torch.mm(tensor_, tensor_))
    assert (len(kept.lines), kept.too_large) == (1, 1)
    assert "1 more do not fit" in kept.notes()[0]
