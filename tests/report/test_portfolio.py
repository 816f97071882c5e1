"""The portfolio page in every format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from joymigrate.model import Finding, Scan, Style, Tier
from joymigrate.report import portfolio
from joymigrate.report.html import portfolio as page
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
    lines = portfolio.text(found).splitlines()
    assert lines[:4] == [
        "    repository   auto   sites  by hand  effort",
        "  1 done            -       0        0  0 min",
        "  2 small         83%       6        1  61 min",
        "  3 big & old     71%       7        2  56 min (alone 1.8 h)",
    ]
    assert "  JM203 about JM203 (small, big & old; 2 sites, 2.7 h; blocker)" in lines
    assert lines[-2] == "Statements about the chip: 13 documented, 0 rehearsed, 0 measured."
    assert lines[-1] == "Found 13 sites in 3 repositories (77% automatic, 1.9 h of work)."


def test_json_is_in_the_suggested_order(found: Portfolio) -> None:
    document = json.loads(portfolio.json(found))
    assert document["schema"] == "joymigrate.portfolio/1"
    assert [one["name"] for one in document["repositories"]] == ["done", "small", "big & old"]
    assert document["shared"][0]["repositories"] == ["small", "big & old"]
    assert document["summary"]["automatic"] == 0.7692


def test_markdown_and_html_have_the_same_rows(found: Portfolio) -> None:
    comment = portfolio.markdown(found)
    assert "| 3 | big &amp; old | chip | 71% | 7 | 2 | 56 min (alone 1.8 h) |" in comment
    shown = page.render(found, "en", "today")
    outline(shown)
    assert "big &amp; old" in shown
    assert "Shared work by hand" in shown
    assert "13 documented" in comment
    assert "13 documented" in shown
    assert "项目总览" in page.render(found, "zh", "")
