"""What the shells offer: commands, options, and the values of options."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from joymigrate.chips import all_chips
from joymigrate.cli import _completion
from joymigrate.cli._main import command_names, load, run
from joymigrate.journey import JourneyRequest, plan
from joymigrate.run.train import tasks
from tests.cli.joy import Joy, joy_with

HEAVY = {"torch", "pandas", "libcst", "numpy", "transformers"}


Ask = Callable[..., str]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """What a shell is told when its variables are set, as at a press of a key."""

    def call(instruction: str, **variables: str) -> str:
        for name, value in {"_JOYMIGRATE_COMPLETE": instruction, **variables}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            run([])
        told = capsys.readouterr()
        assert (ended.value.code, told.err) == (0, "")
        return told.out

    return call


def bash_variables(line: str) -> dict[str, str]:
    """What bash sets at the end of a line."""
    return {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("joymigrate s", ["scan", "schema", "serve", "status"]),
        ("joymigrate cluster su", ["submit"]),
        ("joymigrate serve rollout p", ["pause", "promote"]),
        ("joymigrate --v", ["--version"]),
        ("joymigrate scan --sty", ["--style"]),
        ("joymigrate train --dev", ["--device"]),
        ("joymigrate scan --to as", ["ascend"]),
        ("joymigrate serve --to as", ["ascend"]),
        ("joymigrate chips show as", ["ascend"]),
        ("joymigrate explain JM10", [f"JM10{n}" for n in range(1, 10)]),
        ("joymigrate scan --select JM101,JM11", ["JM101,JM110", "JM101,JM111"]),
        ("joymigrate migrate --until re", ["rewrite", "rehearse"]),
        ("joymigrate migrate --style ", ["agnostic", "accelerator", "direct"]),
        ("joymigrate scan --format s", ["sarif"]),
        ("joymigrate rehearse --mode ", ["run", "dry", "shadow", "async"]),
        ("joymigrate train labelstudio ", ["in", "out"]),
        ("joymigrate doctor clu", ["cluster"]),
        ("joymigrate scan --write-baseline ", []),
    ],
)
def test_bash_is_offered_what_may_follow(line: str, offered: list[str], ask: Ask) -> None:
    assert ask("complete_bash", **bash_variables(line)).split() == offered


def test_zsh_is_offered_commands_with_what_they_are_for(ask: Ask) -> None:
    told = ask("complete_zsh", _TYPER_COMPLETE_ARGS="joymigrate sca")
    assert told.startswith("""_arguments '*: :(("scan":"Find what keeps a project""")
    assert told.count("\n") == 1


def test_zsh_is_offered_values(ask: Ask) -> None:
    told = ask("complete_zsh", _TYPER_COMPLETE_ARGS="joymigrate scan --to c")
    assert told == """_arguments '*: :(("cambricon"))'\n"""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell", "pwsh"])
def test_every_shell_has_a_script(shell: str, ask: Ask) -> None:
    assert f"complete_{shell.replace('pwsh', 'powershell')}" in ask(f"source_{shell}")


def test_the_script_works_in_bash(tmp_path: Path) -> None:
    """The shell itself reads the script and calls its function as it does for a key press."""
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("bash is not installed")
    (tmp_path / "joymigrate").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m joymigrate "$@"\n')
    (tmp_path / "joymigrate").chmod(0o755)
    program = (
        'eval "$(_JOYMIGRATE_COMPLETE=source_bash joymigrate)"\n'
        "complete -p joymigrate\n"
        "COMP_WORDS=(joymigrate scan --to asc); COMP_CWORD=3\n"
        '_joymigrate_completion joymigrate; echo "offered: ${COMPREPLY[*]}"\n'
    )
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [shell, "--norc", "-c", program],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert "-F _joymigrate_completion joymigrate" in done.stdout
    assert "offered: ascend" in done.stdout


@pytest.mark.parametrize("line", ["joymigrate ", "joymigrate scan --to ", "joymigrate explain J"])
def test_a_key_press_loads_nothing_heavy(line: str) -> None:
    program = (
        "import sys; from joymigrate.cli._main import run\n"
        "try: run([])\n"
        "except SystemExit: pass\n"
        "print('MODULES', *sorted({name.split('.')[0] for name in sys.modules}))"
    )
    given = {"_JOYMIGRATE_COMPLETE": "complete_bash", **bash_variables(line)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        check=True,
    )
    offered, _, modules = done.stdout.partition("MODULES")
    assert offered.strip()
    assert not set(modules.split()) & HEAVY


def test_names_that_are_read_from_files_are_those_that_commands_know(
    capsys: pytest.CaptureFixture[str],
) -> None:
    joy: Joy = joy_with(capsys)
    listed = {line.split()[0] for line in joy("explain", "--list").lines if line.startswith("JM")}
    assert set(_completion.rules()) >= listed
    assert set(_completion.chips()) == set(all_chips())
    steps = [step.name for step in plan(JourneyRequest(Path(), ("python",), chip="ascend"))]
    assert list(_completion.steps()) == steps
    assert list(_completion.tasks()) == tasks.names()
    from joymigrate.run import kernels

    assert set(_completion.kernels()) == set(kernels.operators())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("text or json.", ["text", "json"]),
        ("text, json, md or html, to stdout.", ["text", "json", "md", "html"]),
        ("With --check: text or json.", ["text", "json"]),
        ("agnostic (runs on both) or direct.", ["agnostic", "direct"]),
        ("modules, or ops (each operator too).", ["modules", "ops"]),
        ("run: numbers; dry: memory only; shadow: both, always.", ["run", "dry", "shadow"]),
        ("auto, cpu, cuda or a chip.", []),
        ("Longest text, tokens.", []),
        ("Exit 1 below this share, in percent.", []),
        ("The chip; `joymigrate chips list`.", []),
        ("", []),
    ],
)
def test_a_help_that_lists_words_offers_them(text: str, words: list[str]) -> None:
    assert _completion.list_words(text) == words


def test_no_entry_is_about_an_option_that_is_gone() -> None:
    known: set[str] = set()

    def walk(command: Any, path: str) -> None:
        for name, inner in getattr(command, "commands", {}).items():
            walk(inner, f"{path} {name}")
        for parameter in command.params:
            names = {*parameter.opts, parameter.name}
            known.update(names, {f"{path} {name}" for name in names})

    for name in command_names():
        walk(load(name), name)
    assert {*_completion.NAMES, *_completion.OWN} <= known


def test_a_project_whose_ledger_cannot_be_read_offers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> None:
    (tmp_path / ".joymigrate").mkdir()
    (tmp_path / ".joymigrate" / "ledger.jsonl").write_text("not json\n")
    monkeypatch.chdir(tmp_path)
    assert ask("complete_bash", **bash_variables("joymigrate rollback ")).split() == []
