"""What a chip covers: top-down, aliases, dtypes, shares, planted gaps, every output format."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from joymigrate.errors import JoyError
from joymigrate.profile import readers
from joymigrate.profile.coverage import Coverage, cover
from joymigrate.profile.oplist import SupportStatus, of
from joymigrate.report import coverage as report
from joymigrate.report import coverage_document, coverage_sarif
from joymigrate.report.coverage_document import describe
from joymigrate.report.renderers import html as page
from joymigrate.report.renderers import text
from tests.profile.test_readers import op, written
from tests.report.sarif_schema import LOG

PROGRAM = Path(__file__).parent / "programs" / "planted.py"
PLANT = re.compile(r"# plant: (?P<op>\S+) (?P<status>\S+) (?P<dtype>\S+)")


def coverage_of(tmp_path: Path, events: list[dict[str, Any]], chip: str = "ascend") -> Coverage:
    return cover([readers.read(written(tmp_path / "t.json", events))], of(chip))


def statuses(coverage: Coverage) -> dict[str, str]:
    return {op.name: op.status.value for op in coverage.ops}


def test_a_supported_operator_covers_what_another_backend_makes_of_it(tmp_path: Path) -> None:
    events = [
        op("aten::conv2d", 0, 100),
        op("aten::convolution", 5, 90),
        op("aten::_convolution", 10, 80),
        op("aten::cudnn_convolution", 20, 60),
    ]
    coverage = coverage_of(tmp_path, events)
    assert statuses(coverage) == {"aten::conv2d": "composite", "aten::convolution": "native"}
    assert {o.name: o.self_us for o in coverage.ops}["aten::convolution"] == 90
    assert coverage.share.ops == 1.0


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("aten::cudnn_batch_norm", "native"),
        ("aten::cudnn_batch_norm_backward", "native"),
        ("aten::miopen_convolution", "native"),
        ("aten::mkldnn_convolution", "native"),
        ("aten::cudnn_convolution_backward_input", "native"),
        ("aten::thnn_conv2d_forward", "native"),
        ("aten::_cudnn_rnn", "native"),
        ("aten::_scaled_dot_product_flash_attention", "fused"),
        ("aten::_scaled_dot_product_efficient_attention", "fused"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "fused"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "fused"),
        ("aten::_efficient_attention_forward", "fused"),
        ("aten::_fused_rms_norm", "fused"),
        ("aten::_cat", "native"),
        ("c10d::allreduce_", "native"),
        ("npu::npu_swiglu", "native"),
        ("aten::npu_swiglu", "native"),
        ("fbgemm::bounds_check_indices", "unknown"),
        ("triton_poi_fused_add_0", "composite"),
        ("triton_poi_fused_add_lgamma_0", "cpu_fallback"),
        ("triton_poi_fused_my_own_kernel_0", "unknown"),
        ("vllm::rotary_embedding", "fused"),
        ("sgl_kernel::no_such_thing", "unknown"),
        ("aten::lgamma", "cpu_fallback"),
    ],
)
def test_one_backends_name_is_judged_by_what_stands_behind_it(
    tmp_path: Path, name: str, status: str
) -> None:
    events = [op("CompiledFunction", 0, 9), op(name, 1, 1)]
    assert statuses(coverage_of(tmp_path, events)) == {name: status}


@pytest.mark.parametrize(
    ("around", "status"),
    [
        ("", "cpu_fallback"),
        ("my own mark", "cpu_fallback"),
        ("Torch-Compiled Region: 0/0", "fused"),
        ("aten::scaled_dot_product_attention", ""),
    ],
)
def test_a_backends_operator_that_the_program_calls_is_judged_as_itself(
    tmp_path: Path, around: str, status: str
) -> None:
    name = "aten::_scaled_dot_product_efficient_attention"
    forward = [op(around, 0, 9)] if around else []
    node = op("autograd::engine::evaluate_function: X", 20, 9)
    back = [node, op(f"{name}_backward", 21, 5)]
    found = statuses(coverage_of(tmp_path, [*forward, op(name, 1, 5), *back]))
    assert found.get(name, "") == status
    assert found[f"{name}_backward"] == (status or "fused")


def test_work_of_the_chips_own_processor_is_not_on_the_chip(tmp_path: Path) -> None:
    rows = ["OP Type,Core Type,Count,Total Time(us)", "Index,AI_CPU,3,930", "Index,AI_CORE,3,30"]
    (tmp_path / "o.csv").write_text("\n".join([*rows, "Add,AI_CORE,9,40", ""]))
    found = cover([readers.read(tmp_path / "o.csv")], of("ascend"))
    assert {(o.op, o.status.value, o.device_us) for o in found.ops} == {
        ("kernel::Index", "cpu_fallback", 930),
        ("kernel::Index", "native", 30),
        ("kernel::Add", "native", 40),
    }
    assert found.share.time == pytest.approx(0.07)


def test_an_unknown_namespace_is_listed_and_its_inside_judged(tmp_path: Path) -> None:
    events = [op("mylib::thing", 0, 100), op("aten::mm", 10, 20), op("aten::lgamma", 40, 20)]
    coverage = coverage_of(tmp_path, events)
    assert statuses(coverage) == {
        "mylib::thing": "unknown",
        "aten::mm": "native",
        "aten::lgamma": "cpu_fallback",
    }


def test_an_old_name_is_judged_by_what_is_inside(tmp_path: Path) -> None:
    events = [op("aten::some_old_thing", 0, 100), op("aten::mm", 10, 20)]
    assert statuses(coverage_of(tmp_path, events)) == {"aten::mm": "native"}
    alone = coverage_of(tmp_path, events[:1])
    assert statuses(alone) == {"aten::some_old_thing": "unknown"}


SHAPES: dict[str, Any] = {
    "Input Dims": [[4, 8], [], [4, 8], [4, 8], []],
    "Input type": ["float", "Scalar", "long int", "float", "Scalar"],
}


def test_the_inputs_tell_overloads_apart_that_the_trace_does_not_name(tmp_path: Path) -> None:
    reduce = coverage_of(tmp_path, [op("aten::scatter", 0, 1, **SHAPES)])
    assert statuses(reduce) == {"aten::scatter": "cpu_fallback"}
    plain = {key: value[:4] for key, value in SHAPES.items()}
    source = coverage_of(tmp_path, [op("aten::scatter", 0, 1, **plain)])
    assert statuses(source) == {"aten::scatter": "native"}


def test_a_recorded_overload_is_taken_at_its_word(tmp_path: Path) -> None:
    events = [op("aten::scatter.reduce", 0, 1), op("aten::add.Tensor", 2, 1), op("aten::mm", 4, 1)]
    coverage = coverage_of(tmp_path, events)
    rows = {(o.op, o.overload): o.status.value for o in coverage.ops}
    assert rows == {
        ("aten::scatter", "reduce"): "cpu_fallback",
        ("aten::add", "Tensor"): "native",
        ("aten::mm", ""): "native",
    }


def test_without_overloads_the_row_has_none_and_says_so(tmp_path: Path) -> None:
    coverage = coverage_of(tmp_path, [op("aten::scatter", 0, 1)])
    (row,) = report.document(coverage)["ops"]
    assert row["overload"] == ""
    assert row["status"] == "native"
    assert "no overload recorded" in row["note"]


def test_a_dtype_that_the_kernel_does_not_take_is_a_gap_of_its_own(tmp_path: Path) -> None:
    def mm(ts: int, dtype: str) -> dict[str, Any]:
        return op("aten::mm", ts, 1, **{"Input Dims": [[4, 8], [8, 8]], "Input type": [dtype] * 2})

    coverage = coverage_of(tmp_path, [mm(0, "float"), mm(2, "double"), mm(4, "c10::Half")])
    rows = {(o.status.value, o.dtypes): o for o in coverage.ops}
    gap = rows[("missing", ("float64",))]
    assert "float64" in gap.note
    assert gap.alternative.startswith("cast to float32")
    assert ("native", ("float32", "float16")) in rows


def test_extra_inputs_of_one_backend_do_not_count(tmp_path: Path) -> None:
    inputs = {"Input Dims": [[2, 3], [2, 3], [3], [99]],
              "Input type": ["float", "float", "float", "unsigned char"]}  # fmt: skip
    around = op("CompiledFunction", 0, 9)
    name = "aten::cudnn_batch_norm_backward"
    coverage = coverage_of(tmp_path, [around, op(name, 1, 1, **inputs)])
    assert coverage.share.ops == 1.0


def test_shares_count_operators_calls_and_time(tmp_path: Path) -> None:
    events = [op("aten::mm", i * 10, 1) for i in range(3)] + [op("aten::lgamma", 100, 7)]
    coverage = coverage_of(tmp_path, events)
    assert coverage.share.ops == 0.5
    assert coverage.share.calls == 0.75
    assert coverage.share.time == pytest.approx(0.3)
    assert coverage.basis == "host"


def test_the_devices_time_counts_where_there_is_one(tmp_path: Path) -> None:
    events = [
        op("aten::mm", 0, 10, **{"External id": 1}),
        op("aten::lgamma", 20, 10, **{"External id": 2}),
        *(
            {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 50, "dur": dur,
             "args": {"External id": number}}
            for number, dur in ((1, 75), (2, 25))
        ),
    ]  # fmt: skip
    coverage = coverage_of(tmp_path, events)
    assert coverage.basis == "device"
    assert coverage.share.time == pytest.approx(0.75)


def test_nothing_to_judge_is_no_full_coverage(tmp_path: Path) -> None:
    with pytest.raises(JoyError, match="nothing to judge"):
        coverage_of(tmp_path, [{"ph": "i", "name": "k", "ts": 0}])


def test_device_work_that_nobody_owns_is_no_full_coverage(tmp_path: Path) -> None:
    events = [{"ph": "X", "cat": "kernel", "name": "k", "ts": 0, "dur": 1}]
    share = coverage_of(tmp_path, events).share
    assert (share.ops, share.calls, share.time) == (0, 0, 0)


def test_a_chip_without_fallback_says_missing(tmp_path: Path) -> None:
    coverage = coverage_of(tmp_path, [op("aten::_fused_adagrad_", 0, 1)], "musa")
    assert statuses(coverage) == {"aten::_fused_adagrad_": "missing"}


def test_a_composite_without_a_tree_is_judged_by_what_it_is_made_of(tmp_path: Path) -> None:
    lines = [
        {"schema": "joymigrate.trace/1"},
        {"kind": "op", "op": "aten::huber_loss_backward", "overload": ""},
        {"kind": "op", "op": "aten::lgamma", "overload": "", "parents": ["aten::lstm.input"]},
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    coverage = cover([readers.read(path)], of("ascend"))
    assert statuses(coverage) == {
        "aten::huber_loss_backward": "cpu_fallback",
        "aten::lgamma": "fused",  # the chip runs the whole LSTM
    }


def test_every_gap_names_an_alternative_and_a_source(tmp_path: Path) -> None:
    events = [op("aten::lgamma", 0, 1), op("mylib::thing", 5, 1), op("fbgemm::x", 8, 1)]
    rows = {o.op: o for o in coverage_of(tmp_path, events).gaps()}
    assert "FlagGems" in rows["aten::lgamma"].alternative
    assert "torch-npu 2.13.0" in rows["aten::lgamma"].source
    assert "write one" in rows["mylib::thing"].alternative
    assert "fbgemm-ascend" in rows["fbgemm::x"].alternative


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Coverage:
    """The planted program, recorded on the CPU and judged."""
    folder = tmp_path_factory.mktemp("planted")
    out = folder / "planted.jsonl"
    command = [sys.executable, "-m", "joymigrate", "profile", "record", "-q", "-o", str(out)]
    done = subprocess.run([*command, "--", "python", str(PROGRAM)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return cover([readers.read(out)], of("ascend"))


def test_every_planted_gap_is_found_with_dtype_and_line(planted: Coverage) -> None:
    gaps = {o.name: o for o in planted.gaps()}
    lines = PROGRAM.read_text(encoding="utf-8").splitlines()
    plants = [(n, m) for n, line in enumerate(lines, 1) if (m := PLANT.search(line))]
    assert len(plants) >= 12
    for number, plant in plants:
        found = gaps[plant["op"]]
        assert found.status.value == plant["status"]
        assert plant["dtype"] in found.dtypes
        assert any(site.where.endswith(f"planted.py:{number}") for site in found.sites), plant["op"]


def test_nothing_else_is_called_a_gap(planted: Coverage) -> None:
    plants = {m["op"] for m in PLANT.finditer(PROGRAM.read_text(encoding="utf-8"))}
    theirs = {  # gradients of the planted ones
        "aten::digamma", "aten::huber_loss_backward", "aten::multi_margin_loss_backward",
        "aten::copysign.Tensor", "aten::copysign_backward",
    }  # fmt: skip
    assert {o.name for o in planted.gaps()} - plants <= theirs


def test_json_keeps_the_contract(planted: Coverage) -> None:
    data = json.loads(json.dumps(report.document(planted)))
    assert data["schema"] == "joymigrate.coverage/1"
    assert (data["chip"], data["version"]) == ("ascend", "2.13")
    needed = {"op", "overload", "status", "calls", "self_us", "dtypes", "where", "note",
              "alternative", "source"}  # fmt: skip
    assert all(needed <= set(row) for row in data["ops"])
    assert set(data["share"]) == {"ops", "calls", "time", "by_evidence"}
    assert all(0 <= data["share"][name] <= 1 for name in ("ops", "calls", "time"))


def test_sarif_has_a_result_per_call_site(planted: Coverage) -> None:
    log = coverage_sarif.document(planted, PROGRAM.parent)
    jsonschema.validate(json.loads(coverage_sarif.render(planted, PROGRAM.parent)), LOG)
    results = log["runs"][0]["results"]
    found = [r for r in results if r["properties"]["operator"] == "aten::lgamma"]
    assert found[0]["message"]["text"].startswith("aten::lgamma: an operator runs on the CPU.")
    where = found[0]["locations"][0]["physicalLocation"]
    assert where["artifactLocation"]["uri"].endswith("planted.py")
    assert where["region"]["startLine"] > 10
    rules = log["runs"][0]["tool"]["driver"]["rules"]
    assert all(rules[r["ruleIndex"]]["id"] == r["ruleId"] for r in results)


def test_junit_fails_one_case_per_gap(planted: Coverage) -> None:
    whole = ElementTree.fromstring(report.junit_text(planted).encode())
    failures = whole.findall(".//failure")
    assert len(failures) == len(planted.gaps()) == int(whole.get("failures") or 0)
    assert len(whole.findall(".//testcase")) == len(planted.ops)


def test_text_ends_with_the_counts(planted: Coverage) -> None:
    last = text.render(describe(planted)).splitlines()[-1]
    assert "on the CPU" in last
    assert "missing" in last


def test_one_operator_without_a_supported_one_reads_well(tmp_path: Path) -> None:
    said = text.render(describe(coverage_of(tmp_path, [op("aten::lgamma", 0, 1)])))
    assert "On the chip:" not in said
    assert said.splitlines()[-1] == "Judged 1 operator for ascend 2.13: 1 on the CPU."


def test_an_out_variant_inside_the_operator_of_its_name_is_judged(tmp_path: Path) -> None:
    events = [op("aten::huber_loss_backward", 0, 10), op("aten::huber_loss_backward", 2, 5)]
    found = coverage_of(tmp_path, events).ops
    assert [(o.status.value, o.calls) for o in found] == [("cpu_fallback", 1), ("composite", 1)]
    assert found[0].note == "made of aten::huber_loss_backward.out"


@pytest.mark.parametrize("name", ["aten::convolution", "aten::cudnn_convolution"])
def test_what_torch_leaves_to_the_chip_is_missing_without_it(tmp_path: Path, name: str) -> None:
    events = [op("CompiledFunction", 0, 9), op(name, 1, 1)]
    read = readers.read(written(tmp_path / "t.json", events))
    found = []
    for listed in ("aten::mm", "aten::convolution_overrideable"):
        ops = tmp_path / f"{listed[6:]}.yaml"
        ops.write_text(f"meta: {{fallback: error}}\nops: [{listed}]\n", encoding="utf-8")
        found.append(statuses(cover([read], of("musa", file=ops)))[name])
    assert found == ["missing", "composite"]


def test_html_escapes_what_a_trace_says(tmp_path: Path) -> None:
    events = [op("evil::x<script>alert(1)</script>", 0, 1), op("aten::mm", 5, 1)]
    html = page.render(describe(coverage_of(tmp_path, events)))
    assert "<script>alert" not in html
    assert "evil::x&lt;script&gt;" in html


@pytest.mark.parametrize("status", list(SupportStatus))
def test_every_status_has_a_place_in_each_report(status: SupportStatus) -> None:
    assert status in coverage_document.TONES
    assert status.supported or status in coverage_sarif.RULES


@pytest.mark.parametrize(
    ("name", "dtypes", "status"),
    [
        ("aten::native_dropout_backward", ("float32", "bool"), "native"),  # the chip's own mask
        ("aten::_fft_c2r", ("complex64",), "native"),  # its known kernels are helpers
        ("aten::mm", ("float64", "float64"), "missing"),
    ],
)
def test_what_the_chip_makes_itself_is_no_missing_dtype(
    name: str, dtypes: tuple[str, ...], status: str
) -> None:
    from joymigrate.profile.judge import SupportJudge
    from joymigrate.profile.table import CallSignature

    kinds = ("tensor",) * len(dtypes)
    signature = CallSignature(dtypes, ((2, 3),) * len(dtypes), (), kinds)
    judge = SupportJudge(of("ascend", "2.13"), overloads=True)
    assert judge.judge(name, signature).support.status.value == status


DIRECT = """
import torch
from torch import nn
layer = nn.utils.weight_norm(nn.Linear(8, 8))
layer(torch.rand(4, 8)).sum().backward()
whole = torch.eye(4) * 4
torch.linalg.cholesky(whole)
torch.fft.irfft(torch.fft.rfft(torch.rand(4, 16)))
{more}
"""


@pytest.mark.parametrize(
    ("more", "gaps"),
    [
        pytest.param("", set(), marks=pytest.mark.slow),  # the next has these lines as well
        ("torch.linalg.cholesky_ex(whole)", {"linalg_cholesky_ex"}),
    ],
)
def test_what_the_chip_s_package_never_asks_for_is_no_gap(
    more: str, gaps: set[str], tmp_path: Path
) -> None:
    program, out = tmp_path / "run.py", tmp_path / "run.jsonl"
    program.write_text(DIRECT.format(more=more))
    command = [sys.executable, "-m", "joymigrate", "profile"]
    subprocess.run([*command, "record", "-o", str(out), "--", sys.executable, str(program)],
                   check=True, timeout=120)  # fmt: skip
    told = subprocess.run([*command, "coverage", str(out), "--to", "ascend", "--format", "json"],
                          check=True, timeout=120, capture_output=True, text=True)  # fmt: skip
    found = {
        row["op"].removeprefix("aten::")
        for row in json.loads(told.stdout)["ops"]
        if row["status"] in ("cpu_fallback", "missing")
    }
    assert found == gaps
