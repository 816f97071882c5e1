"""The pictures of the documentation, and the script that makes them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

pytest.importorskip("PIL")
pytest.importorskip("aiohttp")

from PIL import Image

from scripts import screenshots

IMAGES = Path(__file__).parents[1] / "docs" / "images"


@pytest.mark.parametrize("name", sorted(screenshots.ALT))
def test_every_picture_is_there_small_and_told_in_words(name: str) -> None:
    path = IMAGES / f"{name}.png"
    assert path.stat().st_size <= screenshots.LARGEST
    with Image.open(path) as picture:
        assert picture.width == screenshots.WIDTH
    assert len(screenshots.ALT[name]) > 10


def test_no_picture_is_without_a_maker() -> None:
    assert {path.stem for path in IMAGES.glob("*.png")} == set(screenshots.ALT)


def test_a_terminal_is_shown_as_it_was() -> None:
    page = screenshots.terminal("$ one \\\n  two \\\n  three\n  ok    scan <b> & more\n")
    assert '<span class="good">  ok  </span>  scan &lt;b&gt; &amp; more' in page
    assert "<b>one" in page


def test_a_picture_gets_a_palette_and_keeps_its_size() -> None:
    made = io.BytesIO()
    Image.linear_gradient("L").convert("RGB").resize((600, 400)).save(made, "png")
    with Image.open(io.BytesIO(screenshots.smaller(made.getvalue()))) as picture:
        assert picture.mode == "P"
        assert picture.size == (600, 400)
