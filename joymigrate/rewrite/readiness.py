"""How ready a project is: sites by tier and area, the automatic share, the work by hand."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from joymigrate.model import Finding, Rule, Scan, Tier
from joymigrate.rewrite.effort import EffortModel

BLOCKER_MINUTES = 60.0  # a site by hand from this price on is called a blocker
UNREADABLE = "JM000"
SAMPLES = 4  # texts of sites that stand for a rule
PLACES = 10  # files that a summary names
LONGEST = 48  # characters of such a text


@dataclass(frozen=True, slots=True)
class Area:
    """Sites of one area by tier, and the minutes they take together."""

    name: str
    tiers: Mapping[Tier, int]
    minutes: float

    @property
    def sites(self) -> int:
        """All sites of the area."""
        return sum(self.tiers.values())


@dataclass(frozen=True, slots=True)
class RuleEffort:
    """The sites of one rule in one tier. `price` is the cost of a first site, in minutes.

    `samples` are the commonest texts of its sites with their numbers.
    """

    rule: str
    name: str
    title: str
    tier: Tier
    area: str
    message: str  # the commonest one
    samples: tuple[tuple[str, int], ...]
    sites: int
    files: int
    price: float
    minutes: float

    @property
    def blocker(self) -> bool:
        """Whether one such site by hand takes an hour or more."""
        return self.tier is Tier.REPORT and self.price >= BLOCKER_MINUTES


@dataclass(frozen=True, slots=True)
class FileEffort:
    """One file: its sites, those of them by hand, and the minutes they take."""

    path: str
    sites: int
    by_hand: int
    minutes: float


@dataclass(frozen=True, slots=True)
class Readiness:
    """The summary of one scan. Shares are of all sites, None where there is none."""

    sites: int
    files: int
    tiers: Mapping[Tier, int]
    tier_minutes: Mapping[Tier, float]
    areas: tuple[Area, ...]
    items: tuple[RuleEffort, ...]  # by rule id
    places: tuple[FileEffort, ...] = ()  # the files with the most work, the heaviest first
    model: EffortModel = field(default_factory=EffortModel)
    read: int = 0  # files that the figures cover
    unread: int = 0  # files that were left out, each with its reason in the scan

    @property
    def automatic(self) -> float | None:
        """Share of sites that `joymigrate rewrite` does by itself."""
        return self.tiers[Tier.SAFE] / self.sites if self.sites else None

    @property
    def automatic_unsafe(self) -> float | None:
        """The same share with `--unsafe`."""
        automatic = self.tiers[Tier.SAFE] + self.tiers[Tier.UNSAFE]
        return automatic / self.sites if self.sites else None

    @property
    def minutes(self) -> float:
        """The whole effort."""
        return sum(self.tier_minutes.values())

    @property
    def manual(self) -> tuple[RuleEffort, ...]:
        """What is left to do by hand, the heaviest first."""
        by_hand = [item for item in self.items if item.tier is Tier.REPORT]
        return tuple(sorted(by_hand, key=lambda item: (-item.minutes, -item.price, item.rule)))

    @property
    def blockers(self) -> tuple[RuleEffort, ...]:
        """The part of the manual list whose single sites take an hour or more."""
        return tuple(item for item in self.manual if item.blocker)


def assess(
    scan: Scan, model: EffortModel | None = None, rules: Mapping[str, Rule] | None = None
) -> Readiness:
    """The summary of a scan under an effort model; `rules` lend their titles."""
    model = model or EffortModel()
    titles = {key: rule.title for key, rule in (rules or {}).items()}
    costs = model.minutes(scan.findings)
    groups: dict[tuple[str, Tier], list[tuple[Finding, float]]] = defaultdict(list)
    area_tiers: dict[str, Counter[Tier]] = defaultdict(Counter)
    area_minutes: dict[str, float] = defaultdict(float)
    tier_minutes = dict.fromkeys(Tier, 0.0)
    for finding, cost in zip(scan.findings, costs, strict=True):
        groups[finding.rule, finding.tier].append((finding, cost))
        area_tiers[finding.area][finding.tier] += 1
        area_minutes[finding.area] += cost
        tier_minutes[finding.tier] += cost
    areas = [
        Area(name, {tier: counts[tier] for tier in Tier}, area_minutes[name])
        for name, counts in area_tiers.items()
    ]
    return Readiness(
        sites=len(scan.findings),
        files=len({finding.path for finding in scan.findings}),
        tiers={tier: scan.count(tier) for tier in Tier},
        tier_minutes=tier_minutes,
        areas=tuple(sorted(areas, key=lambda area: (-area.sites, area.name))),
        places=places(scan, costs)[:PLACES],
        items=tuple(item_of(groups[key], model, titles) for key in sorted(groups)),
        model=model,
        read=scan.scanned,
        unread=sum(skipped.files for skipped in scan.skipped),
    )


def places(scan: Scan, costs: list[float]) -> tuple[FileEffort, ...]:
    """All files with findings, the one with the most work first."""
    files: dict[str, list[tuple[Finding, float]]] = defaultdict(list)
    for finding, cost in zip(scan.findings, costs, strict=True):
        files[finding.path].append((finding, cost))
    found = [
        FileEffort(
            path,
            len(sites),
            sum(finding.tier is Tier.REPORT for finding, _ in sites),
            sum(cost for _, cost in sites),
        )
        for path, sites in files.items()
    ]
    return tuple(sorted(found, key=lambda place: (-place.minutes, place.path)))


def item_of(
    group: list[tuple[Finding, float]], model: EffortModel, titles: Mapping[str, str]
) -> RuleEffort:
    """The sites of one rule and tier as one line of work."""
    first = group[0][0]
    messages = Counter(finding.message for finding, _ in group)
    texts = Counter(" ".join(finding.before.split()) for finding, _ in group)
    short = [(text, number) for text, number in texts.most_common() if 0 < len(text) <= LONGEST]
    return RuleEffort(
        rule=first.rule,
        name=first.name,
        title=titles.get(first.rule, messages.most_common(1)[0][0]),
        tier=first.tier,
        area=first.area,
        message=messages.most_common(1)[0][0],
        samples=tuple(short[:SAMPLES]),
        sites=len(group),
        files=len({finding.path for finding, _ in group}),
        price=max(model.price(finding) for finding, _ in group),
        minutes=sum(cost for _, cost in group),
    )


def document(readiness: Readiness) -> dict[str, Any]:
    """The summary as plain data, for JSON. Minutes are rounded to a tenth."""
    return {
        "sites": readiness.sites,
        "files": readiness.files,
        "files_read": readiness.read,
        "files_not_read": readiness.unread,
        "automatic": rounded_share(readiness.automatic),
        "automatic_with_unsafe": rounded_share(readiness.automatic_unsafe),
        "minutes": round(readiness.minutes, 1),
        "minutes_by_tier": {t.value: round(m, 1) for t, m in readiness.tier_minutes.items()},
        "areas": [
            {
                "area": area.name,
                **{tier.value: area.tiers[tier] for tier in Tier},
                "minutes": round(area.minutes, 1),
            }
            for area in readiness.areas
        ],
        "manual": [item_document(item) for item in readiness.manual],
        "places": [
            {
                "path": place.path,
                "sites": place.sites,
                "by_hand": place.by_hand,
                "minutes": round(place.minutes, 1),
            }
            for place in readiness.places
        ],
        "model": readiness.model.document(),
    }


def item_document(item: RuleEffort) -> dict[str, Any]:
    """One line of work as plain data."""
    return {
        "rule": item.rule,
        "name": item.name,
        "area": item.area,
        "title": item.title,
        "message": item.message,
        "samples": [{"text": text, "sites": number} for text, number in item.samples],
        "sites": item.sites,
        "files": item.files,
        "minutes": round(item.minutes, 1),
        "blocker": item.blocker,
    }


def rounded_share(share: float | None) -> float | None:
    """A share with four digits, for JSON."""
    return None if share is None else round(share, 4)
