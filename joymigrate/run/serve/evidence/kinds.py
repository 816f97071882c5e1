"""Kinds of questions, each with tests of its own: what few clients ask for is wrong at their
requests alone, and would be lost among everybody's good answers.

A kind is a path with the fields that are asked for, the model, who speaks how, and how much was
said. All kinds together accuse a sound standby at most four times as often as one test of all
answers does (a bound; most kinds never differ at all).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from joymigrate.run.serve.evidence.rule import EProcess

KINDS = 128  # kinds that are told apart
KIND_PAIRS = 16  # of each kind of question: a doubt must come before the ramp does
SHARES = 32  # each kind's test takes this part of the false alarms that one aspect may give
RECENT = 50  # pairs in which a kind must have been asked to be waited for


@dataclass(slots=True)
class QuestionKind:
    """What was compared of one kind of question."""

    pairs: int = 0
    last: int = 0  # number of the newest pair
    against: dict[str, int] = field(default_factory=dict)
    tests: dict[str, EProcess] = field(default_factory=dict)  # by aspect


@dataclass(slots=True)
class Kinds:
    """All kinds of one attempt. `limits` are the tolerable shares by aspect, `alpha` is shared."""

    limits: Mapping[str, float]
    alpha: float
    known: dict[str, QuestionKind] = field(default_factory=dict)
    tripped: dict[str, str] = field(default_factory=dict)  # aspect -> kind

    def add(self, label: str, told: Mapping[str, bool], number: int) -> list[str]:
        """Take what pair `number` says; the aspects whose test trips with it."""
        kind = self.known.get(label)
        if kind is None:
            if not label or len(self.known) >= KINDS:
                return []
            kind = self.known[label] = QuestionKind()
        kind.pairs += 1
        kind.last = number
        tripped = []
        for name, worse in told.items():
            if name not in self.limits:
                continue
            test = kind.tests.get(name)
            if test is None:
                test = kind.tests[name] = EProcess(self.limits[name], self.alpha / SHARES)
            if not worse:
                test.successes(1)
                continue
            kind.against[name] = kind.against.get(name, 0) + 1
            if not test.tripped and test.failure():
                self.tripped[name] = label
                tripped.append(name)
        return tripped

    def restart(self) -> None:
        """Let the tests begin again; the counts stay."""
        self.tripped.clear()
        for kind in self.known.values():
            kind.tests.clear()
            kind.against.clear()

    @property
    def level(self) -> float:
        """How near the nearest test is to its decision."""
        return max((t.level for kind in self.known.values() for t in kind.tests.values()),
                   default=0.0)  # fmt: skip

    def missing(self, number: int) -> str:
        """Which kind that clients ask at present was compared too seldom; `number`: of the newest
        pair."""
        for label, kind in self.known.items():
            if kind.pairs < KIND_PAIRS and number - kind.last < RECENT:
                return f"{kind.pairs} of {KIND_PAIRS} compared answers to one kind ({label})"
        return ""

    def describe(self, name: str) -> tuple[int, int, str]:
        """How often an aspect of a kind that tripped was worse, of how many, and the kind."""
        label = self.tripped[name]
        kind = self.known[label]
        return kind.against.get(name, 0), kind.tests[name].requests, label

    def state(self) -> dict[str, Any]:
        """What must survive a restart."""
        return {
            label: [kind.pairs, kind.last, kind.against,
                    {name: test.state() for name, test in kind.tests.items()}]
            for label, kind in self.known.items()
        }  # fmt: skip

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take up a saved `state` in place of what was known: what came behind it comes again."""
        self.known.clear()
        self.tripped.clear()
        for label, (pairs, last, against, tests) in list(saved.items())[:KINDS]:
            kind = self.known[label] = QuestionKind(int(pairs), int(last), dict(against))
            for name, state in tests.items():
                if name in self.limits:
                    test = kind.tests[name] = EProcess(self.limits[name], self.alpha / SHARES)
                    test.restore(state)
