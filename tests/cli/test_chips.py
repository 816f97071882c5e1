"""`joymigrate chips`: list, show, validate, new, and a chip that comes from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from joymigrate.chips import all_chips
from joymigrate.cli._main import run

Joymigrate = Callable[..., tuple[int, str, str]]


@pytest.fixture
def joymigrate(capfd: pytest.CaptureFixture[str]) -> Joymigrate:
    """The command line inside this process: exit code, stdout, stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return code, out, err

    return call


def test_list_names_every_chip_with_its_source(joymigrate: Joymigrate) -> None:
    code, out, _ = joymigrate("chips", "list")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == ["NAME", "DEVICE", "BACKEND", "PACKAGE", "NAMES", "TITLE", "SOURCE"]
    assert any(line.startswith("ascend (default)  npu     hccl") for line in lines)
    assert any(line.startswith("nvidia (origin)") for line in lines)
    assert all(line.endswith("built in") for line in lines[1:])


def test_list_as_json_has_a_schema(joymigrate: Joymigrate) -> None:
    code, out, _ = joymigrate("chips", "list", "--format", "json")
    document = json.loads(out)
    assert code == 0
    assert document["schema"] == "joymigrate.chips/1"
    by_name = {chip["name"]: chip for chip in document["chips"]}
    assert by_name["ascend"]["role"] == "default target"
    assert "2.13" in by_name["ascend"]["versions"]
    assert by_name["hygon"]["keeps_device"] is True
    assert by_name["hygon"]["names"] is None


def test_show_says_everything_with_sources(joymigrate: Joymigrate) -> None:
    code, out, _ = joymigrate("chips", "show", "npu")
    assert code == 0
    for text in (
        "ascend: Huawei Ascend NPU",
        "2.13: torch-npu 2.13.0 wheel commit c798c6532a0d",
        "CUDAGraph → NPUGraph [safe]",
        "CUDA_DEVICE_MAX_CONNECTIONS → stays [report]",
        "nvidia-smi → npu-smi info [unsafe]",
        "onnxruntime-gpu → onnxruntime-cann [unsafe]",
        "910B1 · memory_gib 64",
        "torch 2.12.0 · package 2.12.0;",
        "switch: TORCH_TRANSFER_TO_NPU=1",
    ):
        assert text in out, text
    assert "\x1b" not in out


def test_show_keeps_to_a_section_and_a_version(joymigrate: Joymigrate) -> None:
    arguments = ("chips", "show", "ascend", "--section", "names,skus", "--format", "json")
    code, out, _ = joymigrate(*arguments, "--chip-version", "2.7.1.post2")
    document = json.loads(out)
    assert code == 0
    assert list(document) == ["schema", "grade", "chip", "names", "skus"]
    assert document["grade"] == "documented"
    assert document["names"]["version"] == "2.7"


@pytest.mark.parametrize("name", [*all_chips()])
def test_everything_about_every_chip_goes_to_json_and_text(
    joymigrate: Joymigrate, name: str, tmp_path: Path
) -> None:
    file = tmp_path / "chip.json"
    assert joymigrate("chips", "show", name, "--format", "json", "-o", file) == (0, "", "")
    document = json.loads(file.read_text())
    assert document["schema"] == "joymigrate.chip-facts/1"
    assert document["chip"]["name"] == name
    assert len(document["names"]["list"]) == (document["chip"]["names"] or 0)
    assert joymigrate("chips", "show", name)[1].startswith(f"{name}: ")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("show", "asend"), "unknown chip 'asend'. Did you mean 'ascend'?"),
        (("show", "ascend", "--section", "sku"), "does not know 'sku'. Did you mean 'skus'?"),
        (("show", "ascend", "--chip-version", "9.9"), "no names are known for version 9.9"),
        (("list", "--format", "xml"), "--format does not know 'xml'"),
        (("validate", "./nothing"), "no chip.yaml here"),
        (("validate", "nothing"), "unknown chip 'nothing'"),
        (("new", "ascend", "--device", "a", "--backend", "b"), "a chip called 'ascend' already"),
        (("new", "Acme", "--device", "a", "--backend", "b"), "'Acme' is not a chip's name"),
        (("new", "acme", "--device", "a-b", "--backend", "b"), "--device 'a-b' is not an"),
    ],
)
def test_a_mistake_is_one_clear_error(
    joymigrate: Joymigrate, arguments: tuple[str, ...], what: str
) -> None:
    code, out, err = joymigrate("chips", *arguments)
    assert (code, out) == (2, "")
    assert what in err
    assert "help:" in err
    assert "Traceback" not in err


def test_every_chip_that_comes_along_is_valid(joymigrate: Joymigrate) -> None:
    code, out, _ = joymigrate("chips", "validate")
    assert (code, out) == (0, f"Checked {len(all_chips())} chips: valid.\n")


def test_validate_names_file_and_key_and_exits_1(joymigrate: Joymigrate, tmp_path: Path) -> None:
    chip = tmp_path / "chip.yaml"
    chip.write_text("name: acme\ntitle: A\ndevice: acm\nbackend: b\nversions: [{torch: x}]\n")
    for named in (tmp_path, chip):
        code, out, _ = joymigrate("chips", "validate", named)
        assert code == 1
        assert out.splitlines() == [
            f"{chip}: versions[0].torch: 'x' is not a version",
            "Checked 1 chip: 1 problem in 1 of them.",
        ]
    code, out, _ = joymigrate("chips", "validate", tmp_path, "--format", "json")
    document = json.loads(out)
    assert code == 1
    assert document["schema"] == "joymigrate.chip-problems/1"
    assert document["problems"][0]["key"] == "versions[0].torch"


def test_new_writes_a_folder_that_is_valid(joymigrate: Joymigrate, tmp_path: Path) -> None:
    target = tmp_path / "acme"
    code, out, err = joymigrate(
        *("chips", "new", "acme", "--device", "acm", "--backend", "accl", "-o", target)
    )
    assert (code, out) == (0, f"{target / 'chip.yaml'}\n")
    assert "joymigrate chips validate" in err
    assert joymigrate("chips", "validate", target)[0] == 0
    again = joymigrate("chips", "new", "acme", "--device", "a", "--backend", "b", "-o", target)
    assert again[0] == 2
    assert "there is something already" in again[2]


SOURCES = {
    "torch_acm/__init__.py": "from . import acm\n",
    "torch_acm/acm/__init__.py": (
        "from .streams import Stream, Event\n"
        "def is_available(): return True\n"
        "def current_device(): return 0\n"
        "def synchronize(device=None): pass\n"
        "class AcmGraph: pass\n"
    ),
    "torch_acm/acm/streams.py": "class Stream: pass\nclass Event: pass\n",
}

PROGRAM = """import torch

if torch.cuda.is_available():
    device = torch.device("cuda")
    torch.cuda.synchronize()
    model = torch.nn.Linear(2, 2).to("cuda")
    graph = torch.cuda.CUDAGraph()
torch.cuda.nvtx.range_push("x")
"""


@pytest.fixture
def outside(joymigrate: Joymigrate, tmp_path: Path) -> Path:
    """A folder with an installed package that brings the chip `acme`: docs/how-to/chips.md."""
    for name, text in SOURCES.items():
        path = tmp_path / "sources" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    project = tmp_path / "joymigrate-acme"
    code, _, err = joymigrate(
        *("chips", "new", "acme", "--device", "acm", "--backend", "accl", "-o", project),
        *("--title", "Acme AI card", "--package", "torch_acm", "--as-package"),
        *("--names-from", tmp_path / "sources", "--chip-version", "2.7"),
    )
    assert code == 0, err
    chip = project / "joymigrate_acme" / "rules" / "chip.yaml"
    text = chip.read_text()
    filled = text.replace("renamed: {}", "renamed: {CUDAGraph: AcmGraph}", 1)
    filled = filled.replace("absent: {}", "absent: {nvtx: {note: remove the marks}}", 1)
    assert filled != text
    chip.write_text(filled)
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    options = ["--no-index", "--disable-pip-version-check", "--target", str(site), str(project)]
    subprocess.run([*command, *options], check=True, capture_output=True)
    return site


def test_a_chip_from_an_outside_package_works_through_every_command(
    outside: Path, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(outside)}

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "joymigrate", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
        )

    listed = json.loads(call("chips", "list", "--format", "json").stdout)["chips"]
    acme = next(chip for chip in listed if chip["name"] == "acme")
    assert acme["source"] == "package joymigrate-acme"
    assert acme["versions"] == ["2.7"]
    assert call("chips", "validate", "acme").stdout == "Checked 1 chip: valid.\n"
    assert "CUDAGraph → AcmGraph [safe]" in call("chips", "show", "acme").stdout

    scanned = json.loads(call("scan", "project", "--to", "acme", "--format", "json").stdout)
    assert scanned["to"] == "acme"
    marks = [f for f in scanned["findings"] if "nvtx" in f["before"]]
    assert marks[0]["tier"] == "report"
    assert "remove the marks" in marks[0]["message"] + str(marks[0]["reason"])

    rewritten = call("rewrite", "project", "--to", "acme", "--allow-dirty")
    assert rewritten.returncode == 0, rewritten.stderr
    text = (project / "train.py").read_text()
    assert "import torch_acm" in text
    assert "torch.acm.is_available()" in text
    assert 'torch.device("acm")' in text
    assert "torch.acm.AcmGraph()" in text
    assert "torch.cuda.nvtx" in text

    back = call("rewrite", "project", "--from", "acme", "--to", "nvidia", "--allow-dirty")
    assert back.returncode == 0, back.stderr
    assert (project / "train.py").read_text() == PROGRAM


def test_a_broken_outside_package_is_named(tmp_path: Path) -> None:
    info = tmp_path / "joymigrate_bad-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: joymigrate-bad\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[joymigrate.chips]\nbad = nothing_here:folder\n")
    done = subprocess.run(
        [sys.executable, "-m", "joymigrate", "chips", "list"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 2
    assert "the chip 'bad' of package joymigrate-bad can't be loaded" in done.stderr
    assert "help: correct the entry point 'joymigrate.chips' of joymigrate-bad" in done.stderr
    assert "Traceback" not in done.stderr
