"""Generated parts of the documentation, and the addresses that pages had before they moved."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from joymigrate.cli._commands import command_names
from scripts import pages

SITE = yaml.safe_load((pages.ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
MOVED: dict[str, str] = SITE["extra"]["moved"]


@pytest.mark.parametrize("name", sorted(pages.MAKERS))
def test_every_maker_has_a_page_that_says_how_to_print_the_same(name: str) -> None:
    with_it = [p for p in pages.DOCS.rglob("*.md") if name in pages.MARK.findall(p.read_text())]
    assert len(with_it) == 1
    text = with_it[0].read_text(encoding="utf-8")
    assert "`joymigrate " in text or "`python -m " in text
    assert len(pages.expand(text)) > 2 * len(text)


def test_the_help_of_every_command_stands_on_the_page() -> None:
    heads = re.findall(r"^## joymigrate (.+)$", pages.commands(), re.M)
    assert len(heads) == len(set(heads))
    assert {head.split()[0] for head in heads} == set(command_names())
    assert {"rehearse setup", "cluster cards fail", "verify replay"} <= set(heads)
    assert "default" not in {word for head in heads for word in head.split()}
    assert str(pages.ROOT) not in pages.commands()


def test_a_part_without_a_maker_is_an_error() -> None:
    assert pages.expand("a\n\nb") == "a\n\nb"
    with pytest.raises(KeyError, match="nothing"):
        pages.expand("<!-- generated: nothing -->")


def test_a_page_that_moved_is_led_to(tmp_path: Path) -> None:
    pages.on_post_build({"extra": SITE["extra"], "site_dir": str(tmp_path)})
    for old, new in MOVED.items():
        assert not (pages.DOCS / old).exists(), f"{old} lies there again"
        assert (pages.DOCS / new).is_file(), new
        text = (tmp_path / old).with_suffix(".html").read_text(encoding="utf-8")
        (link,) = re.findall(r'<a href="([^"]+)"', text)
        assert (pages.DOCS / old).parent.joinpath(link).with_suffix(".md").is_file()


def test_the_offline_documents_have_no_part_left_open(tmp_path: Path) -> None:
    pages.write(tmp_path / "docs")
    written = sorted((tmp_path / "docs").rglob("*.md"))
    assert len(written) == len(list(pages.DOCS.rglob("*.md")))
    assert [p for p in written if pages.MARK.search(p.read_text(encoding="utf-8"))] == []
