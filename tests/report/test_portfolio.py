"""The portfolio page in every format."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.language import Language, speaking
from joymigrate.model import Finding, Scan, Style, Tier
from joymigrate.report import portfolio, renderers
from joymigrate.rewrite.portfolio import Portfolio, Repository, rank
from joymigrate.rewrite.readiness import Readiness, assess
from tests.report.test_html import outline


def work(safe: int, **by_hand: float) -> Readiness:
    findings = [Finding("JM101", "n", Tier.SAFE, "a.py", 1, 1, 1, 2, "m", "b")] * safe
    findings += [
        Finding(rule, "n", Tier.REPORT, "a.py", 1, 1, 1, 2, f"about {rule}", "b", weight=price)
        for rule, price in by_hand.items()
    ]
    return assess(Scan(Path("."), "chip", "cuda", Style.DIRECT, tuple(findings), 1))


@pytest.fixture
def found() -> Portfolio:
    """Two repositories that share a blocker, and one with nothing to do."""
    return rank(
        [
            (Repository("big & old", Path("/big")), "chip", work(5, JM203=100, JM200=5)),
            (Repository("small", Path("/small")), "chip", work(5, JM203=60)),
            (Repository("done", Path("/done")), "chip", work(0)),
        ]
    )


def test_text_ranks_and_names_shared_work(found: Portfolio) -> None:
    lines = renderers.render(portfolio.describe(found), "text").splitlines()
    words = [line.split() for line in lines]
    assert ["1", "done", "chip", "-", "0", "0", "0", "min", "0", "min"] in words
    assert ["3", "big", "&", "old", "chip", "71%", "7", "2", "56", "min", "1.8", "h"] in words
    assert any("about JM203; blocker  small, big & old      2   2.7 h" in line for line in lines)
    assert lines[1].endswith("13 documented, 0 rehearsed, 0 measured.")
    assert lines[-1] == "Found 13 sites in 3 repositories (77% automatic, 1.9 h of work)."


def test_json_is_in_the_suggested_order(found: Portfolio) -> None:
    document = portfolio.document(found)
    assert document["schema"] == "joymigrate.portfolio/1"
    assert [one["name"] for one in document["repositories"]] == ["done", "small", "big & old"]
    assert document["shared"][0]["repositories"] == ["small", "big & old"]
    assert document["summary"]["automatic"] == 0.7692


def test_markdown_and_html_have_the_same_rows(found: Portfolio) -> None:
    comment = renderers.render(portfolio.describe(found), "md")
    assert "| 3 | big &amp; old | chip | 71% | 7 | 2 | 56 min | 1.8 h |" in comment
    shown = renderers.render(portfolio.describe(found, "today"), "html")
    outline(shown)
    assert "big &amp; old" in shown
    assert "Shared work by hand" in shown
    assert "13 documented" in comment
    assert "13 documented" in shown
    with speaking(Language("zh")):
        assert "项目总览" in renderers.render(portfolio.describe(found), "html")
