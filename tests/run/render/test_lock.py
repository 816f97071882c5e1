"""Lock files of every kind, and what is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.render import find, read
from joymigrate.run.render.environment import HEAD, lock_installed


def locked(tmp_path: Path, name: str, text: str) -> dict[str, str]:
    path = tmp_path / name
    path.write_text(text)
    return {pin.name: pin.requirement for pin in read(path).pins}


def test_pinned_requirements_lose_hashes_and_other_platforms(tmp_path: Path) -> None:
    text = """\
# python 3.11
torch==2.9.0+cu126 \\
    --hash=sha256:aaa \\
    --hash=sha256:bbb
Flash_Attn == 2.6.3   # why
uvicorn[standard]==0.30.0 ; python_version >= "3.8"
pywin32==306 ; sys_platform == 'win32'
tool @ git+https://example.org/tool.git@abc
-e .
--index-url https://example.org/simple
"""
    path = tmp_path / "requirements.lock"
    path.write_text(text)
    lock = read(path)
    assert [pin.requirement for pin in lock.pins] == [
        "flash-attn==2.6.3",
        "tool @ git+https://example.org/tool.git@abc",
        "torch==2.9.0+cu126",
        'uvicorn[standard]==0.30.0 ; python_version >= "3.8"',
    ]
    assert lock.python == "3.11"
    assert [was for was, _ in lock.left_out] == ["-e .", "--index-url https://example.org/simple"]


UV = """\
version = 1
requires-python = "==3.11.*"

[[package]]
name = "mine"
version = "0.1.0"
source = { virtual = "." }
dependencies = [
    { name = "torch" },
    { name = "pywin32", marker = "sys_platform == 'win32'" },
    { name = "fork" },
]
[package.dev-dependencies]
dev = [{ name = "pytest" }]

[[package]]
name = "torch"
version = "2.9.0"
source = { registry = "https://example.org/simple" }
dependencies = [{ name = "numpy" }, { name = "triton", marker = "platform_machine == 'x86_64'" }]

[[package]]
name = "numpy"
version = "2.1.0"
source = { registry = "https://example.org/simple" }

[[package]]
name = "triton"
version = "3.5.0"
source = { registry = "https://example.org/simple" }

[[package]]
name = "fork"
version = "1.0"
source = { git = "https://example.org/fork.git?rev=main#abc123" }

[[package]]
name = "pywin32"
version = "306"
source = { registry = "https://example.org/simple" }

[[package]]
name = "pytest"
version = "9.0"
source = { registry = "https://example.org/simple" }
"""


def test_uv_locks_are_followed_from_the_project_on(tmp_path: Path) -> None:
    path = tmp_path / "uv.lock"
    path.write_text(UV)
    lock = read(path)
    assert {pin.name for pin in lock.pins} == {"torch", "numpy", "triton", "fork"}
    fork = lock.pin("fork")
    assert fork is not None
    assert fork.requirement == "fork @ git+https://example.org/fork.git@abc123"
    assert lock.python == "3.11"


def test_poetry_and_pylock(tmp_path: Path) -> None:
    poetry = """\
[[package]]
name = "Torch"
version = "2.9.0"
groups = ["main"]
[[package]]
name = "pytest"
version = "9.0"
groups = ["dev"]
[[package]]
name = "colorama"
version = "0.4.6"
markers = "sys_platform == 'win32'"
[metadata]
python-versions = ">=3.10"
"""
    assert locked(tmp_path, "poetry.lock", poetry) == {"torch": "torch==2.9.0"}
    pylock = """\
lock-version = "1.0"
requires-python = "==3.12.*"
[[packages]]
name = "torch"
version = "2.9.0"
[[packages]]
name = "near"
directory = { path = "near" }
[[packages]]
name = "fork"
vcs = { type = "git", url = "https://example.org/f.git", commit-id = "abc" }
"""
    assert locked(tmp_path, "pylock.toml", pylock) == {
        "torch": "torch==2.9.0",
        "fork": "fork @ git+https://example.org/f.git@abc",
    }
    assert read(tmp_path / "pylock.toml").python == "3.12"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("requirements.txt", "torch>=2\nnumpy\nyaml==1\n", "2 not pinned: torch>=2, numpy"),
        ("requirements.txt", "torch==2.*\n", "not pinned"),
        ("requirements.txt", "torch = 2\n", "not a requirement"),
        ("requirements.txt", "# nothing\n", "names no package"),
        ("uv.lock", "[[package", "not valid TOML"),
        ("poetry.lock", "", "names no package"),
    ],
)
def test_what_is_no_lock_is_one_clear_error(
    name: str, text: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(JoyError, match=said):
        locked(tmp_path, name, text)


def test_the_lock_is_found_by_name(tmp_path: Path) -> None:
    with pytest.raises(JoyError, match="no lock file"):
        find(tmp_path)
    (tmp_path / "requirements.txt").touch()
    (tmp_path / "uv.lock").touch()
    assert find(tmp_path).name == "uv.lock"


def test_an_environment_writes_a_lock_that_reads_back(tmp_path: Path) -> None:
    text = lock_installed(sys.executable)
    assert text.startswith(HEAD)
    path = tmp_path / "joymigrate.lock"
    path.write_text(text)
    lock = read(path)
    assert lock.python == f"{sys.version_info.major}.{sys.version_info.minor}"
    code = "from importlib.metadata import version; print(version('torch'))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    torch = lock.pin("torch")
    assert torch is not None
    assert torch.version == shown.strip() or torch.url
    assert lock.pin("joymigrate") is None  # it lies in a folder


def test_an_interpreter_that_is_none_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(JoyError, match="cannot start"):
        lock_installed(str(tmp_path / "python"))
    with pytest.raises(JoyError, match="did not say"):
        lock_installed("/bin/echo" if Path("/bin/echo").exists() else sys.executable)
