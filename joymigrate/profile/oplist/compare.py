"""Two lists against each other, and a list against the real dispatcher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from joymigrate.profile.oplist.lists import OpList
from joymigrate.profile.oplist.resolve import Resolver
from joymigrate.profile.support import Support, SupportStatus


@dataclass(frozen=True, slots=True)
class OplistChange:
    """One operator that two lists say different things about; None where a list lacks it."""

    name: str
    before: Support | None
    after: Support | None

    @property
    def gained(self) -> bool:
        """Whether the second list is better."""
        return rank(self.after) < rank(self.before)


def rank(support: Support | None) -> int:
    """0 is best; an operator that a list lacks is worst."""
    return len(SupportStatus) if support is None else support.status.rank


def diff(before: OpList, after: OpList) -> list[OplistChange]:
    """Operators whose status or dtypes differ, in order of their names."""
    names = sorted({*before.names(), *after.names()})
    found = []
    for name in names:
        first, second = before.resolver.support(name), after.resolver.support(name)
        same = (
            first is not None
            and second is not None
            and (first.status, first.dtypes) == (second.status, second.dtypes)
        )
        if not same and (first or second):
            found.append(OplistChange(name, first, second))
    return found


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One operator that a list and the dispatcher see differently, and why."""

    name: str
    listed: str
    dispatcher: str
    reason: str


@dataclass(frozen=True, slots=True)
class Validation:
    """A list against the dispatcher: torch's overloads, those it generates, and the chip's own."""

    overloads: int
    equal: int
    generated: int
    generated_equal: int
    own: int
    own_equal: int
    differences: tuple[Disagreement, ...]
    torch: str
    package: str

    @property
    def share(self) -> float:
        """Share of torch's overloads that are equal, from 0 to 1."""
        return self.equal / self.overloads if self.overloads else 0.0


def validate(oplist: OpList, dump: Mapping[str, Any]) -> Validation:
    """Compare every operator that torch declares or the chip's namespaces hold."""
    resolver = oplist.resolver
    real: Mapping[str, str] = dump["ops"]
    differences: list[Disagreement] = []
    counts = {"torch": [0, 0], "generated": [0, 0], "own": [0, 0]}
    for name, op in resolver.table.ops.items():
        full = f"aten::{name}"
        if full not in real and op.generated:
            continue  # torch did not generate this one
        found = resolver.support(full)
        listed = found.status.value if found else "absent"
        truth = status_of(full, real, resolver)
        group = counts["generated" if op.generated else "torch"]
        group[0] += 1
        if listed == truth:
            group[1] += 1
        else:
            differences.append(Disagreement(full, listed, truth, reason(full, resolver)))
    own = {n for n in real if n.partition("::")[0] in oplist.entries.namespaces}
    own |= {n for n in resolver.listed if n.partition("::")[0] in oplist.entries.namespaces}
    for full in sorted(own):
        listed = "native" if resolver.support(full) else "absent"
        truth = "absent" if full not in real else own_status(real[full])
        counts["own"][0] += 1
        if listed == truth:
            counts["own"][1] += 1
        else:
            why = "registered in code, not in the package's list"
            why = why if listed == "absent" else "listed, but torch has no such operator"
            differences.append(Disagreement(full, listed, truth, why))
    return Validation(
        overloads=counts["torch"][0],
        equal=counts["torch"][1],
        generated=counts["generated"][0],
        generated_equal=counts["generated"][1],
        own=counts["own"][0],
        own_equal=counts["own"][1],
        differences=tuple(differences),
        torch=str(dump.get("torch", "")),
        package=f"{dump.get('package', '')} {dump.get('version', '')}".strip(),
    )


def own_status(kind: str) -> str:
    """The status of one of the chip's own operators."""
    return "cpu_fallback" if kind == "none" else "native"


def status_of(name: str, real: Mapping[str, str], resolver: Resolver) -> str:
    """What the dispatcher does with an operator; a delegated one follows its out variant."""
    kind = real.get(name)
    if kind is None:
        return "absent"
    if kind == "delegated":
        op = resolver.table.ops.get(name.removeprefix("aten::"))
        if op is not None and op.delegate:
            return status_of(f"aten::{op.delegate}", real, resolver)
    if kind == "kernel":
        return SupportStatus.NATIVE.value
    return resolver.absent.value if kind == "none" else SupportStatus.COMPOSITE.value


def reason(name: str, resolver: Resolver) -> str:
    """Why a list may be wrong about an operator of torch."""
    op = resolver.table.ops[name.removeprefix("aten::")]
    if name in resolver.listed:
        return "the list names it, and the package registers no kernel for dense tensors"
    if op.generated:
        return "torch generates it or not, depending on its build"
    return "the list does not name it; the package registers it in code"
