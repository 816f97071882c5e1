"""Operators that torch calls on one backend only, and what it calls on another one instead.

The data lies in `rules/common/ops/aliases.yaml`, and in the chip's own file, which goes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from joymigrate.chips import rules_root
from joymigrate.chips.names import version_key
from joymigrate.errors import JoyError
from joymigrate.profile.support import SupportStatus
from joymigrate.schema import document, read_file, setting

COMMON = Path("common") / "ops" / "aliases.yaml"


@dataclass(frozen=True, slots=True)
class Alias:
    """What stands behind an operator: another one (`to`), or nothing to compute (`status`).

    `since` is the version of the chip's package from which `to` exists; before it `otherwise`.
    """

    to: str = setting("", "The operator behind it; aten where no namespace is given.")
    fused: bool = setting(False, "The chip computes several of them in one kernel.")
    note: str = setting("", "What else to know.")
    status: SupportStatus | None = setting(None, "Instead of `to`: how the chip runs it.")
    since: str = setting("", "The chip's package has `to` from here on.", words=True)
    otherwise: str = setting("", "What stands behind it before that version.", key="else")
    dtypes: tuple[str, ...] = setting(make=tuple, help="With `status`: the dtypes that it takes.")
    source: str = setting("", "With `status`: who says so.")

    def __post_init__(self) -> None:
        if bool(self.to) == (self.status is not None):
            raise JoyError("an alias has either `to` or `status`")

    def target(self, version: str) -> str:
        """The operator behind it in this version, as `namespace::base`."""
        old = self.since and version and version_key(version) < version_key(self.since)
        name = self.otherwise if old else self.to
        return name if "::" in name else f"aten::{name}"


@dataclass(frozen=True, slots=True)
class Aliases:
    """Aliases by base name or pattern, and what is known about whole namespaces."""

    exact: Mapping[str, Alias]
    patterns: tuple[tuple[str, Alias], ...]
    namespaces: Mapping[str, Alias]
    own_inputs: Mapping[str, tuple[int, ...]]  # by base name: inputs that the chip makes itself

    def of(self, namespace: str, base: str) -> Alias | None:
        """The alias of an operator; for patterns the longest one wins."""
        name = base if namespace == "aten" else f"{namespace}::{base}"
        if name in self.exact:
            return self.exact[name]
        fitting = [(len(p), a) for p, a in self.patterns if fnmatchcase(name, p)]
        if fitting:
            return max(fitting, key=lambda item: item[0])[1]
        return self.namespaces.get(namespace) if namespace != "aten" else None


@document("aliases", "Names that torch gives operators on one backend only: `ops/aliases.yaml`.")
@dataclass(frozen=True, slots=True)
class AliasFile:
    """One file of aliases."""

    aliases: Mapping[str, Alias] = setting(
        make=dict, help="By base name or pattern (*); of other namespaces by the full name."
    )
    own_inputs: Mapping[str, tuple[int, ...]] = setting(
        make=dict, help="By base name: places of the inputs that the chip makes itself."
    )
    namespaces: Mapping[str, Alias] = setting(make=dict, help="Of whole namespaces.")


def load(own: Path | None) -> Aliases:
    """The common aliases under those of a chip's file."""
    exact: dict[str, Alias] = {}
    patterns: dict[str, Alias] = {}
    namespaces: dict[str, Alias] = {}
    own_inputs: dict[str, tuple[int, ...]] = {}
    for path in (rules_root() / COMMON, own):
        if path is None:
            continue
        file = read_file(AliasFile, path)
        for name, alias in file.aliases.items():
            (patterns if "*" in name else exact)[name] = alias
        own_inputs.update(file.own_inputs)
        namespaces.update(file.namespaces)
    return Aliases(exact, tuple(patterns.items()), namespaces, own_inputs)
