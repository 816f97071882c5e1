"""Device time that no operator launched: joined, named, or counted against the share."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from joymigrate.errors import JoyError
from joymigrate.language import Language, speaking
from joymigrate.profile import readers
from joymigrate.profile.coverage import Coverage, PhaseSeen, cover
from joymigrate.profile.kernel_names import fused_operators, operator_of
from joymigrate.profile.oplist import of
from joymigrate.report.coverage_document import describe
from joymigrate.report.renderers import html


def trace(path: Path, events: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    return path


def host(name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    category = "cuda_runtime" if name.startswith(("cuda", "hip")) else "cpu_op"
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur,
            "args": args}  # fmt: skip


def kernel(name: str, ts: float, dur: float, correlation: int = 0) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur,
            "args": {"correlation": correlation}}  # fmt: skip


def covered(*paths: Path, captures: tuple[Path, ...] = ()) -> Coverage:
    read = [readers.read(path) for path in paths]
    return cover(read, of("ascend", "2.13"), [readers.read(path) for path in captures])


def capture(path: Path, *, named: bool = True) -> Path:
    """One capture of three launches inside two operators."""
    launches = [
        ("aten::mm", 10, "ampere_sgemm"),
        ("aten::lgamma", 20, "odd"),
        ("aten::mm", 30, "ampere_sgemm"),
    ]
    events = [host("cudaStreamBeginCapture", 5, 1)]
    for number, (op, ts, name) in enumerate(launches, 1):
        said = {"kernel": name} if named else {}
        events += [host(op, ts, 8), host("cudaLaunchKernel", ts + 1, 1, correlation=number, **said)]
    return trace(path, [*events, host("cudaStreamEndCapture", 50, 1)])


def replay(path: Path) -> Path:
    events = [host("aten::add", 0, 5), host("cudaGraphLaunch", 1, 1, correlation=9)]
    work = [("ampere_sgemm", 40.0), ("odd", 50.0), ("ampere_sgemm", 10.0)]
    return trace(path, [*events, *(kernel(n, 10 + i, us, 9) for i, (n, us) in enumerate(work))])


@pytest.mark.parametrize("named", [True, False])
def test_a_replay_is_joined_to_its_capture(tmp_path: Path, named: bool) -> None:
    found = covered(
        replay(tmp_path / "r.json"), captures=(capture(tmp_path / "c.json", named=named),)
    )
    by_name = {op.name: op.device_us for op in found.ops}
    assert by_name["aten::mm"] == pytest.approx(50)
    assert by_name["aten::lgamma"] == pytest.approx(50)
    assert found.unattributed_us == 0
    assert found.share.time == pytest.approx(0.5)  # lgamma runs on the CPU


def test_a_replay_without_a_capture_counts_against_the_share(tmp_path: Path) -> None:
    found = covered(replay(tmp_path / "r.json"))
    assert found.unattributed_us == pytest.approx(50)  # "ampere_sgemm" is a name that is known
    assert found.by_name_us == pytest.approx(50)
    assert found.share.time == 0  # a name alone is no yes
    assert [(one.name, one.reason) for one in found.loose] == [("odd", "graph")]


def test_a_capture_of_other_kernels_explains_nothing(tmp_path: Path) -> None:
    events = [host("cudaStreamBeginCapture", 5, 1), host("aten::add", 6, 4)]
    events += [host("cudaLaunchKernel", 7, 1, correlation=1, kernel="another")]
    other = trace(tmp_path / "c.json", [*events, host("cudaStreamEndCapture", 50, 1)])
    assert covered(replay(tmp_path / "r.json"), captures=(other,)).unattributed_us == 50


def test_a_kernel_without_launch_is_known_by_the_same_one_elsewhere(tmp_path: Path) -> None:
    events = [host("aten::mm", 0, 9), host("cudaLaunchKernel", 1, 1, correlation=3)]
    events += [kernel("my_own", 2, 30, 3), kernel("my_own", 99, 70), kernel("nobody", 200, 100)]
    found = covered(trace(tmp_path / "t.json", events))
    assert {op.name: op.device_us for op in found.ops} == {"aten::mm": pytest.approx(100)}
    assert found.share.time == pytest.approx(0.5)
    assert found.found_by == {"same kernel": pytest.approx(70)}


def test_every_microsecond_is_in_an_operator_or_unattributed(tmp_path: Path) -> None:
    events = [host("autograd::engine::evaluate_function: X", 0, 9)]
    events += [host("cudaLaunchKernel", 1, 1, correlation=3), kernel("own_thing", 2, 30, 3)]
    events += [host("aten::mm", 20, 5), kernel("volta_sgemm_128x32_nt", 40, 12)]
    found = covered(trace(tmp_path / "t.json", events))
    assert sum(op.device_us for op in found.ops) + found.unattributed_us == pytest.approx(42)
    assert [(one.name, one.reason) for one in found.loose] == [("own_thing", "operator")]


def test_odd_durations_are_said(tmp_path: Path) -> None:
    events = [host("aten::mm", 0, 5), kernel("ampere_sgemm", 1, -4), kernel("ampere_sgemm", 9, 5e9)]
    notes = " ".join(str(note) for note in covered(trace(tmp_path / "t.json", events)).notes)
    assert "1 durations are impossible" in notes
    assert "1 device events last longer than the whole trace" in notes


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "aten::mm"),
        ("void flash::flash_fwd_kernel<Traits>", "aten::_scaled_dot_product_flash_attention"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "c10d::allreduce_"),
        ("void vllm::rms_norm_kernel<c10::BFloat16>", "vllm::rms_norm"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
         "aten::add"),
        ("my_own_kernel", ""),
        ("my_gemm_of_bessel", ""),
        ("_my_softmax_hash_kernel", ""),
        ("secret_cumsum_kernel", ""),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::lgamma_kernel_cuda>",
         "aten::lgamma"),
        ("digamma_kernel_vectorized4_kernel", "aten::digamma"),
        ("void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<1>, "
         "at::native::(anonymous namespace)::UnaryOpFunctor<float, 1, 1, 0>, "
         "at::native::Lgamma<float>>", "aten::_foreach_lgamma"),
        ("void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<"
         "float, 4, at::native::templates::cuda::cauchy_kernel<at::CUDAGeneratorImpl*>>",
         "aten::cauchy_"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, custom>>", ""),
        ("triton_my_own", ""),
        ("conv2d_shape_census(int const*, int*, int)", ""),
        ("void conv2d_grouped_direct_kernel<float, 8>(float*)", "aten::convolution"),
        ("void lab::SoftMaxMargins<at::native::Tile<float>>(float*)", ""),
        ("void lab::pow2_quant_kernel<8>(float const*, float*)", ""),
        ("pow2_quant_kernel", ""),
        ("void lab::gemm::Kernel<cutlass::gemm::Tile>(int)", ""),
        ("void (anonymous namespace)::softmax_warp_forward<float, 8, false>(float*, float const*)",
         "aten::_softmax"),
        ("_per_token_group_quant_fp8", "vllm::scaled_quant"),
    ],
)  # fmt: skip
def test_kernels_are_known_by_name(name: str, operator: str) -> None:
    assert operator_of(name)[0] == operator


def test_the_operators_of_a_generated_kernel_are_read_from_its_name() -> None:
    known = frozenset(("_to_copy", "add", "native_layer_norm", "mul"))
    kernel = "triton_red_fused__to_copy_add_mul_native_layer_norm_12"
    assert fused_operators(kernel, known) == ("_to_copy", "add", "mul", "native_layer_norm")
    assert fused_operators("triton_poi_fused_add_mystery_1", known) == ()


def test_every_counterpart_exists_on_the_chip() -> None:
    from joymigrate.chips import libraries

    oplist = of("ascend", "2.13")
    entries = libraries.load(oplist.path.parent / "libraries.yaml").entries
    assert entries
    for one in entries:
        assert one.own or oplist.status(one.to).supported, one


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def node(number: int, name: str, us: int, *, host: bool, above: int = 0) -> bytes:
    switch = b"\x0a\x09is_cpu_op\xd8\x01" + bytes([host])
    body = b"\x08" + varint(number) + b"\x12" + varint(len(name)) + name.encode()
    body += (b"\x22\x01" + varint(above)) if above else b""
    body += b"\x38" + varint(us) + b"\x52" + varint(len(switch)) + switch
    return varint(len(body)) + body


def test_a_chakra_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.et"
    meta = b"\x12\x10\n\x06schema\xea\x01\x051.0.1"
    meta = varint(len(meta)) + meta
    path.write_bytes(
        meta + node(1, "aten::mm(0)", 5, host=True) + node(2, "sm90_gemm", 40, host=False, above=1)
        + node(3, "odd", 10, host=False)
    )  # fmt: skip
    found = covered(path)
    assert {op.name: op.device_us for op in found.ops} == {"aten::mm": 40}
    assert found.unattributed_us == 10
    path.write_bytes(path.read_bytes()[:-3])
    assert any("cut short" in str(note) for note in readers.read(path).notes)


@pytest.mark.parametrize("meta", [b"", b"\n\x050.0.4"])
def test_a_chakra_file_is_told_by_its_first_node(tmp_path: Path, meta: bytes) -> None:
    path = tmp_path / "a.et"
    path.write_bytes(varint(len(meta)) + meta + node(1, "aten::mm", 5, host=True))
    assert readers.detect(path) == "chakra"


@pytest.mark.parametrize("start", [b"\x00\x01\x02\x03", b"PAR1 and more", b"\x02\x0a\x00\x00"])
def test_other_bytes_are_no_chakra_file(tmp_path: Path, start: bytes) -> None:
    (tmp_path / "a.et").write_bytes(start * 20)
    with pytest.raises(JoyError, match="not a trace"):
        readers.detect(tmp_path / "a.et")


def test_a_known_foreign_format_names_its_converter(tmp_path: Path) -> None:
    for name, start, what, help_ in (
        ("host.xplane.pb", b"\x0a\x10whatever", "xplane", "xprof"),
        ("a.nsys-rep", b"\x00\x01report", "Nsight Systems", "nsys export"),
        ("a.pftrace", b"\x0a\x10whatever", "Perfetto", "traceconv"),
        ("t.json.xz", b"\xfd7zXZ\x00\x00", "packed", "unpack"),
        ("t.json", b"\xff\xfe{\x00", "UTF-16", "UTF-8"),
        ("memory.html", b"<html><img>", "a page", "trace itself"),
    ):
        path = tmp_path / name
        path.write_bytes(start)
        with pytest.raises(JoyError, match=what) as caught:
            readers.read(path)
        assert help_ in str(caught.value.help)


@pytest.mark.parametrize(
    ("lang", "said"),
    [
        ("en", ("Unattributed", "replayed by a graph, and no capture explains it", "exactly")),
        ("zh", ("未归属", "由图重放，没有可对应的捕获", "逐次录制")),
    ],
)
def test_the_page_shows_unattributed_time_and_phases(
    tmp_path: Path, lang: str, said: tuple[str, ...]
) -> None:
    found = covered(replay(tmp_path / "r.json"))
    phases = {"forward": PhaseSeen(exact=3), "eval": PhaseSeen(by_name=4, gaps=1)}
    with speaking(Language(lang)):
        made = html.render(describe(replace(found, phases=phases)))
        bare = html.render(describe(replace(found, loose=(), phases={})))
    for words in said:
        assert words in made
    assert "<code>odd</code>" in made
    for section in ("unattributed", "phases"):
        assert f'id="{section}"' in made
        assert f'id="{section}"' not in bare


@pytest.mark.parametrize(
    ("kernel_name", "dtype", "said"),
    [
        ("ampere_sgemm_128x64_tn", "", "the chip has aten::mm"),
        ("ampere_dgemm_64x64_tn", "float64", "as aten::mm: "),
        ("cutlass_80_tensorop_d884gemm_64x64", "float64", "as aten::mm: "),
        ("volta_zgemm_64x64_nn", "complex128", "as aten::mm: "),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32", "float8_e4m3fn", "as aten::mm: "),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1", "float4_e2m1fn_x2", "as vllm::fused_moe"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "", "the chip has c10d::allreduce_"),
        ("ncclDevKernel_AllReduce_Sum_f64_RING_LL", "float64", "as c10d::allreduce_: "),
    ],
)
def test_what_a_kernels_name_says_is_told_and_is_no_yes(
    tmp_path: Path, kernel_name: str, dtype: str, said: str
) -> None:
    found = covered(trace(tmp_path / "t.json", [kernel(kernel_name, 0, 10)]))
    (only,) = found.ops
    assert (only.dtypes, only.status.value) == ((dtype,) if dtype else (), "unknown")
    assert said in str(only.note)


@pytest.mark.parametrize(
    "written", ["c10::Float4_e2m1fn_x2", "c10::Float8_e8m0fnu", "c10::bits8", "c10::NewOne"]
)
def test_a_type_that_nobody_knows_is_no_yes(tmp_path: Path, written: str) -> None:
    inputs = {"Input Dims": [[4, 4], [4, 4]], "Input type": [written, written]}
    found = covered(trace(tmp_path / "t.json", [host("aten::mm", 0, 5, **inputs)]))
    assert [op.status.value for op in found.ops] == ["missing"]
    numbers = {"Input Dims": [[4], [], []], "Input type": ["float", "Scalar", "ScalarList"]}
    found = covered(trace(tmp_path / "t.json", [host("aten::mul", 0, 5, **numbers)]))
    assert [op.status.value for op in found.ops] == ["native"]


def test_an_operator_made_of_others_that_launches_by_itself_is_unknown(tmp_path: Path) -> None:
    def made(*inner: dict[str, Any]) -> Coverage:
        events = [host("aten::linalg_inv", 0, 20), *inner]
        events += [host("cudaLaunchKernel", 5, 1, correlation=3), kernel("own", 9, 90, 3)]
        return covered(trace(tmp_path / "t.json", events))

    assert [op.status.value for op in made().ops] == ["unknown"]
    shown = {op.op: op.status.value for op in made(host("aten::linalg_inv_ex", 2, 9)).ops}
    assert shown["aten::linalg_inv_ex"] == "cpu_fallback"


def test_numbers_that_two_processes_share_belong_to_neither(tmp_path: Path) -> None:
    events = [host("aten::mm", 0, 9), host("cudaLaunchKernel", 1, 1, correlation=3)]
    other = [host("aten::lgamma", 0, 9), host("cudaLaunchKernel", 1, 1, correlation=3)]
    events += [{**one, "pid": 2} for one in other] + [kernel("k", 5, 70, 3), kernel("k", 50, 30, 3)]
    found = covered(trace(tmp_path / "t.json", events))
    assert [(one.reason, one.device_us) for one in found.loose] == [("process", 100.0)]


def test_a_capture_without_names_of_another_run_explains_nothing(tmp_path: Path) -> None:
    """Three launches here and there, but one kernel would come from two operators."""
    events = [host("aten::add", 0, 5), host("cudaGraphLaunch", 1, 1, correlation=9)]
    work = [kernel(name, 10 + i, 30, 9) for i, name in enumerate(("odd", "odd", "even"))]
    other = trace(tmp_path / "r.json", [*events, *work])
    found = covered(other, captures=(capture(tmp_path / "c.json", named=False),))
    assert found.unattributed_us == 90


def test_overlapping_streams_are_said(tmp_path: Path) -> None:
    def notes(*starts: float) -> str:
        work = [kernel("ampere_sgemm", ts, 100) for ts in starts]
        return " ".join(map(str, covered(trace(tmp_path / "t.json", work)).notes))

    assert "overlaps: 300 µs in all streams within 150 µs" in notes(0, 0, 50)
    assert "overlaps" not in notes(0, 100, 250)


def test_a_scaled_sum_is_no_sum(tmp_path: Path) -> None:
    """NCCL averages and multiplies by one kernel; the chip's package has the first alone."""
    events = [
        host("c10d::allreduce_", 0, 9), host("cudaLaunchKernel", 1, 1, correlation=1),
        host("c10d::allreduce_", 20, 9), host("cudaLaunchKernel", 21, 1, correlation=2),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 40, 30, 1),
        kernel("ncclDevKernel_AllReduce_PreMulSum_f32_RING_LL", 80, 70, 2),
    ]  # fmt: skip
    found = covered(trace(tmp_path / "t.json", events))
    assert found.share.time == pytest.approx(0.3)
    assert [op.op for op in found.gaps()] == ["c10d::reduce_premul"]


NSYS = {
    "StringIds": "id, value",
    "NVTX_EVENTS": "start, end, eventType, text, globalTid",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start, globalTid, correlationId, nameId",
    "CUPTI_ACTIVITY_KIND_KERNEL":
        "start, end, correlationId, globalPid, demangledName, graphNodeId",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start, end, correlationId, globalPid, graphId",
}  # fmt: skip


def nsys(path: Path, **rows: list[tuple[Any, ...]]) -> Path:
    """An export. Times are in µs; threads are (process, thread)."""
    strings = ["cudaLaunchKernel", "cudaGraphLaunch", "volta_sgemm_128x32_nt", "own_thing"]
    with sqlite3.connect(path) as base:
        for table, columns in NSYS.items():
            base.execute(f"CREATE TABLE {table} ({columns})")
        base.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(strings, 1))
        for short, table in zip(
            ("ranges", "calls", "kernels", "graphs"), list(NSYS)[1:], strict=True
        ):
            for row in rows.get(short, ()):
                base.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
    return path


def process(number: int) -> int:
    return number << 24


def test_launch_numbers_repeat_between_processes(tmp_path: Path) -> None:
    one, two = process(5), process(6)
    found = covered(
        nsys(
            tmp_path / "n.sqlite",
            ranges=[(0, 9000, 59, "aten::mm, seq = 1", one + 5),
                    (0, 9000, 59, "aten::lgamma, seq = 1", two + 6)],
            calls=[(1000, one + 5, 7, 1), (1000, two + 6, 7, 1)],
            kernels=[(2000, 32000, 7, one, 3, None), (2000, 12000, 7, two, 4, None)],
        )
    )  # fmt: skip
    assert {op.name: op.device_us for op in found.ops} == {"aten::mm": 30, "aten::lgamma": 10}


def test_a_graph_that_was_recorded_whole_is_loose(tmp_path: Path) -> None:
    found = covered(
        nsys(
            tmp_path / "n.sqlite",
            ranges=[(0, 9000, 59, "aten::mm, seq = 1", process(5))],
            calls=[(1000, process(5), 7, 2), (1500, process(5), 8, 1)],
            kernels=[(2000, 12000, 8, process(5), 3, None)],
            graphs=[(20000, 110000, 7, process(5), 3)],
        )
    )
    assert [(one.name, one.reason, one.device_us) for one in found.loose] == [
        ("graph 3", "whole graph", 90)
    ]
    assert (found.device_us, found.owned_us, found.share.time) == (100, 10, pytest.approx(0.1))
    assert any("--cuda-graph-trace=node" in str(note) for note in found.notes)


def test_kernels_of_a_graph_belong_to_no_range_and_are_counted_once(tmp_path: Path) -> None:
    found = covered(
        nsys(
            tmp_path / "n.sqlite",
            ranges=[(0, 9000, 59, "aten::mm, seq = 1", process(5))],
            calls=[(1000, process(5), 7, 2)],
            kernels=[(2000, 12000, 7, process(5), 4, 77)],
            graphs=[(2000, 12000, 7, process(5), 3)],
        )
    )
    assert [(one.name, one.reason) for one in found.loose] == [("own_thing", "graph")]
    assert found.device_us == 10


@pytest.mark.parametrize(
    ("written", "operator"),
    [
        ("aten::mm, seq = 5, op_id = 7", True),
        ("aten::mm", True),
        ("mylib::rotate, op_id = 3, sizes = [[8]]", True),
        ("FSDP::pre_forward (layers.0)", False),
        ("FSDP::pre_forward, op_id = 9", False),
        ("Trainer::step", False),
    ],
)
def test_a_librarys_mark_is_no_operator(tmp_path: Path, written: str, operator: bool) -> None:
    found = readers.read(
        nsys(
            tmp_path / "n.sqlite",
            ranges=[(0, 9000, 59, written, process(5))],
            calls=[(1000, process(5), 7, 1)],
            kernels=[(2000, 12000, 7, process(5), 4, None)],
        )
    )
    assert [row.operator for row in found.ops.rows()] == [operator]
    assert [one.reason for one in found.loose] == ([] if operator else ["operator"])
