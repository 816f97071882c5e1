"""What may stand on a page: four drawers, sizes, short sentences, and no diary of a laboratory."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from scripts import pages

ROOT, DOCS = pages.ROOT, pages.DOCS
DRAWERS = ("tutorials", "how-to", "reference", "explanation")
AT_THE_TOP = {"index.md", "zh.md"}
WRITTEN = sorted(p for p in DOCS.rglob("*.md") if "templates" not in p.parts)
NAMES = [p.relative_to(DOCS).as_posix() for p in WRITTEN]
TERMS = {"zh.md", "reference/glossary-zh.md"}  # Chinese: no spaces between words
FENCE = re.compile(r"^( *)(```+)[^\n]*\n.*?^\1\2$", re.M | re.S)
INDENTED = re.compile(r"(?:(?<=\n\n)|\A)(?:    [^\n]*\n)+", re.M)
# What belongs to benchmarks/RESULTS.md.
MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
DIARY = {
    "a date": re.compile(rf"\b20\d\d-\d\d-\d\d\b|\b(?:{MONTHS}) 20\d\d\b|\bin 20\d\d\b"),
    "a draw": re.compile(
        r"\b(?:at|on) (?:the )?first try\b|\bfirst tr(?:y|ies)\b|\b\w+th draw\b|\bfresh draw\b"
    ),
    "a commit": re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}\b"),
    "a machine's load": re.compile(r"\b(?:busy|idle) machine\b|\bat load \d|\(load \d"),
    "a mend": re.compile(r"\b(?:was|were|is|are) mended\b|\bmended since\b"),
}


def prose(text: str) -> str:
    """A page's words: no blocks, no comments, code as one word, links as their text."""
    text = re.sub(r"<!--.*?-->", "", FENCE.sub("\n", text), flags=re.S)
    text = INDENTED.sub("\n", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"``?[^`]+``?", "code", text)


def sentences(text: str) -> Iterator[str]:
    """Sentences of paragraphs and list items; neither headings nor cells of tables."""
    blocks: list[str] = [""]
    for line in prose(text).splitlines():
        words = line.strip()
        if not words or words.startswith(("#", "|", "!!!")):
            blocks.append("")
        elif re.match(r"(?:[-*]|\d+\.) ", words):
            blocks.append(re.sub(r"^(?:[-*]|\d+\.) ", "", words))
        else:
            blocks[-1] += f" {words}"
    for block in blocks:
        for one in re.split(r"(?<=[.!?])[)\"*]*\s+", block):
            if len(one.split()) > 2:
                yield one.strip()


def lengths(names: list[str]) -> list[int]:
    """Words of every sentence of these pages, ascending."""
    texts = [(DOCS / name).read_text("utf-8") for name in names]
    return sorted(len(one.split()) for text in texts for one in sentences(text))


def diary(text: str) -> list[str]:
    """What of a text belongs to the figures."""
    words = prose(text)
    return [f"{what}: {found[0]}" for what, one in DIARY.items() for found in one.finditer(words)]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_lies_in_a_drawer_and_begins_with_what_it_is(name: str) -> None:
    assert name in AT_THE_TOP or name.split("/")[0] in DRAWERS, f"{name}: see docs/templates"
    text = re.sub(r"<!--.*?-->\n*", "", (DOCS / name).read_text("utf-8"), flags=re.S)
    title, _, rest = text.partition("\n")
    assert title.startswith("# ")
    opening = rest.strip().split("\n\n")[0]
    assert not opening.startswith("#"), f"{name} does not say what it is before its first part"


@pytest.mark.parametrize("name", NAMES)
def test_no_date_no_draw_and_no_commit_stands_on_a_page(name: str) -> None:
    remedy = "figures stand in benchmarks/RESULTS.md"
    assert diary((DOCS / name).read_text("utf-8")) == [], remedy


def test_limits_and_the_readme_keep_no_diary() -> None:
    assert diary(pages.limits()) == []
    for name in ("README.md", "README.zh-CN.md"):
        assert diary((ROOT / name).read_text("utf-8")) == []


@pytest.mark.parametrize(
    "text",
    ["Run on 2026-11-26.", "On the first try 3 failed.", "A seventh draw of 40 hunks.",
     "karpathy/nanoGPT at 3adf61e154", "216 µs (load 2)", "12 s, busy machine", "It was mended."],
)  # fmt: skip
def test_a_diary_is_seen(text: str) -> None:
    assert diary(text)


def test_what_is_no_diary_is_left_alone() -> None:
    assert diary("Try it first; `--start 2026-12-24`, deadbeef, 1234567 rows, draws a plot.") == []


def test_sizes() -> None:
    size = {name: len((DOCS / name).read_bytes()) for name in NAMES}
    assert sum(size.values()) <= 300_000, sorted(size.items(), key=lambda one: -one[1])[:10]
    assert len(pages.limits().encode()) <= 20_000
    how, why = "how-to/rewrite.md", "explanation/how-an-edit-is-decided.md"
    assert size[how] + size[why] <= 12_000
    assert len((ROOT / "CHANGELOG.md").read_bytes()) <= 6_000
    for name in ("README.md", "README.zh-CN.md"):
        assert len((ROOT / name).read_text("utf-8").splitlines()) <= 150


def test_sentences_are_short() -> None:
    found = lengths([name for name in NAMES if name not in TERMS])
    assert statistics.mean(found) <= 15
    assert found[int(0.9 * len(found))] <= 25


def test_sentences_are_counted_as_a_reader_does() -> None:
    text = (
        "# Head of a page\n\nOne two three.\nFour `a b` six seven.\n\n- a b c\n\n| a b c d | x |\n"
    )
    assert [len(one.split()) for one in sentences(text)] == [3, 4, 3]


def test_every_limit_says_what_it_means_and_what_to_do() -> None:
    rows = yaml.safe_load(pages.LIMITS.read_text("utf-8"))
    assert len(rows) >= 10
    for command, found in rows.items():
        for row in found:
            assert set(row) == {"limit", "effect", "instead"}, (command, row)
            assert all(isinstance(text, str) and len(text) > 4 for text in row.values()), row
            assert row["limit"].endswith("."), row


def test_every_page_of_the_site_stands_in_its_contents() -> None:
    contents = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert [name for name in NAMES if f": {name}\n" not in contents] == []


@pytest.mark.parametrize("kind", ["tutorial", "how-to", "reference", "explanation", "benchmark"])
def test_each_kind_has_a_template_and_a_rule(kind: str) -> None:
    rules = (DOCS / "templates" / "README.md").read_text("utf-8")
    assert f"({kind}.md)" in rules
    assert (DOCS / "templates" / f"{kind}.md").is_file()


def test_results_have_a_command_in_every_section() -> None:
    text = (ROOT / "benchmarks" / "RESULTS.md").read_text("utf-8")
    for part in re.split(r"^(?=#{2,3} )", text, flags=re.M)[1:]:
        title, _, body = part.partition("\n")
        if body.strip():
            assert re.search(r"python|joymigrate |pytest|make |written down first|as they", body), (
                title
            )


def test_every_benchmark_that_a_result_or_a_page_names_is_there() -> None:
    there = {path.stem for path in (ROOT / "benchmarks").iterdir()} | {"NAME", "RESULTS"}
    texts = [ROOT / "benchmarks" / "RESULTS.md", *WRITTEN]
    named = {
        (path.name, name)
        for path in texts
        for name in re.findall(r"\bbenchmarks[./](\w+)", path.read_text("utf-8"))
    }
    assert {one for one in named if one[1] not in there} == set()


def paths_named(folder: Path) -> Iterator[tuple[Path, str]]:
    """Pages of docs/ that a message or a comment names."""
    for path in folder.rglob("*"):
        if path.suffix in (".py", ".yaml", ".yml", ".c", ".cpp"):
            text = path.read_text(encoding="utf-8", errors="replace")
            for found in re.findall(r"(?<![\w/.-])docs/(?:[\w-]+/)?[\w-]+\.md\b", text):
                yield path, found


@pytest.mark.parametrize("folder", ["joymigrate", "rules", "benchmarks"])
def test_a_page_that_the_program_names_is_there(folder: str) -> None:
    drawers = tuple(f"docs/{one}/" for one in DRAWERS)
    moved = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["extra"]["moved"]
    wrong = [
        (path.relative_to(ROOT).as_posix(), name)
        for path, name in paths_named(ROOT / folder)
        if name.removeprefix("docs/") in moved
        or (name.startswith(drawers) and not (ROOT / name).is_file())
    ]
    assert wrong == []
