"""Reads lock files: what is installed, to the version.

`joymigrate.lock` and `requirements*.lock|txt` (pinned requirements), `pylock.toml` (PEP 751),
`uv.lock`, `poetry.lock`. Packages of other platforms than Linux are left out.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.markers import InvalidMarker, Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from joymigrate.errors import JoyError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# In the order in which one is looked for.
NAMES = (
    "joymigrate.lock",
    "pylock.toml",
    "uv.lock",
    "poetry.lock",
    "requirements.lock",
    "requirements.txt",
)
HELP = "pin it: `joymigrate render lock`, uv lock, poetry lock, or pip freeze > requirements.lock"
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
PYTHON = re.compile(r"#\s*python:?\s*[=]*\s*(\d+\.\d+)")


@dataclass(frozen=True, slots=True)
class Pin:
    """One package: a version, or an address it comes from; `extras` and `marker` as written."""

    name: str
    version: str
    extras: str = ""
    marker: str = ""
    url: str = ""

    @property
    def requirement(self) -> str:
        """As a requirement."""
        where = f" @ {self.url}" if self.url else f"=={self.version}"
        return f"{self.name}{self.extras}{where}" + (f" ; {self.marker}" if self.marker else "")


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock file. `python` is the minor version it says, None where it says none; `left_out`
    names what no requirement can say, with the reason."""

    path: Path
    sha256: str
    pins: tuple[Pin, ...]
    python: str | None = None
    left_out: tuple[tuple[str, str], ...] = ()

    def pin(self, name: str) -> Pin | None:
        """The package called `name`."""
        return next((pin for pin in self.pins if pin.name == name), None)


def find(project: Path) -> Path:
    """The project's lock file; `JoyError` without one."""
    for name in NAMES:
        if (project / name).is_file():
            return project / name
    raise JoyError("no lock file", where=str(project), help=HELP)


def read(path: Path) -> Lock:
    """The lock at `path`; an unpinned requirement is an error that names it."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise JoyError(f"cannot read: {error.strerror}", where=str(path), help=HELP) from None
    except UnicodeDecodeError:
        raise JoyError("not UTF-8 text", where=str(path), help=HELP) from None
    known = {"uv.lock": uv, "poetry.lock": poetry}
    reader = known.get(path.name)
    if reader is None and path.suffix == ".toml":
        reader = pylock
    if reader is None:
        pins, left_out = requirements(text, path)
        found = PYTHON.search(text)
        python = found[1] if found else None
    else:
        document = parse_toml(text, path)
        pins, left_out = reader(document)
        python = exact_python(document)
    if not pins:
        raise JoyError("the lock names no package", where=str(path), help=HELP)
    unique = {pin.name: pin for pin in pins}
    ordered = tuple(unique[name] for name in sorted(unique))
    return Lock(path, hashlib.sha256(data).hexdigest(), ordered, python, tuple(left_out))


Read = tuple[list[Pin], list[tuple[str, str]]]


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """A TOML document."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise JoyError(f"not valid TOML: {error}", where=str(path), help=HELP) from None


def exact_python(document: Mapping[str, Any]) -> str | None:
    """The minor version that a lock is for, where it names just one: `==3.11.*`."""
    said = document.get("requires-python") or document.get("metadata", {}).get("python-versions")
    found = re.fullmatch(r"\s*={2}\s*(\d+\.\d+)(?:\.[\d*]+)?\s*", str(said or ""))
    return found[1] if found else None


def requirements(text: str, path: Path) -> Read:
    """Pinned requirements. Hashes are dropped: builds for another chip have others."""
    pins: list[Pin] = []
    left_out: list[tuple[str, str]] = []
    loose: list[str] = []
    joined = re.sub(r"\\\r?\n", " ", text)
    for number, line in enumerate(joined.splitlines(), 1):
        bare = re.sub(r"(^|\s)#.*$", "", re.sub(r"\s--hash[= ]\S+", "", line)).strip()
        if not bare:
            continue
        if bare.startswith("-"):
            left_out.append((bare, option_reason(bare)))
            continue
        try:
            wanted = Requirement(bare)
        except InvalidRequirement as error:
            raise JoyError(
                f"not a requirement: {bare}",
                where=f"{path}:{number}",
                help=str(error).split("\n")[0],
            ) from None
        version = pin_version(wanted)
        if version is None and not wanted.url:
            loose.append(str(wanted))
        elif applies(str(wanted.marker or "")):
            pins.append(pin_of(wanted, version or ""))
    if loose:
        shown = ", ".join(loose[:6]) + (" …" if len(loose) > 6 else "")
        raise JoyError(f"not a lock: {len(loose)} not pinned: {shown}", where=str(path), help=HELP)
    return pins, left_out


def option_reason(line: str) -> str:
    """Why an option of a requirements file is not carried over."""
    if re.match(r"-e\b|--editable", line):
        return "an editable package: the project itself is copied into the image"
    if re.match(r"-[rc]\b|--requirement|--constraint", line):
        return "another file: its requirements are not read"
    return "an option of pip: pass it with the build's arguments"


def pin_version(wanted: Requirement) -> str | None:
    """The one version that a requirement allows."""
    parts = list(wanted.specifier)
    if len(parts) != 1 or parts[0].operator not in ("==", "===") or "*" in parts[0].version:
        return None
    return parts[0].version


def pin_of(wanted: Requirement, version: str) -> Pin:
    """A requirement as a pin."""
    extras = f"[{','.join(sorted(wanted.extras))}]" if wanted.extras else ""
    return Pin(
        canonicalize_name(wanted.name), version, extras, str(wanted.marker or ""), wanted.url or ""
    )


def applies(marker: str) -> bool:
    """Whether a marker may hold on Linux, on one of its processors."""
    if not marker:
        return True
    try:
        read = Marker(marker)
    except InvalidMarker:
        return True
    return any(
        read.evaluate({**LINUX, "platform_machine": machine, "extra": ""})
        for machine in ("x86_64", "aarch64")
    )


def pylock(document: Mapping[str, Any]) -> Read:
    """`pylock.toml` of PEP 751."""
    return table(document.get("packages") or (), "marker")


def poetry(document: Mapping[str, Any]) -> Read:
    """`poetry.lock`; development groups are left out where the lock names groups."""
    wanted = [one for one in document.get("package") or () if "main" in one.get("groups", ["main"])]
    return table((one for one in wanted if not one.get("optional")), "markers")


def table(packages: Any, marker: str) -> Read:
    """Packages with name and version; one without a version comes from its address."""
    pins: list[Pin] = []
    left_out: list[tuple[str, str]] = []
    for one in packages:
        name: str = canonicalize_name(str(one["name"]))
        said = one.get(marker) or ""
        said = said.get("main", "") if isinstance(said, dict) else str(said)
        if not applies(said):
            continue
        source = one.get("vcs") or one.get("archive") or one.get("source") or {}
        if one.get("directory") or source.get("type") in ("directory", "file"):
            left_out.append((name, "lies beside the project: copy it into the image"))
        elif source.get("type") in ("git", "url") or (not one.get("version") and source.get("url")):
            pins.append(Pin(name, str(one.get("version", "")), "", said, address(source)))
        else:
            pins.append(Pin(name, str(one["version"]), "", said))
    return pins, left_out


def address(source: Mapping[str, Any]) -> str:
    """Where a package that no index has comes from."""
    commit = source.get("commit-id") or source.get("resolved_reference")
    url = str(source.get("url", ""))
    return f"git+{url}@{commit}" if commit else url


def uv(document: Mapping[str, Any]) -> Read:
    """`uv.lock`: what the project needs on Linux, from its roots on."""
    packages = {str(one["name"]): one for one in document.get("package") or ()}
    roots = [one for one in packages.values() if local(one)]
    reached: dict[str, Mapping[str, Any]] = {}
    todo = [name for root in roots for name in list_needed(root)] if roots else list(packages)
    while todo:
        name = todo.pop()
        if name in reached or name not in packages:
            continue
        reached[name] = packages[name]
        todo += list_needed(packages[name])
    pins, left_out = [], []
    for name, one in reached.items():
        git = str(one.get("source", {}).get("git", ""))
        if local(one):
            left_out.append((name, "lies beside the project: copy it into the image"))
        elif git:
            base, _, commit = git.partition("#")
            url = f"git+{base.partition('?')[0]}" + (f"@{commit}" if commit else "")
            pins.append(Pin(canonicalize_name(name), str(one.get("version", "")), "", "", url))
        else:
            pins.append(Pin(canonicalize_name(name), str(one["version"])))
    return pins, left_out


def local(one: Mapping[str, Any]) -> bool:
    """Whether a package of `uv.lock` is the project itself, or lies beside it."""
    return bool({"virtual", "editable", "directory"} & set(one.get("source", {})))


def list_needed(one: Mapping[str, Any]) -> Iterator[str]:
    """What a package of `uv.lock` needs on Linux, with every extra that the lock resolved."""
    groups = [one.get("dependencies") or ()]
    if not local(one):
        groups += list((one.get("optional-dependencies") or {}).values())
    for group in groups:
        for other in group:
            if applies(str(other.get("marker", ""))):
                yield str(other["name"])
