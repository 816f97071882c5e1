"""A third door to the evidence: Envoy carries the traffic, and asks here by its `ext_proc` filter.

For each request we name the arm in a header, by which Envoy's routes choose the cluster; of each
answer we read what passes, judge it as our own proxy does, and tell the rollout. Who may call a
path is the table of APIs'. What Envoy's protocol does not say, nobody here guesses: a stream that
breaks off may be the client's end or the server's, so that it is no failure; the experiment
compares how often it happens to each arm. A refusal has no witness, and is compared likewise.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from envoy.config.core.v3.base_pb2 import HeaderValue, HeaderValueOption
from envoy.service.ext_proc.v3 import external_processor_pb2 as wire
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import (
    ExternalProcessorServicer,
    add_ExternalProcessorServicer_to_server,
)
from envoy.type.v3.http_status_pb2 import HttpStatus
from multidict import CIMultiDict

from joymigrate.errors import JoyError
from joymigrate.run.serve.evidence.aspects import EMPTY
from joymigrate.run.serve.evidence.events import Served
from joymigrate.run.serve.evidence.failures import BackendFailure, is_back_pressure, of_status
from joymigrate.run.serve.gateway.attempt import Details, UpstreamAttempt
from joymigrate.run.serve.gateway.calls import GatewayCall
from joymigrate.run.serve.gateway.meters import GatewayMeters
from joymigrate.run.serve.gateway.relay import ANSWER_BYTES, Relay
from joymigrate.run.serve.gateway.relay_parts import is_stream
from joymigrate.run.serve.gateway.routing import Router
from joymigrate.run.serve.gateway.settings import GatewaySettings
from joymigrate.run.serve.gateway.stream import RelayedStream
from joymigrate.run.serve.web import apis, messages
from joymigrate.run.serve.web.apis import ApiRoute
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.keys import Key, Keys

ARM = "x-joymigrate-arm"  # the name of the upstream that is to answer
CUT = "breaks off"


class Judging(Protocol):
    """What the door needs of a gateway."""

    settings: GatewaySettings
    keys: Keys
    meters: GatewayMeters
    router: Router
    relay: Relay

    def admit(self, method: str, path: str, api: ApiRoute | None, operator: bool) -> ApiRoute: ...
    def call_of(
        self, api: ApiRoute, method: str, raw_path: str, headers: Mapping[str, str], sent: bytes,
        started: float, called: str, key_name: str,
    ) -> GatewayCall: ...  # fmt: skip
    def report(self, served: Served, details: Details) -> None: ...


class CarriedAttempt(UpstreamAttempt):
    """An attempt that Envoy makes, over a connection of its own."""

    __slots__ = ()

    def let_go(self) -> None:
        """There is no connection here to give back."""
        self.ended = True
        self.instance.inflight -= 1


class EnvoyExchange:
    """One request and its answer, message by message."""

    def __init__(self, gateway: Judging) -> None:
        self.gateway = gateway
        self.started = time.perf_counter()
        self.headers: CIMultiDict[str] = CIMultiDict()
        self.body = b""
        self.call: GatewayCall | None = None
        self.attempt: CarriedAttempt | None = None
        self.key: Key | None = None  # while it counts as running
        self.status = 0
        self.answered: CIMultiDict[str] = CIMultiDict()
        self.stream: RelayedStream | None = None
        self.answer = b""

    def take(self, message: Any) -> Any:
        """Envoy's next message, and what it is told."""
        part = message.WhichOneof("request")
        whole = getattr(getattr(message, part), "end_of_stream", False)
        if part == "request_headers":
            self.headers = read_headers(message.request_headers.headers)
            told = self.choose() if whole else wire.CommonResponse()
            return wire.ProcessingResponse(request_headers=wire.HeadersResponse(response=told))
        if part == "request_body":
            self.body += message.request_body.body
            told = self.choose() if whole else wire.CommonResponse()
            return wire.ProcessingResponse(request_body=wire.BodyResponse(response=told))
        if part == "response_headers":
            self.begin(read_headers(message.response_headers.headers))
            made = wire.ProcessingResponse(response_headers=wire.HeadersResponse())
        elif part == "response_body":
            self.read(message.response_body.body)
            made = wire.ProcessingResponse(response_body=wire.BodyResponse())
        elif part == "response_trailers":
            made, whole = wire.ProcessingResponse(response_trailers=wire.TrailersResponse()), True
        else:
            return wire.ProcessingResponse(request_trailers=wire.TrailersResponse())
        if whole:
            self.end()
        return made

    def choose(self) -> Any:
        """Which arm answers, for Envoy's routes; raises `HttpRefusal`."""
        gateway, headers = self.gateway, self.headers
        method, raw = headers.get(":method", ""), headers.get(":path", "")
        path = raw.partition("?")[0]
        key = gateway.keys.check(path, headers)
        api = gateway.admit(method, path, apis.find(path, gateway.settings.allow), False)
        if key is not None:
            gateway.keys.enter(key, time.monotonic())
            self.key = key
        name = key.name if key is not None else ""
        called = headers.get("x-request-id") or uuid.uuid4().hex
        call = gateway.call_of(api, method, raw, headers, self.body, self.started, called, name)
        chosen = gateway.router.choose(call.point, [])
        if chosen is None:
            raise HttpRefusal(503, "no backend may be used")
        upstream, instance = chosen
        meters = gateway.relay.by_name[upstream.name]
        self.call = call
        self.attempt = CarriedAttempt(call, upstream, instance, meters, gateway.report)
        arm = HeaderValueOption(
            header=HeaderValue(key=ARM, raw_value=upstream.name.encode()),
            append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
        )
        mutation = wire.HeaderMutation(set_headers=[arm], remove_headers=["accept-encoding"])
        return wire.CommonResponse(header_mutation=mutation, clear_route_cache=True)

    def begin(self, headers: CIMultiDict[str]) -> None:
        """The head of the answer."""
        self.answered, self.status = headers, int(headers.get(":status", "0"))
        call, content = self.call, headers.get("content-type", "")
        if call is not None and is_stream(call, self.status, content) and self.status < 400:
            self.stream = RelayedStream(call.api.form, most=call.choices if call.strict else None)
            call.counted = self.stream.usage_so_far

    def read(self, block: bytes) -> None:
        """A piece of the answer, which goes on to the client as it is."""
        if self.attempt is not None and self.attempt.first is None and block:
            self.attempt.first = time.perf_counter()
        if self.stream is not None:
            if self.stream.failure is None and not self.stream.done:
                self.stream.feed(block)
        elif len(self.answer) <= ANSWER_BYTES:
            self.answer += block

    def end(self) -> None:
        """The answer is whole: judge it."""
        call, attempt, relay = self.call, self.attempt, self.gateway.relay
        if call is None or attempt is None or attempt.ended:
            return
        if is_back_pressure(self.status, self.answered):
            relay.turned_away(attempt.upstream)
            attempt.no_evidence("busy")
            return relay.settle(call, "rejected")
        failure = of_status(self.status)
        if failure is not None:
            attempt.failed(failure)
            return relay.settle(call, "error")
        if self.status >= 400:
            relay.observe(call, attempt, {f"status {self.status}": True})
            attempt.refused()
            return relay.settle(call, "client_error")
        try:
            self.judge(call, attempt)
            relay.settle(call, "ok")
        except BackendFailure as broken:
            attempt.failed(broken.kind)
            relay.settle(call, "interrupted")

    def judge(self, call: GatewayCall, attempt: CarriedAttempt) -> None:
        """A good status: was the answer good? Raises `BackendFailure`."""
        relay, stream = self.gateway.relay, self.stream
        relay.check_type(call, attempt, self.answered.get("content-type", ""))
        if call.api.form is None or len(self.answer) > ANSWER_BYTES:
            attempt.no_evidence("unjudged")
        elif stream is None:
            read = relay.read_whole(call, attempt, self.answer, self.answered)
            if not relay.take_whole(call, attempt, read):
                relay.observe(call, attempt, {EMPTY: True})
        elif failure := stream.end():
            raise BackendFailure(failure)
        elif call.wants_words and not stream.spoke:
            attempt.refused()
            relay.observe(call, attempt, {EMPTY: True})
        else:
            relay.take_stream(call, attempt, stream)

    def left(self) -> None:
        """Envoy ended the exchange; before the answer's end, the client went away or the server's
        connection broke."""
        call, attempt = self.call, self.attempt
        if self.key is not None:
            self.gateway.keys.leave(self.key, call.tokens if call is not None else 0)
        if call is None or attempt is None or attempt.ended:
            return
        self.gateway.relay.observe(call, attempt, {CUT: True})
        self.gateway.relay.went_away(call, attempt)


class Processor(ExternalProcessorServicer):  # type: ignore[misc]
    """Envoy's `ExternalProcessor`: one call for each request."""

    def __init__(self, gateway: Judging) -> None:
        self.gateway = gateway

    async def Process(self, messages_: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Answer what Envoy says about one request, in its order."""
        exchange = EnvoyExchange(self.gateway)
        try:
            async for message in messages_:
                try:
                    told = exchange.take(message)
                except HttpRefusal as refusal:
                    self.gateway.meters.outcomes["rejected"].value += 1
                    yield refuse(exchange.headers.get(":path", ""), refusal)
                    return
                yield told
        finally:
            exchange.left()


def refuse(path: str, refusal: HttpRefusal) -> Any:
    """What the client gets in place of an answer."""
    reply = messages.refuse(path.partition("?")[0], refusal)
    headers = {"content-type": reply.content_type, **reply.headers}
    made = [HeaderValueOption(header=HeaderValue(key=name.lower(), raw_value=value.encode()))
            for name, value in headers.items()]  # fmt: skip
    return wire.ProcessingResponse(
        immediate_response=wire.ImmediateResponse(
            status=HttpStatus(code=reply.status), body=reply.body,
            headers=wire.HeaderMutation(set_headers=made),
        )
    )  # fmt: skip


def read_headers(given: Any) -> CIMultiDict[str]:
    """Envoy's headers, which come as bytes or as text."""
    return CIMultiDict(
        (one.key, (one.raw_value or one.value.encode()).decode("utf-8", "surrogateescape"))
        for one in given.headers
    )


@dataclass(frozen=True, slots=True)
class EnvoyDoor:
    """A server that Envoy asks, and its port."""

    server: Any
    port: int


async def open_door(gateway: Judging, address: str) -> EnvoyDoor:
    """Listen for Envoy. Raises `JoyError`."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    add_ExternalProcessorServicer_to_server(Processor(gateway), server)
    try:
        port = server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if not port:
        raise JoyError(f"cannot listen on {address} for Envoy", where=str(gateway.settings.path),
                       help="choose another address: envoy: 127.0.0.1:9002")  # fmt: skip
    await server.start()
    return EnvoyDoor(server, port)
