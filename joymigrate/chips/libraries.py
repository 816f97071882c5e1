"""Operators of other libraries and their counterparts on a chip: its `ops/libraries.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from joymigrate.errors import JoyError
from joymigrate.schema import document, read_file, setting


@dataclass(frozen=True, slots=True)
class Counterpart:
    """What computes an operator of another library: `to`, or a `package` that registers it."""

    op: str = setting(help="A pattern over namespace::base; * stands for anything.")
    to: str = setting("", "The operator of the chip's package, or of torch, that computes it.")
    package: str = setting("", "What has to be installed beside the chip's package.")
    own: bool = setting(False, "The package registers the operator under the same name.")
    note: str = setting("", "What else to know.")
    source: str = setting("", hidden=True)

    def __post_init__(self) -> None:
        if bool(self.to) == self.own:
            raise JoyError("a counterpart has either `to` or `own: true`")


@document("libraries", "Other libraries' operators on a chip: `ops/libraries.yaml` in its folder.")
@dataclass(frozen=True, slots=True)
class Libraries:
    """Counterparts in the order of the file; the first that fits is taken."""

    libraries: tuple[Counterpart, ...] = setting((), "The first that fits is taken.")
    sources: Mapping[str, str] = setting(make=dict, help="Where it was read, by package.")

    @property
    def entries(self) -> tuple[Counterpart, ...]:
        """Counterparts with their sources."""
        return tuple(map(self.with_source, self.libraries))

    def with_source(self, one: Counterpart) -> Counterpart:
        """A counterpart with the source of its package."""
        return replace(one, source=self.sources.get(one.package, ""))

    def of(self, name: str) -> Counterpart | None:
        """The counterpart of `namespace::base`."""
        found = next((one for one in self.libraries if fnmatchcase(name, one.op)), None)
        return self.with_source(found) if found else None


def load(path: Path) -> Libraries:
    """A chip's file; nothing where it has none."""
    return read_file(Libraries, path) if path.is_file() else Libraries()
