"""Edits as hunks and regions: what they show is what they write."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from joymigrate.model import Edit, Finding, Tier
from joymigrate.report.changes import Hunk, hunk_of, hunks, lines_of, position, regions
from joymigrate.rewrite.excerpts import Excerpts
from joymigrate.rewrite.source import SourceText, apply_edits, decode
from tests.report.build import site, write


def finding(*edits: Edit) -> Finding:
    return Finding("JM1", "n", Tier.SAFE, "a.py", 1, 1, 1, 2, "m", "b", "a", edits=edits)


def test_a_replacement_shows_its_line(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "one\nx.cuda()\nthree\n"})
    found = hunks(site(root, "a.py", ".cuda()", ".npu()"), Excerpts(root))
    assert found == (Hunk(2, ("x.cuda()",), ("x.npu()",)),)


def test_an_inserted_line_has_nothing_before_it(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "import torch\nx = 1\n"})
    found = hunks(finding(Edit(13, 13, b"import torch_npu\n")), Excerpts(root))
    assert found == (Hunk(2, (), ("import torch_npu",)),)


def test_edits_far_apart_are_hunks_of_their_own(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "a\nb\nc\nd\n"})
    found = hunks(finding(Edit(0, 1, b"A"), Edit(6, 7, b"D")), Excerpts(root))
    assert found == (Hunk(1, ("a",), ("A",)), Hunk(4, ("d",), ("D",)))


def test_a_byte_order_mark_and_wide_text_do_not_move_columns(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "\ufeffx = '中文'; y.cuda()\r\n"})
    one = site(root, "a.py", ".cuda()", ".npu()")
    (region,) = regions(one, Excerpts(root))
    assert (region.line, region.column, region.end_column) == (1, 12, 19)
    assert region.column == one.column
    assert hunks(one, Excerpts(root))[0].after == ("x = '中文'; y.npu()",)


def test_a_file_that_is_gone_has_no_changes(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.py": "x.cuda()\n"})
    one = site(root, "a.py", ".cuda()", ".npu()")
    (root / "a.py").unlink()
    assert hunks(one, Excerpts(root)) == ()
    assert regions(one, Excerpts(root)) == ()


def test_a_notebook_shows_the_lines_of_its_cell(tmp_path: Path) -> None:
    text = '{"cells": [{"cell_type": "code", "source": ["a = 1\\n", "b.cuda()"]}]}'
    root = write(tmp_path, {"a.ipynb": text})
    one = replace(site(root, "a.ipynb", ".cuda()", '.npu()\\n", "import n'), cell=0)
    assert hunks(one, Excerpts(root)) == (Hunk(2, ("b.cuda()",), ("b.npu()", "import n")),)
    assert regions(one, Excerpts(root))[0].line == 1


texts = st.text(alphabet=st.sampled_from("ab中\n "), max_size=30)


@given(texts, st.data())
def test_hunks_and_regions_say_what_the_edits_do(text: str, data: st.DataObject) -> None:
    source = decode("a.sh", text.encode(), python=False)
    bounds = sorted(data.draw(st.lists(st.integers(0, len(text)), min_size=2, max_size=2)))
    new = data.draw(texts)
    edit = source.edit(bounds[0], bounds[1], new)
    written = apply_edits(source.data, [edit]).decode()
    assert written == text[: bounds[0]] + new + text[bounds[1] :]
    line, column = position(source, edit.start)
    assert at(source, line, column) == bounds[0]
    shown = hunk_of(source, [edit])
    first, last = shown.line - 1, shown.line - 1 + len(shown.before)
    old = lines_of(text)
    assert tuple(old[first:last]) == shown.before
    assert [*old[:first], *shown.after, *old[last:]] == lines_of(written)


def at(source: SourceText, line: int, column: int) -> int:
    """Offset of a line and column, from 1."""
    return source.starts[line - 1] + column - 1
