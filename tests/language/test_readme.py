"""The Chinese README says the same as the English one: commands, figures, links, parts."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGLISH = ROOT / "README.md"
CHINESE = ROOT / "README.zh-CN.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
FIGURE = re.compile(r"\d[\d,.]*\d|\d")

pytestmark = pytest.mark.skipif(not ENGLISH.is_file(), reason="no README beside the package")


def blocks(path: Path) -> list[tuple[str, str]]:
    """Language and text of every block; comments behind commands left out."""
    found = FENCE.findall(path.read_text(encoding="utf-8"))
    return [(kind, re.sub(r"\s+#.*$", "", text, flags=re.M)) for kind, text in found]


def prose(path: Path) -> str:
    """What stands outside of blocks and of HTML comments."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    return re.sub(r"<!--.*?-->", "", text, flags=re.S)


def test_both_have_the_same_commands_and_outputs() -> None:
    assert blocks(CHINESE) == blocks(ENGLISH)


def test_both_have_the_same_figures() -> None:
    assert Counter(FIGURE.findall(prose(CHINESE))) == Counter(FIGURE.findall(prose(ENGLISH)))


def test_both_link_to_the_same_pages() -> None:
    links = [
        Counter(re.findall(r"\]\((?!README)([^)]+)\)", prose(path))) for path in (CHINESE, ENGLISH)
    ]
    assert links[0] == links[1]


def test_both_have_the_same_parts() -> None:
    heads = [re.findall(r"^(#+) ", prose(path), re.M) for path in (CHINESE, ENGLISH)]
    assert heads[0] == heads[1]
    marks = [re.findall(r"<!--.*?-->", p.read_text(encoding="utf-8")) for p in (CHINESE, ENGLISH)]
    assert marks[0] == marks[1]
