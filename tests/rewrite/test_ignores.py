"""Inline ignores: what a comment covers, and which comments covered nothing."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from joymigrate.model import Finding, Tier
from joymigrate.rewrite import ignores


def finding(line: int, rule: str = "JM101", end_line: int | None = None) -> Finding:
    return Finding(
        rule, "cuda-api", Tier.SAFE, "a.py", line, 1, end_line or line, 5, "message", "before"
    )


def silenced(text: str, *sites: Finding, path: str = "a.py") -> list[int]:
    """Lines of the sites that the comments of `text` silence."""
    applied = ignores.apply(sites, ignores.parse(text, path))
    return [site.line for site in applied.suppressed]


def test_a_comment_behind_code_covers_its_line() -> None:
    text = "a = 1\nb = x.cuda()  # joymigrate: ignore[JM101] kept for the old cluster\nc = 2\n"
    assert silenced(text, finding(1), finding(2), finding(3)) == [2]


def test_the_reason_is_kept() -> None:
    (found,) = ignores.parse("x()  # joymigrate: ignore[JM101] kept for the old cluster\n")
    assert found.reason == "kept for the old cluster"
    assert found.rules == ("JM101",)


def test_a_comment_of_its_own_covers_the_statement_below() -> None:
    text = "# joymigrate: ignore[JM101]\nf(\n    device='cuda',\n)\ng('cuda')\n"
    assert silenced(text, finding(2), finding(3), finding(5)) == [2, 3]


def test_a_comment_inside_brackets_covers_the_next_line() -> None:
    text = "f(\n    # joymigrate: ignore\n    a='cuda',\n    b='cuda',\n)\n"
    assert silenced(text, finding(3), finding(4)) == [3]


def test_a_comment_above_a_block_covers_only_its_header() -> None:
    text = "# joymigrate: ignore\nif torch.cuda.is_available():\n    x.cuda()\n"
    assert silenced(text, finding(2), finding(3)) == [2]


def test_other_rules_stay() -> None:
    text = "x.cuda()  # joymigrate: ignore[JM120, JM130]\n"
    assert silenced(text, finding(1, "JM110")) == []
    assert silenced(text, finding(1, "JM130")) == [1]


def test_a_beginning_names_a_family() -> None:
    assert silenced("x.cuda()  # joymigrate: ignore[JM1]\n", finding(1, "JM110")) == [1]


def test_empty_brackets_silence_nothing_and_count_as_unused() -> None:
    marks = ignores.parse("x.cuda()  # joymigrate: ignore[]\n")
    applied = ignores.apply([finding(1)], marks)
    assert applied.suppressed == ()
    assert marks[0].rules == ()


def test_ignore_file_covers_the_file() -> None:
    text = "# joymigrate: ignore-file[JM1] vendored\nx.cuda()\ny.cuda()\n"
    assert silenced(text, finding(2), finding(3), finding(3, "JM200")) == [2, 3]


def test_a_mark_in_a_string_is_no_ignore() -> None:
    text = 'x.cuda(); note = "# joymigrate: ignore"\n'
    assert silenced(text, finding(1)) == []


def test_another_comment_may_stand_before_it() -> None:
    assert silenced("x.cuda()  # noqa  # joymigrate: ignore[JM101]\n", finding(1)) == [1]


def test_a_longer_word_is_no_ignore() -> None:
    assert ignores.parse("x()  # joymigrate: ignored\n") == ()
    assert ignores.parse("x()  # joymigrate: ignore-files\n") == ()


def test_a_finding_over_several_lines_is_covered_on_any_of_them() -> None:
    text = "f(a,\n  b)  # joymigrate: ignore\n"
    assert silenced(text, finding(1, end_line=2)) == [1]


def test_shell_continuations_belong_to_the_command() -> None:
    text = "# joymigrate: ignore[JM170]\nCUDA_VISIBLE_DEVICES=0 \\\n  python a.py --gpus 1\nnext\n"
    sites = [finding(2, "JM170"), finding(3, "JM170"), finding(4, "JM170")]
    assert silenced(text, *sites, path="run.sh") == [2, 3]


def test_cpp_comments_work() -> None:
    text = "cudaMalloc(p);  // joymigrate: ignore[JM203]\n"
    assert silenced(text, finding(1, "JM203"), path="a.cu") == [1]


def test_a_file_that_does_not_tokenise_is_read_line_by_line() -> None:
    text = 'print "cuda"  # joymigrate: ignore[JM000]\nx = (\n'
    assert silenced(text, finding(1, "JM000")) == [1]


def test_carriage_returns_end_lines() -> None:
    text = "a = 1\r\nx.cuda()  # joymigrate: ignore\r\n"
    assert silenced(text, finding(2)) == [2]
    assert ignores.parse(text)[0].reason == ""


def test_a_notebook_cell_is_its_own_world() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# joymigrate: ignore\n"]},
        {"cell_type": "code", "source": ["x.cuda()  # joymigrate: ignore[JM101]\n", "y.cuda()"]},
    ]
    marks = ignores.parse(json.dumps({"cells": cells}), "a.ipynb")
    assert [(mark.cell, mark.line) for mark in marks] == [(1, 1)]
    assert marks[0].covers(replace(finding(1), cell=1))
    assert not marks[0].covers(replace(finding(1), cell=0))


def test_a_broken_notebook_has_no_ignores() -> None:
    assert ignores.parse('{"cells": 3} # joymigrate: ignore', "a.ipynb") == ()


def test_an_ignore_that_silences_nothing_is_unused() -> None:
    marks = ignores.parse("x = 1  # joymigrate: ignore[JM101]\n")
    assert ignores.apply([], marks).unused == marks


def test_an_ignore_for_a_rule_not_selected_is_not_unused() -> None:
    marks = ignores.parse("x = 1  # joymigrate: ignore[JM101]\n")
    assert ignores.apply([], marks, active=lambda rule: rule == "JM200").unused == ()


@given(st.text(alphabet=st.sampled_from("x #/'\"\n\r\\()[]:joymigrate:ignorJM1 \t"), max_size=80))
def test_any_text_can_be_read(text: str) -> None:
    for name in ("a.py", "a.sh", "a.ipynb"):
        for mark in ignores.parse("# joymigrate: ignore\n" + text, name):
            assert mark.first <= mark.last or mark.whole_file


def test_a_comment_inside_brackets_covers_a_continued_line_whole() -> None:
    text = "f(\n    # joymigrate: ignore\n    'cu' \\\n    'da',\n    'cuda',\n)\n"
    assert silenced(text, finding(3), finding(4), finding(5)) == [3, 4]


def test_a_comment_before_the_closing_bracket_covers_only_that_bracket() -> None:
    text = "f(\n    'cuda',\n    # joymigrate: ignore\n)\ng('cuda')\n"
    assert silenced(text, finding(2), finding(4), finding(5)) == [4]


def test_the_source_of_a_notebook_cell_may_be_one_string_or_a_list_of_lines() -> None:
    lines = ["a = 1\n", "x.cuda()  # joymigrate: ignore\n"]
    for source in (lines, "".join(lines)):
        cells = [
            {"cell_type": "markdown", "source": lines},
            {"cell_type": "code", "source": source},
        ]
        (found,) = ignores.parse(json.dumps({"cells": cells}), "a.ipynb")
        assert (found.cell, found.first, found.last) == (1, 2, 2)
