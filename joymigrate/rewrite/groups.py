"""Edits with one meaning are one group: written together or not at all.

An *expression* makes a group: of the places in it that name the origin all are written or none, so
that no expression of an output mixes both devices. Places that fail without the device, and those
that decide what runs, are noted for the last word on a project (`solve`), which knows what guards
what.

Left alone as a whole: assignments to names of torch itself (another vendor's shim, a test's monkey
patch), and branches of other back ends.
"""

from __future__ import annotations

import ast
import bisect
import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from joymigrate.language import Text
from joymigrate.model import Finding, Style, Tier
from joymigrate.rewrite import conditions, foreign, kernel_names, profiler
from joymigrate.rewrite.display_values import is_for_eyes
from joymigrate.rewrite.expressions import (
    Expression,
    OriginMention,
    decisive,
    expressions,
    is_caught,
    mentions,
)
from joymigrate.rewrite.module import Module, StayingPlace
from joymigrate.rewrite.proof import label
from joymigrate.rewrite.scopes import FUNCTIONS

BEYOND_SHIM = ("JM105", "JM107")  # absent names; what means something else on the target
PROFILER = "JM160"
DEVICE = "JM120"  # a text that is seen to arrive at a device
STAYS = "it goes with `{text}` (line {line}), which stays"


Doubts = Callable[["FindingGroups"], Mapping[int, str]]


class FindingGroups:
    """The groups of one module's findings."""

    def __init__(self, module: Module, findings: list[Finding]) -> None:
        self.module = module
        self.findings = findings
        self.members: dict[int, list[int]] = defaultdict(list)  # expression → findings with edits
        for number, finding in enumerate(findings):
            alone = not finding.edits or self.offset(finding) in self.shown
            at = None if alone else self.expression_at(self.offset(finding))
            if at is not None and finding.rule != "JM001" and finding.group is None:
                self.members[at].append(number)
        self.elsewhere: set[int] = set()  # left since they are of other back ends or vendors
        self.stay: dict[int, str] = {}  # finding → why it is not written
        self.doubtful: dict[int, str] = {}  # finding → why it needs review
        self.moved: list[tuple[OriginMention, int]] = []  # places and the findings over them
        self.mentions = list(self._mentions())
        if module.context.style is Style.SHIM:
            self.mentions = [each for each in self.mentions if self._beyond_shim(each)]

    # -- places --------------------------------------------------------------------------------

    @functools.cached_property
    def expressions(self) -> list[Expression]:
        """The whole expressions of the file, in order; few files without an edit need them."""
        return sorted(expressions(self.module), key=lambda each: each.start)

    @functools.cached_property
    def _starts(self) -> list[int]:
        return [each.start for each in self.expressions]

    @functools.cached_property
    def shown(self) -> set[int]:
        """Where a version of the origin's toolkit is told to people: it stands for itself."""
        version = f"torch.version.{self.module.vocabulary.device}"
        if version not in self.module.source.text:
            return set()
        chains = self.module.names.imported_chains()
        told = (node for node, dotted in chains if dotted == version and is_for_eyes(node))
        return {self.module.span(node)[0] for node in told}

    def offset(self, finding: Finding) -> int:
        """Where a finding starts in the text."""
        return self.module.source.starts[finding.line - 1] + finding.column - 1

    def expression_at(self, offset: int) -> int | None:
        """The number of the expression that holds an offset."""
        at = bisect.bisect_right(self._starts, offset) - 1
        return at if at >= 0 and offset < self.expressions[at].end else None

    def _mentions(self) -> Iterator[OriginMention]:
        """Places that name the origin and that no edit touches."""
        source = self.module.source
        spans = sorted(
            (edit.start, edit.end, number)
            for number, finding in enumerate(self.findings)
            for edit in finding.edits
        )
        starts = [start for start, _, _ in spans]
        for mention in mentions(self.module):
            first, last = source.to_bytes(mention.start), source.to_bytes(mention.end)
            left = bisect.bisect_left(starts, first)
            over = [number for start, _, number in spans[left : left + 1] if start < last]
            over += [number for _, end, number in spans[max(0, left - 1) : left] if end > first]
            if not over:
                yield mention
                continue
            self.moved += [(mention, number) for number in over]

    def _beyond_shim(self, mention: OriginMention) -> bool:
        """Whether the shim does not bring what a place names: the rest works as it is written."""
        source = self.module.source
        first, last = source.position(mention.start), source.position(mention.end)
        return any(
            each.rule in BEYOND_SHIM and first <= (each.line, each.column) < last
            for each in self.findings
        )

    # -- groups --------------------------------------------------------------------------------

    def bind(self, doubts: Doubts) -> list[Finding]:
        """The findings with their groups; those whose group can't be written are reports."""
        if self.members:
            self._leave_foreign(foreign.parts(self.module))
        project, chip = self.module.project, self.module.context.chip.name
        for named, reason in (
            (project.twin, Text("`{twin}` does this for {chip}", twin=project.twin, chip=chip)),
            (project.foreign, Text(foreign.FOREIGN, backend=project.foreign)),
            (project.reserved, Text(foreign.RESERVED, place=project.reserved)),
        ):
            if named:
                self._leave(range(len(self.findings)), reason)
        self.elsewhere = set(self.stay)
        decided = set(self.stay)
        if self.members:
            self._leave_foreign(foreign.questions(self.module))
        for mention in self.mentions:
            if mention.start in self.shown:
                continue
            at = self.expression_at(mention.start) if self.members else None
            if at is not None and not self._mixed_before(at) and not is_label(mention.node):
                self._leave(self.members.get(at, ()), self._why(mention))
            if mention.hard:
                self._stand(mention)
            self._leave_class(mention)
            self.ask(mention)
        self._leave_profiler()
        for mention, number in self.moved:
            if number in decided:
                continue
            self.ask(mention)
            if mention.hard or self.findings[number].rule == DEVICE:
                self._stand(mention)
        for number, why in doubts(self).items():
            self.doubtful.setdefault(number, why)
        return self._written()

    def _leave_class(self, mention: OriginMention) -> None:
        """Leave a class that is named for the device whole, where it names its cards in texts.

        `class CUDA_Accelerator` with `return f"cuda:{index}"`: the project's entry for that device.
        """
        text = self.module.source.text[mention.start : mention.end]
        if not isinstance(mention.node, (ast.Constant, ast.JoinedStr)) or ":" not in text:
            return
        owner = self.module.names.enclosing(mention.node, (ast.ClassDef,))
        if owner is not None and kernel_names.own_name(self.module).search(owner.name):
            self._leave(self._inside([owner]), self._why(mention))

    def _leave_profiler(self) -> None:
        """Leave the profiler where something is read from torch's that the target's has not."""
        names = [n for n, f in enumerate(self.findings) if f.rule == PROFILER and f.edits]
        reason = profiler.lacking_result(self.module) if names else None
        if reason is not None:
            self._leave(names, reason)

    def _blocks(self) -> Iterator[list[int]]:
        """Findings that are written together: those of an expression, and all of the profiler.

        It takes its own activities alone: `kinds.append(ProfilerActivity.CUDA)` goes with it.
        """
        whole: list[int] = []
        for numbers in self.members.values():
            if any(self.findings[number].rule == PROFILER for number in numbers):
                whole += [number for number in numbers if number not in self.elsewhere]
            else:
                yield numbers
        if whole:
            yield whole

    def _written(self) -> list[Finding]:
        names: dict[int, str] = {}
        tiers: dict[str, Tier] = {}
        told_of: dict[str, str] = {}
        for numbers in self._blocks():
            if any(number in self.stay for number in numbers):
                reason = next(self.stay[number] for number in numbers if number in self.stay)
                self._leave(numbers, reason)
            first = self.findings[numbers[0]]
            name = f"{first.path}:{first.line}:{first.column}"
            names.update(dict.fromkeys(numbers, name))
            unsafe = any(self.findings[number].tier is Tier.UNSAFE for number in numbers)
            behind = next((self.doubtful[n] for n in numbers if n in self.doubtful), None)
            unsafe = unsafe or behind is not None
            told_of[name] = behind or Text("the rest of its expression needs review")
            tiers[name] = Tier.UNSAFE if unsafe else Tier.SAFE
        done = []
        for number, finding in enumerate(self.findings):
            if number in self.stay:
                finding = finding.leave(self.stay[number])
            elif number in names:
                tier = tiers[names[number]]
                told = finding.reason
                if tier is not finding.tier and told is None:
                    told = told_of[names[number]]
                finding = replace(finding, group=names[number], tier=tier, reason=told)
            elif number in self.doubtful and finding.edits and finding.tier is Tier.SAFE:
                finding = finding.doubt(self.doubtful[number])
            done.append(finding)
        return done

    def _leave(self, numbers: Iterable[int], reason: str) -> None:
        for number in numbers:
            self.stay.setdefault(number, reason)

    def _why(self, mention: OriginMention) -> str:
        text = self.module.source.text[mention.start : mention.end]
        line, _ = self.module.source.position(mention.start)
        return Text(STAYS, text=shorten(text), line=line)

    def _mixed_before(self, at: int) -> bool:
        """Whether the program's author wrote both devices into one expression."""
        words = self.module.vocabulary.target_words
        each = self.expressions[at]
        text = self.module.source.text[each.start : each.end]
        return words is not None and words.search(text) is not None

    def _inside(self, parts: Iterable[ast.AST]) -> list[int]:
        """Findings with edits inside statements."""
        found = []
        for part in parts:
            start, end = self.module.span(part)
            first = bisect.bisect_left(self._starts, start)
            last = bisect.bisect_left(self._starts, end)
            for at in range(first, last):
                found += self.members.get(at, [])
        return found

    # -- what is not ours to touch -------------------------------------------------------------

    def _leave_foreign(self, places: Iterable[tuple[ast.AST, str]]) -> None:
        """Leave shims and monkey patches, and what other back ends are asked for."""
        for node, reason in places:
            if isinstance(node, ast.Module):
                self._leave(range(len(self.findings)), reason)
                continue
            at = self.expression_at(self.module.span(node)[0])
            around = self.members.get(at, ()) if at is not None else ()
            self._leave([*self._inside([node]), *around], reason)

    # -- what the last word asks of ------------------------------------------------------------

    def _stand(self, mention: OriginMention) -> None:
        """Note a place that fails without the device, for the conditions before it."""
        nodes: list[ast.AST] = [mention.node]
        if isinstance(mention.node, ast.Constant):  # the name of an accelerator
            nodes += self._calls_around(mention.node)
        for node in nodes:
            served = self.module.guarded(node) or foreign.elsewhere(self.module, node)
            if not served and not is_caught(node):
                self._note(mention, self.module.span(node)[0])

    def ask(self, mention: OriginMention) -> None:
        """Note a place that decides what runs, for what runs behind it."""
        at = self.expression_at(mention.start) if decisive(mention) else None
        if at is not None:
            self._note(mention, self.expressions[at].start, asked=self.expressions[at].end)

    def _note(self, mention: OriginMention, at: int, asked: int = 0) -> None:
        (start, end), source = (mention.start, mention.end), self.module.source
        line, text = source.position(start)[0], shorten(source.text[start:end])
        self.module.holding.add(StayingPlace(text, line, start, end, at, asked))

    def _calls_around(self, node: ast.AST) -> Iterator[ast.Call]:
        """Calls, in this file, of the function that a node stands in."""
        function = self.module.names.enclosing(node, FUNCTIONS)
        name = getattr(function, "name", None)
        for call in self.module.names.nodes[ast.Call] if name else ():
            called = getattr(call.func, "attr", getattr(call.func, "id", None))
            if called == name:
                yield call


def shorten(text: str) -> str:
    """A text in one line, cut where it is long."""
    shown = " ".join(text.split())
    return shown if len(shown) < 60 else shown[:59] + "…"


def is_label(node: ast.AST) -> bool:
    """Whether a text is the key under which a table gets a value: `devices["cuda"] = …`."""
    parent = getattr(node, "parent", None)
    return parent is not None and label(parent) and parent.slice is node


def bind(module: Module, findings: list[Finding], doubts: Doubts) -> list[Finding]:
    """Put findings into groups; a group that can't be written as a whole is reported.

    `doubts` tells which findings need review, and why.
    """
    if module.vocabulary.same_device:
        return findings
    if not findings:
        text, names = module.source.text, conditions.question_names(module.vocabulary.device)
        if "available" in text.lower() and names.search(text):
            groups = FindingGroups(module, findings)
            for mention in groups.mentions:
                groups.ask(mention)
        return findings
    return FindingGroups(module, findings).bind(doubts)


def complete(before: Iterable[Finding], after: Iterable[Finding]) -> list[Finding]:
    """`after` without the edits of groups of which the user's choice left out a part."""
    kept = list(after)
    sizes: dict[str, int] = defaultdict(int)
    for finding in before:
        if finding.group and finding.edits:
            sizes[finding.group] += 1
    for finding in kept:
        if finding.group and finding.edits:
            sizes[finding.group] -= 1
    return [
        finding.leave(Text("another part of its expression is left out by choice"))
        if finding.group and sizes[finding.group]
        else finding
        for finding in kept
    ]
