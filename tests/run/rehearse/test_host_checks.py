"""The vendor's host code before every call: through a library of our own that answers like it."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
from pathlib import Path

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.rehearse.build import find_package
from joymigrate.run.rehearse.host_checks import build
from joymigrate.run.rehearse.host_checks.checkouts import NEEDED, find_checkouts

HERE = Path(__file__).parent
PROGRAM = HERE / "programs" / "host_checked.py"
KERNELS = ["aclnnAdd", "aclnnCosh", "aclnnExpm1", "aclnnSinh", "aclnnTan"]


@pytest.fixture
def checkouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of checkouts whose build is finished: our own library."""
    root = tmp_path / "checkouts"
    for name in NEEDED:
        (root / name).mkdir(parents=True)
    monkeypatch.setenv("JOYMIGRATE_CACHE", str(tmp_path / "cache"))
    found = find_checkouts(root)
    folder = build.folder_of(found, find_package())
    folder.mkdir(parents=True)
    library = folder / build.LIBRARY
    error = build.run(
        ["-x", "c", "-shared", "-fPIC", "-w", str(HERE / "host_library/host.c"), "-o", str(library)]
    )
    assert not error
    summary = {
        "recipe": build.recipe_digest(),
        "label": found.label,
        "versions": found.versions,
        "called": 900,
        "kernels": KERNELS,
        "left_out": {"ops-nn/far.cpp": "error: a header is missing"},
    }
    (folder / build.SUMMARY).write_text(json.dumps(summary))
    return root


@pytest.mark.compiler
def test_a_refusal_is_raised_in_the_words_of_the_host_code(rehearse, checkouts: Path) -> None:
    done = rehearse("python", str(PROGRAM), options=("--host-checks", str(checkouts)))
    assert done.code == 0, done.err
    assert "EZ1001: Tensor self not implemented for DT_INT16" in done.out
    (row,) = done.report["refusals"]
    assert row["kernel"] == "aclnnExpm1"
    assert row["code"] == 161002
    assert row["grade"] == "host_checked"
    assert row["where"].startswith(str(PROGRAM))
    assert "Tensor self not implemented for DT_INT16" in done.err  # in the summary, too


@pytest.mark.slow
@pytest.mark.compiler
def test_what_decides_nothing_refuses_nothing_and_is_counted(rehearse, checkouts: Path) -> None:
    done = rehearse("python", str(PROGRAM), options=("--host-checks", str(checkouts)))
    told = done.report["host_checks"]
    outcomes = told["outcomes"]
    assert outcomes["refused"] == 1
    assert outcomes["unknown"] == 2  # the inner error, and the refusal after a kernel
    assert outcomes["crashed"] == 1
    assert outcomes["absent"] > 0  # erf, and what the program's checks call
    assert told["kernels"] == len(KERNELS)
    assert told["called"] == 900
    assert 0 < told["share"] < 1
    assert told["versions"]
    assert told["not_covered"]
    launches = {row["op"]: row for row in done.report["launches"]}
    assert launches["aten::expm1"]["kernels"] == ["Cast", "Expm1"]
    assert launches["aten::expm1"]["calls"] == 3  # asked once, counted for each call
    assert launches["aten::add.Tensor"]["aicpu"] == ["Add"]


@pytest.mark.compiler
@pytest.mark.slow
def test_the_model_is_told_and_the_settings_name_the_checkouts(
    rehearse, checkouts: Path, tmp_path: Path
) -> None:
    (tmp_path / "joymigrate.toml").write_text(f'host_checks = "{checkouts}"\n')
    program = tmp_path / "half.py"
    program.write_text(
        "import torch, torch_npu\ntorch.expm1(torch.ones(2, device='npu:0').bfloat16())\n"
    )
    done = rehearse("python", str(program), options=("--soc", "310P3"))
    assert done.code == 1
    assert "EZ1001: no DT_BFLOAT16 on this model" in done.err
    assert rehearse("python", str(program), options=("--soc", "910B3")).code == 0


@pytest.mark.compiler
@pytest.mark.slow
def test_an_index_of_numbers_is_asked_and_a_mask_is_not(
    rehearse, checkouts: Path, tmp_path: Path
) -> None:
    program = tmp_path / "index.py"
    program.write_text(
        "import torch, torch_npu\n"
        "x = torch.arange(12.0, device='npu:0').view(4, 3)\n"
        "numbers = torch.tensor([0, 2], device='npu:0')\n"
        "assert torch.equal(x[numbers].cpu(), x.cpu()[[0, 2]])\n"
        "assert torch.equal(x[x > 3].cpu(), x.cpu()[x.cpu() > 3])\n"
        "x[numbers] = 1.0\n"
        "x[x > 3] = 0.0\n"
        "assert x.cpu().tolist() == [[1, 1, 1], [3, 0, 0], [1, 1, 1], [0, 0, 0]]\n"
        "torch.ones(4, 3, dtype=torch.complex64, device='npu:0')[numbers]\n"
    )
    done = rehearse("python", str(program), options=("--host-checks", str(checkouts)))
    assert done.code == 1
    assert "EZ1001: no DT_COMPLEX64 to index" in done.err
    assert "AssertionError" not in done.err


@pytest.mark.compiler
@pytest.mark.slow
def test_tensors_of_the_rehearsals_own_making_are_not_held_against_a_program(
    rehearse, checkouts: Path, tmp_path: Path
) -> None:
    program = tmp_path / "own.py"
    program.write_text(
        "import torch, torch_npu\n"
        "x = torch.randn(1, 2, 8, 8, device='npu:0', requires_grad=True)\n"
        "torch.nn.MaxPool2d(2)(torch.nn.Dropout(0.1)(x)).sum().backward()\n"
    )
    done = rehearse("python", str(program), options=("--host-checks", str(checkouts)))
    assert done.code == 0, done.err
    assert done.report["refusals"] == []
    assert done.report["host_checks"]["outcomes"]["unknown"] >= 2


@pytest.mark.compiler
@pytest.mark.slow
def test_what_a_model_lacks_altogether_is_refused_where_the_host_code_answers(
    rehearse, checkouts: Path, tmp_path: Path
) -> None:
    program = tmp_path / "half.py"
    program.write_text(
        "import torch, torch_npu\nx = torch.ones(2, device='npu:0', dtype=torch.bfloat16)\nx + x\n"
    )
    done = rehearse(
        "python", str(program), options=("--host-checks", str(checkouts), "--soc", "310P3")
    )
    rows = [row for row in done.report["refusals"] if row["op"] == "aten::add.Tensor"]
    assert [row["grade"] for row in rows] == ["documented"]
    assert "BFLOAT16" in rows[0]["source"]


def test_setup_says_what_can_be_asked(checkouts: Path) -> None:
    done = subprocess.run(
        [os.sys.executable, "-m", "joymigrate", "rehearse", "setup", "--host-checks",
         str(checkouts)], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "5 of 900 kernels of the package can be asked" in done.stdout
    assert "ops-nn/far.cpp: error: a header is missing" in done.stderr


def test_missing_checkouts_are_named(tmp_path: Path) -> None:
    (tmp_path / "opbase").mkdir()
    with pytest.raises(JoyError, match=r"metadef, runtime, ge, ops-math, ops-nn are missing"):
        find_checkouts(tmp_path)


@pytest.mark.compiler
def test_only_what_nobody_defines_gets_a_stand_in(tmp_path: Path) -> None:
    source = tmp_path / "layer.cpp"
    source.write_text(
        '#include <string>\nextern "C" int nobody_has_this();\n'
        'thread_local std::string text = "kept";\n'
        'extern "C" int length() { return text.size(); }\n'
        'extern "C" int ask() { return nobody_has_this(); }\n'
    )
    target = tmp_path / "libjoyhost_layer.so"
    assert not build.run(["-shared", "-fPIC", str(source), "-o", str(target)])
    assert build.stand_for_missing(["layer"], tmp_path) == "-ljoyhost_missing"
    written = (tmp_path / "missing.c").read_text()
    assert '"nobody_has_this"' in written
    assert "tls_get_addr" not in written  # the loader's: a stand-in ends in a crash
    ctypes.CDLL(str(tmp_path / "libjoyhost_missing.so"), mode=ctypes.RTLD_GLOBAL)
    assert ctypes.CDLL(str(target)).length() == 4
