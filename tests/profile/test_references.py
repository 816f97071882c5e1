"""References of bound C++ and CUDA operators, derived from their sources."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from joymigrate import chips
from joymigrate.cli._main import run as joymigrate
from joymigrate.profile.port import host_runtime, original
from joymigrate.profile.port.cpp import read
from joymigrate.profile.port.operators import find_bound
from joymigrate.profile.port.reference import FALLBACK, KERNEL, Derived, SourceProject, derive
from joymigrate.profile.port.syntax import Untranslated
from joymigrate.profile.port.translate import Translation

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
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("total", &total); }
"""


def executed(source: str, name: str, *, on_device: bool = False) -> Any:
    """A translated function."""
    made = Translation(read({"own.cu": source}), on_device=on_device)
    entry = made.function(name)
    space: dict[str, Any] = dict(vars(host_runtime))
    exec("\n\n".join([*(f"{k} = {v}" for k, v in made.constants.items()), *made.texts.values()]),
         space)  # fmt: skip
    return space[entry]


@pytest.mark.parametrize(
    ("body", "given", "expected"),
    [
        ("return a / b;", (-7, 2), -3),  # cut towards zero
        ("return a % b;", (-7, 2), -1),  # the sign of the left side
        ("int c = a / 2.0; return c;", (7, 0), 3),
        ("int c = 0; c = a / 2.0; return c;", (7, 0), 3),
        ("float c = a; return c / b * 2;", (7, 2), 7),
        (
            "int s = 0; for (int i = 0; i < a; i++) { if (i % 2) continue; s += i; } return s;",
            (6, 0),
            6,
        ),
        ("int i = 5; { int i = 7; b += i; } return i + b;", (0, 1), 13),
        ("int v[3] = {1, 2}; v[2] = a; return v[0] + v[1] + v[2];", (4, 0), 7),
        ("switch (a) { case 1: case 2: return 10; default: return 20; }", (2, 0), 10),
        ("return a > 3 && !b ? 1 : 0;", (4, 0), 1),
        ("return std::max(a, b) + roundf(2.5f);", (1, 2), 5),
        ("return LIMIT + N;", (0, 0), 19),
        ("int c = a && b; return c + (a || b);", (2, 3), 2),  # true is 1
    ],
)
def test_numbers_are_those_of_cpp(body: str, given: tuple[int, ...], expected: int) -> None:
    source = f"#define LIMIT 16\nconstexpr int N = 3;\nint f(int a, int b) {{ {body} }}\n"
    assert executed(source, "f")(*given) == expected


def test_aten_calls_and_pointers() -> None:
    x = torch.tensor([[1.0, 0.0], [2.0, 3.0]])
    found = executed(HOST, "scaled_cpu")(x, 2, 5)
    expected = torch.where(x == 0, 0.0, x * 2 + 2 + 1.5)
    torch.testing.assert_close(found, expected)
    with pytest.raises(RuntimeError, match="two dimensions"):
        executed(HOST, "scaled_cpu")(x[0], 2, 5)


def test_a_kernel_with_barriers_runs_thread_by_thread() -> None:
    x = torch.randn(3, 21)
    found = executed(CUDA, "total", on_device=True)(x)
    torch.testing.assert_close(found, x.sum(1))
    with pytest.raises(Untranslated, match="only raises on the CPU"):
        executed(CUDA, "total")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("goto end;", "goto"),
        ("return unknown_call(x);", "unknown_call"),
        ("int* p = &n; return x;", "the address of 'n'"),
        ("auto f = [](int a) { return a; }; return x;", "lambda"),
        ("return x.no_such_method();", "no_such_method"),
        ("auto& y = x[0]; y = n; return x;", "the reference 'y'"),
        ("switch (n) { case 1: n = 2; case 2: n = 3; } return x;", "falls through"),
        ("uint32_t h = n * 2654435761u; return x[h % 7];", "may wrap around"),
        ("n *= 16777619; return x[n];", "may wrap around"),
        ("return x + __shfl_down_sync(0xffffffff, n, 1);", "__shfl_down_sync"),
    ],
)
def test_what_is_not_known_is_not_translated(body: str, why: str) -> None:
    with pytest.raises(Untranslated, match=why):
        executed(f"at::Tensor f(at::Tensor x, int n) {{ {body} }}", "f")


def test_the_value_of_an_optional_is_no_element() -> None:
    source = "at::Tensor f(at::Tensor x, const c10::optional<at::Tensor>& b) { return x + *b; }"
    x = torch.ones(2)
    assert executed(source, "f")(x, torch.tensor([1.0, 5.0])).tolist() == [2.0, 6.0]


def test_one_of_several_definitions_is_not_guessed() -> None:
    special = (
        "template <int O> int g(int a) { return a; }\ntemplate <> int g<1>(int a) { return 2; }"
    )
    with pytest.raises(Untranslated, match="specialisations"):
        executed(f"{special}\nint f(int a) {{ return g<1>(a); }}", "f")
    typed = "int g(int a) { return a; }\nint g(float a) { return 2; }"
    with pytest.raises(Untranslated, match="differ by types"):
        executed(f"{typed}\nint f(int a) {{ return g(a); }}", "f")
    two = "int g(int a) { return a; }\nint g(int a, int b) { return b; }"
    with pytest.raises(Untranslated, match="two of its definitions"):
        executed(f"{two}\nint f(int a) {{ return g(a) + g(a, a); }}", "f")


def test_a_case_without_a_number_says_nothing() -> None:
    x = torch.ones(2)
    for made in (torch.empty(0), torch.full((2,), math.nan), None):
        assert not original.says_something([made, x], [x])
    assert original.says_something([x, x], [x])
    assert original.says_something([None, x + 1], [x])


def derived(folder: Path, **files: str) -> Derived | str:
    """The reference of the only operator of a project."""
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    (one,) = find_bound([folder], chips.target("ascend"))
    return derive(one, SourceProject([folder]))


def test_a_fallback_in_python_comes_first(tmp_path: Path) -> None:
    python = (
        "import torch\nimport own\nSHIFT = 1\n"
        "def scaled_ref(x, factor, rate=1.0):\n    return x * factor * rate + SHIFT\n"
        "def use(x, factor, shift):\n    return own.scaled(x, factor, shift)\n"
    )
    found = derived(tmp_path, own__cpp=HOST, own__py=python)
    assert isinstance(found, Derived)
    assert found.kind == FALLBACK
    assert found.left_out == ("shift",)
    space: dict[str, Any] = {}
    exec(found.text, space)
    assert space[found.entry](2, 3, 0) == 7


def test_a_fallback_that_needs_more_is_not_taken(tmp_path: Path) -> None:
    python = "def scaled_ref(x, other):\n    return x\n"
    found = derived(tmp_path, own__cpp=HOST, own__py=python)
    assert isinstance(found, Derived)
    assert found.kind != FALLBACK


def test_a_kernel_is_the_last_resort_and_a_reason_is_said(tmp_path: Path) -> None:
    found = derived(tmp_path, own__cu=CUDA)
    assert isinstance(found, Derived)
    assert found.kind == KERNEL
    reason = derived(tmp_path, own__cu=CUDA.replace("parts[tid] = sum;", "vote(x);"))
    assert isinstance(reason, str)
    assert "vote" in reason


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
