"""From what a chip registers to what happens to every operator of torch.

An operator runs on the chip when the chip registers a kernel for it; when torch computes it
through its out variant and the chip has that one; or when torch makes it out of other operators.
Else it goes to the CPU, or raises where the chip has no fallback.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from joymigrate.language import Text
from joymigrate.profile.oplist.aten import AtenTable
from joymigrate.profile.oplist.entries import LAYOUT, OplistEntry
from joymigrate.profile.support import Support, SupportStatus

VIA = "computed by the kernel of {name}"
GENERATED = "torch generates it from another overload"
IMPLICIT = "made of other operators"
EXPLICIT = "a view, or made of other operators"


@dataclass(frozen=True, slots=True)
class DocumentedKernels:
    """Documented facts about the chip's own kernels.

    `dtypes` are all that a kernel takes in any input, `first` those of its first tensor input,
    `contiguous` the inputs that have to be contiguous.
    """

    dtypes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    first: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    contiguous: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def of(self, names: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Dtypes that any of these kernels takes, and inputs that must be contiguous in all."""
        dtypes: list[str] = []
        strict: set[str] | None = None
        for name in names:
            if name in self.dtypes:
                dtypes += [one for one in self.dtypes[name] if one not in dtypes]
                own = set(self.contiguous.get(name, ()))
                strict = own if strict is None else strict & own
        return tuple(dtypes), tuple(sorted(strict or ()))


class Resolver:
    """One chip in one version: statements about operators, made when asked for and kept."""

    def __init__(
        self,
        entries: Iterable[OplistEntry],
        table: AtenTable,
        *,
        source: str,
        fallback: bool,
        kernels: DocumentedKernels,
    ) -> None:
        self.table = table
        self.source = source
        self.absent = SupportStatus.CPU_FALLBACK if fallback else SupportStatus.MISSING
        self.kernels = kernels
        self.listed: dict[str, OplistEntry] = {}
        self.every: dict[str, OplistEntry] = {}  # base names that stand for all overloads
        for entry in entries:
            self.add(entry)
        self.kept: dict[str, Support] = {}

    def add(self, entry: OplistEntry) -> None:
        """Take one entry in. A bare name that torch has no default overload of means them all."""
        namespace, _, base = entry.name.partition("::")
        exact = f"{entry.name}.{entry.overload}" if entry.overload else entry.name
        is_torch = namespace == "aten" and base in self.table.bases
        if entry.overload == "*" or (
            is_torch and not entry.overload and base not in self.table.ops
        ):
            self.every[entry.name] = entry
        else:
            self.listed[exact] = entry

    def names(self) -> list[str]:
        """Every operator that torch or the list knows, as `namespace::base.overload`."""
        known = dict.fromkeys(f"aten::{name}" for name in self.table.ops)
        return [*known, *(name for name in self.listed if name not in known)]

    def support(self, name: str) -> Support | None:
        """What is known about `namespace::base.overload`; None for an operator nobody knows."""
        if name not in self.kept:
            found = self.work_out(name)
            if found is None:
                return None
            self.kept[name] = found
        return self.kept[name]

    def work_out(self, name: str) -> Support | None:
        """Say what happens to one operator."""
        entry = self.listed.get(name) or self.every.get(name.partition(".")[0])
        if entry is not None and entry.status != LAYOUT:
            return self.stated(entry)
        namespace, _, rest = name.partition("::")
        op = self.table.ops.get(rest) if namespace == "aten" else None
        layout = "" if entry is None else Text("the chip has a kernel {note}", note=entry.note)
        if op is None:
            return None
        if op.delegate:
            target = self.support(f"aten::{op.delegate}")
            if target is not None:
                via = Text(VIA, name=f"aten::{op.delegate}")
                return replace(target, note=Text.join("; ", (via, layout, target.note)))
        if op.composite:
            note = GENERATED if op.generated else IMPLICIT
            note = EXPLICIT if op.composite == "explicit" and not op.generated else note
            return Support(
                SupportStatus.COMPOSITE,
                note=Text.join("; ", (note, layout)),
                source=self.table.source,
            )
        source = f"not in {self.source}" if self.source else ""
        return Support(self.absent, note=layout, source=source)

    def in_layout(self, name: str, word: str) -> bool:
        """Whether the chip has a kernel of an operator for `sparse` or `quantised` tensors."""
        entry = self.listed.get(name) or self.every.get(name.partition(".")[0])
        return entry is not None and entry.status == LAYOUT and word in str(entry.note)

    def stated(self, entry: OplistEntry) -> Support:
        """An entry as a statement, with what is documented about its kernels."""
        dtypes, contiguous = self.kernels.of(entry.kernels)
        source = entry.source or self.source
        documents = [self.kernels.sources[k] for k in entry.kernels if k in self.kernels.sources]
        if documents and not entry.dtypes:
            source = f"{source}; dtypes: {documents[0]}"
        return Support(
            status=SupportStatus(entry.status or "native"),
            dtypes=entry.dtypes or dtypes,
            note=entry.note,
            source=source,
            alternative=entry.alternative,
            kernels=entry.kernels,
            contiguous=entry.contiguous or contiguous,
        )

    def first_dtypes(self, kernels: Iterable[str]) -> frozenset[str]:
        """Dtypes that the first tensor input of any of these kernels takes; empty if unknown."""
        found: set[str] = set()
        for name in kernels:
            own = self.kernels.first.get(name) or self.kernels.dtypes.get(name)
            found |= set(own or ())
        return frozenset(found)
