"""Where modules of a project live: dotted names to files, and the place of the helper module."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from joymigrate.rewrite.module import HELPER

# Folders of projects are often called like these, which programs import from elsewhere.
DISTRIBUTIONS = frozenset(("datasets", "evaluate", "tokenizers", "tests", "models", "transformers"))
PROGRAMS = frozenset(("tests", "test", "tools", "scripts", "examples", "benchmarks"))
RENAMING = re.compile(r"^[ \t]*from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]+([^\n(]+)", re.M)
RENAMED = re.compile(r"(\w+)[ \t]+as[ \t]+(\w+)")
EITHER = """\
try:
    from {package} import {helper} as jm
except ImportError:
    import {helper} as jm"""
BOTH = """\
try:
    {first}
except ImportError:
    {second}"""
IMPORTING = re.compile(rf"(?:from (\S+) )?import {HELPER} as jm")


# Of a file that another program may load by its path: what lies beside it is not found by itself.
LOADED = """\
try:
    import {helper} as jm
except ImportError:
    import os as _os, sys as _sys
    _sys.path.append(_os.path.dirname(_os.path.abspath(__file__)))
    import {helper} as jm"""
# Imports in the code of a notebook, as its JSON holds them.
OF_NOTEBOOK = re.compile(r"(?:\"|\\n)[ \t]*(?:from|import)[ \t]+([A-Za-z_][\w.]*)")
# Where a file starts a program.
GUARD = re.compile(r"^if\s+__name__\s*==\s*['\"]__main__['\"]\s*:", re.M)
SETUP = re.compile(r"(?:^|/)setup\.py$")
LOADS = ("spec_from_file_location", "run_path", "SourceFileLoader", "load_source")


def is_beside_setup(path: str, paths: Set[str]) -> bool:
    """Whether an `__init__.py` lies beside the `setup.py` of packages below: it makes no package.

    What is installed are those below; `python/__init__.py` of FedML is on nobody's path.
    """
    folder, _, name = path.rpartition("/")
    if name != "__init__.py" or not folder or f"{folder}/setup.py" not in paths:
        return False
    above = folder.rpartition("/")[0]
    inside = bool(above) and f"{above}/__init__.py" in paths
    return not inside and any(
        each.startswith(f"{folder}/") and each.endswith("/__init__.py") and each != path
        for each in paths
    )


@dataclass(slots=True)
class ModuleIndex:
    """The Python files of a project, by path relative to its root (POSIX)."""

    paths: frozenset[str]
    folders: frozenset[str] = frozenset()
    imported_roots: Mapping[str, str] = field(default_factory=dict)
    root_name: str = ""  # the package that the project's folder is: `package_dir={"pkg": "."}`
    scripted: frozenset[str] = frozenset()  # packages' folders that programs are started in
    loaders: frozenset[str] = frozenset()  # folders of programs that load files by their path
    imports: Mapping[str, frozenset[str]] = field(default_factory=dict)  # file → dotted names
    eager: Mapping[str, frozenset[str]] = field(
        default_factory=dict
    )  # of scripts, as they are loaded
    # Scripts that find the project as a function of theirs puts it on the path, and not before.
    late: frozenset[str] = frozenset()
    packages: Mapping[str, int] = field(default_factory=dict)  # top packages' folders → files
    # Folders of distributions inside of the project, with their top packages' folders → files.
    inner: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    words: frozenset[str] = frozenset()  # names of all files and folders, without endings
    tops: frozenset[str] = frozenset()  # names of top packages, in whatever folder
    # `__init__.py` → what it calls modules of the project: `from . import config as cfg`
    aliases: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    quiet: frozenset[str] = frozenset()  # packages at the top without a word of the device
    speaking: frozenset[str] = frozenset()  # files with a word of the device, or the helper's name
    hollow: frozenset[str] = frozenset()  # packages at the top whose own import runs no other
    built: Mapping[str, str] = field(default_factory=dict)  # see `find_built`
    _found: dict[tuple[str, str], tuple[str, str] | None] = field(default_factory=dict)
    _reached: dict[str, str] | None = None
    _ways: Mapping[str, Mapping[str, int]] | None = None
    _helpers: Mapping[str, tuple[str, str]] | None = None

    @classmethod
    def of(cls, paths: list[str]) -> ModuleIndex:
        """The tree of these files."""
        folders = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
        known = frozenset(paths)
        paths = [path for path in paths if not is_beside_setup(path, known)]
        tops = {p.rpartition("/")[0] for p in paths if p.endswith("/__init__.py")}
        homes = {p.removesuffix("/setup.py") for p in paths if p.endswith("/setup.py")} - tops

        def packages(home: str) -> dict[str, int]:
            below = {each for each in tops if each.startswith(home)}
            first = {t for t in below if not t[len(home) :].removeprefix("src/").count("/")}
            first -= {f"{home}src"}
            return {each: sum(p.startswith(f"{each}/") for p in paths) for each in first}

        named = {
            folder.rpartition("/")[2] for folder in tops if folder.rpartition("/")[0] not in tops
        }
        named |= {f.rpartition("/")[2] for f in folders if f.rpartition("/")[0].endswith("src")}
        words = {part for path in paths for part in PurePosixPath(path).with_suffix("").parts}
        return cls(
            frozenset(paths),
            frozenset(folders),
            words=frozenset(words),
            tops=frozenset(named),
            packages=packages(""),
            inner={home: own for home in homes if (own := packages(f"{home}/"))},
            built={p.rpartition("/")[0] or ".": "" for p in paths if SETUP.search(p)},
        )

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
        head, _, rest = dotted.partition(".")
        if head and head == self.root_name:
            return (rest and self._below(".", rest.split("."))) or ("__init__.py", rest)
        if not dotted or head not in self.words:
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
        head = parts[0] if base == "." else f"{base}/{parts[0]}"
        for length in range(len(parts), 0, -1) if head in self.folders else (1,):
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

    def base_of(self, path: str, node: ast.ImportFrom) -> str | None:
        """The module that a `from` import names, seen from the file's folder."""
        if not node.level:
            return node.module or ""
        package = self.package(path) or tuple(path.split("/")[:-1])
        keep = len(package) - (node.level - 1)
        if keep < 0:
            return None
        return ".".join([*package[:keep], *([node.module] if node.module else [])])

    def helper_home(self, path: str) -> tuple[str, str]:
        """Path of the helper for a file, and the statement that imports it there.

        One helper serves a distribution: that of the package which the file belongs to or imports,
        under the name that the program imports it by. It lies beside a loose script that imports
        nothing of the project, as Python starts a script with its own folder on the path. A package
        whose programs are also started as scripts in its folder imports it either way, and so does
        a file that others import from a folder which does not serve the first one. What all runs
        with one folder on the path shares one.
        """
        return self.helpers.get(path) or self._alone(path)

    @property
    def helpers(self) -> Mapping[str, tuple[str, str]]:
        """The same of each file that speaks of the device."""
        if self._helpers is None:
            self._helpers = self._share()
        return self._helpers

    def _share(self) -> dict[str, tuple[str, str]]:
        """Files with their helpers; one for those that would have several, though all of them run
        with one folder on the path: beside the packages there, or, where a setup installs these, in
        the largest one if its import runs nothing."""
        alone = {path: self._alone(path) for path in self.speaking}
        together: dict[str, list[str]] = defaultdict(list)
        for path in sorted(alone):
            base = self.only_base(path)
            if base is not None and "_sys." not in alone[path][1]:
                together[base].append(path)
        found = dict(alone)
        for base, paths in together.items():
            above = "." if base == "src" else base.removesuffix("/src")
            listed = self.built.get(base, self.built.get(above))
            if listed is None:
                home = f"{base}/{HELPER}.py".removeprefix("./")
                statement = f"import {HELPER} as jm"
                if f"{base}/__init__.py".removeprefix("./") in self.paths:
                    continue  # a package itself, that a host loads
            else:
                sizes = {top: size for each in self.every for top, size in each.items()}
                tops = {t for t in sizes if (t.rpartition("/")[0] or ".") == base}
                tops = {t for t in tops if is_installed(t.rpartition("/")[2], listed)}
                package = max(tops, key=lambda each: (sizes[each], each), default="")
                if package not in self.hollow:
                    continue
                home = f"{package}/{HELPER}.py"
                statement = f"from {package.rpartition('/')[2]} import {HELPER} as jm"
                paths = [p for p in paths if any(self.is_of(p, top) for top in tops)]
            others = {alone[path][0] for path in alone.keys() - {*paths}}
            if len(others | {home}) < len(others | {alone[path][0] for path in paths}):
                found |= dict.fromkeys(paths, (home, statement))
        return found

    def is_of(self, path: str, top: str) -> bool:
        """Whether a file lies in a package, or imports it."""
        return path.startswith(f"{top}/") or self.imports_from(path, top)

    def only_base(self, path: str) -> str | None:
        """The folder that is on the path wherever a file is run or imported, by what it imports and
        what imports it; None where that is not one. A script without either has its own."""
        package, folder = self.package(path), path.rpartition("/")[0]
        parts = folder.split("/") if folder else []
        top = parts[: len(parts) - len(package) + 1] if package else parts
        if any("/".join(parts[:n]) in self.scripted for n in range(len(top), len(parts) + 1)):
            return None
        known = {"/".join(each) or "." for each in self.bases(path)} | {*self.ways.get(path, ())}
        if package:
            known |= {*self.ways.get("/".join(top), ())}
        if not known and not package:
            return folder or "."
        return known.pop() if len(known) == 1 else None

    def _alone(self, path: str) -> tuple[str, str]:
        """The helper's place and import for a file by itself."""
        home, statement = self._around(path)
        base = None if "_sys." in statement else self._unserved(path, home, statement)
        return (home, statement) if base is None else self._both(path, home, statement, base)

    def _unserved(self, path: str, home: str, statement: str) -> str | None:
        """A folder that is on the path when a file is imported, and where `statement` fails.

        What the file imports of the project shows which ones are on the path, and so does what
        others import it by. Of a loose script without either it may be the script's own folder.
        """
        place, folder = home.rpartition("/")[0], path.rpartition("/")[0]
        named = IMPORTING.findall(statement)
        first = named[0].partition(".")[0]
        inside = {"/".join(each) for each in self.bases(path)} or set(self.ways.get(path, ()))
        parts = folder.split("/")
        apart = place and "/".join(parts[: len(parts) - len(self.package(path)) + 1]) != place
        if apart and inside and all(each.startswith(f"{place}/") for each in inside):
            return max(inside)  # a project of its own below the package
        if first not in PROGRAMS and self.is_top(place, named[0]):
            return None  # that is installed, as far as its name tells
        served = {base for each in named if (base := strip(place, each)) is not None}
        tops = {top.rpartition("/")[2] for each in self.every for top in each} - PROGRAMS
        own = {"/".join(each) for each in self.bases(path, but=tops)}
        ways = {"" if each == "." else each: n for each, n in self.ways.get(path, {}).items()}
        if own & served:
            return None
        if not own and not ways:
            near = first in self.package(path)[:1] or not path.startswith(f"{place}/")
            return None if not first or near or folder in served else folder
        missing = {base for base in (own | set(ways)) - served if is_below(path, base)}
        return max(missing, key=lambda each: (ways.get(each, 0), each), default=None)

    def _both(self, path: str, home: str, statement: str, base: str) -> tuple[str, str]:
        """The helper's place and import from the folder that it has served, and from `base`."""
        place = home.rpartition("/")[0]
        root = strip(place, IMPORTING.findall(statement)[0])
        if root is None or not is_below(path, root):
            return home, statement
        if not is_below(f"{place}/", base):
            below = path[len(base) + 1 if base else 0 :].split("/")[:-1]
            place = "/".join([each for each in (base, *below[:1]) if each])
        forms = []
        for each in (root, base):
            parts = place[len(each) + 1 if each else 0 :].replace("/", ".")
            if all(map(str.isidentifier, parts.split("."))):
                forms.append(f"from {parts} import {HELPER} as jm")
            elif not parts:
                forms.append(f"import {HELPER} as jm")
        if not forms:
            return home, statement
        text = forms[0] if len(forms) == 1 else BOTH.format(first=forms[0], second=forms[1])
        return f"{place}/{HELPER}.py".lstrip("/"), text

    def is_top(self, place: str, dotted: str) -> bool:
        """Whether a dotted name of a folder begins at a top package of a distribution."""
        base = strip(place, dotted)
        top = f"{base}/{dotted.partition('.')[0]}".lstrip("/")
        return base is not None and any(top in each for each in self.every)

    @property
    def every(self) -> tuple[Mapping[str, int], ...]:
        """The top packages of the project, and of each distribution in it."""
        return self.packages, *self.inner.values()

    def _around(self, path: str) -> tuple[str, str]:
        """The helper's place and import by a file's package, distribution or folder."""
        package = self.package(path)
        parts = PurePosixPath(path).parts[:-1]
        top = "/".join(parts[: len(parts) - len(package) + 1])
        for length in range(len(parts) - len(package) + 1, len(parts) + 1):
            folder = "/".join(parts[:length])
            if package and folder in self.scripted:
                other = self.installed(path, top)
                if other is not None:
                    name = other.rpartition("/")[2]
                    return f"{other}/{HELPER}.py", f"from {name} import {HELPER} as jm"
                dotted = ".".join([self.dotted(top), *parts[len(top.split("/")) : length]])
                return f"{folder}/{HELPER}.py", EITHER.format(package=dotted, helper=HELPER)
        home = self.distribution(path)
        main = self.main_package(path, home)
        if main is not None:
            return f"{main}/{HELPER}.py", f"from {main.rpartition('/')[2]} import {HELPER} as jm"
        root = self.namespace_root(path)
        bases = self.bases(path, but={each.rpartition("/")[2] for each in self.quiet} - PROGRAMS)
        base = self.reached.get(path, self.reached.get(top if package else ""))
        if base is None and not package and len(bases) == 1:
            base = "/".join(*bases) or "."
        if home and root is not None and not root.startswith(f"{home}/"):
            root = None
        if root is not None and base not in (None, str(PurePosixPath(root).parent)):
            root = None  # its programs have its own folder on the path, and not that of the root
        if root is not None and (not bases or PurePosixPath(root).parent.parts in bases):
            for length in range(len(PurePosixPath(root).parts), len(parts) + 1):
                folder = "/".join(parts[:length])
                if folder in self.scripted and not package:
                    return f"{folder}/{HELPER}.py", EITHER.format(
                        package=folder.replace("/", "."), helper=HELPER
                    )
            return f"{root}/{HELPER}.py", f"from {root.rpartition('/')[2]} import {HELPER} as jm"
        if package:
            return f"{top}/{HELPER}.py", f"from {self.dotted(top)} import {HELPER} as jm"
        around = next((f for f in self.around(path) if self.reached.get(f, "") == base), None)
        if around is not None:  # a folder without `__init__.py` inside of a package
            return f"{around}/{HELPER}.py", f"from {self.dotted(around)} import {HELPER} as jm"
        # A configuration in `configs/` that another program loads may import from above.
        above = [each for each in bases if parts[: len(each)] == each]
        place = parts if parts in above or not above else max(above, key=len)
        by_path = bool(self.loaders - {"/".join(parts) or "."})
        statement = LOADED.format(helper=HELPER) if by_path else f"import {HELPER} as jm"
        return "/".join([*place, f"{HELPER}.py"]), statement

    def notebook_home(self, path: str, text: str) -> tuple[str, str]:
        """The same for a notebook: the package of the project that it imports, else beside it.

        Jupyter starts in the notebook's folder, wherever the rest of the project lies.
        """
        beside = str(PurePosixPath(path).with_name(f"{HELPER}.py"))
        if any(home == beside for home, _ in self.helpers.values()):
            return beside, f"import {HELPER} as jm"
        for dotted in sorted(set(OF_NOTEBOOK.findall(text)) - DISTRIBUTIONS):
            place = self.locate(path, dotted)
            if place is not None and self.package(place[0]):
                home, statement = self.helper_home(place[0])
                lines = (line.strip() for line in statement.splitlines())
                head = f"from {dotted.partition('.')[0]}"
                found = next(
                    (line for line in lines if line.startswith((f"{head} ", f"{head}."))), None
                )
                if found is not None:
                    return home, found
        return beside, f"import {HELPER} as jm"

    def dotted(self, top: str) -> str:
        """The name that the project's files import a top package by: `fairchem.core`."""
        base = self.reached.get(top)
        below = top.removeprefix(f"{base}/") if base not in (None, ".") else top
        return (below if base is not None else top.rpartition("/")[2]).replace("/", ".")

    @property
    def reached(self) -> Mapping[str, str]:
        """Files and top packages' folders → the folder from which other files import them.

        Of several the one that most of them use.
        """
        if self._reached is None:
            self._reached = {e: max(sorted(c), key=c.__getitem__) for e, c in self.ways.items()}
        return self._reached

    @property
    def ways(self) -> Mapping[str, Mapping[str, int]]:
        """The same with all folders from which other files import them, and how often."""
        if self._ways is None:
            seen: dict[str, Counter[str]] = defaultdict(Counter)
            for importer, names in self.imports.items():
                for name in names - DISTRIBUTIONS:
                    place, parts = self.locate(importer, name), tuple(name.split("."))
                    if place is None or place[1]:
                        continue
                    file = PurePosixPath(place[0].removesuffix("/__init__.py").removesuffix(".py"))
                    if file.parts[-len(parts) :] != parts:
                        continue
                    base = "/".join(file.parts[: -len(parts)]) or "."
                    seen[place[0]][base] += 1
                    package, folders = self.package(place[0]), place[0].split("/")[:-1]
                    first = len(folders) - len(package)
                    if package and len(file.parts) - len(parts) <= first:
                        seen["/".join(folders[: first + 1])][base] += 1
            self._ways = seen
        return self._ways

    def around(self, path: str) -> Iterator[str]:
        """Top packages' folders that a file lies in, from the inside."""
        folder = path.rpartition("/")[0]
        while folder:
            above = folder.rpartition("/")[0]
            inside = f"{above}/__init__.py" in self.paths
            if f"{folder}/__init__.py" in self.paths and not inside:
                yield folder
            folder = above

    def bases(self, path: str, but: Set[str] = frozenset()) -> set[tuple[str, ...]]:
        """Folders that a file needs on the path for its own imports of the project.

        Imports of packages called as those in `but` don't count.
        """
        bases = set()
        for dotted in (self.eager if path in self.late else self.imports).get(path, frozenset()):
            unasked = dotted in DISTRIBUTIONS or dotted.partition(".")[0] in but
            place = None if unasked else self.locate(path, dotted)
            parts = dotted.split(".")
            stem = (
                place[0].removesuffix(".py").removesuffix("/__init__").split("/") if place else []
            )
            if stem and not place[1] and stem[-len(parts) :] == parts:  # type: ignore[index]
                bases.add(tuple(stem[: -len(parts)]))
        return bases

    def distribution(self, path: str) -> str:
        """The innermost distribution that a file lies in; empty for the project's own."""
        around = (home for home in self.inner if path.startswith(f"{home}/"))
        return max(around, key=len, default="")

    def main_package(self, path: str, home: str) -> str | None:
        """Folder of the package at the top of a distribution that a file belongs to or imports.

        Of several it is the largest. `home` is the distribution's folder, empty for the project.
        One without a word of the device has no edit: scripts may use it as it is installed.
        """
        own, inside = path.split("/")[:-1], bool(self.package(path))
        for packages in (self.inner.get(home, {}), self.packages):
            found = [
                each
                for each in packages
                if own[: each.count("/") + 1] == each.split("/")
                or (
                    (each not in self.quiet or inside) and self.imports_from(path, each, eager=True)
                )
            ]
            if found:
                return max(found, key=lambda folder: (packages[folder], folder))
        return None

    def installed(self, path: str, own: str) -> str | None:
        """Folder of a package that a file of another package imports, wherever it is run from.

        `own` is that other one's folder: smaller, or one of the names of programs and tests.
        """
        found = [each for each in self.packages if each != own and self.imports_from(path, each)]
        largest = max(found, key=lambda each: (self.packages[each], each), default=None)
        if largest is None or self.packages[largest] > self.packages.get(own, 0):
            return largest
        return largest if own.rpartition("/")[2] in PROGRAMS else None

    def imports_from(self, path: str, folder: str, *, eager: bool = False) -> bool:
        """Whether a file imports the package in `folder`, and not another of that name.

        A module below it that is there proves it; the bare name does unless it is that of a
        well-known distribution. `eager`: a loose script does so as it is loaded.
        """
        name = folder.rpartition("/")[2]
        names = self.imports.get(path, frozenset())
        for dotted in self.eager.get(path, names) if eager else names:
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


def strip(folder: str, dotted: str) -> str | None:
    """The folder above a package's, from which it has this dotted name; None if it has not."""
    parts, own = dotted.split(".") if dotted else [], folder.split("/") if folder else []
    return "/".join(own[: len(own) - len(parts)]) if own[len(own) - len(parts) :] == parts else None


def is_installed(name: str, listed: str) -> bool:
    """Whether a distribution that lists some packages has one of this name."""
    return re.search(rf"[\"']{name}[\"']", listed) is not None if listed else name not in PROGRAMS


def is_below(path: str, folder: str) -> bool:
    """Whether a path lies in a folder; in that of the project, which is empty, all do."""
    return not folder or path.startswith(f"{folder}/")


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
