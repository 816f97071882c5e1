"""Whose a stop is where a plain rehearsal of a rewritten program met it."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.blame.exceptions import from_log
from joymigrate.ledger import Ledger
from joymigrate.ledger.step import Step
from joymigrate.run.rehearse import stop_judge
from joymigrate.run.rehearse.settings import RehearsalSettings

LOG = (
    'Traceback (most recent call last):\n  File "main.py", line 2, in <module>\n    {line}\n'
    "AssertionError: Torch not compiled with CUDA enabled\n"
)


@pytest.mark.parametrize(
    ("line", "rewritten", "whose", "do"),
    [
        ("net.to(saved['device'])", True, "rewrite", "it comes from a checkpoint"),
        ("net.to(saved['device'])", False, "program", "`joymigrate rewrite .`"),
        ("net.to('cuda')", True, "program", "`joymigrate rewrite .`"),
    ],
)
def test_a_rewritten_program_is_not_told_to_rewrite_again(
    line: str,
    rewritten: bool,
    whose: str,
    do: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stop_judge, "read_chain", lambda folder: from_log(LOG.format(line=line)))
    if rewritten:
        Ledger.of(tmp_path).record(Step(kind="rewrite"))
    settings = RehearsalSettings(tmp_path, tmp_path, "2.13.0")
    stop = stop_judge.explain_stop(settings, tmp_path, 1, (), rewritten=False)
    assert stop is not None
    assert stop["whose"] == whose
    assert stop["next"].startswith(do)
    assert "checkpoint" in stop["next"]
