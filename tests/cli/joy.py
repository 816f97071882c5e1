"""Runs a joymigrate command line inside the test and holds what it told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from joymigrate.cli._main import run


@dataclass(frozen=True, slots=True)
class Told:
    """Exit code, stdout and stderr of one command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """Lines of stdout."""
        return self.out.splitlines()


Joy = Callable[..., Told]


def joy_with(capsys: pytest.CaptureFixture[str]) -> Joy:
    """A function that runs `joymigrate ARGUMENTS…`."""

    def call(*arguments: object) -> Told:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        told = capsys.readouterr()
        return Told(code, told.out, told.err)

    return call
