"""CUDA and C++ sources: the inventory, known replacements, and the callers."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate import chips
from joymigrate.rewrite.project import scan
from joymigrate.rewrite.readers.kernels import callers, relate
from tests.rewrite.projects import findings
from tests.rewrite.readers.moved import found, rules

SOURCE = """\
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
// __global__ void commented_out() {}
/* m.def("old", &old); */
template <typename T>
__global__ void __launch_bounds__(256) rms_norm_kernel(T* x, int n) {}
static __global__ void scale(float* x);
__global__ void scale(float* x) {}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("rms_norm", &rms_norm, "text");
  m.def("twist", &twist);
}
TORCH_LIBRARY(mylib, m) { m.def("fold(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(mylib, CPU, m) { m.impl("fold", fold_cpu); }
TORCH_LIBRARY_IMPL(mylib, CUDA, m) { m.impl("fold", fold_cuda); m.impl("bend", bend_cuda); }
"""


def test_kernels_and_bound_operators_are_listed_once() -> None:
    assert [text for _, _, text in rules("ops.cu", SOURCE)] == [
        "rms_norm_kernel",
        "scale",
        "rms_norm",
        "twist",
        "fold",
        "bend",
    ]
    assert {(rule, tier) for rule, tier, _ in rules("ops.cu", SOURCE)} == {("JM203", "report")}


def test_a_known_replacement_is_named() -> None:
    reasons = {f.before: str(f.reason) for f in found("ops.cu", SOURCE)}
    assert "torch_npu.npu_rms_norm" in reasons["rms_norm_kernel"]
    assert "torch_npu.npu_rms_norm" in reasons["rms_norm"]
    assert reasons["twist"] == "operator twist is bound for Python: no replacement is known"
    assert "torch.ops.mylib.bend" in reasons["bend"]


def test_a_host_file_is_known_by_its_header() -> None:
    text = "#include <vector>\n#include <cuda_runtime.h>\nvoid f();\n"
    assert [text for _, _, text in rules("a.cpp", text, to="musa")] == ["cuda_runtime.h"]


def test_plain_cpp_is_none_of_our_business() -> None:
    text = '#include <pybind11/pybind11.h>\nPYBIND11_MODULE(helpers, m) { m.def("f", &f); }\n'
    assert found("helpers.cpp", text) == []
    assert found("ops.cu", SOURCE, to="hygon") == []


PYTHON = {
    "setup.py": 'setup(ext_modules=[CUDAExtension("pkg.my_ops", ["ops.cu"])])\n',
    "a.py": "from pkg import my_ops\n\ny = my_ops.rms_norm(x)\nz = other.twist(x)\n",
    "b.py": "from pkg.my_ops import twist as turn\nturn(x)\n",
    "c.py": "import torch\ntorch.ops.mylib.fold(x)\n",
    "d.py": "ext = load(name='jit_ops', sources=['ops.cu'])\next.twist(x)\n",
    "broken.py": "def twist(:\n",
}


@pytest.mark.parametrize(
    ("call", "sites"),
    [
        ("load(name='m', sources=[os.path.join(here, 'm.cpp')], extra_cflags=['-O3'])", 0),
        ("load('m', ['a.cpp', 'b.cc'])", 0),
        ("load_inline('m', cpp_sources=text)", 0),
        ("load('m', ['a.cpp', 'a.cu'])", 1),
        ("load('m', ['a.cpp'], with_cuda=True)", 1),
        ("load_inline('m', cpp_sources=text, cuda_sources=more)", 1),
        ("load('m', sources)", 1),
        ("load('m', **options)", 1),
    ],
)
def test_a_build_of_plain_cpp_is_none_of_our_business(
    call: str, sites: int, tmp_path: Path
) -> None:
    builder = call.partition("(")[0]
    text = f"import os\nfrom torch.utils.cpp_extension import {builder}\nops = {call}\n"
    assert bool(findings(tmp_path, text, "JM203")) == bool(sites)


def test_callers_are_found_through_modules_names_and_torch_ops() -> None:
    calls = callers({"rms_norm", "twist", "fold", "bend"}, PYTHON)
    places = {name: [f"{c.path}:{c.line}" for c in each] for name, each in calls.items()}
    assert places == {
        "rms_norm": ["a.py:3"],
        "twist": ["b.py:2", "d.py:2"],
        "fold": ["c.py:2"],
    }


def test_callers_stand_in_the_reasons() -> None:
    reasons = {f.before: str(f.reason) for f in relate(found("ops.cu", SOURCE), PYTHON)}
    assert reasons["twist"].endswith("called from b.py:2, d.py:2")
    assert reasons["bend"].endswith("no call of it was found in the Python files")
    assert "called" not in reasons["scale"]


def test_a_scan_of_the_project_names_the_callers(tmp_path: Path) -> None:
    for name, text in {**PYTHON, "csrc/ops.cu": SOURCE}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = scan([tmp_path], chip=chips.get("ascend"), origin=chips.get("nvidia"), jobs=1)
    reasons = {f.before: str(f.reason) for f in found.findings if f.path == "csrc/ops.cu"}
    assert reasons["rms_norm"].endswith("called from a.py:3")


def test_callers_are_found_behind_compiled_modules_and_variables() -> None:
    python = {
        "ops/a.py": "from . import fused_ext\ny = fused_ext.fused_bias(x)\n",
        "ops/b.py": "from . import group_cuda\ny = group_cuda.forward(x)\nnet.forward(x)\n",
        "ops/c.py": "_plugin = build('p')\ndef twist(x):\n    return _plugin.twist(x)\n",
        "d.py": "from ops import c\ny = c.twist(x)\n",
    }
    calls = callers({"fused_bias", "forward", "twist"}, python)
    places = {name: [f"{c.path}:{c.line}" for c in each] for name, each in calls.items()}
    assert places == {
        "fused_bias": ["ops/a.py:2"],
        "forward": ["ops/b.py:2"],
        "twist": ["ops/c.py:3"],
    }


def test_operators_that_nobody_calls_are_one_row() -> None:
    binding = 'PYBIND11_MODULE(ops_ext, m) { m.def("bend", &bend); m.def("coil", &coil); }\n'
    reasons = {f.before: str(f.reason) for f in relate(found("bind.cu", binding), PYTHON)}
    assert "coil" not in reasons
    assert reasons["bend"].endswith("Python files; nor of coil, bound here as well")
