"""Options of a long command are the fields of dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

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
