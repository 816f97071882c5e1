"""Every help ends with two examples, and each example is a command line that parses."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from joymigrate.cli import _examples
from joymigrate.cli._main import command_names, load, run


def leaves() -> Iterator[tuple[str, Any]]:
    """Every command that does something, by its words."""
    pending = [(name, load(name)) for name in command_names()]
    while pending:
        name, command = pending.pop()
        inner = getattr(command, "commands", {})
        if not inner:
            yield name, command
        for short, one in inner.items():
            pending.append((name if short == "default" else f"{name} {short}", one))


COMMANDS = dict(leaves())
LINES = [(name, line) for name, lines in _examples.examples().items() for line in lines]


def test_every_command_has_two_examples_and_no_other_name_has() -> None:
    wanted = {name for name, command in COMMANDS.items() if not command.hidden or " " not in name}
    known = _examples.examples()
    assert wanted - set(known) == set()
    assert set(known) - set(COMMANDS) == set()
    assert all(len(set(lines)) == 2 for lines in known.values())


@pytest.mark.parametrize(("name", "line"), LINES, ids=[line for _, line in LINES])
def test_an_example_parses(name: str, line: str) -> None:
    words = shlex.split(line)[len(name.split()) :]
    command = COMMANDS[name]
    with command.make_context(name, words):  # raises for an option or argument that is not there
        pass


@pytest.mark.parametrize("words", [["scan"], ["verify"], ["verify", "task"], []])
def test_a_help_ends_with_examples(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.count(f"  joymigrate {' '.join(words)}".rstrip()) >= 2
    assert "Examples:" in text
    assert ("[~]" in text) == (words == ["scan"])


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_help_names_values_and_no_types_of_python(name: str) -> None:
    command = COMMANDS[name]
    with command.make_context(name, [], resilient_parsing=True) as context:
        text = command.get_help(context)
    head = [line[:40] for line in text.splitlines() if line.startswith("  ")]
    assert not [line for line in head if re.search(r"<\w+|\blist\[", line)]
    assert not re.search(r"\[\[|\{|\.{4}", text.partition("\n\n")[0])
