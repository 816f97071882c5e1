"""Carries one request to a backend and its answer back, over to another backend where needed.

Before the first byte a failed attempt is repeated elsewhere without the client noticing. Behind
it, a broken stream is taken over exactly (see `takeover`) or ends in a visible error event.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import orjson
from aiohttp import web

from joymigrate.run.serve.evidence.answers import observe
from joymigrate.run.serve.evidence.events import PRIMARY, SECOND, Observed
from joymigrate.run.serve.evidence.failures import (
    CONTENT_TYPE,
    EMPTY,
    ENDED_EARLY,
    NO_BODY,
    ODD,
    OWN,
    TOTAL,
    TRUNCATED,
    BackendFailure,
    is_back_pressure,
    is_refusal,
    of_status,
)
from joymigrate.run.serve.gateway import whole_answers
from joymigrate.run.serve.gateway.account import reply_of
from joymigrate.run.serve.gateway.attempt import Report, UpstreamAttempt
from joymigrate.run.serve.gateway.backend import ENGINE, HttpAnswer, is_ping
from joymigrate.run.serve.gateway.calls import GatewayCall
from joymigrate.run.serve.gateway.clock import tell_time
from joymigrate.run.serve.gateway.meters import GatewayMeters, UpstreamMeters
from joymigrate.run.serve.gateway.reader import AnswerReader
from joymigrate.run.serve.gateway.relay_parts import (
    GONE,
    Heard,
    RefusedAttempt,
    Relayed,
    is_stream,
    pump,
    read_all,
)
from joymigrate.run.serve.gateway.replies import refuse
from joymigrate.run.serve.gateway.resume import DONE
from joymigrate.run.serve.gateway.routing import Router
from joymigrate.run.serve.gateway.settings import GatewayLimits
from joymigrate.run.serve.gateway.shadow_calls import asks_for_json
from joymigrate.run.serve.gateway.stream import EVENT_BYTES, RelayedStream
from joymigrate.run.serve.gateway.takeover import take_over
from joymigrate.run.serve.gateway.upstreams import Instance, Overloaded, Upstream
from joymigrate.run.serve.web.errors import HttpRefusal

ANSWER_BYTES = 64 * 2**20  # larger answers are relayed without being judged


@dataclass(slots=True)
class Relay:
    """Everything that one request needs."""

    router: Router
    meters: GatewayMeters
    by_name: dict[str, UpstreamMeters]
    limits: GatewayLimits
    report: Report
    heard: Callable[[GatewayCall, Heard], None] | None = None
    disagreed: Callable[[str, str, str], None] = lambda role, kind, other: None
    observed: Callable[[Observed], None] = lambda event: None
    types: set[str] = field(default_factory=set)  # odd types and shapes that the primary has, too

    async def answer(self, request: web.BaseRequest, call: GatewayCall) -> web.StreamResponse:
        """Answer the client. Counts what the client got."""
        tried: list[Instance] = []
        last: RefusedAttempt | None = None
        broken: UpstreamAttempt | None = None  # worth repeating where no other backend is left
        doubts: list[RefusedAttempt] = []  # refusals, until another backend has answered or refused
        while len(tried) < self.limits.attempts:
            attempt, refused = await self.begin(call, tried, broken)
            last = refused or last
            if attempt is None:
                break
            if len(tried) > 1:
                self.meters.retries.of(attempt.meters.name).add()
            try:
                result = await self.first(request, call, attempt, tried)
            except asyncio.CancelledError:
                self.went_away(call, attempt)
                raise
            except BaseException:
                attempt.no_evidence("abandoned")
                raise
            if isinstance(result, web.StreamResponse):
                self.condemn(call, doubts, attempt.upstream.role)
                return result
            if result.attempt is None:
                last = result
                broken = attempt if result.kind in ENDED_EARLY else None
                continue
            doubts.append(result)
            if not self.wants_witness(call, doubts):
                break
        if doubts:
            return self.refuse(call, doubts)
        return self.give_up(call, last)

    def wants_witness(self, call: GatewayCall, doubts: list[RefusedAttempt]) -> bool:
        """Whether another backend is asked the same. A client's key is shown to a standby with a
        key of its own only where the rollout serves clients with it."""
        roles = {doubt.attempt.upstream.role for doubt in doubts if doubt.attempt is not None}
        if len(roles) > 1:
            return False
        if roles == {PRIMARY}:
            return self.router.standby.settings.key is None or self.router.rollout.weight > 0
        return True

    def condemn(self, call: GatewayCall, doubts: list[RefusedAttempt], witness: str) -> None:
        """Another backend answered what these refused.

        The primary says what a good question is: where the standby answers what the primary
        refuses, that is no failure of the primary's, only a difference between the two.
        """
        for doubt in doubts:
            attempt = doubt.attempt
            if attempt is None:
                continue
            role = attempt.upstream.role
            if role == witness:
                continue
            elif role == PRIMARY or (doubt.kind == EMPTY and not call.greedy):
                self.disagreed(role, doubt.kind, witness)
            else:
                attempt.condemn(doubt.kind)

    def refuse(self, call: GatewayCall, doubts: list[RefusedAttempt]) -> web.StreamResponse:
        """Nobody answered: the refusal stands, and is evidence against nobody."""
        doubt = doubts[0]
        assert doubt.reply is not None
        self.settle(call, "ok" if doubt.reply.status < 400 else "client_error")
        return doubt.reply

    async def begin(
        self, call: GatewayCall, tried: list[Instance], broken: UpstreamAttempt | None = None
    ) -> tuple[UpstreamAttempt | None, RefusedAttempt | None]:
        """A place at the next backend, or None when there is none left; and who was too busy.

        Where none is left, the server of `broken`, whose connection ended early, is asked again.
        """
        busy: RefusedAttempt | None = None
        while True:
            chosen = self.router.choose(call.point, tried)
            if chosen is None and broken is not None:
                chosen, broken = (broken.upstream, broken.instance), None
            if chosen is None:
                return None, busy
            upstream, instance = chosen
            tried.append(instance)
            try:
                await upstream.acquire()
            except Overloaded as overload:
                self.turned_away(upstream)
                busy = RefusedAttempt("overloaded", refuse(call.path, word_overload(overload)))
                continue
            if not self.router.allowed(upstream):
                upstream.release()  # the rollout decided while this request waited
                continue
            meters = self.by_name[upstream.name]
            return UpstreamAttempt(call, upstream, instance, meters, self.report), busy

    def turned_away(self, upstream: Upstream) -> None:
        """A backend was too busy: the rollout says so where it waits for requests."""
        self.router.rollout.turned_away += upstream.role != PRIMARY

    async def first(
        self,
        request: web.BaseRequest,
        call: GatewayCall,
        attempt: UpstreamAttempt,
        tried: list[Instance],
    ) -> web.StreamResponse | RefusedAttempt:
        """One attempt up to its first byte, and on to the end when that came."""
        try:
            answer = await attempt.open(body=self.asked(call, attempt.upstream))
            if is_back_pressure(answer.status, answer.headers):
                reply = await self.rejection(answer, attempt)
                attempt.no_evidence("busy")
                self.turned_away(attempt.upstream)
                return RefusedAttempt("busy", reply)
            failure = of_status(answer.status, own_key=attempt.upstream.settings.key is not None)
            if failure and (answer.status >= 400 or call.method == "POST"):
                reply = await self.rejection(answer, attempt)
                attempt.failed(failure)
                return RefusedAttempt(failure, reply)
            if is_refusal(answer.status):
                reply = await self.rejection(answer, attempt)
                attempt.refused()
                return RefusedAttempt(f"status_{answer.status}", reply, attempt)
            content = answer.headers.get("Content-Type", "")
            encoding = answer.headers.get("Content-Encoding", "identity").strip().lower()
            readable = encoding == "identity"
            self.check_type(call, attempt, content)
            if call.strict and not readable:
                self.allow(attempt, CONTENT_TYPE, f"{encoding}, which was not asked for")
            if readable and is_stream(call, answer.status, content):
                return await self.streamed(request, call, attempt, answer, tried)
            tensors = whole_answers.HEADER_LENGTH in answer.headers
            if not readable or ("json" not in content and not call.strict and not tensors):
                return await self.raw(request, call, attempt, answer)
            return await self.in_one_piece(call, attempt, answer)
        except BackendFailure as broken:
            attempt.failed(broken.kind)
            if broken.kind == OWN:
                return RefusedAttempt(OWN, refuse(call.path, word_overload(broken)))
            return RefusedAttempt(broken.kind)

    def check_type(self, call: GatewayCall, attempt: UpstreamAttempt, content: str) -> None:
        """Refuse an answer that says it is something else than what was asked for.

        A type that is odd, but not a page for people, is taken from the primary, and from then
        on from the standby, too. Raises `BackendFailure`.
        """
        if call.method != "POST":
            return
        plain = content.partition(";")[0].strip().lower()
        asked = bool((call.parsed or {}).get("stream"))
        usual = "event-stream" if asked else "json"
        if plain in ("text/html", "application/xhtml+xml"):
            raise BackendFailure(CONTENT_TYPE, plain)
        if call.strict and plain and usual not in plain:
            self.allow(attempt, CONTENT_TYPE, plain)

    def is_sound(self, call: GatewayCall, attempt: UpstreamAttempt, stream: RelayedStream) -> bool:
        """False for a stream with too few choices, whole tool calls that no program could follow,
        or a text against the request's wishes, where only the standby's are so. The client has it
        already."""
        odd = whole_answers.oddity(stream, call)
        if call.strict:
            odd = odd or whole_answers.find_disobedience(stream, call)
            odd = odd or (None if stream.done or stream.form.last else "no [DONE]")
        try:
            if odd:
                self.allow(attempt, ODD, odd)
        except BackendFailure:
            return False
        return True

    def allow(self, attempt: UpstreamAttempt, kind: str, what: str) -> None:
        """Take something odd from the primary, whose clients live with it, and from then on from
        the standby, too. Raises `BackendFailure` of `kind` where the primary was never seen to
        do so. Few of all answers may be of one odd sort, so the experiment hears of it as well."""
        self.observe(attempt.call, attempt, {what: True})
        if attempt.upstream.role == PRIMARY:
            self.types.add(what)
        elif what not in self.types:
            raise BackendFailure(kind, what)

    def asked(self, call: GatewayCall, upstream: Upstream) -> bytes | None:
        """The body for a backend that is asked for token ids; None for the client's own."""
        if upstream.settings.token_ids != "ask" or not (call.parsed or {}).get("stream"):
            return None
        return orjson.dumps({**(call.parsed or {}), "return_token_ids": True})

    async def rejection(self, answer: HttpAnswer, attempt: UpstreamAttempt) -> web.Response:
        """A backend's own error, kept for the client in case no other backend does better."""
        try:
            body = await read_all(answer, ANSWER_BYTES)
        except BackendFailure:
            body = b""
        return web.Response(status=answer.status, body=body, headers=attempt.headers)

    async def in_one_piece(
        self, call: GatewayCall, attempt: UpstreamAttempt, answer: HttpAnswer
    ) -> web.StreamResponse | RefusedAttempt:
        """An answer that is judged as a whole before the client sees any of it."""
        until = attempt.started + self.limits.total_seconds
        body = await read_all(answer, ANSWER_BYTES, attempt, until)
        reply = web.Response(status=answer.status, body=body, headers=attempt.headers)
        read = self.read_whole(call, attempt, body, answer.headers)
        if not self.take_whole(call, attempt, read):
            return RefusedAttempt(EMPTY, reply, attempt)
        self.settle(call, "ok")
        return reply

    def read_whole(
        self, call: GatewayCall, attempt: UpstreamAttempt, body: bytes, headers: Mapping[str, str]
    ) -> AnswerReader:
        """An answer in one piece, judged; raises `BackendFailure`."""
        if call.method != "POST":
            return AnswerReader()
        read = whole_answers.judge(whole_answers.json_part(body, headers), call)
        if call.strict:
            odd = whole_answers.oddity(read, call) or whole_answers.find_disobedience(read, call)
            if odd:
                self.allow(attempt, ODD, odd)
        return read

    def take_whole(self, call: GatewayCall, attempt: UpstreamAttempt, read: AnswerReader) -> bool:
        """Count a sound answer and tell of it; False for one without a word, which a witness has
        to judge."""
        if call.wants_words and not read.spoke:
            attempt.refused()
            return False
        if call.api.form is None:
            attempt.no_evidence("unjudged")  # nobody here knows what a right answer is
        call.counted = read.usage_so_far
        attempt.ok(*read.usage_so_far())
        self.tell(call, attempt, read)
        return True

    async def raw(
        self,
        request: web.BaseRequest,
        call: GatewayCall,
        attempt: UpstreamAttempt,
        answer: HttpAnswer,
    ) -> web.StreamResponse:
        """Bytes of another kind (audio, text): relayed as they come, cut visibly when they end."""
        block = await answer.read()
        if not block and call.method == "POST":
            raise BackendFailure(NO_BODY, f"status {answer.status} without a body")
        attempt.begun()
        response = Relayed(status=answer.status, headers=attempt.headers)
        try:
            await response.prepare(request)
            while block:
                await response.write(block)
                block = await answer.read()
            await response.write_eof()
        except BackendFailure as broken:
            attempt.failed(broken.kind)
            self.settle(call, "interrupted")
            if request.transport is not None:
                request.transport.abort()
            return response
        except GONE:
            self.went_away(call, attempt)
            return response
        attempt.no_evidence("unjudged")  # nobody here can read it: it proves nothing
        self.settle(call, "ok")
        return response

    async def streamed(
        self,
        request: web.BaseRequest,
        call: GatewayCall,
        attempt: UpstreamAttempt,
        answer: HttpAnswer,
        tried: list[Instance],
    ) -> web.StreamResponse | RefusedAttempt:
        """A stream of events. Nothing goes to the client before the first word."""
        most = call.choices if call.strict and attempt.upstream.role != PRIMARY else None
        stream = RelayedStream(call.api.form, most=most)
        until = attempt.started + self.limits.total_seconds
        stream.ours = ENGINE in answer.headers
        call.counted = stream.usage_so_far
        block = b""
        while not block or (call.wants_words and not stream.spoke):
            received = await answer.read()
            if not received:
                raise BackendFailure(stream.end() or TRUNCATED, "no event")
            if attempt.first is None and not is_ping(received):
                attempt.begun()
            if time.perf_counter() > until:
                raise BackendFailure(TOTAL, "not a word")
            block += stream.feed(received)
            if stream.failure and (call.wants_words or not block):
                if stream.spoke:
                    break
                raise BackendFailure(stream.failure)
            if stream.done:
                break
            if len(block) > EVENT_BYTES:
                break
        headers = attempt.headers
        if call.wants_words and stream.done and not stream.spoke:
            attempt.refused()
            reply = web.Response(body=block, headers=headers)
            return RefusedAttempt(EMPTY, reply, attempt)
        response = Relayed(status=answer.status, headers=headers)
        try:
            await response.prepare(request)
            failure, block = await pump(answer, stream, response, block, until)
            if failure:
                attempt.failed(failure)
                again = attempt if failure in ENDED_EARLY else None
                whole_again = await take_over(self, response, call, stream, tried, again)
                self.settle(call, "ok" if whole_again else "interrupted")
                await response.write_eof()
                return response
            self.settle(call, "ok")
            self.take_stream(call, attempt, stream)
            if call.strict and not stream.done and not stream.form.last:
                block += DONE  # some servers forget it; some clients wait for it
            try:
                await response.write_eof(block)
                await answer.finish()
            finally:
                answer.close()
        except GONE:
            self.went_away(call, attempt)
            return response
        return response

    def take_stream(
        self, call: GatewayCall, attempt: UpstreamAttempt, stream: RelayedStream
    ) -> None:
        """Count a stream that came to its end, and tell of it."""
        self.tell(call, attempt, stream)
        if call.api.form is None:
            attempt.no_evidence("unjudged")
        if self.is_sound(call, attempt, stream):
            attempt.ok(stream.tokens, stream.prompt_tokens, close=False)
        else:
            attempt.answer = None  # its end is read by the caller
            attempt.failed(ODD)

    def tell(self, call: GatewayCall, attempt: UpstreamAttempt, read: AnswerReader) -> None:
        """Hand a good answer to the shadow, which works later and elsewhere, and what can be seen
        of it to the experiment, where it came from the arm that was drawn."""
        first = attempt.first - attempt.started if attempt.first else None
        seconds = time.perf_counter() - attempt.started
        said = reply_of(read, call, seconds, first, figures=False)
        wants_json = not read.tools and asks_for_json(call)
        self.observe(call, attempt, observe(said, wants_json=wants_json))
        if self.heard is not None and call.method == "POST":
            self.heard(call, Heard(attempt.upstream, said, read.followed))

    def observe(
        self, call: GatewayCall, attempt: UpstreamAttempt, seen: Mapping[str, bool | float]
    ) -> None:
        """Tell the experiment what can be seen of an answer, where the arm that was drawn gave
        it."""
        role = attempt.upstream.role
        if call.strict and (role == SECOND) == (call.point < 100 * call.share):
            self.observed(Observed(tell_time(), role, call.share, kind_of(call), seen, call.who))

    def went_away(self, call: GatewayCall, attempt: UpstreamAttempt) -> None:
        """The client closed the connection: nobody's failure."""
        attempt.no_evidence("abandoned")
        self.settle(call, "client_closed")

    def settle(self, call: GatewayCall, outcome: str) -> None:
        """Count what the client got, once."""
        if not call.settled:
            call.settled = True
            self.meters.outcomes[outcome].value += 1

    def give_up(self, call: GatewayCall, last: RefusedAttempt | None) -> web.StreamResponse:
        """No backend could answer: the last one's own words, or the gateway's."""
        rejected = last is not None and last.kind in ("busy", "overloaded", OWN)
        self.settle(call, "rejected" if rejected else "error")
        if last is not None and last.reply is not None:
            return last.reply
        why = f"the last one failed with {last.kind}" if last else "none may be used"
        code = last.kind if last else "no_backend"
        return refuse(call.path, HttpRefusal(502, f"no backend could answer: {why}", code=code))


def word_overload(why: Exception) -> HttpRefusal:
    """A backend, or this machine, has too much to do."""
    return HttpRefusal(503, str(why), code="overloaded", headers={"Retry-After": "1"})


def kind_of(call: GatewayCall) -> str:
    """What the experiment tells apart: few kinds, so that each has answers of both arms."""
    asked = call.asked
    parts = [call.api.name, "stream" if asked.get("stream") else "whole"]
    parts += [name for name in ("tools", "response_format", "logprobs") if asked.get(name)]
    return ", ".join(parts)
