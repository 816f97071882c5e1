"""The command line as a whole: help without heavy imports, exit codes, pipes, near misses."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from joymigrate import __version__
from joymigrate.cli._main import command_names, help_text, run, summary

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
    joined = " ".join(out.split())
    for name in command_names():
        assert summary(name), name
        assert f"\n  {name} " in out
        assert summary(name) in joined


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


def test_help_is_a_command_and_has_a_short_name(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["help"], ["-h"], ["--help"]):
        assert run(arguments) == 0
        assert capsys.readouterr().out.startswith("Usage: joymigrate [OPTIONS] COMMAND")
    for arguments in (["help", "cluster", "plan"], ["cluster", "plan", "-h"]):
        assert run(arguments) == 0
        assert capsys.readouterr().out.startswith("Usage: joymigrate cluster plan")


@pytest.mark.parametrize("columns", [40, 60, 100])
def test_help_is_as_wide_as_the_terminal(columns: int) -> None:
    lines = help_text(columns).splitlines()
    assert max(map(len, lines)) <= columns


def test_a_mistyped_sub_command_beside_a_default_gets_a_suggestion(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["serve", "modles"]) == 2
    assert "Did you mean 'models'?" in capsys.readouterr().err
    (tmp_path / "modles").mkdir()
    assert run(["serve", "modles", "--check"]) != 0
    assert "Did you mean" not in capsys.readouterr().err


def shell(line: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in which `$J` is joymigrate."""
    given = {**os.environ, "J": " ".join(PROGRAM), **more}
    return subprocess.run(["sh", "-c", line], cwd=cwd, env=given, capture_output=True, text=True)


@pytest.mark.parametrize(
    "line", ["$J chips list >&-", "$J chips list 2>&-", "$J chips list <&-", "$J --help >&- 2>&-"]
)
def test_a_closed_stream_is_no_error(tmp_path: Path, line: str) -> None:
    done = shell(line, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
@pytest.mark.parametrize("command", ["--version", "chips list", "chips list --format json"])
def test_a_full_disk_is_one_error(tmp_path: Path, command: str) -> None:
    done = shell(f"$J {command} > /dev/full", tmp_path)
    assert (done.returncode, done.stderr) == (2, "error: cannot write: No space left on device\n")


def test_a_working_folder_that_is_gone_is_one_error(tmp_path: Path) -> None:
    done = shell("mkdir gone && cd gone && rmdir ../gone && $J status", tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "error: the working folder is gone\n  help: cd to a folder that exists\n"
    )


def test_a_folder_that_refuses_is_one_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/there")

    monkeypatch.setattr("joymigrate.cli.status.must_exist", refused)
    assert run(["status"]) == 2
    assert (
        capsys.readouterr().err == "error: cannot use this path: Permission denied\n  at: /there\n"
    )


def test_a_file_where_a_folder_should_be_is_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run(["rewrite", str(tmp_path / "file" / "inner"), "--diff"]) == 2
    assert run(["render", "lock", "-o", str(tmp_path / "file" / "inner")]) == 2
    assert "this is a bug" not in capsys.readouterr().err


def test_names_that_the_locale_cannot_show_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "ü.py").write_text("import torch\ntorch.cuda.synchronize()\n", encoding="utf-8")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for command in ("$J scan .", "$J rewrite . --diff", "$J scan none/ü.py", "$J explain JM101"):
        done = shell(command, tmp_path, **plain, PYTHONIOENCODING="ascii:strict")
        assert done.returncode in (0, 1, 2)
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("home", [None, "", "/proc"])
def test_no_home_is_needed_to_read_a_project(tmp_path: Path, home: str | None) -> None:
    (tmp_path / "a.py").write_text("import torch\ntorch.cuda.synchronize()\n")
    set_home = "unset HOME;" if home is None else f"HOME={home};"
    for command in ("scan a.py", "rewrite a.py --diff", "status", "chips list"):
        done = shell(f"{set_home} export HOME; $J {command}", tmp_path)
        assert done.returncode in (0, 1)
        assert "Traceback" not in done.stderr


def test_ctrl_c_while_loading_and_while_working_leaves_no_traceback(tmp_path: Path) -> None:
    """The signal goes to the whole group, as a terminal sends it."""
    program = (
        "import os, signal, sys\n"
        "import joymigrate.rewrite.project as project\n"
        "project.PARALLEL_BYTES = 0\n"
        "work, first = project._work, os.getpid()\n"
        "def interrupted(file):\n"
        "    if os.getpid() == first: raise SystemExit('no worker')\n"
        "    os.killpg(0, signal.SIGINT)\n"
        "    return work(file)\n"
        "project._work = interrupted\n"
        "sys.argv = ['joymigrate', 'scan', '-j', '2', '.']\n"
        "from joymigrate.cli import main; main()\n"
    )
    for name in "abcd":
        (tmp_path / f"{name}.py").write_text("import torch\ntorch.cuda.synchronize()\n")
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_ctrl_c_while_the_command_line_loads_is_130() -> None:
    program = (
        "import sys, joymigrate.cli\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "joymigrate.cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")
