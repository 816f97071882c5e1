"""What one file of a project means for another: values that pass between them, conditions, options.

Files are analysed one by one; what a file leaves open is asked here.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path, PurePosixPath

from joymigrate.language import Text
from joymigrate.rewrite import analyse
from joymigrate.rewrite.discover import File

STARRED = re.compile(r"import[ \t]*\*")  # begins with a word, which makes it fast
STAR = re.compile(r"^[ \t]*from[ \t]+[\w.]+[ \t]+import[ \t]*\*", re.M)
METHOD = re.compile(r"def (\w+)")
FEW = 100  # words that are looked for in the texts themselves
STEPS = 8  # files that a value is followed through on its way to a comparison
# Every byte that stands in no name becomes a space; a letter beyond ASCII is several bytes.
APART = bytes(at if at > 127 or chr(at).isalnum() or at == ord("_") else 32 for at in range(256))


def settle(
    results: list[analyse.FileAnalysis],
    files: dict[str, File],
    job: analyse.ScanContext,
    texts: Mapping[str, str],
) -> list[analyse.FileAnalysis]:
    """Decide the open sites by following their keys through the other files.

    `texts` are those of the Python files.
    """
    waiting = [result for result in results if result.open]
    asked = Questions(files, job, texts)
    asked.explore({key for r in waiting for item in r.open for key in own_keys(item.keys, r.path)})
    conditions = Conditions(files, job, texts)
    decided: dict[str, analyse.FileAnalysis] = {}
    answers: dict[str, dict[str, bool]] = {}
    for result in waiting:
        answers[result.path] = {
            analyse.place(item): asked.reaches(own_keys(item.keys, result.path), item.kind)
            or any(conditions.chain(key) for key in item.asked)
            for item in result.open
        }
        decided[result.path] = analyse.settle(files[result.path], job, answers[result.path])
    results = [decided.get(result.path, result) for result in results]
    # A rewritten value moves the comparisons that see it in other files.
    sent: dict[str, set[str]] = defaultdict(set)
    for result in results:
        for kind, key in result.sent:
            sent[kind].add(key)
    for number, result in enumerate(results):
        moved = {
            analyse.place(item): True
            for item in result.watched
            if asked.comes_from(own_keys(item.sources, result.path), sent[item.kind])
        }
        if moved:
            answers[result.path] = answers.get(result.path, {}) | moved
            results[number] = analyse.settle(files[result.path], job, answers[result.path])
    done = reread_launches(hold(results, files, job, answers, conditions), files, job)
    analyse.close_modules(job)
    return done


def hold(
    results: list[analyse.FileAnalysis],
    files: dict[str, File],
    job: analyse.ScanContext,
    answers: Mapping[str, Mapping[str, bool]],
    asking: Conditions,
) -> list[analyse.FileAnalysis]:
    """Leave conditions of the project as they are where code behind them can't move.

    `if is_cuda_available(): torch.cuda.only_there()`: the function stays, and with it all that
    other files do behind it. What stays then may hold further conditions.
    """
    for _ in range(STEPS):
        fresh = {
            each: reason_in(result.path, reason)
            for result in results
            for key, reason in result.holding
            for each in asking.chain(key)
            if each not in job.held
        }
        if not fresh:
            break
        job = replace(job, held={**job.held, **fresh})
        owners = {owner for key in fresh for owner in asking.owners(key)}
        names = {last_word(key) for key in fresh}
        for number, result in enumerate(results):
            used = {key for key in result.guarding if last_word(key) in names}
            if result.path in owners or any(asking.chain(key) & fresh.keys() for key in used):
                aliases = {
                    k: next(iter(fresh.values())) for k in used if asking.chain(k) & fresh.keys()
                }
                own = replace(job, held={**job.held, **aliases})
                known = answers.get(result.path, {})
                results[number] = analyse.settle(files[result.path], own, known)
    return results


def reason_in(path: str, reason: str) -> str:
    """A reason with the file that it speaks of."""
    return Text("{reason}, in {path}", reason=reason, path=path)


def last_word(key: str) -> str:
    """The name at the end of a key."""
    return key.strip("#()").rpartition("::")[2].strip("#()")


class Conditions:
    """Which conditions of a project ask for the origin's device, by themselves or by others."""

    def __init__(
        self, files: dict[str, File], job: analyse.ScanContext, texts: Mapping[str, str]
    ) -> None:
        self.files = {path: file for path, file in files.items() if file.kind == "python"}
        self.job = job
        self.texts = texts
        self._asks: dict[str, tuple[bool, set[str]]] = {}
        self._chains: dict[str, frozenset[str]] = {}
        self._owners: dict[str, list[str]] = {}

    def chain(self, key: str) -> frozenset[str]:
        """The key and those that it asks, down to the question; empty where there is none."""
        if key not in self._chains:
            self._chains[key] = frozenset(self._followed(key, STEPS) or ())
        return self._chains[key]

    def owners(self, key: str) -> list[str]:
        """The file that defines a condition; for a method, if the project has one of its name."""
        if not key.startswith("."):
            return [key.partition("::")[0]]
        if key not in self._owners:
            found = self._methods.get(key.strip(".()"), [])
            self._owners[key] = found if len(found) == 1 else []
        return self._owners[key]

    @cached_property
    def _methods(self) -> dict[str, list[str]]:
        """Methods by name: the files that define one, once for each, of those with a condition."""
        word = self.job.context.origin.device
        found: dict[str, list[str]] = defaultdict(list)
        for path, text in self.texts.items():
            for each in METHOD.finditer(text) if word in text else ():
                line = text[text.rfind("\n", 0, each.start()) + 1 : each.start()]
                if line.isspace() or (line.endswith("async ") and line[:-6].isspace()):
                    found[each[1]].append(path)
        return found

    def _followed(self, key: str, steps: int) -> set[str]:
        owner = next(iter(self.owners(key)), "")
        if owner not in self.files or not steps:
            return set()
        if key not in self._asks:
            self._asks[key] = analyse.condition(self.files[owner], self.job, key)
        asks, further = self._asks[key]
        below = {each for other in further for each in self._followed(other, steps - 1)}
        return {key, *below} if asks or below else set()


def reread_launches(
    results: list[analyse.FileAnalysis], files: dict[str, File], job: analyse.ScanContext
) -> list[analyse.FileAnalysis]:
    """Read launch lines again that give values to options whose values were rewritten.

    `run.sh: --place cuda` goes with `add_argument("--place", choices=["cuda", "cpu"])`.
    """
    options = dict(each for result in results for each in result.options)
    if not options:
        return results
    words = "|".join(re.escape(name).replace("_", "[-_]") for name in sorted(options))
    given = re.compile(rf"--(?:{words})\b")
    job = replace(job, context=replace(job.context, options=tuple(sorted(options.items()))))
    return [
        analyse.analyse(files[result.path], job)
        if files[result.path].kind != "python" and given.search(read_text(files[result.path].path))
        else result
        for result in results
    ]


def own_keys(keys: Iterable[str], path: str) -> set[str]:
    """Keys with the file they belong to."""
    return {key if "::" in key or key.startswith(".") else f"{path}::{key}" for key in keys}


class Questions:
    """Follows keys from file to file, all of them at once, one round per step of the way."""

    def __init__(
        self, files: dict[str, File], job: analyse.ScanContext, texts: Mapping[str, str]
    ) -> None:
        self.files = {path: file for path, file in files.items() if file.kind == "python"}
        self.job = job
        self.texts = texts
        self.kinds: dict[str, set[str]] = defaultdict(set)
        self.links: dict[str, set[str]] = defaultdict(set)
        self._aliases: dict[str, frozenset[str]] = {}
        self._origins: dict[str, set[str]] = {}  # key → where its values come from
        self._naming: dict[str, list[str]] = {}  # word → files with it

    def explore(self, keys: set[str]) -> None:
        """Ask every file that could know one of `keys`, then for the keys they lead to."""
        seen: set[str] = set()
        while fresh := keys - seen:
            seen |= fresh
            by_file: dict[str, set[str]] = defaultdict(set)
            for key in fresh:
                for path in self.candidates(key):
                    by_file[path].add(key)
            for path, wanted in sorted(by_file.items()):
                found = analyse.answer(self.files[path], self.job, frozenset(wanted))
                for key, (kinds, further) in found.items():
                    self.kinds[key] |= kinds
                    self.links[key] |= further
            keys = {further for key in fresh for further in self.links[key]}

    def reaches(self, keys: set[str], kind: str) -> bool:
        """Whether a value under any of `keys` arrives at a sink of this kind."""
        seen, todo = set(keys), list(keys)
        while todo:
            key = todo.pop()
            if kind in self.kinds[key]:
                return True
            fresh = self.links[key] - seen
            seen |= fresh
            todo += fresh
        return False

    def comes_from(self, keys: set[str], values: set[str]) -> bool:
        """Whether a value under any of `keys` may be one of `values`, through other files."""
        seen: set[str] = set()
        fresh = set(keys) if values else set()
        for _ in range(STEPS):
            if fresh & values:
                return True
            seen |= fresh
            by_file: dict[str, set[str]] = defaultdict(set)
            for key in fresh:
                owner, _, local = key.partition("::")
                if local and owner in self.files and key not in self._origins:
                    by_file[owner].add(local)
            for path, wanted in sorted(by_file.items()):
                for local in wanted:
                    self._origins[f"{path}::{local}"] = analyse.origins(
                        self.files[path], self.job, frozenset((local,))
                    )
            fresh = {each for key in fresh for each in self._origins.get(key, ())} - seen
        return False

    def candidates(self, key: str) -> list[str]:
        """Files that could carry a key's value on: its own, and those that use its name."""
        owner, _, local = key.rpartition("::")
        found = [owner] if owner in self.files else []
        uses = self.use(owner, local)
        if uses is not None:
            name = local.strip(".#(){}").rpartition(".")[2]
            found += [p for p in self.naming(name) if p != owner and uses(self.texts[p])]
            if not local.startswith(".") and "." not in local:
                star = star_of(owner)
                found += [p for p in self.starring if p != owner and star.search(self.texts[p])]
        return sorted(set(found))

    @cached_property
    def starring(self) -> list[str]:
        """Files with a `from … import *`: they hand on names that do not stand in them."""
        may = (path for path in self.files if STARRED.search(self.texts[path]))
        return [path for path in may if STAR.search(self.texts[path])]

    def naming(self, name: str) -> list[str]:
        """Files with a word in them: a pattern is only searched there.

        The words of all files are worth their making when many are asked for.
        """
        if name not in self._naming:
            self._naming[name] = self._find_naming(name)
        return self._naming[name]

    def _find_naming(self, name: str) -> list[str]:
        if len(self._naming) >= FEW:
            return [path for path, words in self.words.items() if name.encode() in words]
        return [path for path in self.files if stands_alone(name, self.texts[path])]

    @cached_property
    def words(self) -> dict[str, set[bytes]]:
        """The words of each file."""
        encoded = ((path, self.texts[path].encode()) for path in self.files)
        return {path: set(text.translate(APART).split()) for path, text in encoded}

    def use(self, owner: str, local: str) -> Callable[[str], bool] | None:
        """Whether another file's text could use a key; None for parameters, which only their file
        reads."""
        name = re.escape(local.strip(".#(){}").rpartition(".")[2])
        if not name or "@" in local or ("#" in local and not local.startswith("#")):
            return None
        if local.startswith("."):
            plain = local.strip(".#(){}").rpartition(".")[2]
            quoted = [f"{first}{plain}{last}" for first in "\"'" for last in "\"'"]
            read = re.compile(rf"\.{name}\b")
            return lambda text: read.search(text) is not None or any(q in text for q in quoted)
        elif local.endswith("()"):
            pattern = re.compile(rf"\b{name}\s*\(")
        else:
            home, star = re.escape(module_name(owner)), star_of(owner)
            word, before = re.compile(rf"\b{name}\b"), re.compile(rf"\b{home}\.$")
            called = self.aliases(home)
            return lambda text: (
                may_import(word, before, text)
                or star.search(text) is not None
                or any(f"{each}.{name}" in text for each in called)
            )
        return lambda text: pattern.search(text) is not None

    def aliases(self, home: str) -> frozenset[str]:
        """What files of the project call a module: `from . import config as cfg`."""
        if home not in self._aliases:
            alias = re.compile(rf"\b{home}[ \t]+as[ \t]+(\w+)")
            texts = self.texts.values()
            found = (alias.findall(text) for text in texts if f"{home} as " in text)
            self._aliases[home] = frozenset(each for several in found for each in several)
        return self._aliases[home]


def stands_alone(name: str, text: str) -> bool:
    """Whether a text holds a word that is no part of a longer one."""
    at = text.find(name)
    while at >= 0:
        end = at + len(name)
        if not inside_word(text[at - 1 : at]) and not inside_word(text[end : end + 1]):
            return True
        at = text.find(name, at + 1)
    return False


def inside_word(character: str) -> bool:
    """Whether a character is a part of a word; every letter beyond ASCII counts as one."""
    return character == "_" or character.isalnum() or character > "\x7f"


def module_name(path: str) -> str:
    """The last name of the module that a file is."""
    place = PurePosixPath(path)
    return place.parent.name if place.stem == "__init__" else place.stem


@functools.cache
def star_of(owner: str) -> re.Pattern[str]:
    """`from … import *` of a file, in another file's text."""
    home = re.escape(module_name(owner))
    return re.compile(rf"^[ \t]*from[ \t]+[\w.]*\b{home}[ \t]+import[ \t]*\*", re.M)


def may_import(name: re.Pattern[str], home: re.Pattern[str], text: str) -> bool:
    """Whether a text may import a name: behind `import`, alone on a line of its own inside of
    brackets, or as `home.name`."""
    for found in name.finditer(text):
        line = text.rfind("\n", 0, found.start()) + 1
        before = text[line : found.start()]
        if "import" in before or home.search(before):
            return True
        if before and before.isspace():
            end = text.find("\n", found.end())
            after = text[found.end() : end if end >= 0 else len(text)]
            if after.strip() in ("", ","):
                return True
    return False


def read_text(path: Path) -> str:
    """Text of a file for word searches; undecodable bytes don't matter here."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
