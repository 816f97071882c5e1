"""Where modules of a project live: dotted names to files, and the place of the helper module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from joymigrate.rewrite.module import HELPER

# Folders of projects are often called like these, which programs import from elsewhere.
DISTRIBUTIONS = frozenset(("datasets", "evaluate", "tokenizers", "tests", "models", "transformers"))
RENAMING = re.compile(r"^[ \t]*from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]+([^\n(]+)", re.M)
RENAMED = re.compile(r"(\w+)[ \t]+as[ \t]+(\w+)")
EITHER = """\
try:
    from {package} import {helper} as jm
except ImportError:
    import {helper} as jm"""


# Of a file that another program may load by its path: what lies beside it is not found by itself.
LOADED = """\
try:
    import {helper} as jm
except ImportError:
    import os as _os, sys as _sys
    _sys.path.append(_os.path.dirname(_os.path.abspath(__file__)))
    import {helper} as jm"""
LOADS = ("spec_from_file_location", "run_path", "SourceFileLoader", "load_source")


@dataclass(slots=True)
class ModuleIndex:
    """The Python files of a project, by path relative to its root (POSIX)."""

    paths: frozenset[str]
    folders: frozenset[str] = frozenset()
    imported_roots: Mapping[str, str] = field(default_factory=dict)
    scripted: frozenset[str] = frozenset()  # packages' folders that programs are started in
    loaders: frozenset[str] = frozenset()  # folders of programs that load files by their path
    imports: Mapping[str, frozenset[str]] = field(default_factory=dict)  # file → dotted names
    packages: Mapping[str, int] = field(default_factory=dict)  # top packages' folders → files
    words: frozenset[str] = frozenset()  # names of all files and folders, without endings
    # `__init__.py` → what it calls modules of the project: `from . import config as cfg`
    aliases: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    _found: dict[tuple[str, str], tuple[str, str] | None] = field(default_factory=dict)

    @classmethod
    def of(cls, paths: list[str]) -> ModuleIndex:
        """The tree of these files."""
        folders = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
        tops = {p.rpartition("/")[0] for p in paths if p.endswith("/__init__.py")}
        tops = {top for top in tops if top.removeprefix("src/").count("/") == 0}
        packages = {top: sum(p.startswith(f"{top}/") for p in paths) for top in tops - {"src"}}
        words = {part for path in paths for part in PurePosixPath(path).with_suffix("").parts}
        return cls(frozenset(paths), frozenset(folders), words=frozenset(words), packages=packages)

    def package(self, path: str) -> tuple[str, ...]:
        """Dotted path of the package that a file belongs to; empty for a loose script."""
        parts = PurePosixPath(path).parts[:-1]
        keep = len(parts)
        while keep and "/".join([*parts[:keep], "__init__.py"]) in self.paths:
            keep -= 1
        return parts[keep:]

    def locate(self, importer: str, dotted: str) -> tuple[str, str] | None:
        """File of a dotted name as seen from `importer`, and what is left of the name there.

        Looks beside the importing file first, then upwards to the root, then below `src`. Names
        that start with a dot (unresolved relative imports) and standard names give None.
        """
        if not dotted or dotted.partition(".")[0] not in self.words:
            return None  # the name of no file or folder here; a leading dot gives an empty one
        folder = importer.rpartition("/")[0] or "."
        key = (folder, dotted)
        if key not in self._found:
            self._found[key] = self._search(folder, dotted.split("."))
        return self._found[key]

    def _search(self, folder: str, parts: list[str]) -> tuple[str, str] | None:
        bases = [folder]
        while bases[-1] != ".":
            bases.append(bases[-1].rpartition("/")[0] or ".")
        for base in (*bases, "src"):
            found = self._below(base, parts)
            if found is not None:
                return found
            head = parts[0] if base == "." else f"{base}/{parts[0]}"
            if head in self.folders and len(parts) > 1 and base != folder:
                break
        return None

    def _below(self, base: str, parts: list[str]) -> tuple[str, str] | None:
        for length in range(len(parts), 0, -1):
            stem = "/".join(parts[:length] if base == "." else (base, *parts[:length]))
            for candidate in (f"{stem}.py", f"{stem}/__init__.py"):
                if candidate in self.paths:
                    known = self.aliases.get(candidate, {}) if length < len(parts) else {}
                    if known and parts[length] in known:
                        return known[parts[length]], ".".join(parts[length + 1 :])
                    return candidate, ".".join(parts[length:])
        return None

    def called_by(self, path: str, text: str) -> dict[str, str]:
        """Modules that a package's `__init__.py` gives another name: the name, and the file."""
        found = {}
        folder = PurePosixPath(path).parent
        for dots, base, names in RENAMING.findall(text) if " as " in text else ():
            home = folder
            for _ in range(len(dots) - 1):
                home = home.parent
            below = "/".join(["" if str(home) == "." or not dots else f"{home}", *base.split(".")])
            below = below.strip("/")
            for name, alias in RENAMED.findall(names):
                stem = f"{below}/{name}".strip("/")
                for place in (f"{stem}.py", f"{stem}/__init__.py"):
                    if place in self.paths:
                        found[alias] = place
        return found

    def helper_home(self, path: str) -> tuple[str, str]:
        """Path of the helper for a file, and the statement that imports it there.

        One helper serves a distribution: that of the package which the file belongs to or imports,
        under the name that the program imports it by. It lies beside a loose script that imports
        nothing of the project, as Python starts a script with its own folder on the path. A package
        whose programs are also started as scripts in its folder imports it either way.
        """
        package = self.package(path)
        parts = PurePosixPath(path).parts[:-1]
        for length in range(len(parts) - len(package) + 1, len(parts) + 1):
            folder = "/".join(parts[:length])
            if package and folder in self.scripted:
                dotted = ".".join(parts[len(parts) - len(package) : length])
                return f"{folder}/{HELPER}.py", EITHER.format(package=dotted, helper=HELPER)
        main = self.main_package(path)
        if main is not None:
            return f"{main}/{HELPER}.py", f"from {main.rpartition('/')[2]} import {HELPER} as jm"
        root, bases = self.namespace_root(path), self.bases(path)
        if root is not None and (not bases or PurePosixPath(root).parent.parts in bases):
            for length in range(len(PurePosixPath(root).parts), len(parts) + 1):
                folder = "/".join(parts[:length])
                if folder in self.scripted and not package:
                    return f"{folder}/{HELPER}.py", EITHER.format(
                        package=folder.replace("/", "."), helper=HELPER
                    )
            return f"{root}/{HELPER}.py", f"from {root.rpartition('/')[2]} import {HELPER} as jm"
        if package:
            top = parts[: len(parts) - len(package) + 1]
            return "/".join([*top, f"{HELPER}.py"]), f"from {package[0]} import {HELPER} as jm"
        # A configuration in `configs/` that another program loads may import from above.
        above = [each for each in bases if parts[: len(each)] == each]
        home = parts if parts in above or not above else max(above, key=len)
        by_path = bool(self.loaders - {"/".join(parts) or "."})
        statement = LOADED.format(helper=HELPER) if by_path else f"import {HELPER} as jm"
        return "/".join([*home, f"{HELPER}.py"]), statement

    def bases(self, path: str) -> set[tuple[str, ...]]:
        """Folders that a file needs on the path for its own imports of the project."""
        bases = set()
        for dotted in self.imports.get(path, frozenset()):
            place = None if dotted in DISTRIBUTIONS else self.locate(path, dotted)
            parts = dotted.split(".")
            stem = (
                place[0].removesuffix(".py").removesuffix("/__init__").split("/") if place else []
            )
            if stem and not place[1] and stem[-len(parts) :] == parts:  # type: ignore[index]
                bases.add(tuple(stem[: -len(parts)]))
        return bases

    def main_package(self, path: str) -> str | None:
        """Folder of the package at the project's top that a file belongs to or imports.

        Of several it is the largest.
        """
        own = path.split("/")[:-1]
        found = [
            folder
            for folder in self.packages
            if own[: folder.count("/") + 1] == folder.split("/") or self.imports_from(path, folder)
        ]
        return max(found, key=lambda folder: (self.packages[folder], folder), default=None)

    def imports_from(self, path: str, folder: str) -> bool:
        """Whether a file imports the package in `folder`, and not another of that name.

        A module below it that is there proves it; the bare name does unless it is that of a
        well-known distribution.
        """
        name = folder.rpartition("/")[2]
        for dotted in self.imports.get(path, frozenset()):
            head, _, rest = dotted.partition(".")
            if head != name:
                continue
            stem = f"{folder}/{rest.replace('.', '/')}"
            if rest and (f"{stem}.py" in self.paths or f"{stem}/__init__.py" in self.paths):
                return True
            if not rest and name not in DISTRIBUTIONS:
                return True
        return False

    def namespace_root(self, path: str) -> str | None:
        """The top folder of a namespace package: one without __init__.py that others import."""
        parts = PurePosixPath(path).parts[:-1]
        for length in range(len(parts), 0, -1):
            folder = "/".join(parts[:length])
            if folder in self.imported_roots:
                return self.imported_roots[folder]
        return None


def same_as(text: str, name: str) -> str:
    """The name that a file gives another name to: `Device: TypeAlias = torch.device`."""
    wanted = rf"^{re.escape(name)}[ \t]*(?::[^=\n]+)?=[ \t]*([\w.]+)[ \t]*(?:#.*)?$"
    found = re.search(wanted, text, re.M)
    return found[1] if found else ""


def binds(text: str, name: str) -> bool:
    """Whether a file binds a name at its top level, as far as its lines tell.

    What stands in `if` and `try` there counts when it is an assignment or an import.
    """
    word = re.escape(name)
    return (
        name in text
        and re.search(
            rf"^(?:async[ ]def|def|class)[ \t]+{word}\b|^[ \t]*{word}[ \t]*(?::[^=\n]+)?=[^=]"
            rf"|^(?:from[ \t].*)?[ \t]*import[ \t].*\b{word}\b|^[ \t]+{word},?[ \t]*$",
            text,
            re.M,
        )
        is not None
    )
