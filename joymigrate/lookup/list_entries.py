"""What lists know of a name: operators, distributions, and names of the chips' own packages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from joymigrate.chips import Chip
from joymigrate.chips.advice import normalise_name
from joymigrate.errors import JoyError
from joymigrate.language import Text
from joymigrate.lookup.rewrite_lookup import begin
from joymigrate.lookup.statements import Statement
from joymigrate.profile.oplist import OpList, SupportStatus, of
from joymigrate.profile.support import Support

WORDS = {
    SupportStatus.NATIVE: "a kernel of the chip computes it",
    SupportStatus.FUSED: "the chip computes it inside a larger kernel",
    SupportStatus.COMPOSITE: "torch makes it of other operators, or it is a view",
    SupportStatus.CPU_FALLBACK: "it runs on the CPU, with copies both ways",
    SupportStatus.MISSING: "it fails on the chip",
    SupportStatus.UNKNOWN: "nobody has said whether the chip has it",
}
DTYPES = "dtypes: {dtypes}"
INSTEAD = "instead: {instead}"
KERNELS = "kernels: {kernels}"
TAKE = "install {package}"
RANGE = "versions {versions}"
COVERS = "covers {what}"
NO_ARM = "no wheel for 64-bit Arm"
OWN = "a name of the chip's own package"
NOWHERE = "no release of the chip's package that was read has it"
ALIKE = "of the same name: {names}"
NEAR = "near: {names}"
MOST = 3


def list_operators(chips: Sequence[Chip]) -> Iterator[OpList]:
    """The operator lists of the chips that have one."""
    for chip in chips:
        try:
            yield of(chip)
        except JoyError:
            continue


def describe_operator(op: str, chips: Sequence[Chip]) -> Iterator[Statement]:
    """How each chip runs an operator, `aten::lgamma` or `aten::add.Tensor`; nothing where no list
    has it."""
    bare, _, overload = op.partition(".")
    for known in list_operators(chips):
        named = known.overloads(bare)
        if bare in named or (named and not overload) or op in named:
            found = known.status(bare, overload or None)
            yield read_support(found, known)


def read_support(found: Support, known: OpList) -> Statement:
    """One list's statement."""
    return Statement(
        chips=(known.chip.name,),
        text=Text.join(
            "; ",
            (
                WORDS[found.status],
                found.note,
                Text(DTYPES, dtypes=" ".join(found.dtypes)) if found.dtypes else "",
                Text(KERNELS, kernels=" ".join(found.kernels[:3])) if found.kernels else "",
                Text(INSTEAD, instead=found.alternative) if found.alternative else "",
            ),
        ),
        since=f"{known.chip.distribution} {known.version}",
        tier=found.status.value,
        source=found.source,
        grade=found.grade,
    )


def describe_package(name: str, chips: Sequence[Chip]) -> Iterator[Statement]:
    """What to do about a distribution on each chip, as far as its data says."""
    for chip in chips:
        found = chip.package_advice(normalise_name(name))
        if found is None:
            continue
        yield Statement(
            chips=(chip.name,),
            text=Text.join(
                "; ",
                (
                    Text(TAKE, package=found.to) if found.to else "",
                    Text(RANGE, versions=found.versions) if found.versions else "",
                    Text(COVERS, what=found.covers) if found.covers else "",
                    found.note,
                    NO_ARM if found.aarch64 is False else "",
                ),
            ),
            becomes=found.to,
            tier=found.tier.value,
            source=f"{found.source} ({found.date})" if found.date else found.source,
        )


def describe_own(name: str, chips: Sequence[Chip]) -> Iterator[Statement]:
    """A name below a chip's own module or package: in which releases it is, and where else the
    package has one of this name now."""
    for chip in chips:
        package, device = chip.package or "", chip.module.rpartition(".")[2]
        alias = f"{package}.{device}."  # the package's own name of the module
        own = f"{chip.module}.{name[len(alias) :]}" if name.startswith(alias) else name
        since, source = begin(own, chip)
        if chip.exists(own) or (package == name and chip.name_list()):
            yield Statement((chip.name,), Text(OWN), becomes=own, since=since, source=source)
        elif (listed := chip.name_list()) and chip.exists(own) is False:
            words = [Text(OWN if since else NOWHERE)]
            if alike := listed.alike(own):
                words.append(Text(ALIKE, names=", ".join(alike[:MOST])))
            elif not since and (near := listed.near(own, MOST)):
                words.append(Text(NEAR, names=", ".join(near)))
            read = source or listed.versions[listed.newest()]
            yield Statement((chip.name,), Text.join("; ", words), since=since, source=read)
