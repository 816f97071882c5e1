"""Neighbours of a cell in all files of a project; a file is read when something leads to it."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from joymigrate.model import Finding
from joymigrate.rewrite.exports import Exports
from joymigrate.rewrite.module_index import ModuleIndex
from joymigrate.rewrite.source import SourceText, module_name
from joymigrate.rewrite.values.cells import (
    COMES,
    COMPARED,
    DEPTH,
    EITHER,
    GOES,
    PLACED,
    CallSite,
    Cell,
    Edge,
    FileValues,
)
from joymigrate.rewrite.values.expressions import depth
from joymigrate.rewrite.values.growth import sources
from joymigrate.rewrite.values.reader import read
from joymigrate.rewrite.values.settings_files import is_settings, read_settings
from joymigrate.rewrite.values.word_index import WordIndex

SETTINGS = re.compile(r"(?i)(?:^|_)(?:args?|arguments?|opts?|options?|cfg|conf|config|"
                      r"configuration|hparams|params|settings|flags|namespace)(?:$|_)")  # fmt: skip
PARSES = re.compile(r"\bparse_(?:known_)?args\(")
NEAR = 80  # cells that are looked at to find the class of an object or what is called
NESTED = 80  # questions that each wait for the next one; Python bears about 150
FEW = 12  # files with a name that are read wherever they import it from
FILES = 40  # files that one name may lead to; more say that it means many things
IMPORTING = 400  # files that import one name, which says what it means
UNKNOWN = -1  # the scope of a class of which a file tells no more than that it is given something
LOCAL = ("name", "return", "function", "class", "object", "attribute")


@dataclass(slots=True)
class ValueGraph:
    """The values of a project. `texts` are its Python and settings files and the code of its
    notebooks, of which `cells` tells the line of each cell; `load` reads one.

    `settings` are the values of settings files: key to cells with lines.
    """

    texts: Mapping[str, str]
    tree: ModuleIndex
    words: re.Pattern[str]
    load: Callable[[str], SourceText | None]
    cells: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    common: frozenset[str] = frozenset()  # attributes that mean something else in every class
    device: str = ""  # the origin's
    settings: Mapping[str, list[Edge]] = field(default_factory=dict)
    allowance: int = sys.maxsize  # files that may still be read; what lies beyond is not known
    _files: dict[str, FileValues | None] = field(default_factory=dict)
    _near: dict[tuple[Cell, int], tuple[Edge, ...]] = field(default_factory=dict)
    _classes: dict[Cell, frozenset[Cell]] = field(default_factory=dict)
    _calls: dict[Cell, list[CallSite]] = field(default_factory=dict)
    _partial: list[tuple[dict[Any, Any], Any]] = field(default_factory=list)
    _derived: dict[Cell, list[Cell]] = field(default_factory=dict)  # classes below one
    _options: dict[str, list[tuple[Cell, Edge]]] = field(default_factory=dict)
    _defining: dict[str, set[str]] = field(default_factory=dict)
    _below_of: dict[str, set[str]] = field(default_factory=dict)
    _owners: dict[str, Cell | None] = field(default_factory=dict)
    _nested: int = 0
    _index: WordIndex = field(init=False)
    _exports: Exports = field(init=False)

    def __post_init__(self) -> None:
        self._index = WordIndex(self.texts)
        self._exports = Exports(self.tree, self.texts)
        found: dict[str, list[Edge]] = defaultdict(list)
        for path in filter(is_settings, self.texts):
            values = self.file(path)
            for key, edges in values.settings.items() if values is not None else ():
                found[key.partition(":")[2]] += edges
        self.settings = found

    def line(self, finding: Finding) -> int:
        """The line of a finding in the text of its file."""
        first = self.cells.get(finding.path, {}).get(finding.cell or 0, 1)
        return finding.line + first - 1

    def file(self, path: str) -> FileValues | None:
        """The cells of a file; None where it is none of ours or can't be read."""
        if path not in self._files:
            if self.allowance <= 0:
                self.allowance = -1  # what is found from here on is not whole
                return None
            self.allowance -= 1
            source = self.load(path) if path in self.texts else None
            if source is None:
                self._files[path] = None
            elif is_settings(path):
                self._files[path] = read_settings(source, path, self.words)
            else:
                self._files[path] = read(source, path, self.words, self.tree.package(path))
        return self._files[path]

    def near(self, cell: Cell, way: int) -> tuple[Edge, ...]:
        """Cells that the value of `cell` comes from or goes to, as `way` says, with those that it
        is compared with; each with the line that says so."""
        key = (cell, way)
        if key not in self._near:
            if self._nested == NESTED:
                return ()
            self._near[key] = ()  # a question about itself ends here
            self._nested += 1
            found = self._find_near(cell, way)
            edges = tuple(e for e in found if e.flow in (way, EITHER))
            self._nested -= 1
            self._note(self._near, key)
            self._near[key] = edges
        return self._near[key]

    def _note(self, kept: dict[Any, Any], key: Any) -> None:
        """Note what is kept while files may be refused: then it is not whole."""
        if self.allowance <= 0:
            self._partial.append((kept, key))

    def forget_partial(self) -> None:
        """Drop what was found while files were refused."""
        for kept, key in self._partial:
            kept.pop(key, None)
        self._partial.clear()

    def near_values(self, cell: Cell, way: int) -> Iterator[Edge]:
        """The same without what says on which device a tensor is."""
        return (edge for edge in self.near(cell, way) if edge.kind != PLACED)

    def _find_near(self, cell: Cell, way: int) -> Iterator[Edge]:
        kind = cell[0]
        if kind in ("setting", "environment"):
            yield from self._of_setting(cell, way)
            return
        if kind == "field":
            yield from self._of_field(cell, way)
        home = self.file(home_of(cell))
        if home is None:
            return
        yield from (self._of_program(edge, home_of(cell)) for edge in home.edges.get(cell, ()))
        if way == GOES:
            yield from self._goes(cell, home)
        elif kind == "name" and cell[2] == 0:
            yield from self._imports_of(cell, home)
        elif kind == "name" and cell in home.parameters:
            yield from self._parameter(cell, home)
        elif cell in home.made:
            yield from self._result(home.made[cell])
        if kind == "attribute":
            yield from self._attribute(cell, way)

    def _goes(self, cell: Cell, home: FileValues) -> Iterator[Edge]:
        """Where a value goes to in other functions and files."""
        for call, key in home.given.get(cell, ()):
            yield from self._argument(call, key)
        if cell[0] == "name" and cell[2] == 0:
            yield from self._users_of(cell)
        elif cell[0] == "return":
            for call in self._callers(("function", *cell[1:])):
                yield Edge(call.cell, call.line, "called", GOES)
            yield from self.takers(cell)

    # -- names between files -------------------------------------------------------------------

    def _imports_of(self, cell: Cell, home: FileValues) -> Iterator[Edge]:
        """What a name of a module stands for, where it is imported."""
        path, name = cell[1], cell[3]
        dotted = home.imports.get(name)
        if dotted is not None:
            line = home.import_lines.get(name, 1)
            yield from (replace(e, line=line, path=path) for e in self._imported(path, dotted))
        elif name not in home.bound:
            for other in self._exports.star_homes(path, home.stars, name):
                yield Edge(("name", other, 0, name), 1, "imported", COMES)

    def _users_of(self, cell: Cell) -> Iterator[Edge]:
        """Names in other files that stand for one of this module."""
        path, name = cell[1], cell[3]
        for other in self._users(path, name):
            values = self.file(other)
            if values is None:
                continue
            for local, target in values.imports.items():
                if target.rpartition(".")[2] == name and self.tree.locate(other, target) == (
                    path, name,
                ):  # fmt: skip
                    yield Edge(
                        ("name", other, 0, local),
                        values.import_lines.get(local, 1),
                        "imported",
                        GOES,
                    )
            for read_ in values.fields.get(name, ()):  # `conf.DEVICE`, where `conf` is the module
                if ("module", path) in self.called(read_[1]):
                    yield Edge(read_, 1, "read", GOES)
            own = name in values.imports or name in values.bound
            if not own and path in self._exports.star_homes(other, values.stars, name):
                yield Edge(("name", other, 0, name), 1, "imported", GOES)

    def _imported(self, path: str, dotted: str) -> Iterator[Edge]:
        place = self.tree.locate(path, dotted)
        if place is None:
            yield Edge(("outside", dotted), 1, "imported", COMES)
        elif not place[1]:
            yield Edge(("module", place[0]), 1, "imported", COMES)
        elif "." not in place[1] and place[0] != path:
            yield Edge(("name", place[0], 0, place[1]), 1, "imported", COMES)

    def _users(self, path: str, name: str) -> list[str]:
        """Files that may import a name of a module."""
        found = [other for other in self.naming(name) if other != path]
        if len(found) <= FEW:  # by other names of the module as well
            return found + [p for p in self.starring(path) if p not in found]
        found = []
        stem = module_name(path)
        for other in self.naming(stem):
            text = self.texts[other]
            if other != path and (name in text or "import *" in text):
                found.append(other)
        return found if len(found) <= IMPORTING else []

    def starring(self, path: str) -> list[str]:
        """Files that import all names of a module."""
        naming = (other for other in self.naming(module_name(path)) if other != path)
        return [other for other in naming if "import *" in self.texts[other]]

    def naming(self, word: str, sign: str = "") -> list[str]:
        """Files whose text holds a word, with `sign` behind it."""
        return self._index.files(word, sign)

    # -- calls ---------------------------------------------------------------------------------

    def called(self, cell: Cell) -> frozenset[Cell]:
        """Functions and classes that a called cell stands for; packages' names as well."""
        if cell not in self._classes:
            self._classes[cell] = frozenset()
            kinds = ("function", "class", "object", "module", "outside")
            found = sources([cell], self._plain, NEAR)
            self._note(self._classes, cell)
            self._classes[cell] = frozenset(c for c in found if c[0] in kinds)
        return self._classes[cell]

    def _plain(self, cell: Cell, way: int) -> Sequence[Edge]:
        """Where a value comes from, but for what callers give: for classes and functions."""
        home = self.file(home_of(cell)) if cell[0] == "name" and cell[2] else None
        if home is not None and cell in home.parameters:
            return home.edges.get(cell, ())
        return self.near(cell, way)

    def _argument(self, call: CallSite, key: str) -> Iterator[Edge]:
        """Parameters that an argument arrives at."""
        for target in self.called(call.called):
            for cell in self._parameters(target, key):
                yield Edge(cell, call.line, "argument", GOES, home_of(call.cell))

    def _parameters(self, target: Cell, key: str) -> Iterator[Cell]:
        home = self.file(target[1]) if target[0] in LOCAL else None
        if home is None or key in ("*", "**"):
            return
        scope = target[2]
        if target[0] == "object":
            owner = scope
            scope = next((s for s, f in home.functions.items() if f.owner == owner
                          and f.name in ("__call__", "forward")), None)  # fmt: skip
        if target[0] == "class":
            known = home.classes.get(scope)
            if known is None:
                return
            owner, scope = scope, known.made
            if scope is None:
                name = known.fields[int(key)] if key.isdigit() and int(key) < len(
                    known.fields) else key  # fmt: skip
                if name in known.fields:
                    yield ("attribute", target[1], owner, name)
                    return
                for base in self._bases(target):
                    yield from self._parameters(base, key)
                return
        function = home.functions.get(scope) if scope is not None else None
        if function is None:
            return
        if key.isdigit():
            if int(key) < function.positional:
                yield ("name", target[1], scope, function.parameters[int(key)])
        elif key in function.parameters:
            yield ("name", target[1], scope, key)
        elif function.rest:
            yield ("field", ("name", target[1], scope, function.rest), key)

    def _result(self, call: CallSite) -> Iterator[Edge]:
        for target in self.called(call.called):
            if target[0] == "function":
                yield Edge(("return", *target[1:]), call.line, "called", COMES, home_of(call.cell))
            elif target[0] == "class":
                yield Edge(("object", *target[1:]), call.line, "made", COMES, home_of(call.cell))

    def _parameter(self, cell: Cell, home: FileValues) -> Iterator[Edge]:
        """What callers give to a parameter."""
        scope, word = home.parameters[cell]
        function = home.functions[scope]
        at = function.parameters.index(word) if word in function.parameters else -1
        keys = {word, str(at)} if 0 <= at < function.positional else {word}
        for call in self._callers(("function", cell[1], scope)):
            for key, held in call.given:
                if key in keys:
                    yield Edge(held, call.line, "argument", COMES)
                elif key == "**" and (inner := deeper(held, word)) is not None:
                    yield Edge(inner, call.line, "argument", COMES)
        yield from (Edge(each, 1, "fixture", COMES) for each in self._fixture(cell, home))

    def _fixture(self, cell: Cell, home: FileValues) -> Iterator[Cell]:
        """What pytest gives to a parameter of a test or of a fixture: from its file, else from the
        nearest `conftest.py` above; an element of what the fixture yields."""
        _, path, scope, word = cell
        test = home.functions[scope].name.startswith("test")
        if not test and scope not in home.fixtures.values():
            return
        above = (f"{at}/conftest.py".removeprefix("./") for at in PurePosixPath(path).parents)
        for other in (path, *above):
            values = self.file(other) if other in self.texts else None
            made = values.fixtures.get(word) if values is not None else None
            if made not in (None, scope):
                yield ("return", other, made)
                yield ("field", ("return", other, made), "[]")
                return

    def takers(self, cell: Cell) -> Iterator[Edge]:
        """Parameters that pytest gives a fixture's result to."""
        home, given = self.file(home_of(cell)), cell[1:] if cell[0] == "return" else cell[1][1:]
        names = [n for n, scope in home.fixtures.items() if scope == given[1]] if home else []
        folder = given[0].removesuffix("conftest.py")
        for name in names:
            files = [p for p in self.naming(name) if p == given[0] or p.startswith(folder)]
            for path in files if len(files) <= IMPORTING else [given[0]]:
                values = self.file(path)
                for taker in values.parameters if values is not None else ():
                    if taker[3] == name and cell in self._fixture(taker, values):  # type: ignore[arg-type]
                        yield Edge(taker, 1, "fixture", GOES)

    def _callers(self, function: Cell) -> list[CallSite]:
        if function not in self._calls:
            self._calls[function] = []
            self._note(self._calls, function)
            self._calls[function] = list(self._find_callers(function))
        return self._calls[function]

    def _find_callers(self, function: Cell) -> Iterator[CallSite]:
        home = self.file(function[1])
        known = home.functions.get(function[2]) if home is not None else None
        if home is None or known is None:
            return
        names, wanted = {known.name} - {""}, {function}
        if not names:  # a lambda, by what it is assigned to
            held = (edge.cell for edge in home.edges.get(function, ()) if edge.kind == "assigned")
            names = {each[-1] for each in held if each[0] in ("name", "field", "attribute")}
        inside: set[str] = set()
        if known.name == "__init__" and known.owner in home.classes:
            owner = ("class", function[1], known.owner)
            heirs = {h for h in self._heirs(owner) if self._made_by(h) == function}
            wanted = {owner, *heirs}
            names = {name for each in wanted if (name := self._class_name(each))}
            wanted |= {function}
            inside = {each[1] for each in wanted}
        elif known.name in ("__call__", "forward") and known.owner is not None:
            return
        found = {(path, "__init__") for path in inside}  # `super().__init__(…)`
        most = IMPORTING if known.owner is None else FILES
        for name in names:
            files = self.naming(name, "(")
            found |= {(p, name) for p in (files if len(files) <= most else [function[1]])}
        for path, name in sorted(found):
            values = self.file(path)
            for call in values.calls.get(name, ()) if values is not None else ():
                if self.called(call.called) & wanted:
                    yield call

    # -- classes -------------------------------------------------------------------------------

    def _class_name(self, cell: Cell) -> str:
        home = self.file(cell[1])
        known = home.classes.get(cell[2]) if home is not None else None
        return known.name if known is not None else ""

    def _made_by(self, cell: Cell) -> Cell | None:
        """The `__init__` that a class is made with."""
        for each in (cell, *self._bases(cell)):
            home = self.file(each[1])
            known = home.classes.get(each[2]) if home is not None else None
            if known is not None and known.made is not None:
                return ("function", each[1], known.made)
        return None

    def _bases(self, cell: Cell, steps: int = 6) -> Iterator[Cell]:
        home = self.file(cell[1])
        known = home.classes.get(cell[2]) if home is not None else None
        for base in known.bases if known is not None and steps else ():
            for each in self.called(base):
                if each[0] == "class" and each != cell:
                    yield each
                    yield from self._bases(each, steps - 1)

    def _heirs(self, cell: Cell) -> list[Cell]:
        """Classes that derive from one directly."""
        if cell not in self._derived:
            self._derived[cell] = []
            found = list(self._find_heirs(cell))
            self._note(self._derived, cell)
            self._derived[cell] = found
        return self._derived[cell]

    def _find_heirs(self, cell: Cell) -> Iterator[Cell]:
        name = self._class_name(cell)
        if not name:
            return
        derived = re.compile(rf"class\s+\w+\([^)]*\b{re.escape(name)}\b")
        files = [path for path in self.naming(name) if derived.search(self.texts[path])]
        for path in files if len(files) <= FILES else ():
            values = self.file(path)
            for scope, each in values.classes.items() if values is not None else ():
                heir = ("class", path, scope)
                if heir != cell and any(cell in self.called(base) for base in each.bases):
                    yield heir

    def _attribute(self, cell: Cell, way: int) -> Iterator[Edge]:
        """The same attribute in classes above and below, and where it is read."""
        _, path, scope, name = cell
        own = ("class", path, scope)
        above = () if self._defines(cell) else self._bases(own)
        below = (("attribute", h[1], h[2], name) for h in self._heirs(own))
        for each in above:
            yield Edge(("attribute", each[1], each[2], name), 1, "inherited")
        for heir in below:
            if not self._defines(heir):
                yield Edge(heir, 1, "inherited")
        if name.startswith("__"):
            return
        files = [path]  # what gives an attribute its value stands with its class
        if way == GOES:
            files = self.naming(name)
        owners = {own, ("object", path, scope)}
        for other in files if len(files) <= FILES else [path]:
            values = self.file(other)
            for read_ in values.fields.get(name, ()) if values is not None else ():
                known = self.called(read_[1])
                if owners & known or (not known and self.only_owner(name) == own):
                    yield Edge(read_, 1, "read")

    def only_owner(self, name: str) -> Cell | None:
        """The one class with an attribute or method of a name in the files that name the origin's
        device; else None. An object of which nothing is known is one of it, if it has that. Where
        only such objects are given the attribute, they are of one class that nothing is known of.
        """
        if name not in self._owners:
            self._owners[name] = None
            found = set(self._find_owners(name) if name not in self.common else ())
            self._note(self._owners, name)
            self._owners[name] = found.pop() if len(found) == 1 else None
        return self._owners[name]

    def _find_owners(self, name: str) -> Iterator[Cell]:
        signs = [f"def {name}(", f".{name} = ", f".{name}: ", f"    {name} = ", f"    {name}: "]
        naming = (path for path in self.naming(name) if self.device in self.texts[path])
        files = [path for path in naming if any(sign in self.texts[path] for sign in signs)]
        for path in files if len(files) == 1 else ():
            values = self.file(path)
            for scope, each in values.classes.items() if values is not None else ():
                if name in each.names:
                    yield ("class", path, scope)
            for stored in values.fields.get(name, ()) if values is not None else ():
                if any(e.flow == COMES for e in values.edges.get(stored, ())):  # type: ignore[union-attr]
                    known = self.called(stored[1])
                    owners = [c for c in known if c[0] in ("class", "object")]
                    yield from (("class", *each[1:]) for each in owners)
                    if not known:
                        yield ("class", path, UNKNOWN)

    def _defines(self, cell: Cell) -> bool:
        """Whether the body of a class itself gives an attribute its value."""
        home = self.file(cell[1])
        known = home.classes.get(cell[2]) if home is not None else None
        return known is not None and cell[3] in known.names

    # -- fields --------------------------------------------------------------------------------

    def _of_field(self, cell: Cell, way: int) -> Iterator[Edge]:
        _, base, name = cell
        for edge in self.near(base, way):
            inner = deeper(edge.cell, name) if edge.kind != COMPARED else None
            if inner is not None:
                yield Edge(inner, edge.line, edge.kind, edge.flow)
        owners = {base} if way == COMES else {base, *self.called(base)}  # stored in the object
        for owner in owners:
            if owner[0] in ("object", "class"):
                yield Edge(("attribute", owner[1], owner[2], name), 1, "read")
            elif owner[0] == "module" and owner != base:  # `settings.PLACE = …`
                yield Edge(("name", owner[1], 0, name), 1, "read")
        home = self.file(home_of(base))
        if home is None:
            return
        if way == GOES and base[0] == "return" and name == "[]":
            yield from self.takers(cell)
        if base[0] == "super":
            for each in self._bases(("class", *base[1:])):
                yield Edge(("attribute", each[1], each[2], name), 1, "inherited")
            return
        if way == GOES:
            for call, key in home.given.get(base, ()):
                yield from self._argument(call, name) if key == "**" else ()
        if way == COMES and home.parameters.get(base, (0, ""))[1] == "**":
            for call in self._callers(("function", *base[1:3])):
                yield from (
                    Edge(h, call.line, "argument", COMES) for k, h in call.given if k == name
                )
        if way == COMES and name.isdigit() and cell not in home.edges:
            yield Edge(("field", base, "[]"), 1, "read")
        elif way == GOES and name == "[]":
            numbered = (c for key, cells in home.fields.items() if key.isdigit() for c in cells)
            yield from (Edge(c, 1, "read") for c in numbered if c[1] == base)
        if base[0] in ("object", "class"):
            return
        owner_ = self.only_owner(name) if not self.called(base) else None
        if owner_ is not None:
            yield Edge(("attribute", *owner_[1:], name), 1, "read")
        if base[0] == "module":
            yield Edge(("name", base[1], 0, name), 1, "read")
        elif name.isidentifier() and self._is_settings(base) and self._known_setting(name):
            for setting in self._settings_of(home_of(base), name):
                yield Edge(setting, 1, "read")

    def _is_settings(self, base: Cell) -> bool:
        """Whether a cell holds the options or the settings of a program."""
        if base[0] not in ("name", "field", "value"):
            return False
        name = base[3] if base[0] == "name" else base[2]
        if base[0] == "value":
            home = self.file(base[1])
            made = home.made.get(base) if home is not None else None
            called = made.called if made is not None else ()
            return bool(called) and called[-1] in ("parse_args", "parse_known_args")
        if not SETTINGS.search(str(name)):
            return base[0] == "field" and self._is_settings(base[1])  # `cfg["train"]["device"]`
        return not any(c[0] in ("object", "class", "module") for c in self.called(base))

    def _known_setting(self, name: str) -> bool:
        return name in self.settings or bool(self._option_edges(name))

    def _option_edges(self, name: str) -> list[tuple[Cell, Edge]]:
        """What a program's options of a name hold, with their files."""
        if name not in self._options:
            self._options[name] = found = []
            flags = {name, name.replace("_", "-")}
            told = [f"{flag}{mark}" for flag in flags for mark in "\"'"]  # `"--place"`
            for path in {p for flag in flags for p in self.naming(flag)}:
                text = self.texts[path]
                if "add_argument" not in text or not any(each in text for each in told):
                    continue
                values = self.file(path)
                if values is not None:
                    found += [(("setting", name), replace(e, path=path))
                              for e in values.settings.get(f"setting:{name}", ())]  # fmt: skip
        return self._options[name]

    def _of_program(self, edge: Edge, path: str) -> Edge:
        """An edge to an option, as that of the program whose file says so."""
        if edge.cell[0] != "setting" or path not in self._programs(edge.cell[1]):
            return edge
        return replace(edge, cell=("setting", edge.cell[1], path))

    def _programs(self, name: str) -> set[str]:
        """Files that define an option and parse it: it is no other program's."""
        if name not in self._defining:
            flags = {name, name.replace("_", "-")}
            defined = re.compile(
                rf"add_argument\([^()]*[\"']--(?:{'|'.join(map(re.escape, flags))})[\"']"
            )
            self._defining[name] = {
                path for flag in flags for path in self.naming(flag)
                if PARSES.search(self.texts[path]) and defined.search(self.texts[path])
            }  # fmt: skip
        return self._defining[name]

    def _settings_of(self, path: str, name: str) -> list[Cell]:
        """The options of a name that a file may read: its own, else those of the programs that it
        belongs to and those that no program has for itself."""
        programs = self._programs(name)
        near = [p for p in programs if path in self._below(p) or p in self._below(path)]
        own = [path] if path in programs else sorted(near or programs)
        shared: list[Cell] = [] if path in programs else [("setting", name)]
        return [*(("setting", name, each) for each in own), *shared]

    def _below(self, path: str) -> set[str]:
        """A file with all files of the project that it imports, as far as absolute names say."""
        if path not in self._below_of:
            found, todo = {path}, [path]
            while todo:
                one = todo.pop()
                for dotted in self.tree.imports.get(one, ()):
                    place = self.tree.locate(one, dotted)
                    if place is not None and place[0] not in found:
                        found.add(place[0])
                        todo.append(place[0])
            self._below_of[path] = found
        return self._below_of[path]

    def _of_setting(self, cell: Cell, way: int) -> Iterator[Edge]:
        kind, name = cell[:2]
        if kind == "environment":
            for path in self.naming(name) if name else ():
                values = self.file(path)
                yield from values.settings.get(f"environment:{name}", ()) if values else ()
            return
        yield from self.settings.get(name, ())
        programs, owner = self._programs(name), cell[2] if len(cell) > 2 else None
        for _, edge in self._option_edges(name):
            if edge.path == owner or (owner is None and edge.path not in programs):
                yield edge
        files = self.naming(name) if way == GOES else ()
        for path in files if len(files) <= FILES else ():
            values = self.file(path)
            for read_ in values.fields.get(name, ()) if values is not None else ():
                if cell in self._settings_of(path, name) and self._is_settings(read_[1]):
                    yield Edge(read_, 1, "read")


def deeper(cell: Cell, name: str) -> Cell | None:
    """A field of a cell, unless it lies too deep; packages' names have none."""
    if depth(cell) >= DEPTH or cell[0] in ("outside", "text", "setting", "function"):
        return None
    return ("field", cell, name)


def home_of(cell: Cell) -> str:
    """The file that a cell belongs to; empty for none."""
    while cell[0] == "field":
        cell = cell[1]
    return cell[1] if cell[0] not in ("outside", "setting", "environment") else ""
