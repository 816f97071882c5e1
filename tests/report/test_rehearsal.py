"""A rehearsal's JSON as annotations, Markdown and text, and what ends a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from joymigrate.cli._main import run
from joymigrate.errors import JoyError
from joymigrate.report import rehearsal

DOCUMENT: dict[str, Any] = {
    "schema": rehearsal.SCHEMA,
    "soc": "Ascend910B3",
    "package": {"torch_npu": "2.13.0"},
    "exit_code": 0,
    "peak_memory_bytes": {"npu:0": 3 * 2**20},
    "fallbacks": [{"op": "aten::lgamma", "calls": 1, "where": ["/home/p/loss.py:7"]}],
    "traps": [
        {"trap": "float64", "where": "/home/p/a,b.py:3", "remedy": "use it: 100 %", "message": "m"},
        {"trap": "float64", "where": "/venv/site-packages/x/y.py:9", "remedy": "", "message": "m"},
    ],
    "unsimulated": [{"op": "npu::mla"}],
    "documented": [
        {"op": "aten::mm", "kernel": "aclnnMm", "dtype": "int8", "where": "", "source": "s"}
    ],
}
HERE = Path("/home/p")


def test_annotations_stand_on_lines_and_are_escaped() -> None:
    lines = rehearsal.render(DOCUMENT, "github", HERE).splitlines()
    assert lines[0] == "::warning file=a%2Cb.py,line=3,title=m::use it: 100 %25"
    assert lines[1].startswith("::warning file=loss.py,line=7,title=aten%3A%3Algamma runs")
    assert lines[-1] == (
        "The program ended with exit code 0; 1 fallback, 1 trap, 1 documented, 1 unsimulated."
    )


@pytest.mark.parametrize("form", rehearsal.FORMATS)
def test_lines_that_were_only_seen_while_running_are_in_every_format(form: str) -> None:
    row = {"what": "load", "line": "/home/p/main.py:4", "calls": 2}
    shown = rehearsal.render({**DOCUMENT, "only_seen_while_running": [row]}, form, HERE)
    line = next(line for line in shown.splitlines() if "load was given the origin's word" in line)
    assert "main.py" in line
    assert "only seen while running; 2 calls" in line
    assert "1 unread" in shown


def test_a_trap_in_a_library_is_not_the_users() -> None:
    assert "y.py" not in rehearsal.render(DOCUMENT, "text", HERE)


def test_the_summary_has_a_row_for_each_and_says_that_no_chip_took_part() -> None:
    shown = rehearsal.render(DOCUMENT, "md", HERE)
    assert "No chip took part" in shown
    assert "| trap | `a,b.py:3` | m | use it: 100 % |" in shown
    assert "peak memory of npu:0: 3.0 MiB" in shown


@pytest.mark.parametrize(
    ("on", "fails"), [((), False), (("traps",), True), (("fallbacks", "traps"), True)]
)
def test_a_job_ends_only_on_what_is_named(on: tuple[str, ...], fails: bool) -> None:
    assert rehearsal.fails(DOCUMENT, on, HERE) is fails


def test_traps_of_libraries_alone_end_no_job() -> None:
    document = {**DOCUMENT, "traps": DOCUMENT["traps"][1:]}
    assert not rehearsal.fails(document, ("traps",), HERE)


def test_nothing_found_is_said() -> None:
    shown = rehearsal.render({"schema": rehearsal.SCHEMA, "exit_code": 0}, "text", HERE)
    assert shown.endswith("The program ended with exit code 0; nothing to report.\n")


def test_an_unknown_ground_gets_the_nearest_name() -> None:
    with pytest.raises(JoyError, match="Did you mean 'traps'"):
        rehearsal.grounds(["trap"])


def test_the_command_exits_one_on_what_it_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.json"
    file.write_text(json.dumps(DOCUMENT))
    command = ["report", str(file), "--format", "text", "--root", "/home/p"]
    assert run(command) == 0
    assert run([*command, "--fail-on", "fallbacks"]) == 1
    capsys.readouterr()
    assert run(["report", str(file), "--format", "sarif"]) == 2
    assert "html, md, text" in capsys.readouterr().err


def test_a_scan_has_no_grounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.json"
    file.write_text('{"schema": "joymigrate.scan/1"}')
    assert run(["report", str(file), "--fail-on", "traps"]) == 2
    assert "belongs to a rehearsal" in capsys.readouterr().err
