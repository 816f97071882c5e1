"""Ranking repositories: order, shared blockers, and what repos.yaml may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from joymigrate.errors import JoyError
from joymigrate.model import Finding, Scan, Style, Tier
from joymigrate.rewrite import portfolio
from joymigrate.rewrite.effort import EffortModel
from joymigrate.rewrite.portfolio import Repository
from joymigrate.rewrite.readiness import Readiness, assess


def work(safe: int = 0, **by_hand: float) -> Readiness:
    """A repository with `safe` safe sites and one site by hand per rule, at its price."""
    findings = [Finding("JM101", "n", Tier.SAFE, "a.py", 1, 1, 1, 2, "m", "b") for _ in range(safe)]
    findings += [
        Finding(rule, "n", Tier.REPORT, "a.py", 1, 1, 1, 2, f"about {rule}", "b", weight=price)
        for rule, price in by_hand.items()
    ]
    return assess(Scan(Path("."), "chip", "cuda", Style.DIRECT, tuple(findings), 1))


def order(*repos: tuple[str, Readiness], model: EffortModel | None = None) -> list[str]:
    ranked = portfolio.rank(
        [(Repository(name, Path(name)), "chip", readiness) for name, readiness in repos], model
    )
    return [row.repository.name for row in ranked.rows]


def test_the_cheapest_repository_comes_first() -> None:
    assert order(("big", work(JM203=500)), ("small", work(3))) == ["small", "big"]


def test_a_repository_with_nothing_to_do_comes_first() -> None:
    assert order(("some", work(1)), ("none", work())) == ["none", "some"]


def test_what_the_first_one_solves_makes_the_next_one_cheaper() -> None:
    repos = (("a", work(JM203=100)), ("b", work(JM203=150)), ("c", work(JM202=120)))
    assert order(*repos, model=EffortModel(learned=1.0)) == ["a", "c", "b"]
    assert order(*repos, model=EffortModel(learned=0.1)) == ["a", "b", "c"]


def test_effort_in_order_is_less_than_effort_alone() -> None:
    ranked = portfolio.rank(
        [
            (Repository("a", Path("a")), "chip", work(JM203=100)),
            (Repository("b", Path("b")), "chip", work(JM203=150)),
        ]
    )
    assert [(row.minutes, row.alone) for row in ranked.rows] == [(100, 100), (75, 150)]
    assert ranked.minutes == 175


def test_knowledge_of_one_chip_does_not_help_on_another() -> None:
    ranked = portfolio.rank(
        [
            (Repository("a", Path("a")), "one", work(JM203=100)),
            (Repository("b", Path("b")), "two", work(JM203=150)),
        ]
    )
    assert [row.minutes for row in ranked.rows] == [100, 150]


def test_shared_work_names_its_repositories() -> None:
    ranked = portfolio.rank(
        [
            (Repository("a", Path("a")), "chip", work(JM203=100, JM200=5)),
            (Repository("b", Path("b")), "chip", work(JM203=150)),
        ]
    )
    (shared,) = ranked.shared
    assert (shared.rule, shared.repositories, shared.sites) == ("JM203", ("a", "b"), 2)
    assert shared.blocker


def test_the_automatic_share_is_over_all_sites() -> None:
    ranked = portfolio.rank(
        [
            (Repository("a", Path("a")), "chip", work(3)),
            (Repository("b", Path("b")), "chip", work(0, JM203=1)),
        ]
    )
    assert ranked.automatic == 0.75


def repos_yaml(tmp_path: Path, text: str) -> Path:
    (tmp_path / "repo").mkdir(exist_ok=True)
    path = tmp_path / "repos.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text",
    ["- repo", "- path: repo", "repos:\n  - {path: ./repo}", "- {path: repo, name: repo}"],
)
def test_paths_count_from_the_file(tmp_path: Path, text: str) -> None:
    (entry,) = portfolio.read(repos_yaml(tmp_path, text))
    assert entry == Repository("repo", (tmp_path / "repo").resolve(), None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected keys with values"),
        ("[]", "a list of repositories"),
        ("repos: 3", "takes a list"),
        ("- {name: x}", "'path' is missing"),
        ("- {path: nowhere}", "no such path: nowhere"),
        ("- {path: repo, pth: 1}", "Did you mean 'path'"),
        ("- repo\n- {path: ., name: repo}", "two repositories are called 'repo'"),
        ("- {path: repo", "not valid YAML"),
        ("- {path: repo, to: asend}", "Did you mean 'ascend'"),
    ],
)
def test_a_mistake_is_one_clear_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(JoyError, match=message):
        portfolio.read(repos_yaml(tmp_path, text))


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(JoyError, match="cannot read the portfolio"):
        portfolio.read(tmp_path / "repos.yaml")
