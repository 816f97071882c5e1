"""Many repositories on one page: which first, which blockers they share, how much work in all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from joymigrate import chips, schema
from joymigrate.errors import JoyError
from joymigrate.model import Tier
from joymigrate.rewrite.effort import EffortModel
from joymigrate.rewrite.readiness import Readiness, RuleEffort
from joymigrate.schema import document, load_file, setting

REMEDY = "a list of `- {path: ../repo, name: repo}`, each with an optional `to: CHIP`"


@dataclass(frozen=True, slots=True)
class RepositoryFields:
    """One item of repos.yaml; a bare text is a path."""

    SHORT: ClassVar[str] = "path"

    path: str = setting(help="the repository, from the file's folder")
    name: str = setting("", "what the report calls it; default: the folder's name", words=True)
    to: str | None = setting(None, "its chip, where it is not that of the command line")


@document("repositories", "The repositories of a portfolio: `scan --portfolio repos.yaml`.")
@dataclass(frozen=True, slots=True)
class RepositoriesFile:
    """A portfolio; the file may also be the list alone."""

    repos: tuple[RepositoryFields, ...] = setting(help=REMEDY)

    def __post_init__(self) -> None:
        if not self.repos:
            raise JoyError("a portfolio is a list of repositories", where="repos")


@dataclass(frozen=True, slots=True)
class Repository:
    """One line of repos.yaml; `to` is None where the command line decides the chip."""

    name: str
    path: Path
    to: str | None = None


@dataclass(frozen=True, slots=True)
class RepositoryRow:
    """One repository in the suggested order.

    `minutes` is the effort when its turn comes: rules that an earlier repository solved by hand
    cost only the model's `learned` share. `alone` is the effort if it were the only one.
    """

    repository: Repository
    to: str
    readiness: Readiness
    minutes: float
    alone: float


@dataclass(frozen=True, slots=True)
class SharedWork:
    """Work by hand of one rule that two or more repositories have."""

    rule: str
    name: str
    title: str
    repositories: tuple[str, ...]
    sites: int
    minutes: float
    blocker: bool


@dataclass(frozen=True, slots=True)
class Portfolio:
    """All repositories, in the order in which to take them."""

    rows: tuple[RepositoryRow, ...]
    shared: tuple[SharedWork, ...]
    model: EffortModel

    @property
    def minutes(self) -> float:
        """Effort for all of them in this order."""
        return sum(row.minutes for row in self.rows)

    @property
    def automatic(self) -> float | None:
        """Share of all sites of all repositories that is done by itself."""
        sites = sum(row.readiness.sites for row in self.rows)
        safe = sum(row.readiness.tiers[Tier.SAFE] for row in self.rows)
        return safe / sites if sites else None


def read(path: Path) -> tuple[Repository, ...]:
    """The repositories of a repos.yaml; relative paths count from the file's folder."""
    raw, source = load_file(path, "portfolio", REMEDY)
    raw = {"repos": raw} if isinstance(raw, list) else raw
    items = schema.read(RepositoriesFile, raw, source, help=REMEDY).repos
    found = tuple(
        repository(item, f"{path} item {n}", path.parent) for n, item in enumerate(items, 1)
    )
    names = [entry.name for entry in found]
    for name in names:
        if names.count(name) > 1:
            raise JoyError(
                f"two repositories are called '{name}'", where=str(path), help="name them apart"
            )
    return found


def repository(item: RepositoryFields, where: str, folder: Path) -> Repository:
    """One item of repos.yaml."""
    path = (folder / Path(item.path).expanduser()).resolve()
    if not path.exists():
        raise JoyError(f"no such path: {item.path}", where=where, help=f"looked at {path}")
    if item.to is not None:
        try:
            chips.get(item.to)
        except JoyError as error:
            raise JoyError(error.what, where=where, help=error.help) from None
    return Repository(item.name or path.name, path, item.to)


def rank(
    assessed: Iterable[tuple[Repository, str, Readiness]], model: EffortModel | None = None
) -> Portfolio:
    """Put repositories in order: always the one that is cheapest next, knowing those before it.

    What the earlier ones taught makes later ones cheaper, so the order is found step by step.
    """
    model = model or EffortModel()
    left = list(assessed)
    solved: set[tuple[str, str]] = set()  # (chip, rule): knowledge of one chip helps only there
    rows = []
    while left:
        best = min(left, key=lambda one: order_key(one, solved, model))
        left.remove(best)
        entry, to, readiness = best
        cost = next_cost(to, readiness, solved, model)
        rows.append(RepositoryRow(entry, to, readiness, cost, readiness.minutes))
        solved |= {(to, item.rule) for item in readiness.manual}
    return Portfolio(tuple(rows), shared_work(rows), model)


def order_key(
    one: tuple[Repository, str, Readiness], solved: set[tuple[str, str]], model: EffortModel
) -> tuple[float, float, str]:
    """Cheapest first; then the larger automatic share; then the name."""
    entry, to, readiness = one
    return (
        round(next_cost(to, readiness, solved, model), 6),
        -(1.0 if readiness.automatic is None else readiness.automatic),
        entry.name,
    )


def next_cost(
    to: str, readiness: Readiness, solved: set[tuple[str, str]], model: EffortModel
) -> float:
    """Minutes for a repository when the rules in `solved` were solved before."""
    saved = sum(
        item.minutes * (1.0 - model.learned)
        for item in readiness.manual
        if (to, item.rule) in solved
    )
    return readiness.minutes - saved


def shared_work(rows: Sequence[RepositoryRow]) -> tuple[SharedWork, ...]:
    """Manual work that several repositories have, the widest spread first."""
    by_rule: dict[str, list[tuple[str, RuleEffort]]] = defaultdict(list)
    for row in rows:
        for item in row.readiness.manual:
            by_rule[item.rule].append((row.repository.name, item))
    shared = [
        SharedWork(
            rule,
            hits[0][1].name,
            hits[0][1].title,
            tuple(name for name, _ in hits),
            sum(item.sites for _, item in hits),
            sum(item.minutes for _, item in hits),
            any(item.blocker for _, item in hits),
        )
        for rule, hits in by_rule.items()
        if len(hits) > 1
    ]
    return tuple(sorted(shared, key=lambda one: (-len(one.repositories), -one.minutes, one.rule)))
