"""Triton kernels against the chip's documented limits."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from joymigrate import chips
from joymigrate.cli._main import run as joymigrate
from joymigrate.profile import port

HEAD = "import triton\nimport triton.language as tl\n"
KERNEL = """
@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n){cast}
    {store}
"""
STORE = "tl.store(out + at, value, mask=at < n)"


def judge(source: str) -> port.Checked:
    known = port.load(chips.target("ascend"))
    (found,) = port.check_source((HEAD + source).encode(), "own.py", known)
    return found


def said(found: port.Checked, level: str) -> str:
    return "\n".join(note.message for note in found.notes if note.level == level)


def test_a_plain_kernel_works() -> None:
    found = judge(KERNEL.format(cast="", store=STORE) + "kernel[(40,)](x, out, n, BLOCK=1024)\n")
    assert found.verdict == "works"
    assert not found.notes


def test_a_tile_above_the_cores_memory_needs_changes() -> None:
    found = judge(KERNEL.format(cast="", store=STORE) + "kernel[(4,)](x, out, n, BLOCK=65536)\n")
    assert found.verdict == "needs changes"
    assert "BLOCK=65536" in said(found, "changes")


def test_a_tile_of_an_autotuned_configuration_counts() -> None:
    tuned = "@triton.autotune([triton.Config({'BLOCK': 65536}, num_warps=8)], key=['n'])"
    found = judge(tuned + KERNEL.format(cast="", store=STORE))
    assert "BLOCK=65536" in said(found, "changes")
    assert "num_warps" in said(found, "note")


def test_a_grid_above_the_limit_needs_changes() -> None:
    found = judge(KERNEL.format(cast="", store=STORE) + "kernel[(70000,)](x, out, n, BLOCK=64)\n")
    assert "70000 programs" in said(found, "changes")


@pytest.mark.parametrize(
    ("cast", "store", "part"),
    [
        (".to(tl.float64)", STORE, "float64"),
        ("", "tl.atomic_add(out + at, value, sem='relaxed')", "sem='relaxed'"),
        ("", "tl.inline_asm_elementwise('add', '=r,r', [value], tl.int32, True, 1)", "inline_asm"),
    ],
)
def test_what_the_chips_triton_does_not_take_is_named(cast: str, store: str, part: str) -> None:
    found = judge(KERNEL.format(cast=cast, store=store))
    assert found.verdict == "needs changes"
    assert part in said(found, "changes")


def test_gpu_only_parts_of_the_language_fail() -> None:
    found = judge(KERNEL.format(cast="", store="tl.extra.cuda.globaltimer()"))
    assert found.verdict == "does not work"


def test_a_function_of_another_jit_is_no_kernel() -> None:
    known = port.load(chips.target("ascend"))
    source = b"import numba\n@numba.jit\ndef f(x):\n    return x\n"
    assert port.check_source(source, "own.py", known) == []


def test_the_example_is_judged_through_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[2] / "examples/diffusion/kernels.py"
    assert joymigrate(["profile", "port", str(path), "--to", "ascend", "--format", "json"]) == 0
    made = json.loads(capsys.readouterr().out)
    (kernel,) = made["kernels"]
    assert made["schema"] == "joymigrate.port/1"
    assert kernel["kernel"] == "gated_silu_kernel"
    assert kernel["verdict"] == "needs changes"
    assert any("65536" in note["message"] for note in kernel["notes"])
    assert joymigrate(["profile", "port", str(path)]) == 0
    assert "nothing was compiled or run" in capsys.readouterr().out


SOURCE = """
#include <torch/extension.h>
// m.def("not_this", &nothing);
std::vector<at::Tensor> scale_cuda(const at::Tensor& x,
    double factor, bool inplace = false);  /* declared */
std::vector<at::Tensor> scale_forward(
    const at::Tensor& x, double factor,
    c10::optional<at::Tensor> mask = c10::nullopt, std::array<int, 2> pad = {0, 0}) {
  return scale_cuda(x, factor, false);
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("scale", &scale_forward, "scale (forward), with a mask");
  m.def("shift", [](at::Tensor x, int64_t lambda) { return x + lambda; });
  m.def("elsewhere", &other::elsewhere);
  m.def("mapping", [](py::array_t<int>& docs) { return docs; });
  py::class_<Own>(m, "Own").def("method", &Own::method);
}
TORCH_LIBRARY(ownlib, m) {
  m.def("norm(Tensor x, Tensor? w=None, *, float eps=1e-05, int[] dims=[0, 1]) -> Tensor");
}
"""
SETUP = """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension, load_inline
setup(ext_modules=[CUDAExtension("own_ext._C", ["csrc/scale.cu"])])
CODE = "at::Tensor twice(at::Tensor x) { return x * 2; }"
inline = load_inline(name="inline_ext", cpp_sources=[CODE], functions=["twice"])
flash = load_inline("flash_attn_2_cuda", "at::Tensor fwd(at::Tensor q);", functions=["fwd"])
"""


@pytest.fixture
def extension(tmp_path: Path) -> Path:
    folder = tmp_path / "ext"
    (folder / "csrc").mkdir(parents=True)
    (folder / "csrc" / "scale.cu").write_text(SOURCE)
    (folder / "setup.py").write_text(SETUP)
    return folder


def test_bound_operators_are_found_with_their_arguments(extension: Path) -> None:
    found = {one.name: one for one in port.bound([extension], chips.target("ascend"))}
    assert set(found) == {"scale", "shift", "elsewhere", "norm", "twice", "fwd", "mapping"}

    def names(operator: str) -> list[str]:
        return [one.name for one in found[operator].arguments or ()]

    assert names("scale") == ["x", "factor", "mask", "pad"]
    assert names("shift") == ["x", "lambda"]
    assert names("norm") == ["x", "w", "eps", "dims"]
    assert names("twice") == ["x"]
    assert found["elsewhere"].arguments is None
    assert found["scale"].line == SOURCE[: SOURCE.index('m.def("scale"')].count("\n") + 1
    assert found["scale"].module == "own_ext._C"
    assert found["norm"].module == "ownlib"
    assert found["twice"].module == "inline_ext"
    assert found["fwd"].instead
    assert not found["scale"].instead


def module_at(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"joytest_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_skeleton_is_no_port_until_it_computes_the_samples(
    extension: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    out = tmp_path / "port"
    command = ["profile", "port", str(extension), "--to", "ascend", "--skeleton", str(out)]
    assert joymigrate([*command, "--format", "json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["operators"]}
    assert not any(row["ported"] for row in rows.values())
    assert rows["fwd"]["skeleton"] is None
    assert rows["mapping"]["host"]
    assert rows["mapping"]["skeleton"] is None
    assert not (out / "fwd.py").exists()
    for name in ("scale", "shift", "elsewhere", "norm", "twice"):
        assert Path(rows[name]["skeleton"]) == out / f"{name}.py"
        compile((out / f"{name}.py").read_text(), name, "exec")
        harness = module_at(out / f"test_{name}.py")
        assert harness.original() is None
        with pytest.raises(pytest.fail.Exception, match="nothing was compared"):
            harness.test_there_is_something_to_compare_with()
    assert "def scale(x, factor, mask=None, pad=None):" in (out / "scale.py").read_text()
    assert "def shift(x, lambda_):" in (out / "shift.py").read_text()
    assert "def norm(x, w=None, eps=1e-05, dims=None):" in (out / "norm.py").read_text()

    x = torch.rand(3)
    sample = out / "samples" / "twice.0.pt"
    sample.parent.mkdir()
    torch.save({"args": (x,), "kwargs": {}, "expected": (x * 2, (x,), {})}, sample)
    compare = module_at(out / "test_twice.py").test_the_reference_computes_the_recorded_sample
    with pytest.raises(NotImplementedError):
        compare(sample)
    start = (out / "twice.py").read_text()
    (out / "twice.py").write_text(start + "\n\ndef twice(x):\n    return x * 3\n")
    with pytest.raises(AssertionError):
        compare(sample)
    (out / "twice.py").write_text("def twice(x):\n    return x * 2\n")
    compare(sample)
    assert joymigrate(command) == 0
    assert "none of them is ported" in capsys.readouterr().out
    assert (out / "twice.py").read_text().endswith("x * 2\n")  # what was written stays


def test_bad_input_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("def f(:\n")
    assert joymigrate(["profile", "port", str(broken)]) == 2
    assert "not valid Python" in capsys.readouterr().err
    assert joymigrate(["profile", "port", str(tmp_path / "none")]) == 2
    assert joymigrate(["profile", "port", str(broken), "--to", "musa"]) == 2
    assert "nothing is known about Triton" in capsys.readouterr().err
