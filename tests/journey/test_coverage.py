"""Where the operators are recorded: with the rehearsal, else here."""

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
from joymigrate.journey.steps.coverage import TRACE, record_trace, remove_traces, set_aside


@dataclass
class Machine:
    """A journey whose command leaves the text `here` as its trace, or none; `there` is what the
    rehearsal recorded and how the program ended in it."""

    folder: Path
    here: tuple[int, str | None]
    there: tuple[int, str | None] = (1, None)
    chip_here: bool = False
    request: Any = field(default_factory=lambda: SimpleNamespace(entry=("python", "train.py")))

    @property
    def before(self) -> dict[str, Any]:
        code, text = self.there
        figures = {"exit_code": code, "recorded": text is not None and code == 0}
        return {"rehearse": SimpleNamespace(figures=figures)}

    def path(self, name: str) -> Path:
        return self.folder / name

    def joymigrate(self, log: str, *words: str, ok: Any = (0,)) -> Any:
        code, text = self.here
        if text is not None:
            self.path(TRACE).write_text(text)
        return SimpleNamespace(code=code, tail=lambda: "")


@pytest.mark.parametrize(
    ("there", "here", "code", "where", "trace"),
    [
        ((0, "whole"), (0, "unused"), 0, "the simulated chip", "whole"),
        ((1, "two operators"), (0, "whole"), 0, "this machine", "whole"),
        ((1, None), (1, "one"), 1, "this machine", "one"),
        ((1, "two operators"), (1, "one"), 1, "the simulated chip", "two operators"),
    ],
)
def test_the_rehearsal_records_and_this_machine_where_the_program_ended_early_there(
    tmp_path: Path, there: Any, here: Any, code: int, where: str, trace: str
) -> None:
    at: Any = Machine(tmp_path, here, there)
    remove_traces(at)
    if there[1] is not None:
        at.path(TRACE).write_text(there[1])
    if there[0]:
        set_aside(at)
    assert record_trace(at) == (code, where)
    assert at.path(TRACE).read_text() == trace


def test_a_program_of_which_no_operator_was_recorded_is_not_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at: Any = Machine(tmp_path, (0, None))
    (tmp_path / "coverage").mkdir()
    header = {"chrome": None, "steps": 0, "steps_seen": 0, "complete": False}

    def record(at: Any) -> Any:
        at.path(TRACE).write_bytes(gzip.compress(json.dumps(header).encode() + b"\n"))
        return 0, "this machine"

    monkeypatch.setattr(coverage, "record_trace", record)
    found = coverage.run(at)
    assert (found.verdict, found.figures) == ("inconclusive", {"operators": 0})
    assert advice.run(SimpleNamespace(before={"coverage": found})).status is StepStatus.SKIPPED
