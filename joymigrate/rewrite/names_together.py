"""A device's name and the question for it, in different files: where one waits, so does the other.

    def init(where):                              the question waits, as a part of what it
        if "cuda" in where: …                     guards stays: so does `init("cuda")` elsewhere,
    parser.add_argument("--device", default="cuda")   and the default that arrives there

    check(device); outside.load(device=device)    the name waits, as another package is handed it:
    if device not in KNOWN: raise …               so does the question in `check`

With one half moved the question would not know the name. Values are followed as they are where a
question moves with them (`across`): through calls, variables and attributes of the project.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from joymigrate.language import Text
from joymigrate.model import Tier
from joymigrate.rewrite import analyse
from joymigrate.rewrite.across import Questions, stands_alone
from joymigrate.rewrite.analyse import Result
from joymigrate.rewrite.device_values import Name
from joymigrate.rewrite.files_together import closure
from joymigrate.rewrite.third_party import SETTINGS

WAITS = "it goes with `{text}` ({path}:{line}), which needs a look"
ROUNDS = 4
DEFINED = re.compile(r"^(?:def|class)[ ](\w+)", re.M)


def hold(results: list[Result], asked: Questions) -> list[Result]:
    """The results; a name and a question for it wait together."""
    names = [(result.path, name) for result in results for name in result.names]
    waiting = [(path, each) for path, each in names if each.waits]
    left = [(path, each) for path, each in names if not each.waits]
    held: dict[tuple[str, int, int], str] = {}
    lines: list[tuple[str, int, int, str]] = []
    meetings = Meetings(asked)
    for _ in range(ROUNDS if left else 0):
        fresh = []
        for path, one in waiting:
            for home, other in left:
                key = (home, other.line, other.column)
                apart = other.kind != one.kind or other.compared == one.compared
                if apart or key in held or (other.compared and not other.refuses):
                    continue  # what waits arrives at most questions as a name that they don't know
                if meetings.meet((path, one), (home, other)):
                    held[key] = Text(WAITS, text=one.text, path=path, line=one.line)
                    fresh += [(h, e) for h, e in left if (h, e.line, e.column) == key]
                    lines.append((home, *other.lines, held[key]))
        if not fresh:
            break
        waiting = fresh
    paths = {path for path, _, _ in held}
    return [leave(each, held, lines) if each.path in paths else each for each in results]


class Meetings:
    """Which values arrive at which questions."""

    def __init__(self, asked: Questions) -> None:
        self.asked = asked
        self._onward: dict[str, frozenset[str]] = {}
        self._near: dict[frozenset[str], frozenset[str]] = {}
        self._given: dict[frozenset[str], list[tuple[str, str]]] = {}

    def meet(self, one: tuple[str, Name], other: tuple[str, Name]) -> bool:
        """Whether the value of one name arrives at the question with the other."""
        (asker, question), (giver, value) = (one, other) if one[1].compared else (other, one)
        if asker == giver and question.near & value.near:
            return True
        if value.option and value.option == question.option and self.know(asker, giver):
            return True
        if value.option and any(
            name == value.option and self.know(path, giver)
            for path, name in self.given(question.keys)
        ):
            return True
        return not question.keys.isdisjoint(self.onward(value.keys, self.near(question.keys)))

    def near(self, keys: frozenset[str]) -> frozenset[str]:
        """Files that speak of a question's function or variable."""
        if keys not in self._near:
            names = {re.split(r"[@#(]", key.rpartition("::")[2].strip(".#"))[0] for key in keys}
            words = {name.rpartition(".")[2] for name in names} - {""}
            self._near[keys] = frozenset(each for word in words for each in self.asked.naming(word))
        return self._near[keys]

    def onward(self, keys: frozenset[str], files: Set[str]) -> set[str]:
        """Keys that a value goes on to, through functions of some files one after the other."""
        return closure(keys, lambda key: self._hand_on(key, files))

    def _hand_on(self, key: str, files: Set[str]) -> Set[str]:
        path = key.partition("::")[0]
        if path not in files or path not in self.asked.files:
            return frozenset()
        if key not in self._onward:
            file = self.asked.files[path]
            found = analyse.answer(file, self.asked.job, frozenset((key,)))
            self._onward[key] = frozenset(found[key][1]) if key in found else frozenset()
        return self._onward[key]

    def given(self, keys: frozenset[str]) -> list[tuple[str, str]]:
        """Files that give a question's function an option, with the option: `init(args.device)`."""
        if keys not in self._given:
            functions = {re.split(r"[@#]", key.partition("::")[2])[0] for key in keys}
            named = [name.rpartition(".")[2] for name in functions if name]
            found = []
            for name in named:
                given = re.compile(rf"\b{re.escape(name)}\([^()]*?\b(\w+)\.(\w+)")
                for path, text in self.asked.texts.items():
                    several = given.findall(text) if f"{name}(" in text else ()
                    found += [(path, each) for owner, each in several if SETTINGS.search(owner)]
            self._given[keys] = found
        return self._given[keys]

    def know(self, path: str, other: str) -> bool:
        """Whether a file speaks of something that another one defines, or is that file."""
        text, names = (
            self.asked.texts.get(path, ""),
            DEFINED.findall(self.asked.texts.get(other, "")),
        )
        return path == other or any(stands_alone(name, text) for name in names if len(name) > 4)


def leave(
    result: Result,
    held: Mapping[tuple[str, int, int], str],
    lines: Iterable[tuple[str, int, int, str]],
) -> Result:
    """A file's result with some findings as ones that need a look, with their groups.

    `lines` are those of statements that a question decides, with the reason.
    """
    reasons: dict[int, str] = {}
    for path, first, last, why in lines:
        if path == result.path and first:
            reasons.update(dict.fromkeys(range(first, last + 1), why))
    told = [
        held.get((result.path, each.line, each.column), reasons.get(each.line))
        for each in result.findings
    ]
    pairs = list(zip(result.findings, told, strict=True))
    groups = {each.group: reason for each, reason in pairs if reason is not None and each.group}
    found = []
    for each, own in pairs:
        reason = own if own is not None else groups.get(each.group or "")
        if reason is not None and each.edits and each.tier is Tier.SAFE and each.rule != "JM001":
            each = replace(each, tier=Tier.UNSAFE, reason=reason)
        found.append(each)
    if not any(each.needs and each.edits and each.tier is Tier.SAFE for each in found):
        found = [
            replace(e, tier=Tier.UNSAFE) if e.rule == "JM001" and e.after else e for e in found
        ]
    return replace(result, findings=tuple(found))
