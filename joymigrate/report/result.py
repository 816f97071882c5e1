"""A scan with everything that a report says about it; what every format is rendered from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from joymigrate import chips
from joymigrate.evidence import count_grades, grade_line
from joymigrate.language import Language, Text
from joymigrate.model import Rule, Scan, Tier
from joymigrate.rewrite import rules
from joymigrate.rewrite.baseline import BaselineEntry
from joymigrate.rewrite.effort import from_settings
from joymigrate.rewrite.excerpts import Excerpts
from joymigrate.rewrite.readiness import Readiness, RuleEffort, assess

INSTALLED = "site-packages/"


@dataclass(frozen=True, slots=True)
class ScanResult:
    """One scan, its summary, the rules behind it and the sources below it.

    `known` counts findings that a baseline took out (None without one), `stale` are the
    baseline's entries that no longer occur, `base` is the revision of `--diff`. Shown paths are
    relative to `folder`, the caller's working directory.
    """

    scan: Scan
    readiness: Readiness
    rules: Mapping[str, Rule]
    excerpts: Excerpts
    folder: Path
    known: int | None = None
    stale: tuple[BaselineEntry, ...] = ()
    base: str | None = None
    show_kept: bool = False
    statistics: bool = False
    say: Language = field(default_factory=Language)

    def prefix(self) -> str | None:
        """What leads from `folder` to the scan's root: `""`, `"src/"`; None when it lies outside.

        GitHub and SARIF viewers look files up from the folder in which the tool ran.
        """
        root, folder = self.scan.root.resolve(), self.folder.resolve()
        if not root.is_relative_to(folder):
            return None
        inner = root.relative_to(folder).as_posix()
        return "" if inner == "." else f"{inner}/"

    def display_path(self, path: str) -> str:
        """A finding's path as the user can open it from `folder`.

        Files of followed packages have no path below the root; theirs stays as the scan names it.
        """
        if path.startswith(INSTALLED):
            return spell(path)
        prefix = self.prefix()
        whole = f"{prefix}{path}" if prefix is not None else (self.scan.root / path).as_posix()
        return spell(whole)

    def by_rule(self) -> dict[str, int]:
        """Number of findings per rule id, in order of id."""
        return dict(sorted(Counter(finding.rule for finding in self.scan.findings).items()))

    def grades(self, say: Callable[..., str]) -> str:
        """How well what a scan says of the chip is known, as a sentence: by documents alone."""
        return grade_line(count_grades("documented" for _ in self.scan.findings), say)

    def last_line(self) -> str:
        """The closing line of every text report."""
        scan = self.scan
        if not scan.findings:
            return nothing_to_do(self)
        sites = count_words(len(scan.findings), "site", self.say)
        files = count_words(len({finding.path for finding in scan.findings}), "file", self.say)
        fixable = self.say("{number} fixable with joymigrate rewrite", number=scan.count(Tier.SAFE))
        unsafe = scan.count(Tier.UNSAFE)
        more = self.say(", {number} more with --unsafe", number=unsafe) if unsafe else ""
        return self.say(
            "Found {sites} in {files} ({fixable}{more}).",
            sites=sites, files=files, fixable=fixable, more=more,
        )  # fmt: skip


def build(
    scan: Scan, effort: Mapping[str, Any] | None = None, folder: Path | None = None
) -> ScanResult:
    """A scan with its summary under `[tool.joymigrate.effort]` and the rules it was made with."""
    known = rules.load(chips.get(scan.to), origin_of(scan))
    known = {**known, **{one.id: one for one in scan.rules}}
    model = from_settings(effort or {}, known, rules.AREAS)
    return ScanResult(
        scan, assess(scan, model, known), known, Excerpts(scan.root), folder or Path.cwd()
    )


def translate(result: ScanResult, say: Language) -> ScanResult:
    """The result with the texts of its rules and findings in one language."""
    if say.lang == "en":
        return result
    scan, found = result.scan, result.readiness

    def item(one: RuleEffort) -> RuleEffort:
        return replace(one, title=say(one.title), message=say(one.message))

    return replace(
        result,
        say=say,
        scan=replace(
            scan,
            findings=tuple(
                replace(one, message=say(one.message), reason=one.reason and say(one.reason))
                for one in scan.findings
            ),
            skipped=tuple(replace(one, reason=say(one.reason)) for one in scan.skipped),
        ),
        readiness=replace(found, items=tuple(map(item, found.items))),
        rules=rules.translate(result.rules, say),
    )


def origin_of(scan: Scan) -> chips.Chip:
    """The chip that a scan migrates from, which it knows by name or by device."""
    known = chips.all_chips()
    if scan.origin in known:
        return known[scan.origin]
    default = chips.origin()
    if default.device == scan.origin:
        return default
    return next((chip for chip in known.values() if chip.device == scan.origin), default)


def nothing_to_do(result: ScanResult) -> str:
    """The closing line where there is no finding; says so, and what it is based on."""
    scan = result.scan
    say = result.say
    read = say("{files} read", files=count_words(scan.scanned, "file", say))
    if result.base is not None:
        since = "Nothing to do: no site on lines new since {base} ({read})."
        return say(since, base=result.base, read=read)
    if result.known:
        sites = count_words(result.known, "site", say)
        return say("Nothing new: {sites} of the baseline remain ({read}).", sites=sites, read=read)
    if scan.scanned == 0:
        return say("Nothing to do: no file that joymigrate reads.")
    return say("Nothing to do: no {origin} site ({read}).", origin=scan.origin, read=read)


def spell(path: str) -> str:
    """A path on one line: line ends and other control characters as escapes."""
    if path.isprintable():
        return path
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in path)


def count_words(number: int, noun: str, say: Language | None = None) -> str:
    """`1 site`, `2 sites`."""
    words = Text(f"{{number}} {noun}{{number_s}}", number=number)
    return say(words) if say is not None else words
