"""What the files of a project give to those that import them: by a name, or by `import *`."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from joymigrate.rewrite.module_index import ModuleIndex
from joymigrate.rewrite.own_extensions import parse_text
from joymigrate.rewrite.prefilter import find_imports
from joymigrate.rewrite.values.cells import find_names

STEPS = 4  # files that give on what they import themselves


@dataclass(frozen=True, slots=True)
class FileImports:
    """The modules that names of a file stand for, None for names that come out of a module, and
    the modules of which it imports all names."""

    modules: Mapping[str, str | None]
    stars: tuple[str, ...]


@dataclass(slots=True)
class Exports:
    """The answer of a project for each name that one of its files takes from another one."""

    tree: ModuleIndex
    texts: Mapping[str, str]  # of its Python files
    _imports: dict[str, FileImports] = field(default_factory=dict)
    _names: dict[str, tuple[set[str], set[str] | None]] = field(default_factory=dict)
    _files: dict[tuple[str, str], Sequence[str]] = field(default_factory=dict)

    def star_homes(
        self, path: str, stars: Sequence[str], name: str, steps: int = STEPS
    ) -> Sequence[str]:
        """The files that give a name to one which imports all names of the modules `stars`: the
        last of them that has it. Several where that module lies beside each program."""
        for module in reversed(stars) if steps else ():
            homes = [home for home in self.files(path, module) if self.gives(home, name, steps - 1)]
            if homes:
                return homes
        return ()

    def gives(self, path: str, name: str, steps: int = STEPS) -> bool:
        """Whether `import *` of a file gives a name."""
        own, listed = self.names(path)
        if name not in listed if listed is not None else name.startswith("_"):
            return False
        return name in own or bool(self.star_homes(path, self.imports(path).stars, name, steps))

    def module(self, path: str, base: str, name: str) -> str | None:
        """The module that a name of the module `base` stands for as a file imports it from there:
        `torch` where a file of the project has `import torch`. None for what those define
        themselves, and for functions and classes, which they may bind otherwise in an `except`."""
        return self.module_of(self.files(path, base), name)

    def module_of(self, homes: Sequence[str], name: str, steps: int = STEPS) -> str | None:
        """The module that a name stands for in each of some files by what they import."""
        told = set()
        for home in homes:
            own = self.imports(home)
            found = own.modules.get(name)
            if name not in own.modules and steps:
                found = self.module_of(self.star_homes(home, own.stars, name), name, steps - 1)
            told.add(found)
        return told.pop() if len(told) == 1 else None

    def files(self, path: str, module: str) -> Sequence[str]:
        """The file that a module is as another file imports it; of a module that is not beside that
        one, but beside programs that load both, all that are called so."""
        key = (path.rpartition("/")[0], module)
        if key not in self._files:
            place, found = self.tree.locate(path, module), []
            if place is not None:
                found = [place[0]] if not place[1] else []
            elif module.rpartition(".")[2] in self.tree.words:  # the name of a file here
                ending = f"/{module.replace('.', '/')}.py"
                found = [each for each in self.texts if each.endswith(ending)]
            self._files[key] = found
        return [each for each in self._files[key] if each != path]

    def imports(self, path: str) -> FileImports:
        """What the imports of a file say, as far as its text tells."""
        if path not in self._imports:
            modules: dict[str, str | None] = {}
            stars = []
            for module, name, alias in find_imports(self.texts.get(path, "")):
                if name == "*":
                    dots = len(module) - len(module.lstrip("."))
                    node = ast.ImportFrom(module[dots:] or None, [], dots)
                    stars.append(self.tree.base_of(path, node) or "")
                    continue
                whole = None if module else name if alias else name.partition(".")[0]
                own = whole is None or self.tree.locate(path, whole) is not None
                modules[alias or name.partition(".")[0]] = None if own else whole
            self._imports[path] = FileImports(modules, tuple(stars))
        return self._imports[path]

    def names(self, path: str) -> tuple[set[str], set[str] | None]:
        """The names that a file binds at its top level, and those that its `__all__` lists; None
        where it has none, or where it takes names from another one."""
        if path not in self._names:
            text = self.texts.get(path, "")
            tree = parse_text(text)
            body = tree.body if tree is not None else []
            listed: set[str] | None = None
            for node in body:
                target = node.targets[0] if isinstance(node, ast.Assign) else node
                target = getattr(target, "target", target)  # `__all__ += [...]`
                if getattr(target, "id", "") != "__all__":
                    continue
                value = getattr(node, "value", None)
                texts = {getattr(each, "value", None) for each in getattr(value, "elts", ())}
                plain = isinstance(value, (ast.List, ast.Tuple)) and "__all__." not in text
                if not plain or not all(isinstance(each, str) for each in texts):
                    listed = None
                    break
                listed = (listed or set()) | {str(each) for each in texts}
            self._names[path] = (find_names(body, set(), []), listed)
        return self._names[path]
