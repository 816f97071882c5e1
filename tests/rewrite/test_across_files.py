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


def test_choices_keep_the_origins_name_on_a_machine_without_accelerator(tmp_path: Path) -> None:
    write(tmp_path, {"pkg/__init__.py": "", "pkg/dev.py": DEV})
    move(tmp_path, Style.AGNOSTIC)
    after = (tmp_path / "pkg/dev.py").read_text()
    assert 'default=jm.device_type(), choices=[jm.accelerator(), "cpu"]' in after
