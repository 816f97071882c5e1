"""The wheel, the sdist and an editable install carry the rules, and one resolver finds them."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGES = sysconfig.get_paths()["purelib"]  # the dependencies, without this editable install
RULES = sorted(
    path.relative_to(REPOSITORY / "rules").as_posix()
    for path in (REPOSITORY / "rules").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
)
QUESTION = """
import joymigrate
from joymigrate.chips import all_chips, rules_root
root = rules_root()
print(joymigrate.__file__)
print(root)
print(len(all_chips()))
print(sum(1 for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)]
    done = subprocess.run([*command, str(REPOSITORY)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def environment() -> dict[str, str]:
    """Dependencies by PYTHONPATH: links to editable installs are not followed from there."""
    names = {k: v for k, v in os.environ.items() if not k.startswith(("JOYMIGRATE", "PYTHON"))}
    return {**names, "PYTHONPATH": PACKAGES, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def install(folder: Path, *what: str) -> Path:
    """A fresh environment with joymigrate alone; returns its folder of programs."""
    venv.create(folder)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    command = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "install", "-q"]
    offline = ["--no-deps", "--no-index", "--no-build-isolation"]
    done = subprocess.run(
        [*command, *offline, *what], capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return programs


def answers(programs: Path, cwd: Path) -> tuple[Path, Path, int, int]:
    """Where the package and its rules lie, the number of chips and of rule files."""
    done = subprocess.run(
        [programs / "python", "-c", QUESTION],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    package, rules, chips, files = done.stdout.split("\n")[:4]
    return Path(package).parent, Path(rules), int(chips), int(files)


def test_the_wheel_has_every_rule_and_nothing_beside_the_package(built: Path) -> None:
    with zipfile.ZipFile(only(built, "*.whl")) as wheel:
        names = wheel.namelist()
    packaged = sorted(
        name.removeprefix("joymigrate/_rules/")
        for name in names
        if name.startswith("joymigrate/_rules/")
    )
    assert packaged == RULES
    assert {name.split("/")[0].split("-")[0] for name in names} == {"joymigrate", "joymigrate.pth"}
    assert "joymigrate/py.typed" in names
    sources = {
        path.relative_to(REPOSITORY).as_posix()
        for path in (REPOSITORY / "joymigrate").rglob("*")  # styles, scripts, C, tables as well
        if path.is_file() and "__pycache__" not in path.parts and path.name != ".DS_Store"
    }
    assert sources <= set(names)


def test_the_sdist_has_what_a_reader_and_a_tester_need(built: Path) -> None:
    with tarfile.open(only(built, "*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"rules/{name}" for name in RULES} <= names
    expected = {"LICENSE", "README.md", "pyproject.toml", "Makefile", "constraints.txt"}
    assert expected <= names
    assert "tests/test_packaging.py" in names
    assert "examples/gpt/train.py" in names


@pytest.mark.slow
def test_an_installed_wheel_works_without_the_repository(built: Path, tmp_path: Path) -> None:
    programs = install(tmp_path / "env", str(only(built, "*.whl")))
    package, rules, chips, files = answers(programs, tmp_path)
    assert tmp_path in package.parents
    assert rules == package / "_rules"
    assert (chips > 3, files) == (True, len(RULES))
    (tmp_path / "a.py").write_text("import torch\ntorch.cuda.synchronize()\n")
    done = subprocess.run(
        [programs / "joymigrate", "rewrite", "a.py", "--diff"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert "+torch.npu.synchronize()" in done.stdout
    listed = subprocess.run(
        [programs / "joymigrate", "schema"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert listed.returncode == 0, listed.stderr  # the rules lie inside the package here
    assert "gates" in listed.stdout


def test_an_unpacked_sdist_finds_its_own_rules(built: Path, tmp_path: Path) -> None:
    with tarfile.open(only(built, "*.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    root = only(tmp_path, "joymigrate-*")
    package, rules, _, files = answers(Path(sys.executable).parent, root)
    assert package == root / "joymigrate"
    assert rules == root / "rules"
    assert files == len(RULES)


def test_an_editable_install_finds_the_repository(tmp_path: Path) -> None:
    programs = install(tmp_path / "env", "-e", str(REPOSITORY))
    package, rules, _, files = answers(programs, tmp_path)
    assert package == REPOSITORY / "joymigrate"
    assert rules == REPOSITORY / "rules"
    assert files == len(RULES)
