"""Traps and documented limits: recognised, with the line and what to do."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from joymigrate.run.rehearse import limits, symbols, traps, triton_kernels
from joymigrate.run.rehearse.build import find_package
from tests.run.rehearse.conftest import Run

TRAPPED = """\
import torch
device = "cuda" if torch.cuda.is_available() else "npu"
x = torch.ones(2, 3, 4, 4, device="npu")
try:
    x.to(memory_format=torch.channels_last)
except RuntimeError:
    pass
x.double()
try:
    raise ValueError
except getattr(torch, "npu").OutOfMemoryError:
    pass
"""


@pytest.mark.compiler
def test_traps_are_named_with_their_line_and_remedy(rehearse: Run, tmp_path: Path) -> None:
    script = tmp_path / "trapped.py"
    script.write_text(TRAPPED)
    done = rehearse("python", "trapped.py")
    assert done.code == 1
    assert done.report is not None
    found = {trap["trap"]: trap for trap in done.report["traps"]}
    places = {name: trap["where"].rpartition(":")[2] for name, trap in found.items()}
    assert places == {
        "cuda_is_available": "2",
        "channels_last": "5",
        "float64": "8",
        "missing_attribute": "11",
    }
    assert all(trap["remedy"] for trap in found.values())
    assert "torch.OutOfMemoryError" in found["missing_attribute"]["remedy"]
    assert f"{script}:5" in done.err


@pytest.mark.compiler
def test_a_gradient_that_is_cast_back_to_float64_is_no_wish_of_the_program(
    rehearse: Run, tmp_path: Path
) -> None:
    (tmp_path / "cast.py").write_text(
        "import torch, torch_npu\n\n"
        "x = torch.ones(2, dtype=torch.float64).npu().requires_grad_()\n"
        "(x.float() * 2).sum().backward()\n"
        "assert x.grad.tolist() == [2, 2]\n"
    )
    done = rehearse("python", "cast.py")
    assert done.code == 0, done.err
    assert done.report is not None
    assert not [trap for trap in done.report["traps"] if trap["trap"] == "float64"]


@pytest.mark.compiler
def test_an_error_that_ends_the_program_is_a_trap(rehearse: Run, tmp_path: Path) -> None:
    (tmp_path / "left.py").write_text("import torch\n\ntorch.ones(2).cuda()\n")
    done = rehearse("python", "left.py")
    assert done.code == 1
    assert done.report is not None
    (trap,) = done.report["traps"]
    assert trap["trap"] == "no_cuda"
    assert trap["where"].endswith("left.py:3")


@pytest.mark.parametrize(
    "said",
    ["0 active drivers ([]). There should only be one.",
     "0 compatible backends for target (npu) ([]). There should only be one."],
)  # fmt: skip
def test_a_compiled_triton_kernel_is_a_trap(said: str) -> None:
    found = [trap.name for trap in traps.read_traps() if re.search(trap.pattern, said)]
    assert found == ["triton"]


def test_another_release_of_triton_leaves_the_programs_import_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def change() -> None:
        raise ImportError("cannot import name 'GridExecutor'")

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(triton_kernels, "change_interpreter", change)
    triton_kernels.prepare()
    assert os.environ["TRITON_INTERPRET"] == "0"
    assert "GridExecutor" in capsys.readouterr().err


LIMITED = """
import torch
x = torch.ones(4, 4, device="npu", dtype=torch.int32)
print((x @ x).sum().item())
y = torch.ones(4, 4, device="npu", dtype=torch.bfloat16)
print((y @ y).sum().item())
"""


@pytest.mark.slow
@pytest.mark.compiler
def test_what_the_documents_refuse_is_a_warning_of_that_grade(
    rehearse: Run, tmp_path: Path
) -> None:
    (tmp_path / "limited.py").write_text(LIMITED)
    done = rehearse("python", "limited.py", options=("--soc", "910A"))
    assert done.code == 0, done.err  # a document stops nobody
    assert done.report is not None
    rows = {(row["kernel"], row["dtype"]): row for row in done.report["documented"]}
    assert ("aclnnMatmul", "int32") in rows
    assert any(dtype == "bfloat16" for _, dtype in rows)
    assert {row["grade"] for row in rows.values()} == {"documented"}
    assert rows["aclnnMatmul", "int32"]["source"].startswith("hicann/ops-nn")


STRICT = """
import torch
x = torch.ones(4, 4, device="npu", dtype=torch.int32)
for _ in range(3):
    {body}
"""


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("body", "options", "code", "calls"),
    [
        # said aloud, and every call counts
        pytest.param("x @ x", (), 0, 3, marks=pytest.mark.slow),
        # raised at the first
        pytest.param("x @ x", ("--strict",), 1, 1, marks=pytest.mark.slow),
        pytest.param(
            "import contextlib\n    with contextlib.suppress(RuntimeError): x @ x",
            ("--strict",),
            1,
            3,
            marks=pytest.mark.slow,
        ),
        pytest.param("x + x", ("--strict",), 0, 0, marks=pytest.mark.slow),
        # torch_npu fills the gap before an index with an empty tensor of the values' type.
        ("y = x.float(); y[:, torch.tensor([0], device='npu')] = 1.0", ("--strict",), 0, 0),
    ],
)
def test_a_refusal_is_counted_and_a_strict_rehearsal_fails_on_it(
    rehearse: Run, tmp_path: Path, body: str, options: tuple[str, ...], code: int, calls: int
) -> None:
    (tmp_path / "strict.py").write_text(STRICT.format(body=body))
    done = rehearse("python", "strict.py", options=options)
    assert done.code == code, done.err
    assert done.report is not None
    assert sum(row["calls"] for row in done.report["refusals"]) == calls
    assert ("REFUSALS" in done.err) is (calls > 0)
    shown = done.report["arguments_judged"]
    assert (
        0 < shown["by"]["documents"] <= shown["calls"] == shown["by"]["documents"] + shown["nobody"]
    )


LATER = """
import torch
x = torch.ones(3, device="npu")

@torch.library.custom_op("joytest::twice", mutates_args=(), device_types="cpu")
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2

library = torch.library.Library("joytest2", "DEF")
library.define("more(Tensor x) -> Tensor")
library.impl("more", lambda x: x + 1, "CPU")
print(twice(x).sum().item(), torch.ops.joytest2.more(x).sum().item())
library.impl("more", lambda x: x.add(5), "PrivateUse1")  # the program's own kernel wins
print(torch.ops.joytest2.more(x).sum().item())
"""


@pytest.mark.compiler
def test_fallbacks_of_every_namespace_are_counted(rehearse: Run, tmp_path: Path) -> None:
    (tmp_path / "later.py").write_text(LATER)
    done = rehearse("python", "later.py")
    assert done.out == "6.0 6.0\n18.0\n", done.err
    assert done.report is not None
    calls = {row["op"]: row["calls"] for row in done.report["fallbacks"]}
    assert calls == {"joytest::twice": 1, "joytest2::more": 1}


@pytest.mark.slow
@pytest.mark.compiler
def test_the_policy_error_refuses_them(rehearse: Run, tmp_path: Path) -> None:
    (tmp_path / "later.py").write_text(LATER)
    refused = rehearse("python", "later.py", options=("--policy", "error"))
    assert refused.code == 1
    assert "joytest::twice" in refused.err
    catching = "try:\n    import later\nexcept NotImplementedError:\n    pass\n"
    caught = rehearse("python", "-c", catching, options=("--policy", "error"))
    assert caught.report is not None
    assert (caught.code, caught.report["exit_code"]) == (1, 0)


def test_a_model_without_a_dtype_is_told_apart() -> None:
    old, new = limits.Limits("Ascend910A"), limits.Limits("Ascend910B3")
    assert [r.dtype for r in old.refused(["aclnnMatmul T27/2 T27/2 T27/2"])] == ["bfloat16"]
    assert new.refused(["aclnnMatmul T27/2 T27/2 T27/2", "aclnnUnheardOf T11/2"]) == []
    refused = new.refused(["aclnnMatmul T0/2 T9/2 T0/2"])
    assert [(r.parameter, r.dtype) for r in refused] == [("mat2", "int64")]


def test_a_model_without_a_kernel_is_told_apart() -> None:
    form = "aclnnSwiGlu T1/2 T1/2"
    assert limits.Limits("Ascend910B3").refused([form]) == []
    (refused,) = limits.Limits("Ascend910A").refused([form])
    assert str(refused.message) == "aclnnSwiGlu is not there on this model of the chip"
    assert "aclnnSwiGlu.md" in refused.source
    # A definition for a new model alone says nothing about the older ones.
    assert limits.Limits("Ascend310P3").refused(["aclnnAdd T1/2 T1/2 T1/2"]) == []


def test_tensors_are_matched_to_parameters_and_never_refused_where_some_way_fits() -> None:
    chip = limits.Limits("Ascend910B3")
    # query, key, value; a bool is the mask, not the shift that may stand before it
    assert chip.refused(["aclnnFlashAttentionScore T1/4 T1/4 T1/4 T12/4 T0/4 T0/4 T1/1 T1/4"]) == []
    assert chip.refused(["aclnnFlashAttentionScore T1/4 T1/4 T1/4 T0/4 T0/4 T1/1 T1/4"]) == []
    # the union over all parameters took these
    assert [r.parameter for r in chip.refused(["aclnnExpm1 T11/1 T11/1"])] == ["self"]
    assert chip.refused(["aclnnIndex T0/2 L9/1 T0/2"]) == []
    deep = chip.refused(["aclnnAdd T0/9 T0/9 T0/9"])
    assert "at most 8 dimensions" in str(deep[0].message)
    # positions of a pooling are of our making: their dtype says nothing
    assert chip.refused(["aclnnMaxPool2dWithMaskBackward T0/4 T0/4 T9/4 T0/4"]) == []


GAPS = """
import torch, torch_npu
d = "npu:0"
h = torch.randn(1, 2, 4, 8, 8, device=d, dtype=torch.bfloat16)
flat = torch.nn.functional.interpolate(h[:, :, 0], size=(4, 4), mode="bicubic", antialias=True)
print(flat.dtype, torch.nn.AvgPool3d(2)(h).dtype, torch.cdist(h[0, 0, 0], h[0, 1, 0]).dtype)
print(torch.histc(torch.arange(8, device=d), 4, 0, 7).tolist())
print(torch.hann_window(16, device=d).sum().item())
image = torch.randn(1, 2, 8, 8, device=d, requires_grad=True)
torch.nn.MaxPool2d(2)(image).sum().backward()
q = torch.randn(2, 4, 16, 64, device=d, dtype=torch.float16)
mask = torch.zeros(2, 1, 1, 16, dtype=torch.bool, device=d)
torch_npu.npu_fusion_attention(q, q, q, 4, "BNSD", atten_mask=mask, scale=0.125)
"""


@pytest.mark.slow
@pytest.mark.compiler
def test_gaps_of_the_cpu_are_not_the_chips_and_mask_shapes_are(
    rehearse: Run, tmp_path: Path
) -> None:
    (tmp_path / "gaps.py").write_text(GAPS)
    done = rehearse("python", "gaps.py")
    assert done.code == 0, done.err
    half = "torch.bfloat16"
    assert done.out.splitlines()[:2] == [f"{half} {half} {half}", "[2, 2, 2, 2]"]
    assert done.report is not None
    assert [row["kernel"] for row in done.report["refusals"]] == ["aclnnFlashAttentionScore"]
    assert "[2, 1, 1, 16]" in done.report["refusals"][0]["message"]


def test_the_documented_kernels_are_the_wheels() -> None:
    known = set(limits.Limits("Ascend910B3").parameters)
    used = set(symbols.chip_kernels(find_package().main_library))
    assert len(known & used) > 500


def test_what_stands_between_a_program_and_torch_is_no_place_of_the_program() -> None:
    import joymigrate
    from joymigrate.run.rehearse.callsite import is_users

    house = Path(joymigrate.__file__).parent
    ours = ("modes.py", "verify/draws.py", "profile/recorder/operators.py", "run/rehearse/traps.py")
    assert not any(is_users(str(house / name)) for name in ours)
    assert is_users(str(house / "run" / "train" / "worker.py"))


@pytest.mark.compiler
def test_a_tensor_is_written_by_its_storage(rehearse: Run, tmp_path: Path) -> None:
    (tmp_path / "written.py").write_text(
        "import copy, io, pickle\n"
        "import torch, torch_npu\n\n"
        "x = torch.arange(3.0).npu()\n"
        "file = io.BytesIO()\n"
        "torch.save({'x': x}, file, _use_new_zipfile_serialization=False)\n"
        "file.seek(0)\n"
        "made = pickle.loads(pickle.dumps(x)), torch.load(file)['x'], copy.deepcopy(x)\n"
        "assert [one.tolist() for one in made] == [[0, 1, 2]] * 3\n"
        "assert made[0].device == x.device\n"
    )
    done = rehearse("python", "written.py")
    assert done.code == 0, done.err
