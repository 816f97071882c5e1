"""A chip's operators in one version, ready to be asked."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from joymigrate import chips
from joymigrate.chips import Chip
from joymigrate.chips.answers import Signature, answers_for, read_answers
from joymigrate.errors import JoyError
from joymigrate.extras import how_to_get
from joymigrate.language import Text
from joymigrate.profile.oplist import entries as lists
from joymigrate.profile.oplist import package
from joymigrate.profile.oplist.aten import AtenTable, read_table
from joymigrate.profile.oplist.entries import Entries, ListRelease, OplistEntry
from joymigrate.profile.oplist.reports import differing
from joymigrate.profile.oplist.resolve import DocumentedKernels, Resolver
from joymigrate.profile.support import Support, SupportStatus, split_name

BEST = "no overload recorded: the best of {number}"
# Kernels that move or convert bytes are documented by dtype only in parts.
REFUSED = "{dtype} is not among the documented dtypes of {kernel} ({known})"

# Kinds of dtypes, the widest first.
FAMILIES = (
    ("complex128", "complex64", "complex32"),
    ("float64", "float32", "bfloat16", "float16"),
    ("int64", "int32", "int16", "int8", "uint8", "bool"),
    ("uint64", "int64", "int32", "uint32", "uint16", "uint8"),
    ("bool", "uint8", "int8", "int32", "float32"),
)


class OpList:
    """Operators of `chip` in `version`, resolved against the operators of `torch`."""

    def __init__(
        self, chip: Chip, release: ListRelease, resolver: Resolver, found: Entries
    ) -> None:
        self.chip = chip
        self.release = release
        self.resolver = resolver
        self.entries = found
        self.path = found.path
        self.aliases = found.aliases

    @property
    def version(self) -> str:
        """The version of the chip's torch package: `2.6` (its first release) or `2.6.0.post3`."""
        return self.release.version

    @property
    def torch(self) -> str:
        """The torch version that the list was resolved against."""
        return self.resolver.table.version

    def names(self) -> list[str]:
        """Every operator that torch or the chip knows, as `namespace::base.overload`."""
        return self.resolver.names()

    def overloads(self, name: str) -> tuple[str, ...]:
        """Known overloads of `namespace::base` as full names, out variants included."""
        namespace, base, _ = split_name(name)
        if namespace == "aten":
            return tuple(f"aten::{one}" for one in self.resolver.table.bases.get(base, ()))
        bare = f"{namespace}::{base}"
        return tuple(n for n in self.resolver.listed if n.partition(".")[0] == bare)

    def status(self, op: str, overload: str | None = None, dtype: str | None = None) -> Support:
        """What is known about an operator; `unknown` where nobody has looked.

        `op` is `aten::add` or `aten::add.Tensor`. `overload` None means that it was not recorded:
        then the best of the overloads counts, and the note says so. With `dtype` (torch's name),
        one that the chip's kernel is documented not to take makes it `missing`.
        """
        namespace, base, overload = split_name(op, overload)
        bare = f"{namespace}::{base}"
        if overload is None:
            found = self.best(bare, self.overloads(bare))
        else:
            found = self.exact(bare, overload)
        name = bare.removeprefix("aten::") + (f".{overload}" if overload else "")
        if said := differing(self.entries.reports, name, self.version):
            found = replace(found, note=Text.join("; ", (found.note, said)))
        return self.with_dtype(found, dtype) if dtype else found

    def exact(self, bare: str, overload: str) -> Support:
        """One overload; an empty one where torch has no default means any of them."""
        found = self.resolver.support(f"{bare}.{overload}" if overload else bare)
        if found is None and not overload:
            return self.best(bare, self.overloads(bare))
        return found or self.unknown(bare)

    def best(self, bare: str, candidates: Sequence[str]) -> Support:
        """The best of several overloads; out variants count only where there is nothing else."""
        plain = [n for n in candidates if not is_out(n)] or list(candidates)
        known = [(n, self.resolver.support(n)) for n in plain]
        ranked = sorted(
            ((s.status.rank, n, s) for n, s in known if s is not None), key=lambda item: item[0]
        )
        if not ranked:
            return self.resolver.support(bare) or self.unknown(bare)
        rank, _, found = ranked[0]
        if len(ranked) == 1:
            return found
        worse = [name for other, name, _ in ranked if other > rank and other > 2]
        note = Text(BEST, number=len(ranked))
        if worse:
            said = ", ".join(worse[:3]) + (" …" if len(worse) > 3 else "")
            note += f"; {said}: {ranked[-1][2].status.value}"
        return replace(found, note=Text.join("; ", (note, found.note)))

    def with_dtype(self, found: Support, dtype: str) -> Support:
        """The same for inputs of one dtype."""
        if not found.status.supported or not found.dtypes or dtype in found.dtypes:
            return found
        kernel = found.kernels[0] if found.kernels else "the chip's kernel"
        said = Text(REFUSED, dtype=dtype, kernel=kernel, known=" ".join(found.dtypes))
        note = Text.join("; ", (said, found.note))
        near = nearest(dtype, found.dtypes)
        cast = (
            Text("cast to {dtype} before it, and back behind it where it matters", dtype=near)
            if near
            else ""
        )
        return replace(found, status=SupportStatus.MISSING, note=note, alternative=cast)

    def unknown(self, bare: str) -> Support:
        """An operator that neither torch nor the list knows."""
        namespace = bare.partition("::")[0]
        what = "not an operator of this torch" if namespace == "aten" else "a namespace of its own"
        return Support(
            SupportStatus.UNKNOWN,
            note=Text("{what}; nobody has said whether the chip has it", what=what),
        )

    def rows(self) -> Iterator[tuple[str, str, Support]]:
        """Every operator as (`namespace::base`, overload, statement), sorted by name."""
        for name in sorted(self.names()):
            found = self.resolver.support(name)
            if found is not None:
                bare, _, overload = name.partition(".")
                yield bare, overload, found


def nearest(dtype: str, known: Sequence[str]) -> str:
    """The dtype to cast to: of the same kind, the widest one that the kernel takes."""
    for family in FAMILIES:
        if dtype in family:
            return next((one for one in family if one in known), "")
    return ""


def is_out(name: str) -> bool:
    """Whether an overload writes into tensors that it is given."""
    overload = name.partition(".")[2]
    return overload.endswith("out") or overload in ("grad_input", "output", "values")


def chip_of(name: str | None) -> Chip:
    """The chip called `name` (default: the default target), or the one in a folder."""
    if name and ("/" in name or Path(name).is_dir()) and (Path(name) / "chip.yaml").is_file():
        return chips.load_folder(Path(name), "a folder")
    return chips.target(name)


def of(
    chip: str | Chip | None = None,
    version: str | None = None,
    *,
    file: Path | None = None,
    table: AtenTable | None = None,
) -> OpList:
    """The operators of a chip. `file` is a list to use instead of the chip's own.

    `version` is a version of the chip's torch package (default: the list's own default). `table`
    is torch's operator table (default: that of the installed torch).
    """
    owner = chip if isinstance(chip, Chip) else chip_of(chip)
    found = lists.read(file or lists.find(owner))
    picked = found.pick(version or default_version(owner, found))
    release = found.releases.get(picked) or ListRelease(picked, found.path.name)
    return make(owner, found, release, found.of(picked) if picked else found.entries, table)


def default_version(chip: Chip, found: Entries) -> str | None:
    """The chip's assumed version where the list has it and names none itself."""
    assumed = chip.default_version or ""
    return assumed if found.default is None and assumed in found.releases else None


def from_wheel(
    chip: str | Chip | None,
    wheel: Path | None = None,
    *,
    table: AtenTable | None = None,
) -> OpList:
    """The operators that a wheel, or without one the installed package, registers.

    What the chip's data knows beyond the package's own list (kernels, dtypes, replacements) is
    taken from the data of the nearest version.
    """
    owner = chip if isinstance(chip, Chip) else chip_of(chip)
    found = lists.read(lists.find(owner))
    if found.package is None:
        raise JoyError(
            f"it is not known where the package of {owner.name} keeps its list",
            where=str(found.path),
            help="`package:` in the chip's list says it; docs/how-to/oplist.md",
        )
    shipped = (
        package.read_wheel(wheel, found.package) if wheel else package.read_installed(found.package)
    )
    if shipped is None:
        raise JoyError(
            f"{found.package.distribution} is not installed",
            help=f"--wheel FILE, or {how_to_get(found.package.distribution)}",
        )
    namespace = found.namespaces[0] if found.namespaces else owner.device
    known = {(e.name, e.overload or ""): e for e in found.entries}
    merged = [merge(e, known) for e in package.entries_of(shipped, namespace)]
    release = replace(shipped.release, version=shipped.full or shipped.release.version)
    return make(owner, found, release, merged, table)


def merge(own: OplistEntry, known: dict[tuple[str, str], OplistEntry]) -> OplistEntry:
    """An entry of a package with what the data says about its kernels."""
    more = known.get((own.name, own.overload or ""))
    if more is None:
        return own
    return replace(
        own,
        kernels=more.kernels,
        dtypes=more.dtypes,
        contiguous=more.contiguous,
        alternative=more.alternative,
        note=more.note or own.note,
    )


def make(
    chip: Chip,
    found: Entries,
    release: ListRelease,
    rows: Iterable[OplistEntry],
    table: AtenTable | None,
) -> OpList:
    """A list ready to be asked."""
    fallback = chip.cpu_fallback if found.fallback is None else found.fallback == "cpu"
    resolver = Resolver(
        rows,
        table or read_table(),
        source=str(release),
        fallback=fallback,
        kernels=read_kernels(found),
    )
    return OpList(chip, release, resolver, found)


def read_kernels(found: Entries) -> DocumentedKernels:
    """The table of the chip's own kernels, a row per tensor: what all of a kernel's take, what its
    first one takes, and which have to be contiguous."""
    if found.kernels is None:
        return DocumentedKernels()
    every: dict[str, tuple[str, ...]] = {}
    first: dict[str, tuple[str, ...]] = {}
    strict: dict[str, tuple[str, ...]] = {}
    sources: dict[str, str] = {}
    with found.kernels.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            kernel, dtypes = row["kernel"], row["dtypes"].split()
            every[kernel] = tuple(dict.fromkeys((*every.get(kernel, ()), *dtypes)))
            sources.setdefault(kernel, row["source"])
            if row["role"] == "in":
                first.setdefault(kernel, tuple(dtypes))
            if row["contiguous"]:
                strict[kernel] = (*strict.get(kernel, ()), row["parameter"])
    known = {kernel: dtypes for kernel, dtypes in first.items() if dtypes}
    documented = DocumentedKernels(every, known, strict, sources)
    if found.answers is None:
        return documented
    return with_answers(documented, answers_for(read_answers(found.answers), found.model))


def with_answers(
    documented: DocumentedKernels, answers: Mapping[str, Signature]
) -> DocumentedKernels:
    """The documents' dtypes as the chip's host code answered: what its first tensor refuses and no
    other tensor takes goes, what is taken comes. The rest stays as documented."""
    dtypes, first = dict(documented.dtypes), dict(documented.first)
    sources = dict(documented.sources)
    for kernel, tensors in answers.items():
        read = [one for one in tensors if one.role != "out"]
        if not read or not any(one.takes for one in read):
            continue
        known = dtypes.get(kernel, ())
        taken = [d for one in read for d in sorted(one.takes)]
        gone = read[0].refuses.intersection(*(one.refuses for one in read[1:]))
        if not read[0].takes:  # no call was seen to be taken: the documents count
            gone = gone.difference(known)
        dtypes[kernel] = tuple(dict.fromkeys(d for d in (*known, *taken) if d not in gone))
        own = (*first.get(kernel, ()), *sorted(read[0].takes))
        first[kernel] = tuple(dict.fromkeys(d for d in own if d not in read[0].refuses))
        sources[kernel] = read[0].source or sources.get(kernel, "")
    return DocumentedKernels(dtypes, first, documented.contiguous, sources)
