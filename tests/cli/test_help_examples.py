"""Every help ends with two examples, and each example is a command line that parses."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
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


# What an example reads when it runs: the files of a small project.
FILES = {
    "train.py": "import torch\nx = torch.zeros(3).cuda()\n",
    "load.csv": "at,rate\n" + "".join(f"{3600 * n},{100 + n % 24}\n" for n in range(24 * 60)),
    "gpu.jsonl": "".join(f'{{"step": {n}, "loss": {2 - n / 10}}}\n' for n in range(5)),
    "gpu.csv": "step,loss\n" + "".join(f"{n},{2 - n / 10}\n" for n in range(5)),
}
FILES |= {"npu.jsonl": FILES["gpu.jsonl"], "npu.csv": FILES["gpu.csv"]}
ALONE = (
    *("chips list", "chips new", "chips show", "chips versions"),
    pytest.param("cluster forecast", marks=pytest.mark.dear),
    *("explain", "oplist diff", "oplist show"),
    *("scan", "rewrite", "status", "rollback", "train init", "train tasks", "verify loss"),
)


@pytest.mark.parametrize("name", ALONE)
def test_an_example_runs(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for file, text in FILES.items():
        (tmp_path / file).write_text(text)
    monkeypatch.chdir(tmp_path)
    if name == "rollback":
        assert run(["rewrite", "."]) == 0
        assert run(["rewrite", ".", "--style", "agnostic"]) == 0
    for line in _examples.examples()[name]:
        if "--diff origin/" in line:  # needs a repository with that branch
            continue
        assert run(shlex.split(line)) in (0, 1), capsys.readouterr().err
