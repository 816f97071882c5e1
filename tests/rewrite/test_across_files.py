"""What moves in one file moves the comparisons that see it in others; mocks go with code."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.model import Style
from tests.rewrite.projects import move, write

USES = {
    "through a package": ("from pkg import get_dev", 'd = get_dev()\nif d == "{}": go()'),
    "of a module": ("from pkg import dev", 'if dev.KIND == "{}": go()'),
    "by its name": ("from pkg.dev import KIND as kind", 'assert kind in ("{}", "cpu")'),
    "of an option": ("from pkg.dev import args", 'if args().place.startswith("{}"): go()'),
    "as a parameter": ("import pkg", 'def run(where):\n    return where == "{}"'),
    "of a class": ("from pkg.dev import Plan", 'go(Plan().where_at == "{}")'),
}
DEV = """\
import argparse
import torch
KIND = "cuda" if torch.cuda.is_available() else "cpu"
def get_dev():
    return "cuda" if torch.cuda.is_available() else "cpu"
def args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--place", default="cuda", choices=["cuda", "cpu"])
    made = parser.parse_args()
    torch.zeros(1).to(made.place)
    return made
class Plan:
    def __init__(self):
        self.where_at = "cuda" if torch.cuda.is_available() else "cpu"
def start():
    from pkg.use import run
    run("cuda" if torch.cuda.is_available() else "cpu")
"""


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("style", [Style.DIRECT, Style.AGNOSTIC])
def test_a_comparison_moves_with_the_value_of_another_file(
    use: str, style: Style, tmp_path: Path
) -> None:
    imports, code = USES[use]
    text = f"{imports}\n{code.format('cuda')}\n"
    files = {"pkg/__init__.py": "from .dev import get_dev\n", "pkg/dev.py": DEV}
    write(tmp_path, {**files, "pkg/use.py": text})
    move(tmp_path, style)
    after = (tmp_path / "pkg/use.py").read_text()
    if style is Style.DIRECT:
        assert code.format("npu") in after
    else:
        assert code.replace('"{}"', "jm.accelerator()") in after


def test_a_comparison_stays_with_a_value_that_stays(tmp_path: Path) -> None:
    dev = "import torch\nKIND = 'cuda'\ndef cost():\n    return {'cuda': 1}[KIND]\n"
    use = 'from pkg.dev import KIND\nif KIND == "cuda": go()\n'
    write(tmp_path, {"pkg/__init__.py": "", "pkg/dev.py": dev, "pkg/use.py": use})
    move(tmp_path)
    assert (tmp_path / "pkg/dev.py").read_text() == dev
    assert (tmp_path / "pkg/use.py").read_text() == use


@pytest.mark.parametrize("line", ["--place cuda", "--place=cuda:1", "-v --place 'cuda'"])
def test_a_launch_line_goes_with_the_choices_of_its_option(line: str, tmp_path: Path) -> None:
    dev = DEV.replace("place", "put_there")
    line = line.replace("place", "put-there")
    run = f"python -m pkg.dev {line}\npython -m pkg.dev --other cuda\n"
    write(tmp_path, {"pkg/__init__.py": "", "pkg/dev.py": dev, "run.sh": run})
    move(tmp_path)
    moved = line.replace("cuda", "npu")
    assert (tmp_path / "run.sh").read_text() == run.replace(line, moved)


@pytest.mark.parametrize(
    ("line", "more"),
    [
        ('os.environ.pop("CUDA_VISIBLE_DEVICES")', "os.environ"),
        ("if x: del env['CUDA_VISIBLE_DEVICES']", "env"),
        ("os.environ.pop('CUDA_VISIBLE_DEVICES', None); go()", "os.environ"),
    ],
)
def test_a_variable_set_for_both_is_taken_away_for_both(
    line: str, more: str, tmp_path: Path
) -> None:
    write(tmp_path, {"run.py": f'import os\nos.environ["CUDA_VISIBLE_DEVICES"] = "0"\n{line}\n'})
    move(tmp_path, Style.AGNOSTIC)
    after = (tmp_path / "run.py").read_text()
    assert after.count("CUDA_VISIBLE_DEVICES") == after.count("ASCEND_RT_VISIBLE_DEVICES")
    assert f"; {more}.pop(" in after
    compile(after, "run.py", "exec")


def test_a_module_named_like_what_it_imports_makes_no_folder_of_scripts(tmp_path: Path) -> None:
    files = {
        "lib/__init__.py": "",
        "lib/strategy/__init__.py": "",
        "lib/strategy/deepspeed.py": "import deepspeed\nimport torch\ntorch.cuda.synchronize()\n",
    }
    write(tmp_path, files)
    move(tmp_path, Style.AGNOSTIC)
    after = (tmp_path / "lib/strategy/deepspeed.py").read_text()
    assert "from lib import joymigrate_device as jm" in after
    assert not (tmp_path / "lib/strategy/joymigrate_device.py").exists()


@pytest.mark.parametrize("style", [Style.DIRECT, Style.AGNOSTIC])
def test_a_list_with_an_activity_that_the_chip_lacks_stays(style: Style, tmp_path: Path) -> None:
    text = (
        "import torch\n"
        "many = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.XPU]\n"
    )
    write(tmp_path, {"run.py": text})
    move(tmp_path, style)
    assert (tmp_path / "run.py").read_text().count("torch.profiler.ProfilerActivity") == 2


def test_choices_keep_the_origins_name_on_a_machine_without_accelerator(tmp_path: Path) -> None:
    write(tmp_path, {"pkg/__init__.py": "", "pkg/dev.py": DEV})
    move(tmp_path, Style.AGNOSTIC)
    after = (tmp_path / "pkg/dev.py").read_text()
    assert 'default=jm.device_type(), choices=["cuda", "npu", "cpu"]' in after


def test_a_package_that_serves_the_chip_by_itself_has_no_import_as_a_site(tmp_path: Path) -> None:
    package = tmp_path / "fastchat"
    package.mkdir()
    (package / "__init__.py").write_text('__version__ = "0.2.36"\n')
    (package / "a.py").write_text("import torch\ntorch.cuda.empty_cache()\n")
    found = move(tmp_path)
    assert [(each.rule, each.tier.value) for each in found.findings] == [("JM101", "report")]


@pytest.mark.parametrize("style", [Style.DIRECT, Style.AGNOSTIC])
def test_torch_of_a_star_import_of_the_project_is_torch(style: Style, tmp_path: Path) -> None:
    files = {
        "parameters.py": "import torch\n\nCUDA = torch.cuda.is_available()\n",
        "net/__init__.py": "from .base import *\n",
        "net/base.py": "import torch\n",
        "net/own.py": "class torch:\n    cuda = None\n",
        "utils.py": "from parameters import *\n\n"
        "Tensor = torch.cuda.FloatTensor if CUDA else torch.FloatTensor\n",
        "deep.py": "from net import *\n\ncards = torch.cuda.device_count()\n",
        "named.py": "from net.base import torch\n\ncards = torch.cuda.device_count()\n",
        "one/settings.py": "import torch\n",
        "two/settings.py": "import torch\n",
        "shared.py": "from settings import *\n\ncards = torch.cuda.device_count()\n",
        "other.py": "from net.own import *\n\ntorch.cuda = 3\nkept = torch.cuda.device_count\n",
    }
    root = write(tmp_path, files)
    move(root, style)
    assert "torch.cuda" not in (root / "utils.py").read_text()
    assert "torch.cuda" not in (root / "deep.py").read_text()
    assert "torch.cuda" not in (root / "named.py").read_text()
    assert "torch.cuda" not in (root / "shared.py").read_text()
    assert (root / "other.py").read_text() == files["other.py"]


PLACE = 'import torch\nWHERE = "cuda"\nx = torch.zeros(1, device=WHERE)\n'
# What a program says before it compares WHERE, and its files: it moves with the value of place.py.
STARS = {
    "by its name": ("from place import *\n", {}),
    "through another file": ("from mid import *\n", {"mid.py": "from place import *\n"}),
    "by the last that has it": (
        "from place import *\nfrom late import *\n",
        {"late.py": "A = 1\n"},
    ),
    "by the last that lists it": (
        "from place import *\nfrom late import *\n",
        {"late.py": "__all__ = ['made']\nmade, WHERE = 1, 'here'\n"},
    ),
}


@pytest.mark.parametrize("name", STARS)
def test_a_value_of_a_star_import_is_that_of_the_last_file_that_gives_it(
    name: str, tmp_path: Path
) -> None:
    imports, others = STARS[name]
    use = f'import torch\n{imports}if WHERE == "cuda":\n    print(torch.cuda.device_count())\n'
    root = write(tmp_path, {"place.py": PLACE, "use.py": use, **others})
    move(root)
    assert '"cuda"' not in (root / "place.py").read_text() + (root / "use.py").read_text()


def test_a_file_that_gives_a_name_last_hides_the_others(tmp_path: Path) -> None:
    use = 'from place import *\nfrom late import *\nif WHERE == "cuda":\n    print(1)\n'
    files = {"place.py": PLACE, "late.py": "WHERE, A = open('w').read(), 1\n", "use.py": use}
    root = write(tmp_path, files)
    move(root)
    assert '"npu"' in (root / "place.py").read_text()
    assert (root / "use.py").read_text() == use


def test_what_all_leaves_out_of_a_star_import_is_not_torch(tmp_path: Path) -> None:
    files = {
        "base.py": "import torch\n\n__all__ = ['made']\nmade = 1\n",
        "use.py": "from base import *\nfrom lib import *\n\ncards = torch.cuda.device_count()\n",
    }
    root = write(tmp_path, files)
    move(root)
    assert (root / "use.py").read_text() == files["use.py"]


SETUP = "from setuptools import setup\nsetup(packages=['faces'], package_dir={'faces': '%s'})\n"
ASKS = (
    "import torch\nfrom faces import Net\n"
    "device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')\nnet = Net(device)\n"
)


@pytest.mark.parametrize(("folder", "own"), [(".", True), ("", True), ("../faces", False)])
def test_the_projects_folder_can_be_the_package_that_its_programs_import(
    folder: str, own: bool, tmp_path: Path
) -> None:
    net = (
        "import torch\nclass Net(torch.nn.Module):\n"
        "    def __init__(self, device):\n"
        "        super().__init__()\n"
        "        self.to(device)\n"
    )
    files = {"setup.py": SETUP % folder, "__init__.py": "from .models.net import Net\n"}
    files |= {"models/__init__.py": "", "models/net.py": net, "examples/run.py": ASKS}
    move(write(tmp_path, files))
    assert ("torch.npu.is_available()" in (tmp_path / "examples/run.py").read_text()) == own


@pytest.mark.parametrize(
    ("above", "line", "imported"),
    [
        ("from helper import *\n", "print(torch.cuda.is_available())\n", True),
        ("from helper import *\n", "def go(x):\n    return x.cuda()\n", False),
        ("import torch\n", "def go(x, device):\n    return x.cuda(device)\n", False),
        ("import torch\n", "def go(x):\n    return x.cuda(torch.device('cuda'))\n", True),
        ("import torch\n", "def go(x, card):\n    return x.cuda(card)\n", True),
    ],
)
def test_the_package_is_imported_where_the_file_itself_needs_it(
    tmp_path: Path, above: str, line: str, imported: bool
) -> None:
    """A name `torch` may come by `*`; a device that is given was made where the package is."""
    write(tmp_path, {"helper.py": "import torch\n", "a.py": above + line})
    move(tmp_path)
    after = (tmp_path / "a.py").read_text()
    assert "cuda" not in after
    assert after.startswith(f"{above}import torch_npu\n") is imported
    assert ("torch_npu" in after) is imported
