"""Two chips' vocabularies as one relation: what each name of the origin becomes on the target.

Everything in a chip's data is keyed by the canonical name, the one of the chip marked
`origin: true`. A relation from any chip to any other goes through those keys, so the way back is
the same data read the other way round.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from joymigrate.chips.advice import NameAdvice
from joymigrate.chips.chip import Chip, match_pattern
from joymigrate.language import Text
from joymigrate.model import Tier


@dataclass(frozen=True, slots=True)
class NameRelation:
    """Names of `origin` and what takes their place on `target`, section by section.

    Every mapping is keyed by the origin's own spelling. A way back that would not restore the
    original is reported, not written.
    """

    origin: Chip
    target: Chip
    renamed: Mapping[str, NameAdvice]
    absent: Mapping[str, NameAdvice]
    moved: Mapping[str, NameAdvice]
    variables: Mapping[str, NameAdvice]
    tools: Mapping[str, NameAdvice]
    tensor: Mapping[str, str]

    def name(self, name: str, version: str | None = None) -> NameAdvice:
        """What becomes of the dotted `name` below the origin's module on the target.

        `to` is the dotted name below the target's module, or a full dotted name for a name that
        moved. Tier report with `to` None: the target lacks it.
        """
        full = f"{self.origin.module}.{name}"
        for table, key in ((self.moved, full), (self.renamed, name), (self.absent, name)):
            found = longest(table, key)
            if found is not None:
                return self.checked(found, table is self.renamed, version)
        if not (known := self.target.names(version)) or name in known:
            return NameAdvice(name=name, to=name, tier=Tier.SAFE)
        return NameAdvice(
            name=name, note=Text("{module} has no {name}", module=self.target.module, name=name)
        )

    def variable(self, name: str) -> NameAdvice | None:
        """What becomes of an environment variable; patterns count, None when nothing is known."""
        return match_pattern(self.variables, name)

    def import_name(self, dotted: str) -> str | None:
        """What stands in an import statement of the target for a module of the origin.

        `torch.cuda.amp` → the target's module that can be imported; None for a module that is
        not the origin's.
        """
        origin = self.origin
        for head, full in origin.import_modules.items():
            if dotted == full or dotted.startswith(f"{full}."):
                return self.target.import_name(head + dotted[len(full) :])
        for full in (origin.module, origin.import_module):
            if dotted == full or dotted.startswith(f"{full}."):
                return self.target.import_name(dotted[len(full) + 1 :])
        return None

    def checked(self, found: NameAdvice, below: bool, version: str | None) -> NameAdvice:
        """`found`, unless its target does not exist in this version of the chip's package."""
        if found.to is None:
            return found
        full = f"{self.target.module}.{found.to}" if below else found.to
        if self.target.exists(full, version) is not False:
            return found
        picked = self.target.version(version)
        package = self.target.distribution or self.target.module
        note = Text(
            "{full} does not exist in {package} {picked}", full=full, package=package, picked=picked
        )
        return NameAdvice(name=found.name, note=Text.join("; ", (note, found.note)))


def longest(table: Mapping[str, NameAdvice], name: str) -> NameAdvice | None:
    """The entry of `name` or of the longest dotted prefix that a table has.

    A prefix that is replaced carries the rest of the name along.
    """
    if name in table:
        return table[name]
    head = name.rpartition(".")[0]
    while head:
        if found := table.get(head):
            to = f"{found.to}.{name[len(head) + 1 :]}" if found.to else None
            return dataclasses.replace(found, name=name, to=to)
        head = head.rpartition(".")[0]
    return None


MADE: dict[tuple[Path, Path], NameRelation] = {}


def relate(origin: Chip, target: Chip) -> NameRelation:
    """The relation between two chips, made once per pair."""
    pair = (origin.folder, target.folder)
    if pair not in MADE:
        MADE[pair] = make(origin, target)
    return MADE[pair]


def make(origin: Chip, target: Chip) -> NameRelation:
    """Compute every section of a relation."""

    def section(read: Callable[[Chip], Mapping[str, NameAdvice]]) -> Mapping[str, NameAdvice]:
        return compose(read(origin), read(target))

    return NameRelation(
        origin=origin,
        target=target,
        renamed=section(Chip.renamed),
        absent=target.absent(),
        moved=section(Chip.moved),
        variables=section(Chip.variables),
        tools=section(Chip.commands),
        tensor={
            own: target.tensor.get(canonical, canonical) for canonical, own in origin.tensor.items()
        },
    )


def compose(
    own: Mapping[str, NameAdvice], other: Mapping[str, NameAdvice]
) -> dict[str, NameAdvice]:
    """Canonical → own and canonical → other, as own → other."""
    found: dict[str, NameAdvice] = {}
    claimed: dict[str, int] = {}
    for canonical in dict.fromkeys([*own, *other]):
        mine = own.get(canonical) or NameAdvice(canonical, canonical, Tier.SAFE)
        theirs = other.get(canonical) or NameAdvice(canonical, canonical, Tier.SAFE)
        if mine.to is None:
            continue  # the origin has no such name, so no program of it has either
        if mine.one_way:
            continue  # the way back would not restore the original
        claimed[mine.to] = claimed.get(mine.to, 0) + 1
        forwards = mine.keeps  # this chip uses the canonical name
        tier = theirs.tier if forwards else worse(mine.tier, theirs.tier)
        note = theirs.note if forwards else " ".join(filter(None, (mine.note, theirs.note)))
        found[mine.to] = dataclasses.replace(theirs, name=mine.to, tier=tier, note=note)
    for name, count in claimed.items():
        if count > 1 and found[name].tier is Tier.SAFE:
            note = f"several names of the other chip are {name} here"
            found[name] = dataclasses.replace(found[name], tier=Tier.REPORT, note=note)
    return found


WORST = (Tier.SAFE, Tier.UNSAFE, Tier.REPORT)


def worse(one: Tier, other: Tier) -> Tier:
    """The less trusted of two tiers."""
    return max(one, other, key=WORST.index)
