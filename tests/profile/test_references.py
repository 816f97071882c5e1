"""References of bound C++ and CUDA operators, derived from their sources."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from joymigrate import chips
from joymigrate.cli._main import run as joymigrate
from joymigrate.profile.port import original
from joymigrate.profile.port.operators import BoundOperator, find_bound
from joymigrate.profile.port.originals import as_cpp, find_originals
from joymigrate.profile.port.reference import KERNEL, SourceProject, fallback

HOST = """
#include <torch/extension.h>
static int64_t half(int64_t n) { return n / 2; }

at::Tensor scaled_cpu(const at::Tensor& x, double by, int64_t shift) {
  TORCH_CHECK(x.dim() == 2, "x must have two dimensions");
  auto y = x.contiguous();
  auto out = torch::zeros({y.size(0), y.size(1)}, y.options());
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "scaled", [&] {
    const scalar_t* from = y.data_ptr<scalar_t>();
    scalar_t* to = out.data_ptr<scalar_t>();
    for (int64_t i = 0; i < y.numel(); ++i) {
      if (from[i] == 0) continue;
      int whole = by * 1.5;
      to[i] = from[i] * by + half(shift) + (scalar_t)whole / (scalar_t)2;
    }
  });
  return out;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("scaled", &scaled_cpu); }
"""
CUDA = """
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <ATen/cuda/CUDAContext.h>
#define CHECK_CUDA(x) TORCH_CHECK(x.is_cuda(), #x " must be a CUDA tensor")
template <unsigned int size>
__global__ void total_kernel(const float* __restrict__ x, int n, float* out) {
  __shared__ float parts[size];
  int tid = threadIdx.x;
  float sum = 0;
  for (int i = tid; i < n; i += blockDim.x) sum += x[blockIdx.x * n + i];
  parts[tid] = sum;
  __syncthreads();
  for (int step = size / 2; step > 0; step /= 2) {
    if (tid < step) parts[tid] += parts[tid + step];
    __syncthreads();
  }
  if (tid == 0) out[blockIdx.x] = parts[0];
}
at::Tensor total(at::Tensor x) {
  CHECK_CUDA(x);
  at::Tensor out = torch::zeros({x.size(0)}, torch::dtype(at::kFloat).device(x.device()));
  if (x.is_cuda()) {
    total_kernel<8><<<x.size(0), 8, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), x.size(1), out.data_ptr<float>());
  } else {
    TORCH_CHECK(false, "no CPU");
  }
  return out;
}
template <typename T>
__global__ void __launch_bounds__(64) warps_kernel(
    const torch::PackedTensorAccessor32<T, 2, torch::RestrictPtrTraits> x, T* __restrict__ out) {
  extern __shared__ char raw[];
  T* parts = reinterpret_cast<T*>(raw);
  T sum = 0;
  for (int i = threadIdx.x; i < x.size(1); i += blockDim.x) sum += x[blockIdx.x][i];
  for (int by = 16; by > 0; by /= 2) sum += __shfl_down_sync(0xffffffff, sum, by);
  if (threadIdx.x % warpSize == 0) parts[threadIdx.x / warpSize] = sum;
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(out + blockIdx.x, parts[0] + parts[1]);
}
at::Tensor warps(at::Tensor x) {
  const at::cuda::OptionalCUDAGuard guard(device_of(x));
  at::Tensor out = torch::zeros({x.size(0)}, x.options());
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "warps", [&] {
    warps_kernel<scalar_t><<<dim3(x.size(0)), 64, 2 * sizeof(scalar_t)>>>(
        x.packed_accessor32<scalar_t, 2, torch::RestrictPtrTraits>(), out.data_ptr<scalar_t>());
  });
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}
__global__ void first_kernel(const float* x, int n, float* out, bool stuck) {
  if (stuck && threadIdx.x == 0) __shfl_sync(0xffffffff, 1, 0);
  else if (stuck) __syncthreads();
  if (threadIdx.x < n) out[0] = x[threadIdx.x];  // the last thread wins
}
at::Tensor first(at::Tensor x) {
  at::Tensor out = torch::zeros({1}, x.options());
  first_kernel<<<1, 32>>>(x.data_ptr<float>(), x.numel(), out.data_ptr<float>(), false);
  return out;
}
at::Tensor stuck(at::Tensor x) {
  at::Tensor out = torch::zeros({1}, x.options());
  first_kernel<<<1, 32>>>(x.data_ptr<float>(), x.numel(), out.data_ptr<float>(), true);
  return out;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("total", &total);
  m.def("warps", &warps);
  m.def("first", &first);
  m.def("stuck", &stuck);
}
"""


def derived(folder: Path, **files: str) -> tuple[BoundOperator, SourceProject]:
    """The only operator of a project."""
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    (one,) = find_bound([folder], chips.target("ascend"))
    return one, SourceProject([folder])


def test_cuda_is_written_as_cpp_behind_the_header() -> None:
    text = as_cpp(
        "#include <cuda_runtime.h>\n__global__ void k(int n) { extern __shared__ float s[]; }\n"
        'void f() { k<<<dim3(1, 2), 8, 0, stream>>>(g(3, "a)")); }\n'
        'TORCH_LIBRARY(own, m) { m.def("own::k(int n) -> ()"); }',
        "own",
    )
    assert "cuda_runtime" not in text
    own = as_cpp(
        '#include "cuda_box.h"\n#include <cuda.h>\nx.type().is_cuda();', "o", {"cuda_box.h"}
    )
    assert own.split() == ["#include", '"cuda_box.h"', "x.is_cuda();"]
    assert "float* s = reinterpret_cast<float*>(::cuda_on_cpu::memory);" in text
    assert (
        "::cuda_on_cpu::launch(::cuda_on_cpu::Shape(dim3(1, 2), 8, 0, stream), "
        '[&](auto... one) { k(one...); }, g(3, "a)"));' in text
    )
    assert 'TORCH_LIBRARY(own_original, m) { m.def("own_original::k(' in text


def test_host_files_are_built_alone_before_those_of_cuda(tmp_path: Path) -> None:
    one, project = derived(tmp_path, own__cpp=HOST, kernel__cu="// CUDA")
    host, both = find_originals(one, project.python, project.native)
    assert (host.sources, host.on_device) == (("own.cpp",), False)
    assert sorted(both.sources) == ["kernel.cu.cpp", "own.cpp"]
    assert both.on_device


def test_a_case_without_a_number_says_nothing() -> None:
    x = torch.ones(2)
    for made in (torch.empty(0), torch.full((2,), math.nan), None):
        assert not original.says_something([made, x], [x])
    assert original.says_something([x, x], [x])
    assert original.says_something([None, x + 1], [x])


def test_a_fallback_in_python_comes_first(tmp_path: Path) -> None:
    python = (
        "import torch\nimport own\nSHIFT = 1\n"
        "def scaled_ref(x, factor, rate=1.0):\n    return x * factor * rate + SHIFT\n"
        "def use(x, factor, shift):\n    return own.scaled(x, factor, shift)\n"
    )
    found = fallback(*derived(tmp_path, own__cpp=HOST, own__py=python))
    assert found is not None
    assert found.left_out == ("shift",)
    space: dict[str, Any] = {}
    exec(found.text, space)
    assert space[found.entry](2, 3, 0) == 7


def test_a_fallback_that_needs_more_is_not_taken(tmp_path: Path) -> None:
    python = "def scaled_ref(x, other):\n    return x\n"
    assert fallback(*derived(tmp_path, own__cpp=HOST, own__py=python)) is None


def module_at(path: Path) -> Any:
    """A written file, imported."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_cuda_kernels_run_on_the_cpu_thread_by_thread(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "built"))
    (tmp_path / "own.cu").write_text(CUDA)
    line = ["profile", "port", str(tmp_path), "--to", "ascend", "--format", "json"]
    assert joymigrate([*line, "--skeleton", str(tmp_path / "out")]) == 0
    rows = {one["name"]: one for one in json.loads(capsys.readouterr().out)["operators"]}
    for name, result in (("total", "not run"), ("warps", "not run"), ("first", "different")):
        about = rows[name]["reference"]
        assert about["derived"] == KERNEL
        assert about["proof"]["result"] == result, about
        assert not rows[name]["ported"]
    assert "the original needs a GPU" in rows["total"]["reference"]["proof"]["reason"]
    x = torch.randn(3, 21)
    for name in ("total", "warps"):
        found = getattr(module_at(tmp_path / "out" / f"{name}.py"), name)(x)
        torch.testing.assert_close(found, x.sum(1))
    with pytest.raises(RuntimeError, match="wait for each other"):
        module_at(tmp_path / "out" / "stuck.py").stuck(x)


@pytest.mark.slow
def test_what_does_not_build_is_to_be_written_by_hand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "built"))
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    (tmp_path / "own.cpp").write_text(HOST)
    line = ["profile", "port", str(tmp_path), "--to", "ascend", "--format", "json"]
    assert joymigrate([*line, "--skeleton", str(tmp_path / "out")]) == 0
    (one,) = json.loads(capsys.readouterr().out)["operators"]
    assert one["reference"]["derived"] is None
    assert "does not build here" in one["reference"]["reason"]
    assert "NotImplementedError" in (tmp_path / "out" / "scaled.py").read_text()


@pytest.mark.slow
def test_the_command_builds_the_original_and_compares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setup = "from torch.utils.cpp_extension import CppExtension\nCppExtension('own', ['own.cpp'])\n"
    for wrong, result in ((False, "equal"), (True, "different")):
        folder = tmp_path / str(wrong)
        folder.mkdir()
        (folder / "own.cpp").write_text(HOST)
        (folder / "setup.py").write_text(setup)
        if wrong:  # a fallback of the project that computes something else
            (folder / "own.py").write_text(
                "def scaled_ref(x, by, shift):\n    return x.reshape(*x.shape[:2]) * by\n"
            )
        line = ["profile", "port", str(folder), "--to", "ascend", "--format", "json"]
        assert joymigrate([*line, "--skeleton", str(folder / "out")]) == 0
        (one,) = json.loads(capsys.readouterr().out)["operators"]
        assert one["reference"]["proof"]["result"] == result, one["reference"]
        assert one["ported"] is not wrong
