"""Files of one program that may only change together: where one has to stay, the others stay too.

Rules that say `together: true` in their codemod's data replace a library whose objects do not mix
with the replacement's. Two files belong together where some file imports both, itself included.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property

from joymigrate.language import Text
from joymigrate.model import Finding, Rule
from joymigrate.rewrite.discover import File
from joymigrate.rewrite.module_index import ModuleIndex
from joymigrate.rewrite.source import read_text


def leave_together(
    findings: Iterable[Finding],
    rules: Mapping[str, Rule],
    reached: ReachableFiles,
) -> list[Finding]:
    """The findings; as reports in files that go with one that stays, where a rule asks for it."""
    found = list(findings)
    for rule in rules_together(rules):
        mine = [each for each in found if each.rule == rule]
        stay = {each.path: each for each in reversed(mine) if not each.edits}
        move = {each.path for each in mine if each.edits} - stay.keys()
        if not stay or not move:
            continue
        held = {path: reached.with_one_of(path, stay) for path in move}
        found = [
            report(each, stay[other])
            if each.rule == rule and each.edits and (other := held.get(each.path)) is not None
            else each
            for each in found
        ]
    return found


def rules_together(rules: Mapping[str, Rule]) -> list[str]:
    """Rules whose data ask for it."""
    return [name for name, rule in rules.items() if any(one.get("together") for one in rule.match)]


def report(finding: Finding, other: Finding) -> Finding:
    """The finding as a report."""
    why = Text("{path} stays, and both files are of one program: {reason}",
               path=other.path, reason=other.reason or other.message)  # fmt: skip
    return finding.leave(why)


# An import as it stands in a text; read alone, it costs a tenth of reading the file's tree.
STATEMENT = re.compile(
    r"^[ \t]*((?:from[ \t]+[.\w]+[ \t]+import\b[ \t]*(?:\([^)]*\)|(?:[^\n#;\\]|\\\r?\n)+))"
    r"|import[ \t](?:[^\n#;\\]|\\\r?\n)+)",
    re.M,
)


def read_statement(text: str) -> list[ast.stmt]:
    """The statement of a text that looks like an import; none where it is a sentence."""
    try:
        return ast.parse(text.strip()).body
    except (SyntaxError, ValueError):
        return []


def closure(first: Iterable[str], onward: Callable[[str], Iterable[str]]) -> set[str]:
    """Names and all that `onward` leads to from them."""
    found = set(first)
    waiting = list(found)
    while waiting:
        for other in onward(waiting.pop()):
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


class ReachableFiles:
    """Which files each file imports, directly or by others."""

    def __init__(self, files: Mapping[str, File], tree: ModuleIndex) -> None:
        self.files, self.tree = files, tree
        self.direct: dict[str, set[str]] = {}
        self.by_name: dict[str, set[str]] = {}

    @cached_property
    def all(self) -> dict[str, set[str]]:
        """Each file of the project with all that it imports."""
        return {path: self.below(path) for path in self.tree.paths if path in self.files}

    def with_one_of(self, path: str, others: Iterable[str]) -> str | None:
        """A file of `others` that belongs to a program with `path`."""
        programs = [below for below in self.all.values() if path in below]
        return next((one for one in sorted(others) if any(one in b for b in programs)), None)

    def below(self, path: str) -> set[str]:
        """A file and all that it imports."""
        return closure([path], self.imported)

    def imported(self, path: str) -> set[str]:
        """The project's files that a file imports, with `__init__.py` of packages on the way."""
        if path not in self.direct:
            found = self.named(path)
            self.direct[path] = found.union(*map(self.packages, found))
        return self.direct[path]

    def named(self, path: str) -> set[str]:
        """The project's files that the imports of a file name."""
        if path not in self.by_name:
            located = (self.tree.locate(path, name) for name in self.names(path))
            self.by_name[path] = {each[0] for each in located if each is not None}
        return self.by_name[path]

    def packages(self, path: str) -> Iterator[str]:
        """The `__init__.py` of the packages that a file lies in: an import of it runs them."""
        folder = path.rpartition("/")[0]
        while folder and f"{folder}/__init__.py" in self.files:
            yield f"{folder}/__init__.py"
            folder = folder.rpartition("/")[0]

    def statements(self, path: str) -> list[ast.stmt]:
        """The imports of a file."""
        text = read_text(self.files[path].path)
        return [node for each in STATEMENT.findall(text) for node in read_statement(each)]

    def names(self, path: str) -> Iterator[str]:
        """Dotted names of modules, and of what is imported from them (it may be a module)."""
        if path not in self.files:
            return
        for node in self.statements(path):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self.tree.base_of(path, node)
                if base is not None:
                    yield base
                    yield from (f"{base}.{alias.name}".strip(".") for alias in node.names)
