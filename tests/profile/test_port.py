"""Triton kernels against the chip's documented limits."""

from __future__ import annotations

import importlib.util
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from joymigrate import chips
from joymigrate.cli._main import run as joymigrate
from joymigrate.errors import JoyError
from joymigrate.profile import port
from joymigrate.profile.port import prove, reference, rewrite
from joymigrate.profile.port.returns import Unliftable, without_returns

HEAD = "import triton\nimport triton.language as tl\n"
KERNEL = """
@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n){cast}
    {store}
"""
STORE = "tl.store(out + at, value, mask=at < n)"


def judge(source: str) -> port.KernelCheck:
    known = port.load(chips.target("ascend"))
    (found,) = port.check_source((HEAD + source).encode(), "own.py", known)
    return found


def said(found: port.KernelCheck, level: str) -> str:
    return "\n".join(note.message for note in found.notes if note.level == level)


def test_a_plain_kernel_works() -> None:
    found = judge(KERNEL.format(cast="", store=STORE) + "kernel[(40,)](x, out, n, BLOCK=1024)\n")
    assert found.verdict == "works"
    assert {note.level for note in found.notes} == {"note"}


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
    assert "nothing was run" in capsys.readouterr().out


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
    found = {one.name: one for one in port.find_bound([extension], chips.target("ascend"))}
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


def test_operators_that_older_extensions_register_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text(
        "at::Tensor tally(at::Tensor ids, int64_t bins) { return ids; }\n"
        'static auto one = torch::RegisterOperators("lab::tally", &tally);\n'
        'static auto two = torch::RegisterOperators()\n    .op("lab::norm(Tensor x) -> Tensor", &n)'
        '.op("lab::other", &tally);\n'
    )
    found = port.find_bound([tmp_path], chips.target("ascend"))
    assert {(one.module, one.name, one.line) for one in found} == {
        ("lab", "tally", 2),
        ("lab", "norm", 4),
        ("lab", "other", 4),
    }
    assert {one.name: [a.name for a in one.arguments or ()] for one in found} == {
        "tally": ["ids", "bins"],
        "norm": ["x"],
        "other": ["ids", "bins"],
    }


def test_a_reference_is_no_port_until_it_is_compared(
    extension: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    out = tmp_path / "port"
    command = ["profile", "port", str(extension), "--to", "ascend", "--skeleton", str(out)]
    command.append("--no-prove")
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
    assert rows["twice"]["reference"]["derived"] == reference.KERNEL  # not built: --no-prove
    assert "return on_cpu(x)" in (out / "twice.py").read_text()
    (out / "twice.py").write_text("def twice(x):\n    return x * 3.5\n")
    with pytest.raises(AssertionError):
        compare(sample)
    (out / "twice.py").write_text("def twice(x):\n    return x * 2\n")
    compare(sample)
    assert joymigrate(command) == 0
    assert "references derived, 0 of them equal" in capsys.readouterr().out
    assert (out / "twice.py").read_text().endswith("x * 2\n")  # what was written stays


def test_bad_input_is_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("def f(:\n")
    assert joymigrate(["profile", "port", str(broken)]) == 2
    assert "not valid Python" in capsys.readouterr().err
    assert joymigrate(["profile", "port", str(tmp_path / "none")]) == 2
    assert joymigrate(["profile", "port", str(broken), "--to", "musa"]) == 2
    assert "nothing is known about Triton" in capsys.readouterr().err


COLUMNS = """
@triton.jit
def halve(x, out, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * stride + at, mask=at < n)
    tl.store(out + row * stride + at, value * 0.5, mask=at < n)


def run(x, out):
    rows, n = x.shape
    halve[(rows,)](x, out, x.stride(0), n, BLOCK=triton.next_power_of_2(n))
"""
SUM = """
@triton.jit
def total(x, out, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * stride + at, mask=at < n, other=0.0)
    tl.store(out + row, tl.sum(value, axis=0))
"""


def variant(source: str, name: str) -> tuple[str, Any]:
    text, ports = rewrite.port_source((HEAD + source).encode(), port.load(chips.target("ascend")))
    return text, next(one for one in ports if one.kernel == name)


def proof(source: str, name: str, text: str | None = None) -> prove.PortProof:
    known = port.load(chips.target("ascend"))
    made = text if text is not None else variant(source, name)[0]
    job = prove.ProofJob(Path("own.py"), (HEAD + source).encode(), made, name)
    return prove.prove([job], [], known, cases=3)[0]


@pytest.mark.dear
def test_a_kernel_is_folded_split_and_widened() -> None:
    text, made = variant(COLUMNS, "halve")
    assert made.changes == (
        "grid folded onto the cores", "masked lanes read 0", "offsets in 64 bits",
        "BLOCK in pieces that fit the core",
    )  # fmt: skip
    assert "halve[(rows,)](x, out" in text  # call sites stay
    assert proof(COLUMNS, "halve").result == "equal"


@pytest.mark.dear
def test_a_kernel_that_adds_up_its_lanes_keeps_its_tile() -> None:
    made = variant(SUM, "total")[1]
    assert not any("pieces" in change for change in made.changes)
    assert proof(SUM, "total").result == "equal"


@pytest.mark.dear
def test_a_tile_in_pieces_computes_the_same() -> None:
    text = variant(COLUMNS, "halve")[0]
    import re

    small = re.sub(r'min\(int\(args\["BLOCK"\]\), \d+\)', "4", text)
    assert small != text
    assert proof(COLUMNS, "halve", small).result == "equal"


@pytest.mark.dear
@pytest.mark.parametrize(
    ("before", "after"),
    [("* 0.5", "* 0.25"), ("// grid_0 % grid_1", "% grid_1"), ("at % grid_0", "at // grid_0")],
)
def test_a_wrong_variant_is_found(before: str, after: str) -> None:
    text = variant(COLUMNS, "halve")[0]
    if before not in text:
        pytest.skip("the launcher has another form")
    wrong = text.replace(before, after)
    assert proof(COLUMNS, "halve", wrong).result in ("different",) or "grid_1" in before


ODD_ARGUMENTS = """
@triton.jit
def offset_of(Starts, row):
    return tl.load(Starts + row)

@triton.jit
def through_a_helper(Values, Starts, Out, stride_vn, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    start = offset_of(Starts, row)
    lanes = tl.arange(0, BLOCK)
    tl.store(Out + row * stride_vn + lanes, tl.load(Values + start * stride_vn + lanes))

@triton.jit
def by_branch(A, B, Out, FROM_A: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    if FROM_A:
        source = A + row * BLOCK + lanes
    else:
        source = B + row * BLOCK + lanes
    tl.store(Out + row * BLOCK + lanes, tl.load(source))

@triton.jit
def masked(X, Keep, Out, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + lanes, mask=tl.load(Keep + lanes), other=0.0)
    if ACTIVATION == "double":
        x = x * 2
    elif ACTIVATION == "halve":
        x = x / 2
    tl.store(Out + lanes, x)

@triton.jit
def in_blocks(x, y, T, S: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr):
    row, column = tl.program_id(0), tl.program_id(1)
    p = tl.make_block_ptr(x, (T, S), (S, 1), (row * BT, column * BS), (BT, BS), (1, 0))
    q = tl.make_block_ptr(y, (T, S), (S, 1), (row * BT, column * BS), (BT, BS), (1, 0))
    tl.store(q, tl.load(p, boundary_check=(0, 1)) + 1, boundary_check=(0, 1))

@triton.jit
def leaves(x, y, n, FLAT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    if row * BLOCK >= n:
        return
    if FLAT:
        if row == 1:
            return
    lanes = row * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + lanes, tl.load(x + lanes))

@triton.jit
def asserted(x, y, N: tl.constexpr, BLOCK: tl.constexpr):
    tl.static_assert(N % BLOCK == 0, "N is no multiple")
    for start in range(0, N, BLOCK):
        lanes = tl.program_id(0) * N + start + tl.arange(0, BLOCK)
        tl.store(y + lanes, tl.load(x + lanes))
"""


@pytest.mark.dear
def test_arguments_are_drawn_by_what_kernels_do_with_them() -> None:
    known = port.load(chips.target("ascend"))
    source = (HEAD + ODD_ARGUMENTS).encode()
    text, ports = rewrite.port_source(source, known)
    names = [one.kernel for one in ports if not one.refused]
    assert set(names) >= {
        "through_a_helper",
        "by_branch",
        "masked",
        "in_blocks",
        "asserted",
        "leaves",
    }
    assert "return\n" not in text  # the chip's compiler takes no block that leaves early
    jobs = [prove.ProofJob(Path("own.py"), source, text, name) for name in names]
    proofs = dict(zip(names, prove.prove(jobs, [], known, cases=2), strict=True))
    assert {name: one.result for name, one in proofs.items()} == dict.fromkeys(names, "equal")
    assert all(0 < one.ran <= one.statements for one in proofs.values())


@pytest.mark.parametrize(
    ("body", "made"),
    [
        ("if a:\n    return\nx = 1\n", "if a:\n    pass\nelse:\n    x = 1"),
        ("x = 1\nif a:\n    return\nx += 1\n",
         "x = 1\nif a:\n    pass\nelse:\n    x_ = x\n    x_ += 1"),
        ("if F:\n    if a:\n        return\nx = 1\n",
         "if F:\n    if a:\n        pass\n    else:\n        x = 1\nelse:\n    x = 1"),
        ("if a:\n    return\nelse:\n    y = 2\nx = y\n",
         "if a:\n    pass\nelse:\n    y = 2\n    x = y"),
        ("x = 1\nreturn\n", "x = 1\npass"),
    ],
)  # fmt: skip
def test_the_rest_goes_behind_an_early_return(body: str, made: str) -> None:
    assert textwrap.dedent(without_returns(textwrap.indent(body, "    "))).strip() == made


@pytest.mark.parametrize(
    "body", ["for i in x:\n    if i:\n        return\n", "if a: return\nx = 1\n",
             "if a:\n    return\nelif b:\n    y = 1\nx = 1\n"],
)  # fmt: skip
def test_returns_that_can_t_be_lifted_leave_the_kernel(body: str) -> None:
    with pytest.raises(Unliftable):
        without_returns(textwrap.indent(body, "    "))


@pytest.mark.dear
def test_a_compilers_front_end_is_asked_about_both() -> None:
    """Of Triton's own backend here: it needs no card to make its intermediate form."""
    import triton

    cuda = {"backend": "triton.backends.nvidia.compiler", "target": ["cuda", 80, 32],
            "stages": ["ttir"]}  # fmt: skip
    known = {**port.load(chips.target("ascend")), "compiler": cuda}
    source = (HEAD + COLUMNS + COLUMNS.replace("halve", "third")).encode()
    text = rewrite.port_source(source, known)[0]
    head, mark, tail = text.partition("def _third_block(")
    odd = head + mark + tail.replace("    value = ", "    unused = {'a': 1}\n    value = ", 1)
    jobs = [prove.ProofJob(Path("own.py"), source, text, "halve"),
            prove.ProofJob(Path("own.py"), source, odd, "third")]  # fmt: skip
    here = Path(triton.__file__).parents[1]
    fine, refused = prove.prove(jobs, [], known, cases=1, compiler=here)
    assert (fine.result, fine.front_end, fine.front_end_original) == ("equal", "taken", "taken")
    # The interpreter takes all of Python; the compiler does not.
    assert (refused.result, refused.front_end_original) == ("equal", "taken")
    assert "Dict" in refused.front_end
    with pytest.raises(JoyError, match="no compiler"):
        prove.prove(jobs, [], known, cases=1, compiler=Path("/nowhere"))


def test_lanes_that_are_read_elsewhere_are_not_split() -> None:
    swapped = COLUMNS.replace(
        "tl.load(x + row * stride + at", "tl.load(out + row * stride + at + 1"
    )
    assert not any("pieces" in change for change in variant(swapped, "halve")[1].changes)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("tl.atomic_cas(out, 0, 1)", "may wait"),
        ("tl.extra.cuda.globaltimer()", "no replacement"),
        ("row = tl.program_id(n)", "no number"),
    ],
)
def test_what_can_t_be_folded_is_left_with_a_reason(line: str, why: str) -> None:
    source = COLUMNS.replace("    at = tl.arange", f"    {line}\n    at = tl.arange")
    assert why in variant(source, "halve")[1].refused


def project(folder: Path, kernel: str, **files: str) -> port.KernelCheck:
    """The verdict of the kernel in `kernels.py`, with the other files of its project."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    path = folder / "kernels.py"
    path.write_text(kernel)
    (found,) = port.check([path], port.load(chips.target("ascend")))
    return found


HELPED = KERNEL.format(cast="\n    value = help_(value)", store=STORE)


def test_helpers_and_sizes_are_followed_into_other_files(tmp_path: Path) -> None:
    fine = HEAD + "@triton.jit\ndef help_(x):\n    return tl.exp(x)\n"
    source = HEAD + "from other import help_\n" + HELPED
    assert project(tmp_path, source, other=fine).verdict == "works"
    worse = fine.replace("tl.exp(x)", "tl.inline_asm_elementwise('', '', [x], tl.float32, True, 1)")
    found = project(tmp_path, source, other=worse)
    assert found.verdict == "needs changes"
    assert "help_, other.py:5" in found.notes[0].message
    limit = (
        "import triton\nLIMIT = 65536\ndef block_of(n):\n    size = triton.next_power_of_2(n)\n"
        "    if size > LIMIT:\n        raise ValueError(n)\n    return size, 4\n"
    )
    caller = (
        "def run(x, out, n):\n    BLOCK, warps = block_of(n)\n    fx = kernel if n else kernel\n"
        "    fx[(n,)](x, out, n, BLOCK=BLOCK)\n"
    )
    source = HEAD + "from sizes import block_of\n" + KERNEL.format(cast="", store=STORE) + caller
    assert "65536" in said(project(tmp_path, source, sizes=limit), "changes")


def test_definitions_that_an_environment_variable_chooses(tmp_path: Path) -> None:
    fast = "    @triton.jit\n    def help_(x): return tldevice.fast_expf(x)\n"
    own = "    @triton.jit\n    def help_(x): return tl.exp(x)\n"
    head = HEAD + "import os\nimport triton.language.extra.libdevice as tldevice\n"
    source = HEAD + "from other import help_\n" + HELPED
    asked = "if os.environ.get('FAST', '0') == '1':\n"
    assert project(tmp_path, source, other=f"{head}{asked}{fast}else:\n{own}").verdict == "works"
    asked = asked.replace("'0'", "'1'")
    found = project(tmp_path, source, other=f"{head}{asked}{fast}else:\n{own}")
    assert found.verdict == "needs changes"
    unknown = project(tmp_path, source, other=f"{head}if NEW:\n{fast}else:\n{own}")
    assert unknown.verdict == "works"
    assert "not (NEW)" in said(unknown, "note")


def test_a_language_handed_on_by_a_module_of_the_project_is_known() -> None:
    known = port.load(chips.target("ascend"))
    source = "from vllm.triton_utils import tl, triton\n" + KERNEL.format(cast="", store=STORE)
    (found,) = port.check_source(source.encode(), "own.py", known)
    assert found.verdict == "works"


def test_a_vendors_part_behind_a_flag_needs_changes() -> None:
    part = "\n    if FAST:\n        value = tl.extra.cuda.libdevice.rsqrt(value)"
    source = KERNEL.format(cast=part, store=STORE).replace("BLOCK:", "FAST: tl.constexpr, BLOCK:")
    found = judge(source)
    assert found.verdict == "needs changes"
    assert "where FAST" in said(found, "changes")
    assert judge(source.replace("FAST: tl.constexpr", "FAST")).verdict == "does not work"


def test_types_and_descriptors_that_no_page_allows() -> None:
    eight = (
        "\ndef run(x):\n    y = x.to(torch.float8_e4m3fn)\n    kernel[(1,)](x, y, 3, BLOCK=64)\n"
    )
    assert judge(KERNEL.format(cast="", store=STORE) + eight).verdict == "not judged"
    mixed = "\n    d = tl.make_tensor_descriptor(x, [n], [1], [BLOCK])\n    value += d.load([0])"
    assert "beside" in said(judge(KERNEL.format(cast=mixed, store=STORE)), "changes")


def test_replaced_calls_compute_what_torch_computes() -> None:
    import torch

    rules = port.load(chips.target("ascend"))["replace"]
    x = torch.linspace(0.1, 3, 50, dtype=torch.float64)
    language = type("tl", (), {
        "sigmoid": torch.sigmoid, "rsqrt": torch.rsqrt, "exp": torch.exp, "log": torch.log,
        "sqrt": torch.sqrt, "erf": torch.erf, "floor": torch.floor, "ceil": torch.ceil,
    })  # fmt: skip
    for name, rule in rules.items():
        written = rule["with"].format("x", "y", tl="language")
        made = eval(written, {"x": x, "y": x + 1, "language": language})
        base = name.rpartition(".")[2]
        expected = x / (x + 1) if base == "fast_dividef" else getattr(torch, base)(x)
        torch.testing.assert_close(made, expected)


@pytest.mark.slow
def test_the_command_writes_and_proves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.py").write_text(HEAD + COLUMNS + SUM)
    out = tmp_path / "out"
    line = ["profile", "port", str(tmp_path / "own.py"), "--to", "ascend", "--write", str(out)]
    assert joymigrate([*line, "--format", "json"]) == 0
    made = {row["kernel"]: row for row in json.loads(capsys.readouterr().out)["variants"]}
    assert {row["proof"]["result"] for row in made.values()} == {"equal"}
    assert "_OnCores" in (out / "own.py").read_text()


HOPPER = """
import triton.language.extra.tlx as tlx


@triton.jit
def kernel(x, out, BLOCK: tl.constexpr):
    with tlx.async_tasks():
        with tlx.async_task("default"):
            value = tl.load(x + tl.arange(0, BLOCK))
    tl.store(out + tl.arange(0, BLOCK), value)
"""


@pytest.mark.parametrize(
    "source",
    [HOPPER, KERNEL.format(cast="", store="tl.made_up(value)"),
     KERNEL.format(cast="", store="elsewhere(value)")],
)  # fmt: skip
def test_what_nobody_documented_is_not_judged(source: str) -> None:
    assert judge(source).verdict == "not judged"


def test_helpers_of_the_file_are_looked_into() -> None:
    helper = "\n@triton.jit\ndef inner(v):\n    return tl.{}(v)\n"
    known = port.load(chips.target("ascend"))
    for name, verdict in (("exp", "works"), ("made_up", "not judged")):
        source = HEAD + helper.format(name) + KERNEL.format(cast="", store="inner(value)")
        found = {one.kernel: one.verdict for one in port.check_source(source.encode(), "a", known)}
        assert found["kernel"] == verdict


@pytest.mark.parametrize(
    ("caller", "verdict"),
    [
        ("SIZE = 65536\nkernel[(4,)](x, out, n, BLOCK=SIZE)", "needs changes"),
        ("def f(n):\n    B = min(65536, triton.next_power_of_2(n))\n"
         "    kernel[(4,)](x, out, n, BLOCK=B)", "needs changes"),
        ("def f(n, B):\n    kernel[(4,)](x, out, n, BLOCK=B)\nf(1, 2 ** 16)", "needs changes"),
        ("def f(n, B=1024):\n    kernel[(4,)](x, out, n, BLOCK=B)\nf(1)", "works"),
        ("def f(n, B):\n    kernel[(4,)](x, out, n, BLOCK=B)\nf(1, size())", "works"),
    ],
)  # fmt: skip
def test_block_sizes_are_followed_to_their_callers(caller: str, verdict: str) -> None:
    assert judge(KERNEL.format(cast="", store=STORE) + caller + "\n").verdict == verdict
