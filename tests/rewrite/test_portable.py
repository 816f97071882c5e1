"""The style `accelerator`: torch's portable names, and what a machine without one then does."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from joymigrate import chips
from joymigrate.model import Finding, Style, Tier
from joymigrate.rewrite import patches, scan
from joymigrate.rewrite.portable.table import forms
from tests.rewrite.projects import look, rewritten, write

PROGRAM = """\
import torch
import torch.cuda.amp as amp
from torch import cuda
from torch.cuda.amp import GradScaler, autocast

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Double(torch.autograd.Function):
    @staticmethod
    @torch.cuda.amp.custom_fwd
    def forward(ctx, x):
        return x * 2

    @staticmethod
    @torch.cuda.amp.custom_bwd
    def backward(ctx, g):
        return g * 2


def main(place="cuda", kind="cuda:0"):
    torch.manual_seed(3)
    torch.cuda.manual_seed_all(3)
    model = torch.nn.Linear(4, 2).cuda()
    scaler = GradScaler()
    x = torch.randn(8, 4).to(place, non_blocking=True)
    with autocast(enabled=True):
        loss = Double.apply(model(x)).float().pow(2).mean()
    with amp.autocast(False):
        pass
    with torch.autocast("cuda", dtype=torch.bfloat16):
        pass
    scaler.scale(loss).backward()
    if loss.is_cuda and loss.device.type == "cuda":
        cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            x = x * 2
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        print("card", torch.cuda.current_device(), torch.zeros(1, device=kind).device.index)
    torch.cuda.empty_cache()
    print(torch.cuda.max_memory_allocated() >= 0, torch.cuda.is_bf16_supported())
    print("placed", x.device.type == device.type, device.type != "cpu", scaler.is_enabled())


main()
"""


def scanned(root: Path, text: str, **files: str) -> tuple[list[Finding], str]:
    """The findings of a program in this style, and what it becomes."""
    (root / "main.py").write_text(text)
    for name, content in files.items():
        (root / name.replace("_txt", ".txt")).write_text(content)
    found = scan(
        [root], chip=chips.target(None), origin=chips.origin(), style=Style.ACCELERATOR, jobs=1
    )
    made = {patch.path.name: patch.after for patch in patches(found)}
    assert set(made) <= {"main.py"}, "no new module"
    after = made.get("main.py")
    return list(found.findings), text if after is None else after.decode()


def test_a_whole_program_keeps_no_word_of_a_vendor(tmp_path: Path) -> None:
    findings, text = scanned(tmp_path, PROGRAM)
    assert all(each.tier is Tier.SAFE for each in findings)
    assert not [word for word in ("cuda", "npu", "joymigrate") if word in text]
    assert "GradScaler()" not in text


@pytest.mark.dear
def test_it_runs_on_the_host_as_it_did(tmp_path: Path) -> None:
    _, text = scanned(tmp_path, PROGRAM)
    (tmp_path / "main.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "main.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["True False", "placed True False False"], done.stderr


@pytest.mark.slow
def test_it_runs_on_the_simulated_chip(tmp_path: Path) -> None:
    _, text = scanned(tmp_path, PROGRAM)
    (tmp_path / "main.py").write_text(text)
    words = ["rehearse", "-q", "--", sys.executable, "-W", "ignore", "main.py"]
    done = subprocess.run(
        [sys.executable, "-m", "joymigrate", *words],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    if "rehearse setup" in done.stderr:
        pytest.skip("the vendor's package is not set up here")
    expected = ["card 0 0", "True True", "placed True True True"]
    assert done.stdout.splitlines() == expected, done.stderr


ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "set_device": (0,), "device": (0,), "manual_seed": (1,), "manual_seed_all": (1,),
    "random.manual_seed": (1,), "random.manual_seed_all": (1,),
    "set_rng_state_all": ([],), "set_stream": (None,), "get_device_properties": (0,),
}  # fmt: skip


def attribute(home: object, dotted: str) -> Any:
    for part in dotted.split("."):
        home = getattr(home, part)
    return home


def answers(function: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether a call ends without an error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(*arguments)
    except Exception:
        return False
    return True


def test_a_name_that_answers_on_the_host_does_so_in_its_portable_form() -> None:
    torch = pytest.importorskip("torch")
    if torch.accelerator.is_available():
        pytest.skip("asks a machine without an accelerator")
    plain = {n: f for n, f in forms().items() if f.kind in ("name", "module", "seeded", "index")}
    for name, form in plain.items():
        given = (torch.get_rng_state(),) if name == "set_rng_state" else ARGUMENTS.get(name, ())
        old = attribute(torch.cuda, name)
        if isinstance(old, type) and issubclass(old, Exception):
            assert issubclass(attribute(torch, form.to[6:]), Exception)
        elif form.kind == "module":
            here = getattr(torch.get_device_module(), name, None)
            assert answers(old, given) == (form.host is not None) or here is not None, name
        elif form.host is None:
            new = attribute(torch, form.to.removeprefix("torch."))
            assert answers(new, given) or not answers(old, given), name
        elif form.host != "nothing":
            assert repr(old(*given)) in (form.host, f"OrderedDict({form.host})", "OrderedDict()")


def test_every_name_of_the_table_is_torchs_own() -> None:
    torch = pytest.importorskip("torch")
    for name, form in forms().items():
        assert attribute(torch.cuda, name), name
        assert not form.to or attribute(torch, form.to.removeprefix("torch.")), form.to


def test_a_project_that_supports_an_older_torch_is_told_so(tmp_path: Path) -> None:
    text = "import torch\ntorch.cuda.synchronize()\n"
    findings, after = scanned(tmp_path, text, requirements_txt="numpy\ntorch>=2.1\n")
    assert after == text
    assert findings[0].reason is not None
    assert "needs torch 2.6, and requirements.txt:2 allows 2.1" in str(findings[0].reason)
    _, after = scanned(tmp_path, text, requirements_txt="numpy\ntorch>=2.6.0\n")
    assert "torch.accelerator.synchronize()" in after


def test_a_stream_in_a_with_statement_needs_the_torch_that_enters_it(tmp_path: Path) -> None:
    text = "import torch\ns = torch.cuda.Stream()\nwith torch.cuda.stream(s):\n    pass\n"
    findings, after = scanned(tmp_path, text, requirements_txt="torch>=2.5\n")
    assert "s = torch.Stream()" in after
    assert "with torch.cuda.stream(s):" in after
    assert any("`with` statement needs torch 2.7" in str(each.reason) for each in findings)
    assert "with s:" in scanned(tmp_path, text, requirements_txt="torch>=2.7\n")[1]


def test_the_programs_own_name_for_the_device_is_used(tmp_path: Path) -> None:
    text = """\
import torch

def pick():
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")

def run(x):
    return x.cuda()
"""
    assert "    return x.to(pick())\n" in scanned(tmp_path, text)[1]


def test_where_the_device_is_there_no_host_is_named(tmp_path: Path) -> None:
    text = "import torch\nif torch.cuda.is_available():\n    x = torch.ones(2).cuda()\n"
    after = scanned(tmp_path, text)[1]
    assert "x = torch.ones(2).to(torch.accelerator.current_accelerator())" in after


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("torch.cuda.manual_seed(3)", "also seeds the host"),
        ("x = torch.ones(2).cuda(card)", "moves nothing"),
        ("c = torch.cuda.get_device_capability()", "mean something else"),
        ("torch.cuda.nvtx.range_push('a')", "record_function"),
    ],
)
def test_what_differs_is_not_written_by_default(tmp_path: Path, line: str, reason: str) -> None:
    text = f"import torch\ndef run(card=None):\n    {line}\n"
    findings, after = scanned(tmp_path, text)
    assert after == text
    assert any(reason in f"{each.message} {each.reason}" for each in findings)


def test_the_nearest_statement_about_torch_decides_not_the_oldest_of_the_project(
    tmp_path: Path,
) -> None:
    text = "import torch\ntorch.cuda.synchronize()\n"
    files = {
        "requirements.txt": "torch>=2.6\n",
        "train.py": text,
        "old/requirements/base.txt": "torch>=1.13\n",
        "old/deep/run.py": text,
    }
    found = look(write(tmp_path, files), Style.ACCELERATOR)
    told = {each.path: each for each in found.findings if each.rule != "JM001"}
    assert told["train.py"].edits
    assert not told["old/deep/run.py"].edits
    assert "old/requirements/base.txt:1 allows 1.13" in str(told["old/deep/run.py"].reason)


@pytest.mark.parametrize(
    "place", ["docker/requirements.txt", "envs/environment.yml", "requirements/gpu/base.txt"]
)
def test_a_folder_without_python_speaks_for_the_one_above(tmp_path: Path, place: str) -> None:
    text = "import torch\ntorch.cuda.synchronize()\n"
    files = {place: "  - pytorch=1.13\n", "pkg/train.py": text}
    found = look(write(tmp_path, files), Style.ACCELERATOR)
    told = next(each for each in found.findings if each.path == "pkg/train.py")
    assert not told.edits
    assert f"{place}:1 allows 1.13" in str(told.reason)


@pytest.mark.parametrize(
    ("option", "line", "safe"),
    [
        ("'--gpu', default=None, type=int", "x = x.cuda(args.gpu, non_blocking=True)", False),
        ("'--gpu', type=int", "x = x.cuda(args.gpu)", False),
        ("'--gpu', default=0, type=int", "x = x.cuda(args.gpu)", True),
        ("'--gpu', required=True, type=int", "x = x.cuda(args.gpu)", True),
        ("'gpu', type=int", "x = x.cuda(args.gpu)", True),
        ("'--gpu', type=int", "if args.gpu is not None: x = x.cuda(args.gpu)", True),
        ("'--gpu', type=int", "if args.gpu is None: x = x.cuda(args.gpu)", False),
        ("'--gpu', type=int", "if x and args.gpu: x = x.cuda(args.gpu)", True),
    ],
)
def test_an_option_that_may_be_none_is_no_device_to_move_to(
    tmp_path: Path, option: str, line: str, safe: bool
) -> None:
    """`.cuda(None)` moves to the current card, `.to(None)` moves nothing."""
    text = (
        "import argparse\nimport torch\nparser = argparse.ArgumentParser()\n"
        f"parser.add_argument({option})\nargs = parser.parse_args()\nx = torch.zeros(2)\n{line}\n"
    )
    findings, after = scanned(tmp_path, text)
    assert (after == text.replace(".cuda(", ".to(")) is safe
    assert any("moves nothing" in str(each.reason) for each in findings) is not safe


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("requirements.txt", "torch\ntorchvision==0.15.2\n", ":2 (torchvision) allows 2.0"),
        ("requirements.txt", "torchaudio<2.3\n", "(torchaudio) allows 2.2"),
        ("requirements.txt", "torch<2\n", "requirements.txt:1 (torch) allows 1.13"),
        ("requirements.txt", "pytorch_lightning~=1.9.0\n", "was tested) allows 1.13"),
        ("requirements.txt", "pytorch-lightning[extra]==0.8.5\n", "tested) allows 1.7"),
        ("requirements.txt", "torch<2.6.0\n", "(torch) allows 2.5"),
        ("requirements.txt", "torch<1\n", "(torch) allows 0.4"),
        ("requirements.txt", "torch<3,!=1.8,>=1.7\n", "requirements.txt:1 allows 1.7"),
        ("requirements.txt", "torch[opt] (>=2.0,<3.0)\n", "requirements.txt:1 allows 2.0"),
        ("pyproject.toml", 'torch = ">=1.10"\n', "pyproject.toml:1 allows 1.10"),
        ("pyproject.toml", 'torch = {version = "^2.1", optional = true}\n', ":1 allows 2.1"),
        ("pyproject.toml", 'torchvision = "^0.15.2"\n', "(torchvision) allows 2.0"),
        ("pyproject.toml", 'torchvision = "0.15.2"\n', "(torchvision) allows 2.0"),
        ("pyproject.toml", 'module = ["torchtext.*"]\n', None),
        ("setup.py", "setup(description='with torchtext or without')\n", None),
        ("environment.yml", "dependencies:\n  - torchvision=0.8.2\n", "(torchvision) allows 1.7"),
        ("environment.yml", "dependencies:\n  - pytorch<1.8\n", "(pytorch) allows 1.7"),
        ("ci/gitlab-ci.yml", "torch: ['1.10', '2.6']\nrun: pytest\n", "yml:1 allows 1.10"),
        ("data.py", "import torchtext\n", "data.py:1 (torchtext) allows 2.3"),
        ("data.py", "import torch._six\n", "data.py:1 (torch._six) allows 1.13"),
        ("data.py", "from torch._six import inf\n", "data.py:1 (torch._six) allows 1.13"),
        ("data.py", "from torch import nn, _six\n", "data.py:1 (torch._six) allows 1.13"),
        ("data.py", "try:\n    from torch._six import inf\nexcept ImportError:\n    pass\n", None),
        ("data.py", "from torch.utils.ffi import make\n", "(torch.utils.ffi) allows 0.4"),
        ("data.py", "from torch.distributed.pipeline.sync import Pipe\n", "pipeline) allows 2.3"),
        ("data.py", "import torch\n\ny = f(torch.rfft(x))\n", "data.py:3 (torch.rfft) allows 1.7"),
        ("data.py", "import torch\ny = torch.symeig(x)\n", "data.py:2 (torch.symeig) allows 1.13"),
        ("data.py", "import torch\n# torch.symeig(x)\ny = torch.fft.fft(x)\n", None),
        ("data.py", "import torch\ny = torch.linalg.eig(x) + torch.eigh(x)\n", None),
        ("data.py", "v = torch.__version__\nif v < '1.8':\n    y = torch.rfft(x)\n", None),
        ("setup.py", "setup(\n    python_requires='>=3.8',\n)\n", ":2 (Python 3.8) allows 2.4"),
        ("setup.py", "REQUIRES_PYTHON = '>=3.5.0'\n", "setup.py:1 (Python 3.5) allows 1.5"),
        ("environment.yml", "dependencies:\n  - python=3.8\n", "(Python 3.8) allows 2.4"),
        ("Dockerfile", "FROM python:3.7-slim\n", "Dockerfile:1 (Python 3.7) allows 1.13"),
        ("Dockerfile", "# FROM python:3.7-slim\nFROM python:3.12-slim\n", None),
        ("Dockerfile", "FROM pytorch/pytorch:2.1.0-cuda12.1\n", "Dockerfile:1 allows 2.1.0"),
        (".travis.yml", "python:\n  - 3.12\n  - 3.6\nscript: pytest\n", "(Python 3.6) allows 1.10"),
        (".github/workflows/ci.yml", "python-version: [3.8, 3.12]\nrun: tox\n", "(Python 3.8)"),
        (".github/workflows/label.yml", "python-version: 3.7\nrun: label\n", None),
        ("requirements.txt", "torchvision>=0.9\ntorch>=2.6,<3\n", None),
        ("requirements.txt", "dataclasses; python_version < '3.8'\nlightning\n", None),
        ("pyproject.toml", "requires-python = '>=3.8'\ndependencies = ['torch>=2.6']\n", None),
    ],
)  # fmt: skip
def test_what_bounds_torch_from_above_is_told(
    tmp_path: Path, name: str, text: str, told: str | None
) -> None:
    """A name of torch 2.6 is of no use where a companion or the Python ends before it."""
    files = {"train.py": "import torch\ntorch.cuda.synchronize()\n", name: text}
    found = look(write(tmp_path, files), Style.ACCELERATOR)
    one = next(each for each in found.findings if each.path == "train.py")
    assert bool(one.edits) is (told is None)
    assert told is None or told in str(one.reason)


def test_a_project_that_requires_a_torch_does_not_run_on_a_python_without_it(
    tmp_path: Path,
) -> None:
    files = {
        "train.py": "import torch\ntorch.cuda.synchronize()\n",
        "requirements.txt": "torch>=2.6\n",
        "setup.py": "setup(python_requires='>=3.8')\n",
    }
    found = look(write(tmp_path, files), Style.ACCELERATOR)
    assert next(each for each in found.findings if each.path == "train.py").edits


@pytest.mark.parametrize("style", [Style.ACCELERATOR, Style.AGNOSTIC])
def test_an_import_of_torch_is_not_written_twice(tmp_path: Path, style: Style) -> None:
    text = "import torch\nimport torch.cuda\n\n\ntorch.cuda.synchronize()\n"
    after = rewritten(tmp_path, text, style)
    assert "torch.cuda" not in after
    assert after.count("import torch\n") == 1
    text = "import torch.cuda\nif True:\n    import torch\ntorch.cuda.synchronize()\n"
    assert rewritten(tmp_path, text, style).count("import torch\n") == 2, "not in the same block"


SEED = "torch.cuda.manual_seed_all(s)\n"
# Code in a function that has seeded torch with `s`, and whether that covers the line.
SEEDINGS = {
    "in the same block": (SEED, True),
    "behind a semicolon": (f"x = 1; {SEED}", True),
    "behind a question": (f"if torch.cuda.is_available():\n        {SEED}", True),
    "behind two questions": (f"with go():\n        if y:\n            {SEED}", True),
    "in an else": (f"if y:\n        pass\n    else:\n        {SEED}", True),
    "another value": ("torch.cuda.manual_seed(s + 1)\n", False),
    "in a loop": (f"for s in y:\n        {SEED}", False),
    "in a function": (f"def inner():\n        {SEED}", False),
}


@pytest.mark.parametrize("name", SEEDINGS)
def test_a_seed_that_torch_has_set_is_not_set_again(name: str, tmp_path: Path) -> None:
    line, covered = SEEDINGS[name]
    text = f"import torch\ndef seed(s, y):\n    torch.manual_seed(s)\n    {line}"
    found, after = scanned(tmp_path, text)
    [seeding] = [each for each in found if "manual_seed" in each.before]
    assert ("seeds every device" in str(seeding.reason)) == covered
    assert "torch.cuda.is_available" not in after, "the seed holds no condition"
    assert after.count("torch.manual_seed") == 1
    assert SEED in after or not covered


def test_a_seed_that_torch_has_set_goes_with_other_edits_of_its_file(tmp_path: Path) -> None:
    text = f"import torch\ns = 3\ntorch.manual_seed(s)\n{SEED}torch.cuda.synchronize()\n"
    assert scanned(tmp_path, text)[1].splitlines()[2:] == [
        "torch.manual_seed(s)", "torch.accelerator.synchronize()",
    ]  # fmt: skip


# Questions that torch's portable word would answer for another back end too, and what follows.
BESIDE = {
    "an elif": (
        "if device == 'cuda':\n    pass\nelif device == 'mps':\n    pass\n",
        "device == 'cuda'",
    ),
    "a list": ("a = device.type == 'cuda'\nb = device.type in ('mps', 'cpu')\n", ".type == 'cuda'"),
    "a start": (
        "if device == 'cuda':\n    pass\nb = device.startswith('xpu')\n",
        "device == 'cuda'",
    ),
    "a flag": ("a = x.is_cuda\nb = x.is_mps\n", "x.is_cuda"),
}


@pytest.mark.parametrize("name", BESIDE)
def test_a_value_that_is_asked_for_another_back_end_is_not_asked_for_any(
    name: str, tmp_path: Path
) -> None:
    text, kept = BESIDE[name]
    found, after = scanned(tmp_path, f"import torch\n{text}")
    assert kept in after
    assert any("is asked for" in str(each.reason) for each in found)
    alone = text.replace("mps", "cpu").replace("xpu", "cpu")
    assert kept not in scanned(tmp_path, f"import torch\n{alone}")[1]
