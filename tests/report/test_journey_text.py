"""The one-screen summary of a journey."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from joymigrate.language import Language, speaking
from joymigrate.report import journey_text
from tests.report import journey_made

LANGUAGES = ("en", "zh")


def lines(tmp_path: Path, lang: str, **more: object) -> list[str]:
    document, _ = journey_made.journey(tmp_path, **more)
    with speaking(Language(lang)):
        return journey_text.text(document).splitlines()


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_screen_is_enough(lang: str, tmp_path: Path) -> None:
    shown = lines(tmp_path, lang)
    assert len(shown) <= 24
    assert max(map(cell_len, shown)) <= journey_text.WIDTH


@pytest.mark.parametrize("lang", LANGUAGES)
def test_seconds_end_at_one_edge_whatever_the_script(lang: str, tmp_path: Path) -> None:
    steps = [line for line in lines(tmp_path, lang) if re.search(r"1\.5 s$", line)]
    assert len(steps) == 9
    assert {cell_len(line) for line in steps} == {journey_text.WIDTH}


def test_what_was_found_begins_at_one_column(tmp_path: Path) -> None:
    shown = lines(tmp_path, "zh")
    found = {
        cell_len(line[: line.index(words)])
        for words in ("1,003 处", "1 个文件", "1 条建议")
        for line in shown
        if words in line
    }
    assert len(found) == 1


def test_colour_is_written_only_when_asked_for(tmp_path: Path) -> None:
    document, _ = journey_made.journey(tmp_path)
    plain, coloured = (journey_text.text(document, color=color) for color in (False, True))
    assert "\033" not in plain
    assert "\033[32mok" in coloured
    assert "\033[33mok" in coloured  # precision was not decided
    assert re.sub(r"\033\[[\d;]*m", "", coloured) == plain


def test_a_long_reason_is_folded_below_its_own_column(tmp_path: Path) -> None:
    step = journey_made.step("scan", {}, (), summary="word " * 40, status="failed", help="a\nb")
    shown = lines(tmp_path, "en", journey=[step], verdict="fail")
    first, second = (n for n, line in enumerate(shown[:5]) if "word" in line and n < 4)
    assert shown[first].index("word") == shown[second].index("word")
    assert "What to do (Scan):" in shown
    assert "  b" in shown


@given(st.text(st.sampled_from("ab 漢字，（x）"), max_size=80), st.integers(8, 40))
def test_folding_keeps_every_character_and_the_width(text: str, width: int) -> None:
    folded = journey_text.fold(text, width)
    assert "".join("".join(folded).split()) == "".join(text.split())
    words = re.findall(r"[a-z]+", text)
    room = max([width, *map(len, words)])
    assert all(cell_len(line) <= room for line in folded)
