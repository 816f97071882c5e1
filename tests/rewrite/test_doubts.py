"""Edits that need review: what belongs to them stays, a question leads nowhere, tests that wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.cli._main import run as main
from joymigrate.model import Style, Tier
from joymigrate.rewrite import device_tests
from tests.rewrite.projects import look, move, write

# A function of a program, and what is said of its edits: nothing, or the reason.
PROGRAMS = {
    "a question before a function of the project's": (
        "def go(x):\n    if x.is_cuda:\n        return scan(x)\n    return slow(x)\n",
        "`scan` runs behind this question",
    ),
    "a question before code that moves": (
        "def go(x):\n    if torch.cuda.is_available():\n        x = x.cuda()\n    return x\n",
        None,
    ),
    "a question that chooses the device": (
        "def go():\n    return torch.device('cuda' if torch.cuda.is_available() else 'cpu')\n",
        None,
    ),
    "a question that chooses a function": (
        "def go(x):\n    return scan(x) if x.is_cuda else slow(x)\n",
        "`scan` runs behind this question",
    ),
    "a question that chooses a type": (
        "def go(x):\n    return x.half() if x.is_cuda else x\n",
        None,
    ),
    "a question before torch alone": (
        "def go(x, total):\n    if x.device.type == 'cuda':\n"
        "        total = total + x.detach().sum(0)\n    return total\n",
        None,
    ),
    "a size of a group that another file starts": (
        "from torch import distributed as dist\ndef go():\n"
        "    return dist.get_world_size() if torch.cuda.is_available() else 1\n",
        None,
    ),
    "an answer for a function of another package": (
        "import cam\ndef go(net):\n    return cam.Cam(net, use_cuda=torch.cuda.is_available())\n",
        "cam is handed this answer",
    ),
    "one answer of the platform's": (
        "def go():\n    return 60 if torch.cuda.is_available() else make()\n",
        None,
    ),
    "kernels for the host and the origin alone": (
        "import torch_sparse\ndef go(data):\n    data.cuda()\n    return torch_sparse.spmm(data)\n",
        "torch_sparse",
    ),
    "an answer for pinned memory": (
        "def go(d):\n"
        "    return torch.utils.data.DataLoader(d, pin_memory=torch.cuda.is_available())\n",
        None,
    ),
    "a part with nothing in common": (
        "def go(net, size):\n    net.cuda()\n    print(torch.cuda.nccl.version())\n",
        None,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_edit_of_a_program_needs_a_look_where_it_was_not_seen_whole(
    name: str, tmp_path: Path
) -> None:
    text, reason = PROGRAMS[name]
    write(tmp_path, {"a.py": f"import torch\n{text}"})
    edits = [f for f in look(tmp_path).findings if f.edits and f.rule != "JM001"]
    assert edits
    told = [str(f.reason) for f in edits if f.tier is Tier.UNSAFE]
    assert (reason is None and not told) or any(str(reason) in each for each in told)


TESTS = {
    "skipped without the device": (
        "@pytest.mark.skipif(not torch.cuda.is_available(), reason='x')\n"
        "def test_a():\n    torch.zeros(1).cuda()\n",
        True,
    ),
    "marked for it": ("@pytest.mark.gpu\ndef test_a():\n    run(device='cuda')\n", True),
    "fails without it": ("def test_a():\n    torch.zeros(1, device='cuda')\n", True),
    "skipped, with an import of its own": (
        "@pytest.mark.skipif(not torch.cuda.is_available(), reason='x')\n"
        "def test_a():\n    from torch.cuda.amp import autocast\n    with autocast():\n"
        "        torch.zeros(1).cuda()\n",
        True,
    ),
    "leaves without it": (
        "def test_a():\n    if not torch.cuda.is_available():\n        return\n    run('cuda')\n"
        "    torch.zeros(1).to('cuda')\n",
        True,
    ),
    "leaves where the device is another one": (
        "from pkg import DEVICE\ndef test_a():\n"
        "    if DEVICE != torch.device('cuda:0'):\n        pytest.skip('no card')\n",
        True,
    ),
    "skipped with the device": (
        "@pytest.mark.skipif(torch.cuda.is_available(), reason='x')\ndef test_a():\n    start()\n",
        False,
    ),
    "names a device alone": (
        "def test_a():\n    check(torch.device('cuda:0'))\n",
        False,
    ),
    "places by a variable": (
        "def test_a():\n    d = 'cuda'\n    torch.zeros(1, device=d)\n",
        True,
    ),
    "runs on what is there": (
        "def test_a():\n    d = 'cuda' if torch.cuda.is_available() else 'cpu'\n"
        "    torch.zeros(1).to(d)\n",
        False,
    ),
    "pretends": (
        "def test_a(monkeypatch):\n"
        "    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)\n"
        "    assert pick() == torch.device('cuda')\n",
        False,
    ),
}


@pytest.mark.parametrize("name", TESTS)
def test_a_test_that_needs_the_device_waits(name: str, tmp_path: Path) -> None:
    text, waits = TESTS[name]
    write(tmp_path, {"tests/test_a.py": f"import pytest, torch\n{text}"})
    found = look(tmp_path)
    edits = [f for f in found.findings if f.edits and f.rule != "JM001"]
    assert edits
    assert all(device_tests.is_waiting(f) is waits for f in edits)
    after = device_tests.include(found)
    assert all(f.tier is Tier.SAFE for f in after.findings if f.edits)


def test_tests_are_written_when_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "import torch\ndef test_a():\n    torch.zeros(1).cuda()\n"
    write(tmp_path, {"tests/test_a.py": text, "a.py": "import torch\ntorch.zeros(1).cuda()\n"})
    assert main(["rewrite", str(tmp_path), "--check"]) == 1
    assert "1 edits in 1 files of tests" in " ".join(capsys.readouterr().out.split())
    assert main(["rewrite", str(tmp_path), "--tests", "--allow-dirty"]) == 0
    assert ".npu()" in (tmp_path / "tests/test_a.py").read_text()


# A program that asks `{owner}.is_cuda`, a value of its own: what makes it one.
SETTINGS = {
    "a class that is imported": (
        "from conf import Hparams as hp\n",
        "hp",
        "class Hparams:\n    is_cuda = True\n",
    ),
    "a module that is imported": (
        "import conf\n",
        "conf.Hparams",
        "class Hparams:\n    is_cuda = 1\n",
    ),
    "an object of a class": (
        "from conf import Hparams\nhp = Hparams()\n",
        "hp",
        "from dataclasses import dataclass\n@dataclass\nclass Hparams:\n    is_cuda: bool = True\n",
    ),
    "a class of the file": ("class Hparams:\n    is_cuda = True\n", "Hparams", ""),
    "an option": (
        "from conf import read\nargs = read()\n",
        "args",
        "import argparse\ndef read():\n    p = argparse.ArgumentParser()\n"
        "    p.add_argument('--is-cuda', action='store_true')\n    return p.parse_args()\n",
    ),
    "an object that is given one": (
        "from types import SimpleNamespace\nme = SimpleNamespace()\n"
        "me.is_cuda = torch.cuda.is_available()\n",
        "me",
        "",
    ),
}


@pytest.mark.parametrize("style", [Style.DIRECT, Style.AGNOSTIC, Style.ACCELERATOR])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_flag_of_the_projects_own_stays_and_what_it_decides_moves(
    name: str, style: Style, tmp_path: Path
) -> None:
    above, owner, conf = SETTINGS[name]
    asked = f"    if {owner}.is_cuda:\n"
    text = f"import torch\n{above}def go(x):\n{asked}        x = x.cuda()\n    return x\n"
    write(tmp_path, {"a.py": text, "conf.py": conf})
    move(tmp_path, style, unsafe=True)
    after = (tmp_path / "a.py").read_text()
    assert asked in after
    assert ".cuda()" not in after
    assert (tmp_path / "conf.py").read_text() == conf


@pytest.mark.parametrize(
    "line", ["is_cuda = x.is_cuda", "y = dict(\n        is_cuda=x.is_cuda,\n    )"]
)
def test_a_local_name_of_a_tensors_flag_is_no_field(line: str, tmp_path: Path) -> None:
    text = f"import torch\ndef go(x):\n    {line}\n    return x.cuda()\n"
    write(tmp_path, {"a.py": text})
    move(tmp_path)
    assert "x.is_npu" in (tmp_path / "a.py").read_text()
