"""`names.txt` of a chip: which dotted names exist in which version of its torch package.

    # Made by: python -m scripts.build_names …
    version 2.12 torch-acme 2.12.0 wheel read 2026-11-20
    version 2.13 …
    [torch.acme]
    Stream                     exists in every version listed above
    MemPool 2.6-               since 2.6
    old_name 2.1-2.3,2.5       in these versions

A section header names the module; `[module] 2.13-` says that the module's names are known for
these versions only.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from joymigrate.errors import JoyError

SECTION = re.compile(r"\[(?P<module>[\w.]+)\](?:\s+(?P<span>[\d.,-]+))?$")
NAME = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?:\s+(?P<span>[\d.,-]+))?$")
VERSION = re.compile(r"version\s+(?P<version>\d+\.\d+)\s+(?P<source>.+)$")


NEAR = 0.8  # how much of two names must be alike
RELEASE = re.compile(r"(\d+)\.(\d+)(?:\.(\d+)(?:\.post(\d+))?)?")


def version_key(version: str) -> tuple[int, ...]:
    """Sort key of `major.minor…`: 2.9 before 2.13."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def release_key(version: str) -> tuple[int, ...]:
    """Sort key of a release; what is not written is 0: 2.6, 2.6.0.post3, 2.6.0.post11, 2.6.1."""
    found = RELEASE.match(version)
    return tuple(int(part or 0) for part in found.groups()) if found else (0,)


@dataclass(frozen=True, slots=True)
class NameList:
    """Names by module and version. `versions` maps a version to where its names were read."""

    versions: Mapping[str, str]
    sections: Mapping[str, Mapping[str, frozenset[str]]]  # module -> version -> names
    path: Path

    def newest(self) -> str:
        """The highest version listed."""
        return max(self.versions, key=version_key)

    def pick(self, version: str | None, default: str | None = None) -> str:
        """The listed version that `version` belongs to (`2.7.1.post2` → `2.7`)."""
        if version is None:
            return default or self.newest()
        wanted = version_key(version)
        for known in self.versions:
            if version_key(known) == wanted:
                return known
        raise JoyError(
            f"no names are known for version {version}",
            where=str(self.path),
            help=f"known versions: {', '.join(sorted(self.versions, key=version_key))}",
        )

    def names(self, module: str, version: str) -> frozenset[str]:
        """Names below `module` in a listed version; empty where the module is not listed."""
        return self.sections.get(module, {}).get(version, frozenset())

    def knows(self, module: str, version: str) -> bool:
        """Whether the names of `module` were read for this version."""
        return version in self.sections.get(module, {})

    def has(self, module: str, name: str, version: str) -> bool | None:
        """Whether `name` exists below `module`; None for an attribute of a name that is listed
        without attributes (`Stream.wait_stream`)."""
        names = self.names(module, version)
        if name in names:
            return True
        head = name.rpartition(".")[0]
        while head:
            if head in names:
                return False if any(n.startswith(f"{head}.") for n in names) else None
            head = head.rpartition(".")[0]
        return False

    def alike(self, dotted: str) -> list[str]:
        """Names of the newest version with the same last part, other than `dotted` itself."""
        last = dotted.rpartition(".")[2]
        every = (
            f"{module}.{name}"
            for module in self.sections
            for name in sorted(self.names(module, self.newest()))
            if name.rpartition(".")[2] == last
        )
        return [one for one in every if one != dotted]

    def near(self, dotted: str, most: int) -> list[str]:
        """Names of the newest version in the same module that are written much the same."""
        module = dotted.rpartition(".")[0]
        every = [f"{module}.{name}" for name in self.names(module, self.newest())]
        return difflib.get_close_matches(dotted, every, n=most, cutoff=NEAR)

    def section_of(self, dotted: str) -> tuple[str, str] | None:
        """The longest listed module that `dotted` lies below, and the rest of the name."""
        parts = dotted.split(".")
        for length in range(len(parts) - 1, 0, -1):
            module = ".".join(parts[:length])
            if module in self.sections:
                return module, ".".join(parts[length:])
        return None


def parse(path: Path) -> NameList:
    """Read a name list. A line of another form raises `JoyError` with file and line."""
    versions: dict[str, str] = {}
    spans: dict[str, frozenset[str]] = {}
    sections: dict[str, dict[str, set[str]]] = {}
    current: dict[str, set[str]] | None = None
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise JoyError("a name list is UTF-8 text", where=f"{path} byte {error.start}") from None
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        where = f"{path}:{number}"
        if found := VERSION.match(line):
            if current is not None:
                raise JoyError("`version` lines come before the first section", where=where)
            versions[found["version"]] = found["source"]
        elif found := SECTION.match(line):
            known = expand(found["span"], versions, spans, where)
            current = sections.setdefault(found["module"], {v: set() for v in known})
        elif (found := NAME.match(line)) and current is not None:
            for version in expand(found["span"], versions, spans, where):
                if version in current:
                    current[version].add(found["name"])
        else:
            raise JoyError(
                f"not a line of a name list: {line!r}",
                where=where,
                help="expected `version X.Y source`, `[module]`, or `name [versions]`",
            )
    if not versions:
        raise JoyError("a name list needs a `version` line", where=str(path))
    frozen = {m: {v: frozenset(n) for v, n in by.items()} for m, by in sections.items()}
    return NameList(versions, frozen, path)


def expand(
    span: str | None, versions: Iterable[str], cache: dict[str, frozenset[str]], where: str
) -> frozenset[str]:
    """The listed versions inside `2.1-2.3,2.6-`; all of them for None."""
    key = span or ""
    if key in cache:
        return cache[key]
    if not key:
        found = frozenset(versions)
    else:
        found = frozenset(v for part in key.split(",") for v in inside(part, versions, where))
    cache[key] = found
    return found


def inside(part: str, versions: Iterable[str], where: str) -> list[str]:
    """Versions inside one range: `2.6-`, `-2.4`, `2.1-2.3`, `2.5` or `2.6.0.post3-`.

    An end of two numbers stands for all releases of that version.
    """
    low, dash, high = part.partition("-")
    wrong = [end for end in (low, high) if end and not RELEASE.fullmatch(end)]
    if wrong or not (low or high):
        raise JoyError(f"not a range of versions: {part!r}", where=where, help="such as 2.1-2.3")
    high = high if dash else low
    return [
        v for v in versions
        if (not low or ends(low, v) >= ends(low, low))
        and (not high or ends(high, v) <= ends(high, high))
    ]  # fmt: skip


def ends(end: str, version: str) -> tuple[int, ...]:
    """What is compared of a version with one end of a range."""
    return release_key(version)[: 2 if end.count(".") == 1 else None]


def span_of(present: Iterable[str], versions: Iterable[str]) -> str:
    """The shortest span text for `present` among the sorted `versions`; empty for all."""
    ordered = sorted(versions, key=release_key)
    inside_it = set(present)
    runs: list[list[int]] = []
    for index, version in enumerate(ordered):
        if version not in inside_it:
            continue
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    if runs == [[0, len(ordered) - 1]]:
        return ""
    return ",".join(run_text(first, last, ordered) for first, last in runs)


def run_text(first: int, last: int, ordered: list[str]) -> str:
    """Text of one run of consecutive versions."""
    low, high = run_end(first, -1, ordered), run_end(last, 1, ordered)
    if last == len(ordered) - 1:
        return f"{low}-"
    if first == last or low == high:
        return max(low, high, key=len)  # the one that says which release
    return f"{low}-{high}"


def run_end(index: int, step: int, ordered: list[str]) -> str:
    """One end of a run: `major.minor` where no other release of it lies outside."""
    version, beside = ordered[index], index + step
    short = ".".join(map(str, version_key(version)))
    if 0 <= beside < len(ordered) and version_key(ordered[beside]) == version_key(version):
        return version if version != short else f"{short}.0"
    return short
