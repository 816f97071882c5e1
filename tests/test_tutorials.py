"""Pages that say `<!-- tested -->` at their top: their commands run, and print what is shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import pages

MARK = re.compile(r"^<!-- tested(?:: (?P<how>\w+))? -->$", re.M)
TUTORIALS = Path(__file__).parents[1] / "docs" / "tutorials"
PAGES = sorted(TUTORIALS.glob("*.md"))
# Every tutorial rehearses, or builds a package: see the table of markers in pyproject.toml.
MARKS = {"slow": pytest.mark.slow, "compiler": pytest.mark.compiler}


def marked(page: Path) -> object:
    found = MARK.search(page.read_text(encoding="utf-8"))
    how = (found["how"] or "").split() if found else []
    marks = [MARKS[word] for word in how]
    if "rehearse" in page.read_text(encoding="utf-8"):
        marks.append(pytest.mark.compiler)
    return pytest.param(page, id=page.stem, marks=marks)


@pytest.mark.parametrize("page", [marked(page) for page in PAGES])
def test_a_tutorial_does_what_it_says(page: Path, tmp_path: Path) -> None:
    parts = pages.read(page.read_text(encoding="utf-8"))
    pages.run(parts, tmp_path)
    assert not pages.differences(parts), "\n\n".join(pages.differences(parts))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_tutorial_is_run_and_shows_no_command_that_is_not(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert MARK.search(text)
    shown = re.findall(r"^```(bash|sh|shell)\n(.*?)^```", text, re.M | re.S)
    assert shown == [], "commands of a tutorial stand in `console` blocks, which are run"


def test_wildcards_and_figures() -> None:
    assert pages.matches(["a …", "…", "z"], ["a 1", "b", "c", "z"])
    assert not pages.matches(["a", "z"], ["a", "b", "z"])
    assert not pages.matches(["a"], ["a", "b"])
    assert pages.matches(["loss 0.5 in 3 s"], ["loss 0.25 in  12.5 s"], vary=True)
    assert not pages.matches(["loss 0.5"], ["lost 0.5"], vary=True)
    assert not pages.matches([], ["something"])


def test_a_command_that_fails_is_a_difference(tmp_path: Path) -> None:
    parts = pages.read("```console\n$ false\n$ echo $?\n1\n$ false\n$ echo on\non\n```\n")
    pages.run(parts, tmp_path)
    (found,) = pages.differences(parts)
    assert found.startswith("$ false\nexit code 1")


def test_a_page_is_one_session_with_its_files(tmp_path: Path) -> None:
    text = (
        "`a/b.txt`:\n\n```text\nhello\n```\n\n```console\n$ cd a\n$ cat \\\n    b.txt\nhello\n```\n"
    )
    parts = pages.read(text)
    pages.run(parts, tmp_path)
    assert pages.differences(parts) == []


def test_a_page_takes_what_is_printed() -> None:
    text = "```console\n$ echo 1\n2\n$ true\n```\n"
    parts = pages.read(text)
    assert isinstance(parts[0], pages.Command)
    parts[0].printed, parts[0].code = ["1"], 0
    assert pages.refreshed(text, parts) == "```console\n$ echo 1\n1\n$ true\n```\n"
