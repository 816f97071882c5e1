"""Options that all commands share mean one thing in each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from joymigrate.cli import _main
from joymigrate.cli._shared_options import QUIET
from tests.cli.joy import Joy, joy_with

LETTERS = {"-o": "--output", "-q": "--quiet", "-v": "--verbose"}
HANDS_ON = ["cluster exec"]  # what it starts has options of its own, behind the job's name


@pytest.fixture
def joy(capsys: pytest.CaptureFixture[str]) -> Joy:
    return joy_with(capsys)


def leaves(command: Any, path: list[str]) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", {})
    if not inner:
        yield " ".join(path), command
    for name, one in inner.items():
        yield from leaves(one, [*path, name])


@pytest.fixture(scope="module")
def commands() -> dict[str, Any]:
    names = _main.command_names()
    return dict(leaf for name in names for leaf in leaves(_main.load(name), [name]))


def test_each_command_is_quiet_when_asked(commands: dict[str, Any]) -> None:
    helps = {
        path: [one.help for one in command.params if "--quiet" in one.opts and "-q" in one.opts]
        for path, command in commands.items()
    }
    assert [path for path, found in helps.items() if found != [QUIET]] == HANDS_ON


def test_a_letter_is_one_word_in_all_commands(commands: dict[str, Any]) -> None:
    other = [
        (path, one.opts)
        for path, command in commands.items()
        for one in command.params
        for letter, word in LETTERS.items()
        if letter in one.opts and word not in one.opts
    ]
    assert not other


def test_quiet_ends_notes_and_leaves_the_result(joy: Joy, tmp_path: Path) -> None:
    asked = ("chips", "new", "mychip", "--device", "chp", "--backend", "cbl")
    spoken = joy(*asked, "-o", str(tmp_path / "one"))
    silent = joy(*asked, "-o", str(tmp_path / "two"), "-q")
    assert (spoken.code, silent.code) == (0, 0), spoken.err + silent.err
    assert "Next:" in spoken.err
    assert silent.err == ""
    assert silent.out == spoken.out.replace(str(tmp_path / "one"), str(tmp_path / "two"))
    assert "Next:" in joy(*asked, "-o", str(tmp_path / "three")).err  # for one command line only


def test_quiet_keeps_what_explains_the_exit_code(joy: Joy, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("modle: {}\n")
    done = joy("schema", "job", "--check", str(job), "-q")
    assert done.code == 1
    assert "modle" in done.err


def test_each_command_takes_color(commands: dict[str, Any]) -> None:
    without = [
        path
        for path, command in commands.items()
        if not any("--color" in one.opts for one in command.params)
    ]
    assert without == []


@pytest.mark.parametrize("words", [("--color", "nope", "scan"), ("scan", "--color", "nope")])
def test_color_stands_before_or_behind_the_command(joy: Joy, words: tuple[str, ...]) -> None:
    done = joy(*words)
    assert done.code == 2
    assert "--color does not know 'nope'" in done.err


def test_behind_the_command_color_counts(joy: Joy, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import torch\nx = torch.zeros(3).cuda()\n")
    assert "\x1b[" in joy("--color", "always", "scan", str(tmp_path)).out
    assert "\x1b[" not in joy("--color", "always", "scan", str(tmp_path), "--color", "never").out
