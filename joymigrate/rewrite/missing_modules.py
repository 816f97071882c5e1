"""Modules and names that a project's files import and that it lacks: such a file runs nowhere.

    from .cli import parse        with no `cli` in the package, and nothing that would make one
    from .cli import parse        with a `cli` that has no `parse`
    from pkg.old.name import f    in a part of the project that wants another version of `pkg`

A name that a build file speaks of, that a package makes by itself, or that is often generated
(`version`, `…_pb2`) is taken to be there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from joymigrate.rewrite.import_trees import Trees
from joymigrate.rewrite.module_index import DISTRIBUTIONS

RELATIVE = re.compile(r"\nfrom[ \t]+(\.+)([\w.]+)[ \t]+import\b")
NAMES = re.compile(
    r"\nfrom[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|[A-Za-z_][^\n;\\(]*)(?=\r?\n|$)"
)
GENERATED = re.compile(r"version|build|commit|git|generated|_pb2|proto|thrift|config|local|secret")
# What lets a package have modules that are no files of it.
MAKING = ("__path__", "extend_path", "sys.modules", "__getattr__", "exec(", "import_module")
OPEN = (*MAKING, "import *", "globals()")
BUILDS = (
    "setup.py", "setup.cfg", "pyproject.toml", "CMakeLists.txt", "meson.build", "Cargo.toml",
    "BUILD", "Makefile", ".gitignore", ".gitmodules", "MANIFEST.in", "build.py",
)  # fmt: skip


def find(texts: Mapping[str, str], trees: Trees, root: Path) -> Iterator[tuple[str, str]]:
    """Files that import such a module as they are loaded, each with its name."""
    finder = ModuleFinder(texts, trees, root)
    for path, text in texts.items():
        missing = {name: name for name in (*finder.relative(path, text), *finder.absolute(path))}
        missing |= dict(finder.names(path, text))
        first = next((e for e in finder.loaded(path) if e in missing), None) if missing else None
        if first is not None:
            yield path, missing[first]


class ModuleFinder:
    """Looks for modules of a project, in its index and then on the disk."""

    def __init__(self, texts: Mapping[str, str], trees: Trees, root: Path) -> None:
        self.texts, self.trees, self.tree, self.root = texts, trees, trees.tree, root
        self._builds: dict[str, str] = {}
        # Folders of packages that are installed, and the names that they are known by.
        self.tops = {
            top: top.rpartition("/")[2]
            for top in self.tree.packages
            if self.is_distribution(top.rpartition("/")[0].removesuffix("src").rstrip("/"))
            if top.rpartition("/")[2] not in DISTRIBUTIONS
        }
        self.installed = frozenset(self.tops.values())

    def is_distribution(self, home: str) -> bool:
        """Whether a folder is installed as a whole."""
        names = ("setup.py", "pyproject.toml", "setup.cfg")
        return any((self.root / home / name).is_file() for name in names)

    def relative(self, path: str, text: str) -> Iterator[str]:
        """Modules of a file's own package that it imports by dots, and that are not there."""
        if "\nfrom ." not in text and not text.startswith("from ."):
            return
        folder = path.rpartition("/")[0]
        for dots, module in RELATIVE.findall(f"\n{text}"):
            base, outside = folder, False
            for _ in dots[1:]:
                outside |= not base
                base = base.rpartition("/")[0]
            name = module.partition(".")[0]
            at = f"{base}/{name}".lstrip("/")
            known = f"{at}.py" in self.tree.paths or at in self.tree.folders
            if not (outside or known) and self.lacks(base, name):
                yield f"{dots}{module}"

    def locate(self, path: str, dotted: str) -> tuple[str, str] | None:
        """The file of a dotted name, where it is one of an installed package."""
        head = dotted.partition(".")[0]
        place = self.tree.locate(path, dotted) if head in self.installed else None
        if place is None:
            return None
        own = (top for top, name in self.tops.items() if name == head)
        return place if any(place[0].startswith(f"{top}/") for top in own) else None

    def absolute(self, path: str) -> Iterator[str]:
        """Modules of one of the project's packages, by its name."""
        for dotted in self.tree.imports.get(path, ()):
            place = self.locate(path, dotted) if "." in dotted else None
            if place is None or not place[1] or not place[0].endswith("/__init__.py"):
                continue
            base, name = place[0].rpartition("/")[0], place[1].partition(".")[0]
            own = base.split("/")[-1] == dotted.removesuffix(f".{place[1]}").rpartition(".")[2]
            if own and f"{base}/{name}" not in self.tree.folders and self.lacks(base, name):
                yield dotted

    def names(self, path: str, text: str) -> Iterator[tuple[str, str]]:
        """Names that a file imports from one of the project without them: module and name."""
        for module, given in NAMES.findall(f"\n{text}"):
            target = self.file_of(path, module)
            body = self.texts.get(target, "") if target else ""
            for part in re.sub(r"#.*", "", given).strip("() \t\n").split(",") if body else ():
                name = part.split(" as ")[0].strip()
                if not name.isidentifier() or name in body or any(e in body for e in OPEN):
                    continue
                folder = target.removesuffix("/__init__.py")
                inside = f"{folder}/{name}.py" in self.tree.paths
                inside |= f"{folder}/{name}" in self.tree.folders
                if folder == target or not (inside or not self.lacks(folder, name)):
                    yield module, f"{module.rstrip('.')}.{name}"

    def file_of(self, path: str, module: str) -> str:
        """The file of a module of the same package, or of an installed one; else nothing."""
        if module.startswith("."):
            level = len(module) - len(module.lstrip("."))
            base = path.split("/")[:-level]
            if level > len(path.split("/")):
                return ""
            stem = "/".join([*base, *module.lstrip(".").split(".")]).rstrip("/")
            return next((p for p in (f"{stem}.py", f"{stem}/__init__.py") if p in self.texts), "")
        place = self.locate(path, module)
        return place[0] if place is not None and not place[1] else ""

    def lacks(self, folder: str, name: str) -> bool:
        """Whether nothing in a package's folder is, or would become, a module of this name."""
        init = self.texts.get(f"{folder}/__init__.py", "")
        if GENERATED.search(name.lower()) or name in init or any(each in init for each in MAKING):
            return False
        if "import *" in init or any((self.root / folder).glob(f"{name}*")):
            return False
        word = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
        above = folder
        while True:
            if word.search(self.builds(above)):
                return False
            if not above:
                return True
            above = above.rpartition("/")[0]

    def builds(self, folder: str) -> str:
        """What a folder's build files say."""
        if folder not in self._builds:
            files = (self.root / folder / name for name in BUILDS)
            self._builds[folder] = "\n".join(
                file.read_text(encoding="utf-8", errors="replace")
                for file in files
                if file.is_file()
            )
        return self._builds[folder]

    def loaded(self, path: str) -> Iterator[str]:
        """Modules that a file imports at its top level, without a condition, as it writes them."""
        tree = self.trees.of(path)
        for node in tree.body if tree is not None else ():
            if isinstance(node, ast.ImportFrom):
                yield "." * node.level + (node.module or "")
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
