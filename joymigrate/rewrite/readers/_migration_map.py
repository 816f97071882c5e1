"""The vocabulary of one move as readers ask for it, and the findings that they make from it."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joymigrate.chips import NameAdvice, relate
from joymigrate.language import Text
from joymigrate.model import Edit, Finding, Style, Tier
from joymigrate.rewrite import flow_sinks
from joymigrate.rewrite.context import Context
from joymigrate.rewrite.readers._words import EXPANDED
from joymigrate.rewrite.source import SourceText

INDEX = rf"(?P<index>:(?:\d+|{EXPANDED}))?"
NO_LETTERS = bytes(at for at in range(128) if not chr(at).isalpha())
WORST = (Tier.SAFE, Tier.UNSAFE, Tier.REPORT)


def worse(*tiers: Tier) -> Tier:
    """The least trusted of some tiers."""
    return max(tiers, key=WORST.index)


@dataclass(frozen=True, slots=True)
class MigrationMap:
    """Names of the origin and what becomes of them, for one context.

    `variables` maps a rule to patterns of canonical variable names, `canonical` an own name of
    the origin to its canonical one.
    """

    context: Context
    renames: Mapping[str, NameAdvice]  # environment variables by the origin's own names
    tools: Mapping[str, NameAdvice]
    canonical: Mapping[str, str]
    patterns: tuple[tuple[str, re.Pattern[str]], ...]
    ours: re.Pattern[str]  # a variable outside `renames` that a rule may still know
    mention: Mapping[str, tuple[str, ...]]  # words by a stem that they share
    letters: Mapping[str, bytes]  # the letters of each stem
    known: dict[str, tuple[str, NameAdvice] | None] = field(default_factory=dict)
    sinks: dict[str, str | None] = field(default_factory=dict)

    @property
    def agnostic(self) -> bool:
        """Whether the result must work on both platforms."""
        return self.context.style.portable

    @property
    def moves_device(self) -> bool:
        """Whether the two platforms call their device differently."""
        return self.context.origin.device != self.context.chip.device

    def variable(self, name: str) -> tuple[str, NameAdvice] | None:
        """Rule and advice for an environment variable of the origin; None for any other name."""
        if name not in self.known:
            self.known[name] = self._variable(name)
        return self.known[name]

    def _variable(self, name: str) -> tuple[str, NameAdvice] | None:
        advice = self.renames.get(name) or self._by_pattern(name)
        if advice is not None and advice.keeps and advice.tier is Tier.SAFE:
            return None  # the target reads the same variable
        if advice is None and not self.ours.fullmatch(name):
            return None
        canonical = self.canonical.get(name, name)
        for rule, pattern in self.patterns:
            if pattern.fullmatch(canonical):
                return rule, advice or NameAdvice(name=name)
        return None

    def _by_pattern(self, name: str) -> NameAdvice | None:
        """The advice of a wildcard entry (`NVTE_*`)."""
        for pattern, advice in self.renames.items():
            if "*" in pattern and fnmatch.fnmatchcase(name, pattern):
                kept = name if advice.to == advice.name else None
                return NameAdvice(name, kept, Tier.REPORT, advice.note, advice.source, advice.date)
        return None

    def device(self, text: str) -> re.Match[str] | None:
        """The device string that `text` is: `cuda`, `cuda:0`, `cuda:` and something unknown."""
        return device_text(self.context.origin.device).fullmatch(text)

    def sink(self, name: str) -> str | None:
        """`device` or `backend` for an option, key or variable that is known to hold one."""
        if name not in self.sinks:
            self.sinks[name] = self._sink(name)
        return self.sinks[name]

    def _sink(self, name: str) -> str | None:
        plain = name.strip("-+").rpartition(".")[2].replace("-", "_").lower()
        found = flow_sinks.load(self.context.origin.device).keyword(plain)
        found = found or dict(self.context.options).get(plain)
        if found:
            return found
        if plain.endswith(("_backend", "comm_backend_name")):
            return flow_sinks.BACKEND
        return None


@functools.cache
def device_text(device: str) -> re.Pattern[str]:
    """A device's name, alone or with an index behind it."""
    return re.compile(re.escape(device) + INDEX)


@functools.lru_cache(maxsize=32)
def moves_of(context_key: tuple[Path, Path, Style]) -> dict[str, Any]:
    """Parts of `MigrationMap` that are costly to make; filled by `moves`."""
    return {}


def migration_map(context: Context) -> MigrationMap:
    """The vocabulary of a context, made once."""
    slot = moves_of((context.origin.folder, context.chip.folder, context.style))
    known: MigrationMap | None = slot.get("moves")
    if (
        known is None
        or known.context.rules is not context.rules
        or known.context.options != context.options
    ):
        slot["moves"] = known = make(context)
    return known


def make(context: Context) -> MigrationMap:
    """Read the vocabulary out of chips and rules."""
    relation = relate(context.origin, context.chip)
    own = {each.to or name: name for name, each in context.origin.variables().items()}
    patterns = tuple(
        (rule.id, variables_pattern(item))
        for rule in context.rules.values()
        for item in rule.match
        if "variables" in item
    )
    is_canonical = context.origin.origin
    ours = "|".join(pattern.pattern for _, pattern in patterns) if is_canonical else r"(?!)"
    mention = find_mentions(context, [*relation.variables, *relation.tools])
    return MigrationMap(
        context,
        relation.variables,
        relation.tools,
        own,
        patterns,
        re.compile(ours or r"(?!)"),
        mention,
        {stem: stem.encode().translate(None, NO_LETTERS) for stem in mention},
    )


def variables_pattern(item: Mapping[str, Any]) -> re.Pattern[str]:
    """One expression for the names and wildcards of a rule's `variables`, less its `except`."""
    names = "|".join(fnmatch.translate(name) for name in item["variables"])
    other = "|".join(fnmatch.translate(name) for name in item.get("except", ()))
    return re.compile(f"(?:(?!{other})(?:{names}))" if other else f"(?:{names})")


@dataclass(slots=True)
class Sites:
    """The findings of one file as they are made. Two edits never overlap: the first one stays."""

    source: SourceText
    context: Context
    moves: MigrationMap
    found: list[Finding] = field(default_factory=list)
    floor: Tier = Tier.SAFE  # nothing below this tier; set where the text itself is unsure
    doubt: str = ""  # why
    handled: dict[str, str] = field(default_factory=dict)  # subject → the target's name that stands
    weak: set[str] = field(default_factory=set)  # subjects of which one site is not safe
    _subjects: list[str] = field(default_factory=list)
    _taken: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, source: SourceText, context: Context) -> Sites:
        """No findings yet."""
        return cls(source, context, migration_map(context))

    def add(
        self,
        rule: str,
        start: int,
        end: int,
        after: str | None = None,
        *,
        tier: Tier | None = None,
        reason: str | None = None,
        edits: Iterable[tuple[int, int, str]] | None = None,
        subject: str = "",
    ) -> None:
        """Note a site over `text[start:end]`; without `after` it is reported.

        `edits` are (start, end, text) where several places change, `after` is then what is shown.
        Sites of one `subject` (a variable, the device) are moved together or not at all.
        """
        text = self.source.text
        if after == text[start:end] and edits is None:
            return
        known = self.context.rules.get(rule)
        if known is None:
            return
        spans = list(edits) if edits is not None else [(start, end, after or "")]
        own = tier or known.tier
        tier = worse(own, self.floor) if after is not None else Tier.REPORT
        if after is not None and tier is not own:
            reason = self.doubt  # what holds the edit back, not what else there is to say
        reason = None if tier is Tier.SAFE else reason or self.doubt
        made: tuple[Edit, ...] = ()
        if tier is not Tier.REPORT:
            made, refused = self._edits(spans)
            if refused:
                tier, reason = Tier.REPORT, refused
        report = tier is Tier.REPORT
        finding = self.source.finding(
            known,
            start,
            end,
            after=None if report else after,
            reason=(reason or known.why or known.message) if report else reason or None,
            tier=tier,
            message=Text.of(known.message).filled(before=text[start:end]),
            edits=made,
        )
        self._subjects.append(subject)
        self.found.append(finding)

    def _edits(self, spans: list[tuple[int, int, str]]) -> tuple[tuple[Edit, ...], str]:
        """The edits of some spans, or why they can't be made."""
        if not self._free(spans):
            return (), "another change of the same place comes first"
        try:
            made = tuple(self.source.edit(*span) for span in spans)
        except UnicodeEncodeError:
            return (), Text("can't be written in {encoding}", encoding=self.source.encoding)
        self._taken += [(first, last) for first, last, _ in spans]
        return made, ""

    def take(self, finding: Finding) -> None:
        """Note a finding that was made by others, in text that no reader here edits."""
        self._subjects.append("")
        self.found.append(finding)

    def deals_with(self, subject: str, name: str) -> None:
        """Note that the file names the target's `name` already: nothing else is renamed to it.

        Text that is edited on request only doesn't count: it may be what an earlier run left.
        """
        if self.floor is Tier.SAFE:
            self.handled[subject] = name

    def _free(self, spans: Iterable[tuple[int, int, str]]) -> bool:
        """Whether no earlier edit touches these spans."""
        return not any(
            first < taken_end and taken_start < max(last, first + 1)
            for first, last, _ in spans
            for taken_start, taken_end in self._taken
        )

    def ordered(self) -> Iterator[Finding]:
        """The findings by position, those of one subject with one tier."""
        settled = (
            self._settled(finding, subject)
            for finding, subject in zip(self.found, self._subjects, strict=True)
        )
        yield from sorted(settled, key=lambda f: (f.line, f.column, f.rule))

    def _settled(self, finding: Finding, subject: str) -> Finding:
        """A finding after what was learnt about its subject elsewhere in the file."""
        if finding.tier is Tier.REPORT or not subject:
            return finding
        if subject in self.handled:
            known = Text("this file already deals with {name}", name=self.handled[subject])
            return finding.leave(known)
        if subject in self.weak and finding.tier is Tier.SAFE:
            reason = "moves together with another place of this file that needs review"
            return finding.doubt(finding.reason or reason)
        return finding


def worth_reading(sites: Sites) -> bool:
    """Whether the file mentions anything of the origin at all; parsing costs more than looking."""
    text = sites.source.text.lower()
    # Most of a large file is numbers: without them a word is looked for in a tenth of it.
    letters = sites.source.data.lower().translate(None, NO_LETTERS)
    for stem, words in sites.moves.mention.items():
        if sites.moves.letters[stem] not in letters or stem not in text:
            continue
        if any(stands_alone(word, text) for word in words):
            return True
    return False


def stands_alone(word: str, text: str) -> bool:
    """Whether `word` occurs outside of a longer name; one that ends in `_` is a beginning."""
    at = text.find(word)
    while at >= 0:
        before, after = text[at - 1 : at], text[at + len(word) : at + len(word) + 1]
        ends = word.endswith("_") or not (after.isalpha() or after == "_")
        if ends and not (before.isalnum() or before == "_"):
            return True
        at = text.find(word, at + 1)
    return False


def find_mentions(context: Context, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Words of which every file with a site of this move contains one, by a stem they share."""
    origin = context.origin
    words = {origin.device, origin.backend, origin.name, *names}
    words |= {str(origin.launch[key]) for key in ("runtime", "resource") if origin.launch.get(key)}
    words |= {str(image).partition("/")[0] for image in origin.launch.get("images") or ()}
    words |= {str(origin.launch.get("docker") or "").partition(" ")[0].strip("-")}
    words |= {"gres"} if origin.launch.get("gres") else set()
    if origin.origin:
        settings = (name.split("=") for name in context.chip.attributes())
        words |= {key if value == "True" else value for key, value in settings}
    words |= {"distributed_type", "zero_optimization", "pip install", "conda install"}
    found: dict[str, list[str]] = {}
    for word in sorted({each.partition("*")[0].lower() for each in words} - {""}, key=len):
        stem = next((known for known in found if known in word), word)
        found.setdefault(stem, []).append(word)
    return {stem: tuple(each) for stem, each in found.items()}
