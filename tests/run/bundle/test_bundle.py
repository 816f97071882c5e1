"""A bundle installs without a network, and says which file is not as it was."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from joymigrate.cli._main import run
from joymigrate.errors import JoyError
from joymigrate.run.bundle import collect


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle whose wheels nobody has to download."""

    def one_wheel(folder: Path, extras: object) -> None:
        (folder / "joymigrate-0-py3-none-any.whl").write_bytes(b"x")

    def one_page(folder: Path) -> list[str]:
        folder.mkdir()
        (folder / "index.md").write_text("one page")
        return []

    monkeypatch.setattr(collect, "collect_wheels", one_wheel)
    monkeypatch.setattr(collect, "copy_docs", one_page)
    collect.write(tmp_path / "air", ["torch"], shim=False)
    return tmp_path / "air"


def install(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(folder / "install.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_damaged_file_is_named_before_anything_is_installed(small: Path) -> None:
    assert install(small, "--check").returncode == 0
    (small / "docs" / "index.md").write_text("other")
    (small / "README.txt").unlink()
    done = install(small)
    assert done.returncode == 2
    assert done.stderr.strip().endswith("README.txt, docs/index.md")


def test_another_python_is_refused_in_one_line(small: Path) -> None:
    document = json.loads((small / "bundle.json").read_text())
    (small / "bundle.json").write_text(json.dumps({**document, "python": "3.1"}))
    done = install(small)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: made for Python 3.1 on ")


def test_a_folder_with_files_is_not_written_over(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(JoyError, match="not empty"):
        collect.write(small, [])
    assert run(["bundle", "--offline", "--extra", "torhc"]) == 2
    assert "no extra is called 'torhc'" in capsys.readouterr().err
    assert run(["bundle"]) == 2


@pytest.mark.dear
def test_the_documents_have_their_generated_parts(tmp_path: Path) -> None:
    assert collect.copy_docs(tmp_path / "docs") == []
    assert "JM121" in (tmp_path / "docs" / "reference" / "rules.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_bundle_installs_with_the_network_cut_off(tmp_path: Path) -> None:
    air = tmp_path / "air"
    try:
        document = collect.write(air, [])
    except JoyError as error:
        pytest.skip(f"no package index: {error}")
    assert (air / "docs" / "index.md").is_file()
    assert list((air / "shim").rglob("*.so")) or "simulated chip" in str(document["left_out"])
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    cut = ["unshare", "-rn"] if shutil.which("unshare") else []
    if cut and subprocess.run([*cut, "true"], capture_output=True).returncode:
        cut = []  # not allowed here: pip's --no-index alone
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull,
    }  # fmt: skip
    command = [*cut, python, str(air / "install.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    (tmp_path / "old.py").write_text("import torch\ntorch.zeros(1).cuda()\n")
    scan = [*cut, python, "-m", "joymigrate", "scan", "old.py"]
    said = subprocess.run(scan, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert said.returncode == 1, said.stderr
    assert "JM1" in said.stdout
    if list((air / "shim").glob("*")):
        assert list((tmp_path / ".cache" / "joymigrate" / "rehearse").rglob("libascendcl.so"))
