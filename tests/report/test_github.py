"""GitHub workflow commands: one per finding, nothing escapes its field."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from joymigrate.model import Finding, Tier
from joymigrate.report import github
from tests.report.build import result_of, site, write


def test_a_finding_is_one_annotation(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "x.cuda()\n"})
    lines = github.render(result_of(root, site(root, "a.py", ".cuda()", ".npu()"))).splitlines()
    assert lines == [
        "::notice file=a.py,line=1,endLine=1,title=JM101 device-module,col=2,endColumn=9::"
        "the origin's device%0Ajoymigrate rewrite: .cuda() → .npu()",
        "Statements about the chip: 1 documented, 0 rehearsed, 0 measured.",
        "Found 1 site in 1 file (1 fixable with joymigrate rewrite).",
    ]


def test_what_people_must_do_is_a_warning_and_an_unread_file_an_error(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "x.cuda()\ny\nz\n"})
    found = result_of(
        root,
        site(root, "a.py", "x.cuda()"),
        site(root, "a.py", "y", "Y", tier=Tier.UNSAFE),
        site(root, "a.py", "z", rule="JM000"),
    )
    kinds = [line.split(" ")[0] for line in github.render(found).splitlines()[:-2]]
    assert kinds == ["::warning", "::warning", "::error"]


def test_paths_are_relative_to_the_working_folder(tmp_path: Path) -> None:
    root = write(tmp_path / "src", {"a.py": "x.cuda()\n"})
    found = result_of(root, site(root, "a.py", "x.cuda()"), folder=tmp_path)
    assert "file=src/a.py," in github.render(found)


def test_a_notebook_is_annotated_on_its_line_in_the_file(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "x.cuda()\n"})
    one = replace(site(root, "a.py", "x.cuda()"), cell=0, file_line=12)
    command = github.render(result_of(root, one))
    assert ",line=12,endLine=12," in command
    assert "col=" not in command


@given(st.text(max_size=40), st.text(max_size=40))
def test_no_text_escapes_its_field(path: str, message: str) -> None:
    before = "b\n::error::c"
    one = Finding("JM101", "n", Tier.SAFE, path, 1, 1, 1, 2, message, before, "a")
    line = github.command(result_of(Path("."), one), one)
    assert "\n" not in line
    assert "\r" not in line
    head = re.fullmatch(r"::notice ((?:\w+=[^,:]*,?)+)::.*", line, re.DOTALL)
    assert head is not None
    assert head[1].count("file=") >= 1
