"""Whether a chip has an operator: the statuses, and one statement with its source."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class SupportStatus(str, Enum):
    """How a chip runs an operator, best first.

    `native`: a kernel of the chip. `fused`: the vendor computes it as part of a larger kernel.
    `composite`: torch makes it out of other operators, or it is a view. `cpu_fallback`: it runs on
    the CPU, with copies both ways. `missing`: it raises. `unknown`: nobody has looked, which never
    counts as supported.
    """

    NATIVE = "native"
    FUSED = "fused"
    COMPOSITE = "composite"
    CPU_FALLBACK = "cpu_fallback"
    MISSING = "missing"
    UNKNOWN = "unknown"

    @property
    def supported(self) -> bool:
        """Whether the operator stays on the chip."""
        return self in (SupportStatus.NATIVE, SupportStatus.FUSED, SupportStatus.COMPOSITE)

    @property
    def rank(self) -> int:
        """0 is best."""
        return ORDER.index(self)


ORDER = tuple(SupportStatus)


@dataclass(frozen=True, slots=True)
class Support:
    """What is known about one operator on one chip.

    `dtypes` are the ones that the chip's kernels are documented to take, empty where nobody read
    it. `contiguous` names inputs that have to be contiguous. `kernels` are the chip's own names.
    `alternative` is what to use instead, `source` where the statement comes from.
    """

    status: SupportStatus
    dtypes: tuple[str, ...] = ()
    note: str = ""
    source: str = ""
    alternative: str = ""
    kernels: tuple[str, ...] = ()
    contiguous: tuple[str, ...] = ()
    package: str = ""  # what has to be installed beside the chip's torch package
    grade: str = "documented"  # how well it is known: joymigrate.evidence
    evidence: str = "recorded"  # or "kernel name": nobody was seen to call it

    @property
    def supported(self) -> bool:
        """Whether the operator stays on the chip."""
        return self.status.supported


@dataclass(frozen=True, slots=True)
class OperatorVerdict:
    """What is said about one operator with one signature.

    `opens` says that its children are looked at as well: it is made of them. `silent` operators
    are not listed themselves.
    """

    op: str
    overload: str
    support: Support
    opens: bool = False
    silent: bool = False

    @property
    def name(self) -> str:
        """`aten::scatter.reduce`."""
        return f"{self.op}.{self.overload}" if self.overload else self.op


def split_name(name: str, overload: str | None = None) -> tuple[str, str, str | None]:
    """Namespace, base name and overload of `aten::add.Tensor`, `aten::add` or `add.Tensor`.

    The overload is None where none is given: not known, which is not the default overload.
    """
    namespace, separator, rest = name.partition("::")
    if not separator:
        namespace, rest = "aten", name
    base, dot, found = rest.partition(".")
    return namespace, base, found if dot else overload
