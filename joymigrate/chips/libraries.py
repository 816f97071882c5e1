"""Operators of other libraries and their counterparts on a chip: its `ops/libraries.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from joymigrate.chips import read_yaml
from joymigrate.errors import JoyError, did_you_mean

KEYS = ("op", "to", "package", "own", "note")


@dataclass(frozen=True, slots=True)
class Counterpart:
    """What computes an operator of another library: `to`, or a `package` that registers it."""

    op: str
    to: str = ""
    package: str = ""
    own: bool = False
    note: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Libraries:
    """Counterparts in the order of the file; the first that fits is taken."""

    entries: tuple[Counterpart, ...] = ()

    def of(self, name: str) -> Counterpart | None:
        """The counterpart of `namespace::base`."""
        return next((one for one in self.entries if fnmatchcase(name, one.op)), None)


def load(path: Path) -> Libraries:
    """A chip's file; nothing where it has none."""
    if not path.is_file():
        return Libraries()
    raw = read_yaml(path) or {}
    sources = raw.get("sources") or {}
    found = []
    for number, item in enumerate(raw.get("libraries") or ()):
        where = f"{path} libraries[{number}]"
        for key in item:
            if key not in KEYS:
                raise JoyError(f"unknown key '{key}'.{did_you_mean(key, KEYS)}", where=where)
        if "op" not in item or ("to" in item) == bool(item.get("own")):
            raise JoyError("a counterpart has `op`, and either `to` or `own: true`", where=where)
        found.append(Counterpart(**item, source=str(sources.get(item.get("package", ""), ""))))
    return Libraries(tuple(found))
