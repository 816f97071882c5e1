"""Asks both backends the same and compares what they say, beside the clients' traffic.

Two kinds. A mirrored request goes to the standby as the client sent it to the primary. A paired
one goes to both as a short, greedy version of the client's, so that texts can be compared whatever
the client's sampling was; every step of the rollout waits for some of them. Both start after the
client has its answer, and drop what they cannot carry: an answer never changes and never waits.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from joymigrate.run.serve.evidence.answers import (
    TAIL_PAIRS,
    AnswerComparison,
    BackendReply,
    compare,
    divergence,
    is_another,
)
from joymigrate.run.serve.evidence.aspects import ASPECTS, LATE, SAMPLING, STATUS, TEXT, UNLIKELY
from joymigrate.run.serve.evidence.events import (
    PRIMARY,
    ROLLED_BACK,
    SECOND,
    AnswersCompared,
    Served,
)
from joymigrate.run.serve.evidence.failures import (
    CONTENT_TYPE,
    EMPTY,
    OWN,
    TOTAL,
    TRUNCATED,
    BackendFailure,
    is_back_pressure,
    is_refusal,
    of_status,
)
from joymigrate.run.serve.evidence.kinds import KIND_PAIRS, KINDS
from joymigrate.run.serve.evidence.rollout import Rollout
from joymigrate.run.serve.evidence.stock_answers import Canned
from joymigrate.run.serve.gateway import whole_answers
from joymigrate.run.serve.gateway.account import reply_of
from joymigrate.run.serve.gateway.attempt import Report
from joymigrate.run.serve.gateway.backend import HttpAnswer, is_ping
from joymigrate.run.serve.gateway.calls import GatewayCall, forward_headers
from joymigrate.run.serve.gateway.clock import tell_time
from joymigrate.run.serve.gateway.kinds import Key, key_of, label_of
from joymigrate.run.serve.gateway.meters import GatewayMeters
from joymigrate.run.serve.gateway.relay_parts import Heard, read_all
from joymigrate.run.serve.gateway.routing import GOLDEN
from joymigrate.run.serve.gateway.scoring import FAR_GAP, mean_gap, scoring_body
from joymigrate.run.serve.gateway.settings import ShadowSettings
from joymigrate.run.serve.gateway.shadow_calls import (
    asks_for_json,
    expected_text,
    keeps_its_answer,
    plain,
    repeating,
)
from joymigrate.run.serve.gateway.shadow_pairs import PastQuestion, ShadowPair
from joymigrate.run.serve.gateway.stream import RelayedStream
from joymigrate.run.serve.gateway.upstreams import Instance, Upstream
from joymigrate.run.serve.web.telemetry import without_context
from joymigrate.stats import wilson

KEPT_PAIRS = 1000
ANSWER_BYTES = 64 * 2**20
PAIRS_AT_ONCE = 4
NEW_AT_ONCE = 8  # of kinds that were compared too seldom: they must not wait for the others
REMEMBERED = 32  # questions whose answers are kept, to be asked again in doubt
REMEMBERED_BYTES = 64 * 1024  # longer questions are not kept
ASKED_BYTES = 2**20  # longer ones are not asked again: one client's would stall all others'
REPETITION_COST = 4  # one takes twice the requests of a pair, and is longer
REPETITIONS = 24  # sampled questions that are asked twice at once, with seeds and without
TRIES = 4 * REPETITIONS  # after so many, those that nobody could answer are asked seldom, too


@dataclass(slots=True)
class Shadow:
    """Decides what is mirrored and what is paired, asks, and tells the rollout."""

    settings: ShadowSettings
    primary: Upstream
    standby: Upstream
    rollout: Rollout
    meters: GatewayMeters
    report: Report
    compared_event: Any  # takes a `AnswersCompared`
    types: set[str]
    mirror_point: float = 0.0
    pair_point: float = 0.0
    pairing: int = 0
    repeat_point: float = 0.0
    repeating: bool = False
    repetitions: Counter[bool] = field(default_factory=Counter)  # by whether there was a seed
    tries: Counter[bool] = field(default_factory=Counter)  # the same, with those without answers
    canned: Canned = field(default_factory=Canned)
    running: set[asyncio.Task[None]] = field(default_factory=set)
    agreed: int = 0
    compared: int = 0
    same_finish: int = 0
    pairs: deque[ShadowPair] = field(default_factory=lambda: deque(maxlen=KEPT_PAIRS))
    remembered: list[PastQuestion] = field(default_factory=list)  # a fair sample of all pairs
    kinds: Counter[Key] = field(default_factory=Counter)  # pairs by kind of question
    asked: int = 0  # pairs that could have been remembered
    attempt: AnswerComparison | None = None  # the evidence of the attempt that they belong to
    random: random.Random = field(default_factory=random.Random)
    scored: bool = False  # the primary has given a score
    tail_seconds: float | None = None  # the primary's 99th percentile over the kept pairs

    @property
    def wanted(self) -> bool:
        """Whether anything is to be asked at all."""
        return self.settings.percent > 0 or self.rollout.plan.min_step_pairs > 0

    def heard(self, call: GatewayCall, heard: Heard) -> None:
        """A backend has answered a client."""
        if call.method != "POST" or self.rollout.state == ROLLED_BACK or not self.standby.up:
            return
        if heard.upstream.role == PRIMARY and call.strict and self.settings.percent > 0:
            self.mirror_point = (self.mirror_point + GOLDEN) % 100
            if self.mirror_point < self.settings.percent:
                if len(self.running) >= self.settings.concurrency:
                    self.meters.shadowed.of("dropped").add()
                else:
                    self.start(self.mirror(call, heard))
        if self.pair_is_due(call):
            self.pairing += 1
            self.start(self.pair(call))
        if self.repetition_is_due(call):
            self.repeating = True
            self.start(self.repeat(call))

    def pair_is_due(self, call: GatewayCall) -> bool:
        """Whether this question is asked again of both."""
        plan = self.rollout.plan
        if not plan.min_step_pairs or not call.api.pairs or not self.primary.up:
            return False
        if self.pairing >= NEW_AT_ONCE or call.orders or len(call.body) > ASKED_BYTES:
            return False
        if self.is_new(call):
            return True
        if self.pairing >= PAIRS_AT_ONCE:
            return False
        if self.rollout.wants_pairs:
            return True
        self.pair_point = (self.pair_point + GOLDEN) % 100
        return self.pair_point < plan.pair_percent

    def is_new(self, call: GatewayCall) -> bool:
        """Whether questions of this kind were compared too seldom: what a few clients alone ask
        for (tools, log probabilities) is wrong at their requests alone."""
        self.begin()
        kind = key_of(call)
        if self.kinds[kind] >= KIND_PAIRS or (kind not in self.kinds and len(self.kinds) >= KINDS):
            return False
        self.kinds[kind] += 1
        return True

    def begin(self) -> None:
        """Forget what belongs to an earlier attempt: the standby may be another one by now."""
        if self.attempt is not self.rollout.answers:
            self.attempt, self.asked = self.rollout.answers, 0
            self.remembered.clear()
            self.kinds.clear()
            self.repetitions.clear()
            self.tries.clear()
            self.canned = Canned()

    def start(self, work: Any) -> None:
        """Run something beside the traffic."""
        task = asyncio.get_running_loop().create_task(work)
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    # Mirrored requests

    async def mirror(self, call: GatewayCall, heard: Heard) -> None:
        """Ask the standby what the primary was asked and compare."""
        try:
            ours = await self.ask(self.standby, call)
        except BackendFailure as broken:
            self.failed(SECOND, broken.kind, call.who)
            return
        if ours is None:
            self.meters.shadowed.of("busy").add()
            return
        theirs = replace(heard.said, account=repeating(heard.said.text, call))
        failure = f"status_{ours.status}" if not ours.good else None
        if failure is None and theirs.text and not ours.text and call.greedy:
            failure = EMPTY
        if failure:
            self.failed(SECOND, failure, call.who)
        else:
            self.succeeded(SECOND, call.who)
        if ours.good and heard.comparable:
            self.compare(theirs, ours, greedy=call.greedy, call=call)

    # Sampled requests

    def repetition_is_due(self, call: GatewayCall) -> bool:
        """Whether this sampled question is asked twice of both, as it is."""
        if not self.rollout.plan.min_step_pairs or not call.strict or call.greedy:
            return False
        if self.repeating or call.parsed is None or call.searches or not self.primary.up:
            return False
        if len(call.body) > ASKED_BYTES:
            return False
        self.begin()
        seeded = call.parsed.get("seed") is not None
        if self.repetitions[seeded] < REPETITIONS and self.tries[seeded] < TRIES:
            self.tries[seeded] += 1
            return True
        self.repeat_point = (self.repeat_point + GOLDEN) % 100
        return self.repeat_point < self.rollout.plan.pair_percent / REPETITION_COST

    async def repeat(self, call: GatewayCall) -> None:
        """Ask both twice what a client asked with a temperature: does each repeat itself?

        With a seed a server should, without one it should not. Only what one does and the other
        does not is told: how often texts are equal by chance is the same for both.
        """
        try:
            asked = plain(call, sampled=True)
            texts: list[str] = []
            for _ in range(2):
                both = await self.both(asked)
                texts += [said.text if said is not None and said.good else "" for said in both]
                if not all(texts):
                    return
            seeded = (call.parsed or {}).get("seed") is not None
            self.repetitions[seeded] += 1
            told = compare_repetitions((texts[0], texts[2]), (texts[1], texts[3]), seeded=seeded)
            if told:
                self.compared_event(AnswersCompared(tell_time(), told, paired=False))
        finally:
            self.repeating = False

    # Paired requests

    async def pair(self, call: GatewayCall) -> None:
        """Ask both backends a short version of the question and compare; in doubt also an old
        question again."""
        try:
            asked = plain(call)
            theirs, ours = await self.both(asked)
            if theirs is not None and ours is not None:
                likely = await self.finds_likely(asked, theirs, ours)
                self.compare(theirs, ours, greedy=True, call=call, kind=label_of(call),
                             likely=likely)  # fmt: skip
                kept = keeps_its_answer(call) and len(asked.body) <= REMEMBERED_BYTES
                if kept and theirs.good and ours.good:
                    self.remember(PastQuestion(asked, {PRIMARY: theirs, SECOND: ours}))
            if call.choices > call.prompts:  # which the greedy question leaves out
                theirs, ours = await self.both(call)
                if theirs is not None and ours is not None:
                    kind = f"{label_of(call)}, several choices"
                    self.compare(theirs, ours, greedy=call.greedy, call=call, kind=kind)
            if self.rollout.doubt is not None and self.remembered:
                await self.again(self.random.choice(self.remembered))
        finally:
            self.pairing -= 1

    async def finds_likely(
        self, call: GatewayCall, theirs: BackendReply, ours: BackendReply
    ) -> bool | None:
        """Whether the primary, asked for a score, finds likely where the standby's text goes on its
        own way. None where it cannot say so: nobody knows which of the two is right."""
        if not (theirs.good and ours.good) or ours.thoughts:
            return None
        place = divergence(theirs.text, ours.text)
        if place is None:  # its own text, where it gives scores at all
            return True if self.scored else None
        body = scoring_body(call, ours.text)
        instance = self.primary.pick([])
        if body is None or instance is None:
            return None
        raw = orjson.dumps(body)
        try:
            answer = await self.open(self.primary, instance, replace(call, parsed=body, body=raw))
            try:
                if answer.status != 200:
                    return None
                until = time.perf_counter() + self.primary.limits.total_seconds
                parsed = orjson.loads(await read_all(answer, ANSWER_BYTES, until=until))
            finally:
                answer.close()
        except (BackendFailure, ValueError):
            return None
        length = max(1, len(ours.text) - place)
        gap = mean_gap(parsed, length) if isinstance(parsed, dict) else None
        if gap is None:
            return None
        self.scored = True
        return gap <= FAR_GAP

    async def both(self, call: GatewayCall) -> tuple[BackendReply | None, BackendReply | None]:
        """What the primary and the standby say to one question."""
        return await asyncio.gather(
            self.one_side(self.primary, call), self.one_side(self.standby, call)
        )

    def remember(self, asked: PastQuestion) -> None:
        """Keep a question with an equal chance for all of this attempt so far; none from a time of
        doubt."""
        if self.rollout.doubt is not None:
            return
        self.begin()
        self.asked += 1
        if len(self.remembered) < REMEMBERED:
            self.remembered.append(asked)
        elif (place := self.random.randrange(self.asked)) < REMEMBERED:
            self.remembered[place] = asked

    async def again(self, asked: PastQuestion) -> None:
        """Ask an old question again: has either backend's answer changed?"""
        theirs, ours = await self.both(asked.call)
        if theirs is None or ours is None or not (theirs.good and ours.good):
            return
        plan, before = self.rollout.plan, asked.answers
        changed = {
            role: is_another(said, before[role], plan)
            for role, said in ((PRIMARY, theirs), (SECOND, ours))
        }
        self.compared_event(AnswersCompared(tell_time(), paired=False, changed=changed))

    async def one_side(self, upstream: Upstream, call: GatewayCall) -> BackendReply | None:
        """One backend's answer; None where it failed or was busy. The rollout hears of it."""
        try:
            said = await self.ask(upstream, call)
        except BackendFailure as broken:
            self.failed(upstream.role, broken.kind, call.who)
            return None
        if said is not None and said.good:
            self.succeeded(upstream.role, call.who)
        return said

    def compare(
        self,
        theirs: BackendReply,
        ours: BackendReply,
        *,
        greedy: bool,
        call: GatewayCall,
        kind: str = "",
        likely: bool | None = None,
    ) -> None:
        """Keep a pair of answers to a `call` and tell the rollout what it says. `kind`: both were
        asked anew, as questions of this kind. `likely`: the primary finds the rest of a text likely
        that parts from its own; None: it could not say."""
        told = compare(
            theirs, ours, self.rollout.plan, greedy=greedy, expect=expected_text(call),
            wants_json=asks_for_json(call), tail_seconds=self.tail_seconds,
        )  # fmt: skip
        if likely is not None and TEXT in told:
            told[UNLIKELY] = not likely
            if likely:
                told[LATE] = False
        same = theirs.text == ours.text and theirs.good == ours.good
        self.compared += 1
        self.agreed += same
        self.same_finish += theirs.finish == ours.finish
        self.meters.shadowed.of("same" if same else "different").add()
        self.pairs.append(ShadowPair(theirs, ours, divergence(theirs.text, ours.text)))
        if self.compared % TAIL_PAIRS == 0:
            known = quantiles([pair.theirs.seconds for pair in self.pairs if pair.theirs.good])
            self.tail_seconds = known["p99"] if known else None
        if kind and call.strict and theirs.good and ours.good:
            told |= self.canned.judge(plain(call).body, theirs, ours)  # whoever asks
        self.compared_event(AnswersCompared(tell_time(), told, kind=kind))

    # Asking

    async def ask(self, upstream: Upstream, call: GatewayCall) -> BackendReply | None:
        """What a backend says to a question; None if it is busy, or not to be read as the
        primary is; raises `BackendFailure`."""
        instance = upstream.pick([])
        assert instance is not None
        started = time.perf_counter()
        answer = await self.open(upstream, instance, call)
        try:
            if is_back_pressure(answer.status, answer.headers):
                return None
            failure = of_status(answer.status, own_key=upstream.settings.key is not None)
            if failure:
                raise BackendFailure(failure)
            if is_refusal(answer.status):
                return BackendReply(answer.status, seconds=time.perf_counter() - started)
            encoding = answer.headers.get("Content-Encoding", "identity").strip().lower()
            if call.strict and encoding != "identity":
                what = f"{encoding}, which was not asked for"
                if upstream.role == PRIMARY or what in self.types:
                    return None  # clients live with it, and nobody here can read it
                raise BackendFailure(CONTENT_TYPE, what)
            content = answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()
            if content == "text/html":
                raise BackendFailure(CONTENT_TYPE, content)
            if content != "text/event-stream":
                strange = call.strict and "json" not in content and content
                if strange and upstream.role == SECOND and content not in self.types:
                    raise BackendFailure(CONTENT_TYPE, content)
                if not strange or not (call.parsed or {}).get("stream"):
                    return await self.one_piece(answer, call, started)
            return await self.streamed(answer, call, upstream, started)
        finally:
            answer.close()

    async def open(self, upstream: Upstream, instance: Instance, call: GatewayCall) -> HttpAnswer:
        """Send the question."""
        headers = without_context(forward_headers(call, upstream.settings))
        return await upstream.backend.open(
            instance.url, call.method, call.path, headers, call.body,
            upstream.patience(call.api.name, whole=not (call.parsed or {}).get("stream")),
        )  # fmt: skip

    async def one_piece(
        self, answer: HttpAnswer, call: GatewayCall, started: float
    ) -> BackendReply:
        """A whole answer."""
        until = started + self.primary.limits.total_seconds
        body = await read_all(answer, ANSWER_BYTES, until=until)
        read = whole_answers.judge(whole_answers.json_part(body, answer.headers), call)
        return reply_of(read, call, time.perf_counter() - started)

    async def streamed(
        self, answer: HttpAnswer, call: GatewayCall, upstream: Upstream, started: float
    ) -> BackendReply:
        """An answer in pieces, with its times."""
        stream, first = RelayedStream(call.api.form, keep=call.strict), None
        until = started + upstream.limits.total_seconds
        while not stream.done:
            received = await answer.read()
            if not received:
                if stream.end():
                    raise BackendFailure(stream.failure or TRUNCATED)
                break
            if first is None and not is_ping(received):
                first = time.perf_counter()
                answer.started()
            stream.feed(received)
            if stream.failure:
                raise BackendFailure(stream.failure)
            if time.perf_counter() > until:
                raise BackendFailure(TOTAL)
        now = time.perf_counter()
        gaps = (now - first) / (stream.tokens - 1) if first and stream.tokens > 1 else None
        return reply_of(stream, call, now - started, first - started if first else None, gaps)

    # Telling

    def failed(self, role: str, kind: str, who: str) -> None:
        """A question beside the traffic failed."""
        self.meters.shadowed.of("failed").add()
        if kind != OWN:
            self.tell(role, kind, who)

    def succeeded(self, role: str, who: str) -> None:
        self.tell(role, None, who)

    def tell(self, role: str, failure: str | None, who: str) -> None:
        """What was asked beside the traffic is evidence like the traffic."""
        name = self.primary.name if role == PRIMARY else self.standby.name
        served = Served(tell_time(), role, failure, 1, name, shadow=True, who=who)
        self.report(served, lambda: {"upstream": name})

    def disagreed(self, role: str, kind: str, witness: str) -> None:
        """On a client's request one backend refused, or was silent, and the other answered."""
        aspect = "empty" if kind == EMPTY else STATUS
        self.compared_event(AnswersCompared(tell_time(), {aspect: role == SECOND}, paired=False))

    def summary(self) -> dict[str, Any]:
        """Agreement with its 95 % interval, the tests by aspect, and how the latencies compare."""
        span = wilson(self.agreed, self.compared)
        answers = self.rollout.answers
        at = sorted(pair.divergence for pair in self.pairs if pair.divergence is not None)
        ratios = sorted(pair.ours.seconds / max(pair.theirs.seconds, 1e-9) for pair in self.pairs)
        return {
            "schema": "joymigrate.shadow/1",
            "percent": self.settings.percent,
            "compared": self.compared,
            "same_text": self.agreed,
            "agreement": self.agreed / self.compared if self.compared else None,
            "interval": [span.low, span.high],
            "same_finish": self.same_finish,
            "first_divergence_median": at[len(at) // 2] if at else None,
            "latency_ratio_median": ratios[len(ratios) // 2] if ratios else None,
            "aspects": {
                name: {
                    "against": answers.against.get(name, 0),
                    "judged": answers.judged.get(name, 0),
                    "limit": answers.tests[name].limit,
                    "level": answers.tests[name].level,
                }
                for name in ASPECTS
            },
            "latency": {
                side: {
                    name: quantiles([getattr(getattr(pair, side), name) for pair in self.pairs])
                    for name in ("seconds", "first_byte_seconds", "gap_seconds")
                }
                for side in ("theirs", "ours")
            },
        }


def compare_repetitions(
    theirs: tuple[str, str], ours: tuple[str, str], *, seeded: bool
) -> dict[str, bool]:
    """What two answers of each to one sampled question say; nothing where both do alike."""
    one, two = theirs[0] == theirs[1], ours[0] == ours[1]
    return {} if one == two else {SAMPLING: one if seeded else two}


def quantiles(values: list[float | None]) -> dict[str, float] | None:
    """The middle and the 99th percentile of what was measured."""
    there = sorted(value for value in values if value is not None)
    if not there:
        return None
    return {
        "p50": there[len(there) // 2],
        "p99": there[min(len(there) - 1, len(there) * 99 // 100)],
    }
