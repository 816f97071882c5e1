"""Kinds of questions, each with tests of its own: what few clients ask for is wrong at their
requests alone, and would be lost among everybody's good answers.

A kind is a path with the fields that are asked for, the model, who speaks how, and how much was
said. All kinds together accuse a sound standby at most four times as often as one test of all
answers does (a bound; most kinds never differ at all).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from joymigrate.run.serve.gateway.calls import Call
from joymigrate.run.serve.gateway.evidence import EProcess

KINDS = 128  # kinds that are told apart
KIND_PAIRS = 16  # of each kind of question, whatever its share of the traffic
SHARES = 32  # each kind's test takes this part of the false alarms that one aspect may give
RECENT = 50  # pairs in which a kind must have been asked to be waited for
LABEL = 200  # characters of a kind's name
SIZES = (1_000, 4_000, 16_000)  # bytes of a question: a few words, a page, a document
LENGTHS = ("short", "a page", "long", "huge")
WORDS = 40  # characters of a value that names a kind


@dataclass(slots=True)
class Kind:
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
    known: dict[str, Kind] = field(default_factory=dict)
    tripped: dict[str, str] = field(default_factory=dict)  # aspect -> kind

    def add(self, label: str, told: Mapping[str, bool], number: int) -> list[str]:
        """Take what pair `number` says; the aspects whose test trips with it."""
        kind = self.known.get(label)
        if kind is None:
            if not label or len(self.known) >= KINDS:
                return []
            kind = self.known[label] = Kind()
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
            kind = self.known[label] = Kind(int(pairs), int(last), dict(against))
            for name, state in tests.items():
                if name in self.limits:
                    test = kind.tests[name] = EProcess(self.limits[name], self.alpha / SHARES)
                    test.restore(state)


Key = tuple[Hashable, ...]


def key_of(call: Call) -> Key:
    """What makes a kind: the path, the fields (also whether one is false), some fields' values,
    who speaks how, and how much. Asked of every request: it makes no text."""
    body = call.parsed or {}
    get = body.get
    model, choice, effort = get("model"), get("tool_choice"), get("reasoning_effort")
    form, messages = get("response_format"), get("messages")
    spoken: frozenset[Key] = frozenset()
    if isinstance(messages, list):
        spoken = frozenset([(word(one, "role"), shape(one)) for one in messages
                            if isinstance(one, dict)])  # fmt: skip
    return (
        call.path.partition("?")[0],
        frozenset([name if value is not False else f"no {name}" for name, value in body.items()]),
        model if type(model) is str else None,
        choice if type(choice) is str else None,
        effort if type(effort) is str else None,
        word(form, "type") if isinstance(form, dict) else None,
        spoken,
        min(len(messages), 3) if isinstance(messages, list) else None,
        LENGTHS[bisect_right(SIZES, len(call.body))],
    )  # fmt: skip


def word(source: Mapping[str, Any], name: str) -> str | None:
    """A field's value where it is a text."""
    value = source.get(name)
    return value if isinstance(value, str) else None


def shape(message: Mapping[str, Any]) -> str | None:
    """Whether a message is a text (None), or which parts it has."""
    content = message.get("content")
    if isinstance(content, str):
        return None
    if not isinstance(content, list):
        return type(content).__name__
    kinds = {str(part.get("type")) for part in content if isinstance(part, dict)}
    return "parts " + "+".join(sorted(kinds))


def label_of(call: Call) -> str:
    """The name of a question's kind."""
    path, fields, model, choice, effort, form, spoken, count, size = key_of(call)
    said = {"model": model, "tool_choice": choice, "reasoning_effort": effort, "format": form}
    parts = [str(path), *sorted(fields)]  # type: ignore[call-overload]
    parts += [f"{name} {value}" for name, value in said.items() if value is not None]
    parts += sorted(f"{role} {kind or 'text'}" for role, kind in spoken)  # type: ignore[attr-defined]
    parts += [f"{count} messages"] if count is not None else []
    text = ", ".join([part[:WORDS] for part in parts] + [str(size)])
    return text if len(text) <= LABEL else f"{text[: LABEL - 9]} {crc32(text.encode()):08x}"
