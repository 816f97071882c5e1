"""Traces of every kind and generation, whole and broken, into one table."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joymigrate.errors import JoyError
from joymigrate.profile import readers
from joymigrate.profile.readers import stream
from joymigrate.profile.readers.names import frame_place, is_operator, stack_place
from joymigrate.profile.table import Trace


def op(name: str, ts: float, dur: float, tid: Any = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur,
            "args": args}  # fmt: skip


EVENTS: list[dict[str, Any]] = [
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1,
     "ts": 0, "dur": 900},
    op("aten::linear", 10, 50, **{"External id": 1}),
    op("aten::addmm", 20, 30, **{"External id": 2, "Input Dims": [[8], [4, 8], [8, 8], [], []],
       "Input type": ["float", "float", "float", "Scalar", "Scalar"],
       "Input Strides": [[1], [8, 1], [1, 8], [], []]}),
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 25,
     "dur": 5, "args": {"correlation": 7}},
    {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 40, "dur": 100,
     "args": {"correlation": 7, "External id": 2}},
    op("autograd::engine::evaluate_function: AddmmBackward0", 100, 80),
    op("AddmmBackward0", 110, 60),
    op("aten::mm", 120, 20),
    {"ph": "X", "cat": "user_annotation", "name": "Optimizer.step#SGD.step", "pid": 1, "tid": 1,
     "ts": 300, "dur": 50},
    op("aten::add_", 310, 10),
]  # fmt: skip


def written(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def names(trace: Trace) -> list[str]:
    return [row.name for row in trace.ops.rows() if row.operator]


def test_operators_nest_by_time(tmp_path: Path) -> None:
    trace = readers.read(written(tmp_path / "t.json", {"traceEvents": EVENTS}))
    rows = {row.name: row for row in trace.ops.rows()}
    assert names(trace) == ["aten::linear", "aten::addmm", "aten::mm", "aten::add_"]
    assert rows["aten::addmm"].parent == rows["aten::linear"].index
    assert rows["aten::linear"].self_us == 20
    assert trace.steps == 1


def test_phases_come_from_autograd_and_the_optimiser(tmp_path: Path) -> None:
    trace = readers.read(written(tmp_path / "t.json", {"traceEvents": EVENTS}))
    phases = {row.name: row.phase for row in trace.ops.rows() if row.operator}
    assert phases == {
        "aten::linear": "forward",
        "aten::addmm": "forward",
        "aten::mm": "backward",
        "aten::add_": "optimiser",
    }


def test_a_kernel_belongs_to_the_operator_that_launched_it(tmp_path: Path) -> None:
    trace = readers.read(written(tmp_path / "t.json", {"traceEvents": EVENTS}))
    rows = {row.name: row for row in trace.ops.rows()}
    assert rows["aten::addmm"].device_us == 100
    assert trace.kernels[0].operator == "aten::addmm"


def test_dtypes_dims_and_strides_are_read(tmp_path: Path) -> None:
    trace = readers.read(written(tmp_path / "t.json", {"traceEvents": EVENTS}))
    signature = next(r.signature for r in trace.ops.rows() if r.name == "aten::addmm")
    assert signature.dtypes == ("float32", "float32", "float32", "", "")
    assert signature.dims[1] == (4, 8)
    assert signature.strides[2] == (1, 8)
    assert signature.kinds == ("tensor", "tensor", "tensor", "value", "value")


def variants() -> Iterator[tuple[str, Any]]:
    yield "list at the top", EVENTS
    yield "keys before", {"schemaVersion": 1, "deviceProperties": [{"name": "A"}],
                          "traceEvents": EVENTS}  # fmt: skip
    yield "keys behind", {"traceEvents": EVENTS, "traceName": "x"}
    yield "text times", [{**e, "ts": str(e["ts"]), "dur": str(e["dur"])} for e in EVENTS]
    yield "text threads", [{**e, "tid": str(e["tid"])} for e in EVENTS]
    old = {"cpu_op": "Operator", "kernel": "Kernel", "cuda_runtime": "Runtime"}
    yield "old categories", [{**e, "cat": old.get(e["cat"], e["cat"])} for e in EVENTS]
    yield "shuffled", EVENTS[::-1]
    halves = []
    for event in EVENTS:
        halves += [{**event, "ph": "B"}, {"ph": "E", "pid": event["pid"], "tid": event["tid"],
                   "ts": event["ts"] + event["dur"]}]  # fmt: skip
    halves.sort(key=lambda e: (e["ts"], e["ph"] == "B"))
    yield "begin and end", halves


@pytest.mark.parametrize(("what", "document"), list(variants()), ids=lambda v: str(v)[:20])
def test_every_generation_reads_the_same(tmp_path: Path, what: str, document: Any) -> None:
    trace = readers.read(written(tmp_path / "t.json", document))
    expected = ["aten::linear", "aten::addmm", "aten::mm", "aten::add_"]
    assert names(trace) == expected
    rows = {row.name: row for row in trace.ops.rows()}
    assert rows["aten::addmm"].device_us == 100
    assert rows["aten::mm"].phase == "backward"


def test_gzip_is_told_by_content(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(gzip.compress(json.dumps(EVENTS).encode()))
    assert names(readers.read(path))[0] == "aten::linear"


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_cut_short_gives_what_is_in_it(tmp_path: Path, packed: bool) -> None:
    data = json.dumps({"traceEvents": EVENTS * 50}).encode()
    data = gzip.compress(data)[:-40] if packed else data[: len(data) // 2]
    path = tmp_path / "t.json"
    path.write_bytes(data)
    trace = readers.read(path)
    assert "aten::addmm" in names(trace)
    assert any("cut short" in note for note in trace.notes)


def test_nan_control_characters_and_broken_events_are_survived(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": EVENTS})
    text = text.replace('"dur": 100', '"dur": NaN').replace("gemm", "ge\x01mm")
    text = text.replace('"traceEvents": [', '"traceEvents": [{"ph": "X", "ts": oops}, ')
    path = tmp_path / "t.json"
    path.write_text(text, encoding="utf-8")
    trace = readers.read(path)
    assert "aten::addmm" in names(trace)
    assert any("could not be read" in note for note in trace.notes)


def test_times_that_are_no_numbers_poison_nothing(tmp_path: Path) -> None:
    odd = [
        {**op("aten::bmm", 0, 1), "ts": float("nan")},
        {**op("aten::add", 3, 1), "dur": float("inf")},
        {**op("aten::mul", 6, 1), "dur": -5},
        {**op("aten::div", 9, 1), "ts": "soon"},
        {**op("aten::sub", 12, 1, **{"External id": "x7"}), "tid": None},
    ]
    trace = readers.read(written(tmp_path / "t.json", [*odd, *EVENTS]))
    assert {"aten::add", "aten::mul", "aten::sub"} < set(names(trace))
    assert not {"aten::bmm", "aten::div"} & set(names(trace))
    assert all(row.self_us >= 0 for row in trace.ops.rows())
    assert any("2 events could not be read" in note for note in trace.notes)


@given(
    objects=st.lists(
        st.dictionaries(
            st.text(max_size=5),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.text(max_size=80),
                lambda inner: st.lists(inner, max_size=3),
                max_leaves=5,
            ),
            max_size=4,
        ),
        max_size=12,
    ),
    window=st.integers(16, 300),
    cut=st.none() | st.integers(0, 400),
)
@settings(max_examples=150, deadline=None)
def test_objects_come_out_whatever_the_window_and_the_cut(
    tmp_path_factory: pytest.TempPathFactory,
    objects: list[dict[str, Any]],
    window: int,
    cut: int | None,
) -> None:
    path = tmp_path_factory.mktemp("stream") / "x.json"
    data = json.dumps(objects, ensure_ascii=False).encode("utf-8", "replace")
    path.write_bytes(data if cut is None else data[:cut])
    before, stream.WINDOW = stream.WINDOW, window
    try:
        with stream.TextWindow(path) as found:
            if found.peek() != "[":
                assert cut == 0
                return
            got = list(found.objects())
    finally:
        stream.WINDOW = before
    whole = json.loads(data)
    if cut is None or cut >= len(data):
        assert got == whole
    else:
        assert got == whole[: len(got)]
        assert found.cut


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "an empty file"),
        (b"hello", "not a trace"),
        (b"\x80\x04abc", "a pickle"),
        (b"\x80\x04\x95\rabc\r", "a pickle"),
        (b"a,b\rc\r\n", "not a trace"),
        (b"{}", "no events"),
        (b'{"traceEvents": []}', "no events"),
        (b'{"traceEvents": 5}', "no events"),
        (b"[1, 2]", "no events"),
        (b'{"a" 5}', "not a trace"),
        (b"a,b\n1,2\n", "not a trace"),
        (b"SQLite format 3\0 and no more", "SQLite"),
        (b'{"schema": "joymigrate.trace/9"}\n', "is not one this joymigrate reads"),
        (b'{"schema": "joymigrate.verdict/1"}\n', "another document of joymigrate"),
        (b'{\n  "schema": "joymigrate.chip-facts/1",\n', "another document of joymigrate"),
        (b'{"schema": "joymigrate.trace/1"}\nnot json\n', "not a line of JSON"),
        (b'{"schema": "joymigrate.trace/1"}\n{"kind": "op"}\n', "without a name"),
        (b"\x1f\x8bnot gzip", "gzip"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_name(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "thing.json"
    path.write_bytes(content)
    with pytest.raises(JoyError) as raised:
        readers.read(path)
    assert said in str(raised.value)
    assert "thing.json" in str(raised.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(JoyError, match="no such file"):
        readers.read(tmp_path / "gone.json")
    with pytest.raises(JoyError, match="a folder"):
        readers.read(tmp_path)
    with pytest.raises(JoyError, match="no traces in this folder"):
        readers.read_all([tmp_path])


def test_a_folder_stands_for_its_traces(tmp_path: Path) -> None:
    for rank in range(2):
        written(tmp_path / f"rank-{rank}.json", EVENTS)
    assert len(readers.read_all([tmp_path])) == 2


def test_the_chrome_trace_beside_a_recording_is_not_counted_again(tmp_path: Path) -> None:
    head = '{"schema": "joymigrate.trace/1"}\n{"kind": "op", "op": "aten::mm"}\n'
    (tmp_path / "run.jsonl").write_text(head, encoding="utf-8")
    written(tmp_path / "run.trace.json.gz", [op("aten::mm", 0, 1)])
    written(tmp_path / "other.trace.json.gz", [op("aten::mm", 0, 1)])
    found = readers.read_all([tmp_path])
    assert [trace.path.name for trace in found] == ["other.trace.json.gz", "run.jsonl"]


def test_a_line_nested_without_end_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "deep.jsonl"
    deep = "[" * 100_000 + "]" * 100_000
    path.write_text(f'{{"schema": "joymigrate.trace/1"}}\n{{"args": {deep}}}\n', encoding="utf-8")
    with pytest.raises(JoyError, match="nested too deeply"):
        readers.read(path)


def test_a_recording_is_read_with_overloads_places_and_phases(tmp_path: Path) -> None:
    tensor = {"dtype": "float64", "shape": [4, 8], "stride": [8, 1], "device": "cpu"}
    lines = [
        {"schema": "joymigrate.trace/1", "device": "cpu", "steps": 2},
        {"kind": "op", "op": "aten::scatter", "overload": "reduce", "args": [tensor, 0, [tensor]],
         "kwargs": {"reduce": "add"}, "calls": 3, "self_us": 12.5, "phase": "backward",
         "where": "train.py:31", "parents": ["aten::outer"]},
        {"kind": "something_new"},
    ]  # fmt: skip
    text = "\n".join(json.dumps(line) for line in lines) + '\n{"kind": "op", "op": "at'
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(text.encode()))
    trace = readers.read(path)
    (row,) = trace.ops.rows()
    assert (row.name, row.calls, row.self_us) == ("aten::scatter.reduce", 3, 12.5)
    assert (row.place, row.phase) == ("train.py:31", "backward")
    assert row.signature.kinds == ("tensor", "value", "tensors", "value")
    assert row.signature.tensor_dtypes == ("float64",)
    assert trace.inside == {0: ("aten::outer",)}
    assert any("cut short" in note for note in trace.notes)


ET_NODES = [
    {"name": "[pytorch|profiler|execution_trace|process]", "id": 1, "parent": 1},
    {"name": "aten::mm", "id": 4, "parent": 3, "tid": 1,
     "op_schema": "aten::mm(Tensor self, Tensor mat2) -> Tensor",
     "input_types": ["Tensor(float)", "Tensor(c10::Half)"], "input_shapes": [[4, 8], [8, 8]]},
    {"name": "aten::linear", "id": 3, "parent": 1, "tid": 1,
     "op_schema": "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor",
     "input_types": ["Tensor(float)", "Tensor(float)", "None"],
     "input_shapes": [[4, 8], [8, 8], []]},
]  # fmt: skip
ET_NEW = [
    {"name": n["name"], "id": n["id"], "ctrl_deps": n["parent"],
     "inputs": {"types": n.get("input_types", []), "shapes": n.get("input_shapes", [])},
     "attrs": [{"name": "op_schema", "value": n.get("op_schema", "")}, {"name": "tid", "value": 1}]}
    for n in ET_NODES
]  # fmt: skip


@pytest.mark.parametrize(("schema", "nodes"), [("1.0.1", ET_NODES), ("1.1.1-chakra.0.0.4", ET_NEW)])
def test_execution_traces_have_exact_overloads_and_no_times(
    tmp_path: Path, schema: str, nodes: Any
) -> None:
    trace = readers.read(written(tmp_path / "et.json", {"schema": schema, "nodes": nodes}))
    outer, inner = trace.ops.rows()
    assert (outer.name, inner.name) == ("aten::linear", "aten::mm")
    assert inner.parent == outer.index
    assert inner.signature.dtypes == ("float32", "float16")
    assert trace.overloads
    assert any("no times" in note for note in trace.notes)


def test_a_vendors_timeline_ties_kernels_by_arrows(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "name": "aten::mm", "cat": "cpu_op", "pid": 5, "tid": 5, "ts": "100.5",
         "dur": 20, "args": {}},
        {"ph": "s", "cat": "async_npu", "name": "torch_to_npu", "id": 9, "pid": 5, "tid": 5,
         "ts": "110.5"},
        {"ph": "X", "name": "MatMul", "pid": 800, "tid": 3, "ts": "150.25", "dur": 7.5,
         "args": {"Task Type": "AI_CORE"}},
        {"ph": "f", "cat": "async_npu", "name": "torch_to_npu", "id": 9, "pid": 800, "tid": 3,
         "ts": "150.25"},
    ]  # fmt: skip
    trace = readers.read(written(tmp_path / "trace_view.json", events))
    assert next(trace.ops.rows()).device_us == 7.5
    assert trace.kernels[0].core == "AI_CORE"


def test_kernel_tables_of_the_chips_profiler(tmp_path: Path) -> None:
    details = tmp_path / "kernel_details.csv"
    details.write_text(
        "Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Input Shapes,"
        'Input Data Types\n1,x,MatMulV2,AI_CORE,"10.5\t",7.5,"""4,8;8,8""",DT_BF16;FLOAT\n'
        "1,y,Cast,AI_CPU,20,N/A,,\n"
    )
    trace = readers.read(details)
    (row,) = trace.ops.rows()
    assert (row.name, row.device_us) == ("kernel::MatMulV2", 7.5)
    assert row.signature.dtypes == ("bfloat16", "float32")
    assert row.signature.dims == ((4, 8), (8, 8))
    assert any("1 rows could not be read" in note for note in trace.notes)
    statistic = tmp_path / "op_statistic.csv"
    statistic.write_text("OP Type,Core Type,Count,Total Time(us)\nMatMulV2,AI_CORE,12,80.5\n")
    (kernel,) = readers.read(statistic).kernels
    assert (kernel.calls, kernel.device_us) == (12, 80.5)


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        ("nsys_stats", ["Time (%),Total Time (ns),Instances,Avg (ns),Name",
                        '75.0,30000,3,10000,"void own<1, 2>(int)"', "25.0,10000,1,10000,other"]),
        ("rocprof", ["Kind,Kernel_Name,Correlation_Id,Start_Timestamp,End_Timestamp",
                     'KERNEL_DISPATCH,"void own<1, 2>(int)",1,1000,31000',
                     "KERNEL_DISPATCH,other,2,40000,50000"]),
    ],
)  # fmt: skip
def test_tables_of_other_profilers_are_told_by_their_columns(
    tmp_path: Path, kind: str, lines: list[str]
) -> None:
    path = tmp_path / "any.txt"
    path.write_text("\n".join(lines) + "\n")
    trace = readers.read(path)
    assert (trace.kind, trace.device_us) == (kind, 40)
    assert {(one.name, one.device_us) for one in trace.loose} == {
        ("void own<1, 2>(int)", 30),
        ("other", 10),
    }


def test_an_nsys_export_with_ranges_and_kernels(tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    with sqlite3.connect(path) as base:
        base.executescript(
            """
            CREATE TABLE StringIds (id INTEGER, value TEXT);
            INSERT INTO StringIds VALUES (1, 'ampere_sgemm');
            INSERT INTO StringIds VALUES (2, 'aten::addmm, seq = 5, op_id = 7');
            CREATE TABLE NVTX_EVENTS (start, end, globalTid, text, textId);
            INSERT INTO NVTX_EVENTS VALUES
              (1000, 90000, 4, 'aten::linear, op_id = 6, sizes = [[4, 8], [8, 8], [8]]', NULL),
              (2000, 80000, 4, NULL, 2), (3000, NULL, 4, 'an open one', NULL);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, globalTid, correlationId);
            INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (5000, 4, 77);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (demangledName, start, end, correlationId);
            INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 100000, 130000, 77);
            """
        )
    trace = readers.read(path)
    outer, inner = trace.ops.rows()
    assert (outer.name, inner.name) == ("aten::linear", "aten::addmm")
    assert outer.signature.dims == ((4, 8), (8, 8), (8,))
    assert inner.device_us == 30
    assert trace.kernels[0].name == "ampere_sgemm"


def test_the_innermost_line_of_the_users_code_is_the_call_site() -> None:
    stack = (
        "/env/lib/python3.11/site-packages/torch/nn/functional.py(2): linear;"
        "<built-in method linear>;/home/me/model.py(31): forward;train.py(9): <module>"
    )
    assert stack_place(stack) == "/home/me/model.py:31"
    assert frame_place("torch/nn/modules/linear.py(125): forward") == ""
    assert stack_place("") == ""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::add", True),
        ("fbgemm::x", True),
        ("triton_poi_fused_0", True),
        ("autograd::engine::evaluate_function: MulBackward0", False),
        ("torch::autograd::AccumulateGrad", False),
        ("torch.distributed.ddp.reducer::copy_bucket_to_grad", False),
        ("Optimizer.step#AdamW.step", False),
        ("ProfilerStep#3", False),
    ],
)
def test_bookkeeping_is_no_operator(name: str, expected: bool) -> None:
    assert is_operator(name) is expected


def test_a_users_mark_is_no_operator_whatever_its_name(tmp_path: Path) -> None:
    mark = {**EVENTS[0], "name": "FSDP::all_gather"}
    trace = readers.read(written(tmp_path / "t.json", [mark, *EVENTS]))
    assert "FSDP::all_gather" not in names(trace)


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real trace of torch's profiler, with overload names."""
    torch = pytest.importorskip("torch")
    path = tmp_path_factory.mktemp("profiled") / "trace.json"
    config = torch._C._profiler._ExperimentalConfig(capture_overload_names=True)
    model = torch.nn.Linear(8, 8)
    with torch.profiler.profile(record_shapes=True, experimental_config=config) as profile:
        torch.lgamma(model(torch.randn(4, 8)).abs() + 1).sum().backward()
    profile.export_chrome_trace(str(path))
    return path


def test_torchs_own_profiler_is_read(profiled: Path) -> None:
    trace = readers.read(profiled)
    rows = {row.name: row for row in trace.ops.rows()}
    assert trace.overloads
    assert rows["aten::addmm"].parent == rows["aten::linear"].index
    assert rows["aten::digamma"].phase == "backward"
    assert rows["aten::lgamma"].signature.dtypes == ("float32",)
    assert not trace.notes


def test_torchs_execution_trace_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "et.json"
    observer = torch.profiler.ExecutionTraceObserver()
    observer.register_callback(str(path))
    observer.start()
    torch.stack([torch.ones(2), torch.ones(2)]) @ torch.ones(2, dtype=torch.float32)
    observer.stop()
    observer.unregister_callback()
    found = {row.name: row for row in readers.read(path).ops.rows()}
    assert found["aten::stack"].signature.dtypes[0] == "float32"
    assert "aten::mv" in found
