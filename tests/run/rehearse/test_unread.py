"""What reaches torch with the origin's word although the rules were applied as files loaded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.run.rehearse.conftest import PROGRAMS, Run

pytestmark = pytest.mark.compiler
ASKED = {
    "torch.cuda.is_available", "torch.cuda.current_device", "device", "_parse_to", "is_cuda",
    "cuda", "torch.cuda.HalfTensor", "Generator", "rand", "empty", "autocast", "GradScaler",
    "load", "Stream", "ones", "zeros", "init_process_group",
}  # fmt: skip


def test_words_made_at_run_time_are_translated_and_told_with_their_lines(
    rehearse: Run, tmp_path: Path
) -> None:
    shutil.copy(PROGRAMS / "unread.py", tmp_path / "main.py")
    done = rehearse("python", "main.py", options=("--migrate",))
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert [line.split()[2:] for line in lines[:3]] == [["True", "True"]] * 3
    assert {line.split()[1] for line in lines[3:-1]} == {"npu:0"}
    assert (len(lines), lines[-1]) == (15, "fast")
    assert done.report is not None
    rows = done.report["only_seen_while_running"]
    assert {row["what"] for row in rows} == ASKED
    source = (tmp_path / "main.py").read_text().splitlines()
    places = {row["what"]: row["line"] for row in rows if row["what"] in ("_parse_to", "load")}
    for what, word in (("_parse_to", ".to(f"), ("load", "torch.load")):
        file, _, line = places[what].rpartition(":")
        assert file == str(tmp_path / "main.py")
        assert word in source[int(line) - 1]
    assert "only seen while running" in done.err
    assert "takes its CPU path" not in done.err


def test_a_line_that_the_rules_read_and_left_is_not_answered_for(
    rehearse: Run, tmp_path: Path
) -> None:
    (tmp_path / "main.py").write_text(
        "import torch\n"
        "print(torch.cuda.is_available())  # joymigrate: ignore\n"
        "print(torch.ones(1).is_cuda, torch.device('cpu').type in ('cpu', 'cuda'))\n"
    )
    done = rehearse("python", "main.py", options=("--migrate",))
    assert done.out == "False\nFalse True\n", done.err
    assert done.report is not None
    assert done.report["only_seen_while_running"] == []
    assert "main.py:2: torch.cuda.is_available() is False on this chip" in done.err
