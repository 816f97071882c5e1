"""What two backends said to the same question, and which of them that speaks against.

A pair is compared aspect by aspect. Marks (a refusal, silence, declining, no JSON where JSON was
asked for, a failed task) are seen on an answer by itself, so they speak against the side that has
them, also where that is the primary. Another text or length only says that the two differ: whose
fault that is has to be found out otherwise (see `placing`). Each aspect has a test of its own whose
false alarms stay below `ALPHA` however often it is asked (see `evidence.EProcess`). What is only
"more often worse than better" is tested against one half, what has a share of its own that is
tolerable against that share.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from joymigrate.run.serve.evidence.accounts import (
    AnswerFigures,
    counts_otherwise,
    lacks,
    names_another,
    points_elsewhere,
    scores_otherwise,
)
from joymigrate.run.serve.evidence.aspects import (
    ACCOUNTS,
    ASPECTS,
    BETWEEN,
    BROKEN,
    CANNED,
    COUNTS,
    EMPTY,
    FIELDS,
    FINISH,
    FIRST,
    FORMAT,
    LATE,
    LEAK,
    LONGER,
    LOOPS,
    MARKS,
    NAME,
    OPEN,
    REFUSAL,
    SCORES,
    SHORTER,
    SLOW,
    STATUS,
    TAIL,
    TASK,
    TEXT,
    UNLIKELY,
    WORDS,
)
from joymigrate.run.serve.evidence.bounds import log_evidence, requests_needed
from joymigrate.run.serve.evidence.events import RolloutPlan
from joymigrate.run.serve.evidence.experiment import TAIL_SHARE
from joymigrate.run.serve.evidence.failures import is_garbage
from joymigrate.run.serve.evidence.kinds import Kinds
from joymigrate.run.serve.evidence.rule import EProcess

ALPHA = 0.005
HALF = 0.5
TAIL_PAIRS = 100  # of which the primary's 99th percentile is known
UNLIKELY_SHARE = 0.02  # texts that the primary finds unlikely: two sound chips part at near ties
FINISH_SHARE = 0.02  # equal texts of one request end for one reason
CANNED_SHARE = 0.01  # answers that repeat another question's may be chance
TWICE = 2.0
GAP_SECONDS = 0.001  # pauses that differ by less are noise, and nobody sees them
ENOUGH_TEXT = 20  # characters of the longer text from which on lengths are compared
BLOCK = 500  # pairs after which the tests begin again: old good times must not hide a new fault
DECLINES = re.compile(
    r"^\W*(?:i(?:'|\u2019)?m (?:really |very )?sorry|i am sorry|sorry,"
    r"|i can(?:'|\u2019)?t (?:help|assist)|i cannot|i(?:'|\u2019)?m (?:unable|not able)"
    r"|i am unable|as an ai"
    r"|\u62b1\u6b49|\u5bf9\u4e0d\u8d77|\u6211\u65e0\u6cd5|\u6211\u4e0d\u80fd)",
    re.IGNORECASE,
)
LEAKS = re.compile(r"<\|\w+\|>|</?s>|<(?:start|end)_of_turn>|\[/?INST\]")

REPLACED = "\ufffd"
FILTERED = "content_filter"  # why a declined answer ends, by the API
FIRST_PLACES = 10  # of two rankings that are compared


@dataclass(frozen=True, slots=True)
class BackendReply:
    """One backend's answer. Times in seconds; `gap_seconds` lies between two of its pieces."""

    status: int = 200
    text: str = ""
    finish: str | None = None
    seconds: float = 0.0
    first_byte_seconds: float | None = None
    gap_seconds: float | None = None
    scores: tuple[float, ...] = ()  # of a ranking answer
    places: tuple[int, ...] = ()  # which texts they belong to; empty: all, in their order
    odd: bool = False  # JSON of another shape than this API's
    thoughts: int = 0  # characters at the text's beginning that are reasoning
    account: AnswerFigures | None = None  # what it says beside the text

    @property
    def spoken(self) -> str:
        """The answer itself."""
        return self.text[self.thoughts :]

    @property
    def good(self) -> bool:
        """Whether it is an answer at all."""
        return self.status < 400


def compare(
    theirs: BackendReply,
    ours: BackendReply,
    plan: RolloutPlan,
    *,
    greedy: bool,
    expect: str | None = None,
    wants_json: bool = False,
    tail_seconds: float | None = None,
) -> dict[str, bool]:
    """The aspects in which the standby's answer (`ours`) is worse (True) or fine (False).

    A mark that one side alone has says nothing about lengths, texts and times. `greedy`: both were
    asked for the most probable text, so that their texts can be compared. `expect`: what a right
    answer contains, where the client says so. `wants_json`: JSON was asked for. `tail_seconds`:
    the primary's 99th percentile, once it is known.
    """
    theirs, ours = without_echo(theirs), without_echo(ours)
    other, own = marks(theirs, expect, wants_json), marks(ours, expect, wants_json)
    if other != own:
        return {mark: mark in own for mark in MARKS if mark in own ^ other}
    if not theirs.good:
        return {}
    told = beside(theirs, ours, greedy=greedy)
    lengths = len(theirs.text), len(ours.text)
    if max(lengths) >= ENOUGH_TEXT and max(lengths) > TWICE * min(lengths):
        told[SHORTER] = lengths[1] < lengths[0]
        told[LONGER] = lengths[1] > lengths[0]
    if greedy and theirs.text:
        place = divergence(theirs.text, ours.text)
        told[TEXT] = place is not None and place < plan.early_characters
        told[LATE] = place is not None and not told[TEXT]
    if theirs.scores or ours.scores:
        ranked = ranks_otherwise(*align_scores(theirs, ours))
        told |= {} if ranked is None else {TEXT: ranked}
    return told | times(theirs, ours, plan.max_slowdown, tail_seconds)


def without_echo(said: BackendReply) -> BackendReply:
    """An answer without the prompt that it repeats because it was asked to."""
    echoed = said.account.echoed if said.account is not None else 0
    return replace(said, text=said.text[echoed:]) if echoed else said


def beside(theirs: BackendReply, ours: BackendReply, *, greedy: bool) -> dict[str, bool]:
    """What the accounts of two answers say; nothing where one has none."""
    one, two = theirs.account, ours.account
    if one is None or two is None:
        return {}
    same = greedy and theirs.text != "" and theirs.text == ours.text
    judged = {
        NAME: names_another(one, two),
        COUNTS: counts_otherwise(one, two, same_text=same),
        SCORES: scores_otherwise(one, two),
        FINISH: theirs.finish != ours.finish if same else None,
        TEXT: points_elsewhere(one, two),
    }
    return lacks(one, two) | {name: other for name, other in judged.items() if other is not None}


def marks(said: BackendReply, expect: str | None, wants_json: bool) -> frozenset[str]:
    """What is wrong with an answer, as far as it can be seen without another one."""
    if not said.good:
        return frozenset((STATUS,))
    found = {FORMAT} if said.odd else set()
    if not said.text.strip():
        return frozenset((*found, EMPTY))
    if DECLINES.match(said.spoken) or said.finish == FILTERED:
        found.add(REFUSAL)
    if wants_json and said.finish == "stop" and not is_json(said.spoken):
        found.add(FORMAT)
    if LEAKS.search(said.text):
        found.add(LEAK)
    if REPLACED in said.text.rstrip(REPLACED):  # the end may lie in the middle of a character
        found.add(BROKEN)
    if is_garbage(said.spoken):
        found.add(LOOPS)
    if expect is not None and expect not in said.text:
        found.add(TASK)
    return frozenset(found)


def observe(said: BackendReply, *, wants_json: bool) -> dict[str, bool | float]:
    """What the experiment looks at in one live answer: `experiment.Experiment.add`. Tokens are not
    counted: a stream without `usage` may have several in an event."""
    seen: dict[str, bool | float] = {f"ends by {said.finish}": True, "seconds": said.seconds,
                                     "characters": float(len(said.text))}  # fmt: skip
    if said.first_byte_seconds is not None:
        seen["seconds until the first byte"] = said.first_byte_seconds
    return seen | dict.fromkeys(marks(said, None, wants_json), True)


def is_json(text: str) -> bool:
    """Whether a text is a JSON value and nothing else."""
    import orjson  # judging alone needs no extra

    try:
        orjson.loads(text)
    except ValueError:
        return False
    return True


def is_another(said: BackendReply, before: BackendReply, plan: RolloutPlan) -> bool:
    """Whether a backend's answer to a question is another one than it gave before."""
    told = compare(before, said, plan, greedy=True)
    other = any(told.get(name) for name in (*OPEN, *FIELDS) if name != LATE)
    return other or any(name in told for name in MARKS)


def align_scores(
    theirs: BackendReply, ours: BackendReply
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The scores of both for the same texts. What one leaves out of its best few is its last."""
    one, two = (dict(zip(said.places, said.scores, strict=False)) for said in (theirs, ours))
    if not one or not two or len(theirs.scores) != len(ours.scores):
        return theirs.scores, ours.scores
    every = sorted({*one, *two})
    first, second = (
        tuple(scores.get(place, -math.inf) for place in every) for scores in (one, two)
    )
    return first, second


def ranks_otherwise(theirs: tuple[float, ...], ours: tuple[float, ...]) -> bool | None:
    """Whether less than half of the standby's first places are among the primary's.

    Another version of a model ranks a little otherwise, and may; this looks for a broken one.
    Equal scores share a place. None: one candidate alone has no rank.
    """
    if len(theirs) != len(ours):
        return True
    many = min(FIRST_PLACES, len(theirs) // 2)
    if not many:
        return None
    least = sorted(theirs)[-many]
    first = sorted(range(len(ours)), key=lambda place: -ours[place])[:many]
    return 2 * sum(theirs[place] >= least for place in first) < many


def times(
    theirs: BackendReply, ours: BackendReply, slowdown: float, tail_seconds: float | None
) -> dict[str, bool]:
    """The aspects of time. Texts of other lengths take other times: only the pauses and the first
    byte are comparable then. Where the primary is as slow, it is the question or the machine."""
    if not slowdown:
        return {}
    told = {}
    if theirs.seconds > 0:
        told[SLOW] = ours.seconds > slowdown * theirs.seconds
    for name, mine, other in (
        (FIRST, ours.first_byte_seconds, theirs.first_byte_seconds),
        (BETWEEN, ours.gap_seconds, theirs.gap_seconds),
    ):
        if mine is not None and other:
            noise = GAP_SECONDS if name == BETWEEN else 0.0
            told[name] = mine > slowdown * other and mine - other > noise
    if tail_seconds:
        told[TAIL] = ours.seconds > slowdown * max(tail_seconds, theirs.seconds)
    return told


def divergence(one: str, other: str) -> int | None:
    """The first character at which two texts differ; None when they are equal."""
    if one == other:
        return None
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))


@dataclass(slots=True)
class AnswerComparison:
    """All compared answers of one attempt at a rollout."""

    plan: RolloutPlan
    pairs: int = 0
    block: int = 0  # pairs since the tests began
    against: dict[str, int] = field(default_factory=dict)
    judged: dict[str, int] = field(default_factory=dict)
    kinds: Kinds = field(init=False)
    of_primary: dict[str, int] = field(default_factory=dict)  # its marks since the tests began
    nearest: float | None = None  # the level, until a pair comes
    tests: dict[str, EProcess] = field(init=False)
    primary_tests: dict[str, EProcess] = field(init=False)

    def __post_init__(self) -> None:
        limits = {name: self.limit_of(name) for name in (*MARKS, *FIELDS, *OPEN)}
        self.kinds = Kinds(limits, ALPHA)
        self.restart()

    def limit_of(self, name: str) -> float:
        """The share of answers that may be worse in an aspect."""
        own = dict.fromkeys((TEXT, LATE, *ACCOUNTS, *FIELDS), self.plan.max_different)
        own |= {
            TAIL: TAIL_SHARE,
            CANNED: CANNED_SHARE,
            UNLIKELY: UNLIKELY_SHARE,
            FINISH: FINISH_SHARE,
        }
        return own.get(name, HALF)

    def restart(self) -> None:
        """Let the tests begin again; the counts stay."""
        self.block, self.nearest = 0, None
        self.kinds.restart()
        self.tests = {name: EProcess(self.limit_of(name), ALPHA) for name in ASPECTS}
        self.primary_tests = {name: EProcess(HALF, ALPHA) for name in MARKS}
        self.of_primary = {}

    def add(self, told: Mapping[str, bool], *, paired: bool = True, kind: str = "") -> list[str]:
        """Take what a pair says; the aspects whose test trips with it, against the standby: that
        of all answers, or that of its `kind` of question."""
        self.nearest = None
        self.pairs += paired
        self.block += paired
        if self.block > BLOCK:
            self.restart()
        told = {  # what is not known is of a newer gateway
            name: worse
            for name, worse in told.items()
            if name in self.tests and name not in self.plan.unjudged
        }
        tripped = self.kinds.add(kind, told, self.pairs) if paired else []
        for name, worse in told.items():
            self.judged[name] = self.judged.get(name, 0) + 1
            test = self.tests[name]
            if paired and name in MARKS:
                self.mark_primary(name, not worse)
            if not worse:
                test.successes(1)
                continue
            self.against[name] = self.against.get(name, 0) + 1
            if not test.tripped and test.failure() and name not in tripped:
                tripped.append(name)
        return tripped

    def mark_primary(self, name: str, worse: bool) -> None:
        """Tell the test of the primary's mark."""
        test = self.primary_tests[name]
        if not worse:
            test.successes(1)
            return
        self.of_primary[name] = self.of_primary.get(name, 0) + 1
        test.failure()

    def wrong_primary(self) -> str:
        """What the primary's own answers show against it, in words; empty where they are fine.

        Its few odd answers are its own affair: only a share above `max_different` counts.
        """
        return "; ".join(
            f"{count} of the primary's last {self.block} compared answers {WORDS[name]}"
            for name, count in self.of_primary.items()
            if self.primary_tests[name].tripped and count > self.plan.max_different * self.block
        )

    def describe(self, name: str) -> str:
        """How an aspect stands, in words."""
        count, of = self.against.get(name, 0), self.judged.get(name, 0)
        if not self.tests[name].tripped and name in self.kinds.tripped:
            count, of, kind = self.kinds.describe(name)
            return (
                f"{count} of {of} compared answers of the standby to one kind of question ({kind}) "
                f"{WORDS[name]}"
            )
        return f"{count} of {of} compared answers of the standby {WORDS[name]}"

    @property
    def level(self) -> float:
        """How near the nearest test is to its decision: 0 quiet, 1 tripped."""
        if self.nearest is None:
            levels = (test.level for test in self.tests.values())
            self.nearest = max(self.kinds.level, *levels)
        return self.nearest

    def missing(self) -> str:
        """What the proof that the texts agree still needs; empty when it stands.

        Where the primary gives scores, few texts may be unlikely; else few may differ early.
        """
        texts, confidence = self.judged.get(TEXT, 0), self.plan.confidence
        claims = [(TEXT, self.plan.max_different, "differ")]
        if UNLIKELY in self.judged:
            claims.append((UNLIKELY, UNLIKELY_SHARE, "are unlikely by the primary's scores"))
        for name, limit, what in claims:
            wrong = self.against.get(name, 0)
            if log_evidence(wrong, max(texts, wrong), limit) >= log_evidence_needed(confidence):
                continue
            needed = requests_needed(wrong, limit, confidence)
            silent = self.pairs - texts
            why = f"; in {silent} pairs the primary had no text to compare" if silent else ""
            return (
                f"{texts} of {needed} compared texts to show that less than {limit:.0%} {what}{why}"
            )
        return self.kinds.missing(self.pairs)

    def state(self) -> dict[str, Any]:
        """What must survive a restart."""
        return {
            "pairs": self.pairs,
            "block": self.block,
            "against": dict(self.against),
            "judged": dict(self.judged),
            "kinds": self.kinds.state(),
            "of_primary": dict(self.of_primary),
            "primary_tests": {name: test.state() for name, test in self.primary_tests.items()},
            "tests": {name: test.state() for name, test in self.tests.items()},
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take up a saved `state`."""
        self.pairs, self.block = int(saved["pairs"]), int(saved["block"])
        self.nearest = None
        self.against, self.judged = dict(saved["against"]), dict(saved["judged"])
        self.of_primary = dict(saved.get("of_primary", {}))
        self.kinds.restore(saved.get("kinds", {}))
        for tests, states in (
            (self.tests, saved["tests"]),
            (self.primary_tests, saved.get("primary_tests", {})),
        ):
            for name, state in states.items():
                if name in tests:
                    tests[name].restore(state)


def log_evidence_needed(confidence: float) -> float:
    """The evidence that proves a claim at `confidence`, as a logarithm."""
    return -math.log1p(-confidence)
