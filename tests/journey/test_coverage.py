"""Where the operators are recorded: here, or, where the program ends early here, on the chip."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from joymigrate.journey.model import StepStatus
from joymigrate.journey.steps import advice, coverage
from joymigrate.journey.steps.coverage import PART, TRACE, record_trace


@dataclass
class Machine:
    """A journey whose commands leave the text `here` or `there` as their trace, or none."""

    folder: Path
    here: tuple[int, str | None]
    there: tuple[int, str | None] = (1, None)
    chip_here: bool = False
    request: Any = field(default_factory=lambda: SimpleNamespace(entry=("python", "train.py")))

    def path(self, name: str) -> Path:
        return self.folder / name

    def on_chip(self) -> list[str]:
        return ["rehearse"]

    def joymigrate(self, log: str, *words: str, ok: Any = (0,)) -> Any:
        code, text = self.there if words[0] == "rehearse" else self.here
        if text is not None:
            self.path(TRACE).write_text(text)
        return SimpleNamespace(code=code, tail=lambda: "")


@pytest.mark.parametrize(
    ("here", "there", "code", "where", "trace"),
    [
        ((0, "whole"), (0, "unused"), 0, "this machine", "whole"),
        ((1, "two operators"), (0, "whole"), 0, "the simulated chip", "whole"),
        ((1, None), (0, "whole"), 0, "the simulated chip", "whole"),
        ((1, "two operators"), (1, None), 1, "this machine", "two operators"),
    ],
)
def test_a_program_that_ends_early_here_is_recorded_on_the_chip(
    tmp_path: Path, here: Any, there: Any, code: int, where: str, trace: str
) -> None:
    (tmp_path / "coverage").mkdir()
    at: Any = Machine(tmp_path, here, there)
    done, on = record_trace(at)
    assert (done.code, on) == (code, where)
    assert at.path(TRACE).read_text() == trace
    assert not at.path(PART).exists()


def test_a_program_of_which_no_operator_was_recorded_is_not_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at: Any = Machine(tmp_path, (0, None))
    (tmp_path / "coverage").mkdir()
    header = {"chrome": None, "steps": 0, "steps_seen": 0, "complete": False}

    def record(at: Any) -> Any:
        at.path(TRACE).write_bytes(gzip.compress(json.dumps(header).encode() + b"\n"))
        return SimpleNamespace(code=0), "this machine"

    monkeypatch.setattr(coverage, "record_trace", record)
    found = coverage.run(at)
    assert (found.verdict, found.figures) == ("inconclusive", {"operators": 0})
    at.before = {"coverage": found}
    assert advice.run(at).status is StepStatus.SKIPPED
