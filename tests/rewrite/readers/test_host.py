"""C++ host code: whole files move or stay; what is written compiles against the real headers."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import pytest

from joymigrate import chips
from joymigrate.model import Style
from tests.rewrite.projects import look, move, write

SOURCE = """\
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>
#define CHECK_CUDA(x) TORCH_CHECK(x.is_cuda(), #x " must be a CUDA tensor")  // cudaMalloc
using namespace at::cuda;
at::Tensor scale_cuda(const at::Tensor& x);
void all(at::Tensor x) {
  CHECK_CUDA(x);
  TORCH_CHECK(x.device().is_cuda());
  at::cuda::CUDAGuard guard(x.device());
  const at::cuda::OptionalCUDAGuard maybe(at::device_of(x));
  c10::cuda::CUDAStream stream = at::cuda::getCurrentCUDAStream();
  c10::cuda::CUDAStreamGuard on(c10::cuda::getStreamFromPool(false, x.device().index()));
  c10::cuda::OptionalCUDAStreamGuard perhaps;
  std::vector<c10::cuda::CUDAStream> streams{stream};
  c10::cuda::CUDAMultiStreamGuard several(streams);
  auto other = getDefaultCUDAStream(x.get_device());
  c10::cuda::setCurrentCUDAStream(other);
  cudaStream_t raw = stream.stream();
  c10::cuda::getStreamFromExternal(raw, 0);
  cudaEvent_t mark = nullptr;
  (void)mark;
  C10_CUDA_CHECK(cudaStreamSynchronize(raw));
  AT_CUDA_CHECK(cudaDeviceSynchronize());
  cudaError_t error = cudaSetDevice(0);
  TORCH_CHECK(error == cudaSuccess);
  at::cuda::CUDAEvent event;
  event.record(stream);
  event.block(other);
  int count = c10::cuda::device_count() + c10::cuda::current_device();
  c10::cuda::set_device(count - 1);
  c10::cuda::device_synchronize();
  c10::cuda::stream_synchronize(raw);
  c10::cuda::CUDACachingAllocator::recordStream(x.storage().data_ptr(), stream);
  void* room = c10::cuda::CUDACachingAllocator::raw_alloc(16);
  c10::cuda::CUDACachingAllocator::raw_delete(room);
  c10::cuda::CUDACachingAllocator::emptyCache();
  cudaFree(nullptr);
  auto options = at::TensorOptions().device(at::kCUDA, 0);
  at::Device where(c10::DeviceType::CUDA, 0);
  auto keys = c10::DispatchKeySet(c10::DispatchKey::CUDA);
  keys = keys.add(c10::DispatchKey::AutogradCUDA).add(c10::DispatchKey::AutocastCUDA);
}
TORCH_LIBRARY(mine, m) { m.def("all(Tensor x) -> ()"); }
TORCH_LIBRARY_IMPL(mine, CUDA, m) { m.impl("all", &all); }
TORCH_LIBRARY_IMPL(mine, AutogradCUDA, m) { m.impl("all", &all); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("all", &all); }
"""


def ported(root: Path, text: str) -> str:
    write(root, {"ops.cpp": text})
    move(root, unsafe=True)
    return (root / "ops.cpp").read_text()


def test_a_file_moves_as_a_whole(tmp_path: Path) -> None:
    after = ported(tmp_path, SOURCE)
    code = after.replace("// cudaMalloc", "").replace("CHECK_CUDA", "").replace("scale_cuda", "")
    assert "a CUDA tensor" in code
    assert "cuda" not in code.replace("a CUDA tensor", "").lower().replace("torch_npu", "")
    assert "#include <torch_npu/csrc/core/npu/NPUException.h>" in after
    assert ported(tmp_path, after) == after


def test_every_listed_name_is_in_the_source_that_is_compiled() -> None:
    raw = chips.target(None).data("host.yaml")
    missing = [name for name in (*raw["names"], *raw["words"]) if name not in SOURCE]
    assert missing == []


@pytest.mark.parametrize(
    "line",
    [
        "cublasHandle_t handle();",
        "void* p; cudaMalloc(&p, 4);",
        "auto p = at::cuda::getCurrentDeviceProperties();",
        "auto y = x.cuda();",
        "#include <cuda_fp16.h>",
        '#include "ops.cuh"\nauto s = at::kCUDA;\n#include <ATen/cuda/Atomic.cuh>',
    ],
)
def test_a_file_with_a_name_without_a_form_stays(line: str, tmp_path: Path) -> None:
    head, end = "#include <c10/cuda/CUDAGuard.h>", "bool on(at::Tensor x) { return x.is_cuda(); }"
    text = f"{head}\n{line}\n{end}\n"
    assert ported(tmp_path, text) == text
    (told,) = [f for f in look(tmp_path).findings if f.rule == "JM207"]
    assert "has no form on ascend" in str(told.reason)


@pytest.mark.parametrize(
    "text",
    [
        "bool on(at::Tensor x) { return x.is_cuda() || x.is_privateuseone(); }\n",
        "__global__ void f() {}\nvoid g(at::Tensor x) { f<<<1, 1>>>(); x.is_cuda(); }\n",
        'void g() { log("cudaMalloc failed"); }  // at::kCUDA\n',
    ],
)
def test_kernels_and_code_that_serves_the_chip_are_left_alone(text: str, tmp_path: Path) -> None:
    assert ported(tmp_path, text) == text
    assert [f for f in look(tmp_path).findings if f.rule == "JM207"] == []


def test_other_styles_say_that_there_is_one_form_for_each_platform(tmp_path: Path) -> None:
    write(tmp_path, {"ops.cpp": "bool on(at::Tensor x) { return x.is_cuda(); }\n"})
    (told,) = look(tmp_path, Style.AGNOSTIC).findings
    assert told.edits == ()
    assert "--style direct" in str(told.reason)


@pytest.mark.parametrize(
    ("line", "moves"),
    [
        ('CUDAExtension("ops", ["a.cpp", "b.cc"])', True),
        ('CUDAExtension(name="ops", sources=["a.cpp"], define_macros=[])', True),
        ('CUDAExtension("ops", ["a.cpp", "b.cu"])', False),
        ('CUDAExtension("ops", glob("*.cpp"))', False),
        ("(CUDAExtension if gpu else CppExtension)('ops', ['a.cpp'])", False),
    ],
)
def test_an_extension_without_kernels_is_built_by_the_chips_class(
    line: str, moves: bool, tmp_path: Path
) -> None:
    head = "from torch.utils.cpp_extension import CUDAExtension, CppExtension\n"
    write(tmp_path, {"setup.py": f"{head}ext = {line}\n"})
    move(tmp_path, unsafe=True)
    after = (tmp_path / "setup.py").read_text()
    if not moves:
        assert after == f"{head}ext = {line}\n"
        return
    assert "from torch.utils.cpp_extension import CppExtension\n" in after
    assert "from torch_npu.utils.cpp_extension import NpuExtension\n" in after
    assert f"ext = {line.replace('CUDAExtension', 'NpuExtension')}\n" in after


@pytest.mark.slow
def test_what_is_written_compiles_against_the_headers_of_the_wheel(tmp_path: Path) -> None:
    compiler, package = shutil.which("g++"), find_spec("torch_npu")
    if compiler is None or package is None or package.origin is None:
        pytest.skip("needs g++ and the wheel of torch_npu")
    ported(tmp_path, SOURCE)
    site = Path(package.origin).parent.parent
    folders = ["torch/include", "torch/include/torch/csrc/api/include", "torch_npu/include"]
    paths = [f"-I{site / folder}" for folder in folders] + [f"-I{sysconfig.get_paths()['include']}"]
    command = [compiler, "-fsyntax-only", "-w", "-std=c++20", "-DTORCH_EXTENSION_NAME=mine"]
    done = subprocess.run(
        [*command, *paths, str(tmp_path / "ops.cpp")], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[:3000]
