"""Options of a long command are the fields of dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from joymigrate.cli._answers import Answer, answers
from joymigrate.cli._options import spread


@dataclass(frozen=True)
class Where:
    host: Annotated[str, typer.Option("--host")] = "here"
    names: Annotated[list[str], typer.Option("--name")] = field(default_factory=list)


@dataclass(frozen=True)
class How:
    fast: Annotated[bool, typer.Option("--fast/--slow")] = True


def test_a_command_gets_its_options_as_objects() -> None:
    got = []

    @spread
    def command(where: Where, how: How, file: Path = typer.Argument(...)) -> int:
        got.append((where, how, file))
        return 0

    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, ["a.txt", "--name", "x", "--name", "y", "--slow"])
    assert done.exit_code == 0, done.output
    assert got == [(Where("here", ["x", "y"]), How(False), Path("a.txt"))]
    assert CliRunner().invoke(app, ["a.txt", "--host"]).exit_code == 2


def test_two_options_of_one_name_are_refused() -> None:
    def command(where: Where, host: str = typer.Option("", "--host")) -> int:
        return 0

    with pytest.raises(TypeError, match="two options named host"):
        spread(command)


def test_a_command_returns_its_answer_and_gets_formats(tmp_path: Path) -> None:
    @answers("order")
    def command(name: str = typer.Argument(...)) -> Answer:
        document = {"schema": "joymigrate.order/1", "order": name, "stopped": [], "started": []}
        own = {"md": lambda: "our own\n"}
        return Answer(document, f"\033[32m{name}\033[0m\n", code=True, own=own)

    app = typer.Typer()
    app.command()(command)
    file = tmp_path / "out.txt"

    def run(*words: str) -> tuple[str, bool]:
        """What the file holds, and whether exit code 1 said that something was found."""
        done = CliRunner().invoke(app, ["x", *words, "-o", str(file)], standalone_mode=False)
        return file.read_text(), done.return_value == 1

    assert run() == ("x\n", True)  # no colour in a file
    assert run("--format", "md") == ("our own\n", True)
    assert '"order": "x"' in run("--format", "json")[0]
    assert "<td>x</td>" in run("--format", "html")[0].replace(" class=right", "")
    file.unlink()
    done = CliRunner().invoke(app, ["x", "--format", "jsn"])
    assert "Did you mean 'json'" in str(done.exception)
