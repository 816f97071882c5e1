"""Findings as text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from joymigrate.model import KeptMention, Skipped, Tier
from joymigrate.report import text
from joymigrate.rewrite.baseline import BaselineEntry
from tests.report.build import result_of, site, write


def test_a_finding_is_one_line_when_piped(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "import torch\nx = torch.cuda.device_count()\n"})
    found = result_of(root, site(root, "a.py", "torch.cuda.device_count", "torch.npu.device_count"))
    assert text.render(found).splitlines() == [
        "a.py:2:5: JM101 [*] the origin's device: `torch.cuda.device_count` → "
        "`torch.npu.device_count`",
        "Found 1 site in 1 file (1 fixable with joymigrate rewrite).",
    ]


def test_the_last_line_counts_what_unsafe_adds(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "a.cuda()\nb.cuda(1)\n", "b.py": "c.cuda(2)\n"})
    found = result_of(
        root,
        site(root, "a.py", "a.cuda()", "a.npu()"),
        site(root, "a.py", "b.cuda(1)", "b.npu(1)", tier=Tier.UNSAFE),
        site(root, "b.py", "c.cuda(2)"),
    )
    assert found.last_line() == (
        "Found 3 sites in 2 files (1 fixable with joymigrate rewrite, 1 more with --unsafe)."
    )


def test_a_multi_line_site_stays_on_one_line(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "f(\n  'cuda',\n)\n"})
    found = result_of(root, site(root, "a.py", "f(\n  'cuda',\n)", message="two\nlines"))
    assert len(text.render(found).splitlines()) == 2


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "x = '\x1b[31m'; y.cuda()\n"})
    found = result_of(root, site(root, "a.py", "y.cuda()", message="\x1b[2J gone"))
    assert "\x1b" not in text.render(found, terminal=True)


def test_carets_stand_below_the_site_also_behind_wide_characters(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "名字 = f('中文').cuda()\n\ty.cuda(1)\n"})
    found = result_of(
        root, site(root, "a.py", ".cuda()", ".npu()"), site(root, "a.py", "y.cuda(1)")
    )
    lines = text.render(found, terminal=True).splitlines()
    assert lines[2:5] == [
        "1 | 名字 = f('中文').cuda()",
        "  |                 ^^^^^^^",  # five wide characters take ten columns
        "  help: write `.npu()`",
    ]
    assert lines[8:10] == ["2 |     y.cuda(1)", "  |     ^^^^^^^^^"]


def test_an_edit_elsewhere_is_shown_as_a_difference(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "import torch\nx = 1\n"})
    one = site(root, "a.py", "x", "y")
    elsewhere = replace(one, line=1, end_line=1)
    shown = text.render(result_of(root, elsewhere), terminal=True)
    assert "2 - x = 1\n2 + y = 1\n" in shown


def test_colour_is_written_only_on_request(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "x.cuda()\n"})
    found = result_of(root, site(root, "a.py", ".cuda()", ".npu()"))
    plain, colourful = text.render(found), text.render(found, color=True)
    assert "\x1b[" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", colourful) == plain


def test_paths_are_shown_from_the_working_folder(tmp_path: Path) -> None:
    root = write(tmp_path / "src", {"a.py": "x.cuda()\n"})
    one = site(root, "a.py", "x.cuda()")
    assert text.render(result_of(root, one, folder=tmp_path)).startswith("src/a.py:1:1: ")
    outside = tmp_path / "elsewhere"
    assert text.render(result_of(root, one, folder=outside)).startswith(f"{root.as_posix()}/a.py:")


def test_a_notebook_names_the_cell(tmp_path: Path) -> None:
    source = {"cells": [{"cell_type": "code", "source": ["x = 1\n", "y.cuda()"]}]}
    root = write(tmp_path, {"a.ipynb": json.dumps(source)})
    one = replace(site(root, "a.ipynb", "y.cuda()"), cell=0, line=2, end_line=2, column=1,
                  end_column=9, file_line=1)  # fmt: skip
    shown = text.render(result_of(root, one), terminal=True)
    assert shown.startswith("a.ipynb:cell 1:2:1: JM101 ")
    assert "2 | y.cuda()" in shown


def test_a_reason_follows_in_brackets(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "x.cuda()\n"})
    one = site(root, "a.py", "x.cuda()", reason="the receiver is unknown")
    line = text.render(result_of(root, one)).splitlines()[0]
    assert line.endswith("(the receiver is unknown)")


def test_statistics_replace_the_findings(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "a.cuda()\nb.cuda(1)\n"})
    found = result_of(
        root,
        site(root, "a.py", "a.cuda()", "a.npu()"),
        site(root, "a.py", "b.cuda(1)", "b.npu(1)"),
        statistics=True,
    )
    assert text.render(found).splitlines() == [
        "2 JM101 [*] device-module 1 file, 24 s",
        "Found 2 sites in 1 file (2 fixable with joymigrate rewrite).",
    ]


def test_nothing_to_do_says_so(tmp_path: Path) -> None:
    assert text.render(result_of(tmp_path)) == "Nothing to do: no cuda site (1 file read).\n"
    empty = result_of(tmp_path, scanned=0)
    assert text.render(empty) == "Nothing to do: no file that joymigrate reads.\n"
    assert "since main" in text.render(result_of(tmp_path, base="main"))
    assert "3 sites of the baseline remain" in text.render(result_of(tmp_path, known=3))


def test_warnings_name_dead_ignores_and_dead_entries(tmp_path: Path) -> None:
    found = result_of(
        tmp_path,
        unused_ignores=(("a.py", 3, "# joymigrate: ignore"),),
        stale=(BaselineEntry("f", "JM101", "b.py", "x.cuda()"),),
    )
    assert text.warnings(found) == [
        "a.py:3:1: warning: unused ignore: # joymigrate: ignore",
        "b.py: warning: stale baseline entry: JM101 x.cuda()",
    ]


def test_files_not_read_have_their_reason(tmp_path: Path) -> None:
    found = result_of(tmp_path, skipped=(Skipped("a.bin", "binary content"),))
    assert text.skipped_lines(found) == ["a.bin: not read: binary content"]


def test_kept_mentions_are_shown_on_request(tmp_path: Path) -> None:
    kept = (KeptMention("a.py", 1, 3, "# cuda here", "comment"),)
    assert "kept" not in text.render(result_of(tmp_path, kept=kept))
    shown = text.render(result_of(tmp_path, kept=kept, show_kept=True))
    assert shown.startswith("a.py:1:3: kept (comment) # cuda here\n")


def test_the_readiness_block_states_shares_and_the_model(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "a.cuda()\nb.cuda(1)\n"})
    found = result_of(
        root,
        site(root, "a.py", "a.cuda()", "a.npu()"),
        site(root, "a.py", "b.cuda(1)", rule="JM200", area="kernels", weight=60.0),
    )
    block = text.readiness(found)
    assert "50% automatic, 50% with --unsafe, about 60 min of work" in block
    assert "JM200 the origin's device: b.cuda(1) (1 site, 60 min)" in block
    assert "a safe edit: 12 s to read in the diff" in block
    assert text.readiness(result_of(root)) == ""


def test_a_line_end_in_a_path_does_not_break_the_line(tmp_path: Path) -> None:
    root = write(tmp_path, {"new\nline.py": "x.cuda()\n"})
    shown = text.render(result_of(root, site(root, "new\nline.py", "x.cuda()")))
    assert shown.splitlines()[0].startswith("new\\nline.py:1:1: JM101")
