"""The command line as a whole: help without heavy imports, exit codes, pipes, near misses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from joymigrate import __version__
from joymigrate.cli._main import command_names, run, summary

HEAVY = ("torch", "pandas", "libcst", "numpy", "torch_npu", "yaml", "aiohttp", "safetensors")
PROGRAM = [sys.executable, "-m", "joymigrate"]


def modules_after(*arguments: str) -> set[str]:
    """What is in sys.modules when the command line has run in a fresh process."""
    program = (
        "import sys; from joymigrate.cli._main import run\n"
        f"run({list(arguments)!r})\n"
        "print('\\nMODULES', *sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.rpartition("MODULES")[2].split())


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("rewirte",), ()])
def test_help_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    assert not modules_after(*arguments) & set(HEAVY)


@pytest.mark.parametrize("name", command_names())
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"joymigrate {name}" in out
    assert "--help" in out


@pytest.mark.parametrize("name", command_names())
def test_help_of_a_command_loads_no_torch(name: str) -> None:
    assert not modules_after(name, "--help") & {"torch", "pandas", "libcst"}


def test_help_names_every_command_with_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    for name in command_names():
        assert summary(name), name
        assert f"  {name}" in out
        assert summary(name) in out


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"joymigrate {__version__}\n"


def test_a_mistyped_command_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rewirte"]) == 2
    captured = capsys.readouterr()
    assert "Did you mean 'rewrite'?" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("arguments", [["status", "--nope"], ["status", "a", "b", "c"], ["nope"]])
def test_wrong_usage_is_two_with_a_way_to_help(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "help: joymigrate" in error
    assert "Traceback" not in error


def test_our_own_bug_says_so_and_is_two(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("joymigrate.cli.status.must_exist", broken)
    assert run(["status"]) == 2
    error = capsys.readouterr().err
    assert "RuntimeError: boom" in error
    assert "this is a bug in joymigrate" in error


def test_an_interrupt_is_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("joymigrate.cli.status.must_exist", interrupted)
    assert run(["status"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_python_dash_m_is_the_same_program(tmp_path: Path) -> None:
    done = subprocess.run([*PROGRAM, "status"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"No steps yet in {tmp_path}.\n")
    done = subprocess.run([*PROGRAM, "status", "absent"], cwd=tmp_path, capture_output=True)
    assert done.returncode == 2


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    """`joymigrate … | head -1`: more output than a pipe holds, and nobody to read it."""
    lines = "".join(f"torch.cuda.synchronize({n})\n" for n in range(4000))
    (tmp_path / "a.py").write_text("import torch\n" + lines)
    process = subprocess.Popen(
        [*PROGRAM, "rewrite", "a.py", "--diff"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    error = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait() in (0, 1)
    assert "Traceback" not in error
    assert "BrokenPipe" not in error


@pytest.mark.parametrize("setting", ["NO_COLOR", "FORCE_COLOR"])
def test_a_pipe_gets_no_colour_unless_forced(tmp_path: Path, setting: str) -> None:
    (tmp_path / "a.py").write_text("import torch\ntorch.cuda.synchronize()\n")
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    done = subprocess.run(
        [*PROGRAM, "scan", "a.py"],
        cwd=tmp_path,
        capture_output=True,
        env={**environment, setting: "1"},
    )
    assert done.returncode == 1
    assert (b"\033[" in done.stdout) == (setting == "FORCE_COLOR")


def test_settings_name_a_missing_file_clearly(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--settings", "/absent/joymigrate.toml", "doctor", "--show-config"]) == 2
    assert "/absent/joymigrate.toml" in capsys.readouterr().err
    os.environ.pop("JOYMIGRATE_SETTINGS", None)
