"""Files that can't be loaded on the target: what they import as they are loaded is not there.

    import ops_cuda          an extension that the project builds for the origin alone
    import tensorrt          a library without a form for the target (`third_party.yaml`)
    from .cli import parse   a module that the project lacks, on any machine

Such a file, one that imports it, and the modules of a package that imports it do nothing there:
their edits need review. Imports inside a `try`, a condition or a function don't count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from joymigrate.language import Text
from joymigrate.model import Finding, Tier
from joymigrate.rewrite import missing_modules, own_extensions
from joymigrate.rewrite.device_tests import is_waiting
from joymigrate.rewrite.import_trees import Trees
from joymigrate.rewrite.module_index import GUARD
from joymigrate.rewrite.own_extensions import speaks
from joymigrate.rewrite.third_party import parents

ROUNDS = 8  # files that an import is followed through
BUILT = "this file can't be loaded without `{name}`, which is built for the origin"
BOUND = "this file can't be loaded without `{name}`, which has no form for the target"
ABSENT = "this file can't be loaded: the project has no `{name}`"
THROUGH = "{reason} ({path} imports it)"


@dataclass(frozen=True, slots=True)
class Lack:
    """What a file lacks: why, and the file that imports it."""

    reason: str
    path: str

    def tell(self, path: str) -> str:
        """The reason for a file that lacks it."""
        return self.reason if path == self.path else Text(
            THROUGH, reason=self.reason, path=self.path
        )  # fmt: skip


def doubt(
    findings: Iterable[Finding],
    lacking: Mapping[str, Lack],
) -> list[Finding]:
    """The findings; edits of files that can't be loaded are unsafe."""
    return doubt_where(
        findings, lambda one: lacking[one.path].tell(one.path) if one.path in lacking else None
    )


def doubt_where(findings: Iterable[Finding], why: Callable[[Finding], str | None]) -> list[Finding]:
    """The findings; edits for which `why` gives a reason are unsafe, and no test's any more."""
    return [
        one.doubt(Text.of(reason))
        if one.edits
        and (one.tier is Tier.SAFE or is_waiting(one))
        and (reason := why(one)) is not None
        else one
        for one in findings
    ]


def find_span(spans: Iterable[tuple[int, int, str]], finding: Finding) -> str | None:
    """What is said of the first of some lines that a finding stands in; an added import in none."""
    said = (why for first, last, why in spans if first <= finding.line <= last)
    return next(said, None) if finding.rule != "JM001" else None


def find_lacking(trees: Trees, root: Path, target: str, bound: Iterable[str]) -> dict[str, Lack]:
    """Files that can't be loaded, each with what it lacks.

    The files of `trees` lie below `root`, `bound` are libraries of the origin's. A file that speaks
    of the `target` is for it too.
    """
    texts = trees.texts
    lacking = find_built(texts, trees, root, target)
    for path, name in find_bound(texts, trees, target, bound):
        lacking.setdefault(path, Lack(Text(BOUND, name=name), path))
    for path, name in missing_modules.find(texts, trees, root):
        lacking.setdefault(path, Lack(Text(ABSENT, name=name), path))
    fresh = dict(lacking)
    for _ in range(ROUNDS):
        if not fresh:
            break
        further = {path: fresh[other] for path, other in find_importers(texts, trees, fresh)
                   if path not in lacking}  # fmt: skip
        lacking |= further
        fresh = further
    return lacking


def find_built(texts: Mapping[str, str], trees: Trees, root: Path, target: str) -> dict[str, Lack]:
    """Files that import an extension of the project, or build one as they are loaded."""
    own = {p: t for p, t in texts.items() if "cpp_extension" in t and not speaks(t, target)}
    names = own_extensions.find_names(own.values()) if own else set()
    targets = own_extensions.find_targets(texts, root)
    last = {name.rpartition(".")[2] for name in names} | targets
    found: dict[str, Lack] = {}
    for path in own:
        loads = any(f"{word}(" in texts[path] for word in own_extensions.LOADS)
        built = own_extensions.builds(trees.of(path)) if loads else None
        if built is not None:
            found[path] = Lack(Text(BUILT, name=built), path)
    for path, text in texts.items() if last else ():
        if path not in found and any(word in text for word in last):
            for name in trees.imports(path):
                parent, _, word = name.rpartition(".")
                made = name in names or (word in targets and trees.is_own(path, parent))
                if made and not is_file(trees.tree.locate(path, name)):
                    found[path] = Lack(Text(BUILT, name=name), path)
                    break
    return found


def find_bound(
    texts: Mapping[str, str], trees: Trees, target: str, bound: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """Files that import one of the origin's libraries, each with its name."""
    listed = frozenset(bound)
    words = "|".join(sorted(re.escape(name.partition(".")[0]) for name in listed))
    line = re.compile(rf"^[ \t]*(?:import|from)[ \t](?:[^\n]*[ \t,])?(?:{words})\b", re.M)
    for path, text in texts.items() if listed else ():
        if not line.search(text) or speaks(text, target):
            continue
        for name in trees.imports(path):
            above = next((each for each in parents(name) if each in listed), None)
            if above is not None and trees.tree.locate(path, name) is None:
                yield path, above
                break


def find_importers(
    texts: Mapping[str, str], trees: Trees, lacking: Mapping[str, Lack]
) -> Iterator[tuple[str, str]]:
    """Files that load one of those that can't be loaded, each with that one.

    Modules of a package load its `__init__.py`, unless they are started by their path.
    """
    words = {import_name(path) for path in lacking}
    packages = [path for path in lacking if path.endswith("__init__.py")]
    for path, text in texts.items():
        home = next((p for p in packages if path != p and path.startswith(p[:-11])), None)
        if home is not None and not is_program(text):
            yield path, home
        elif any(word in text for word in words):
            other = next((each for each in trees.files(path) if each in lacking), None)
            if other is not None:
                yield path, other


def is_program(text: str) -> bool:
    """Whether a file is started by its path, outside of the package that it lies in."""
    guarded = "__main__" in text and GUARD.search(text) is not None
    return guarded and "\nfrom ." not in text


def is_file(place: tuple[str, str] | None) -> bool:
    """Whether a dotted name is a file of the project itself."""
    return place is not None and not place[1]


def import_name(path: str) -> str:
    """The last name by which a file is imported."""
    stem = path.removesuffix(".py").removesuffix("/__init__")
    return stem.rpartition("/")[2]
