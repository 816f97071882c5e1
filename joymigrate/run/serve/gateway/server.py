"""The gateway as a running service: sockets, clock, files around the pure parts."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import time
from collections.abc import Callable, Mapping
from socket import socket
from typing import Any

from aiohttp import web

from joymigrate.run.serve.gateway import address, admin, gate, gauges, health, replies
from joymigrate.run.serve.gateway.attempt import Details
from joymigrate.run.serve.gateway.backend import Backend, HttpBackend
from joymigrate.run.serve.gateway.calls import (
    STRICT,
    Call,
    is_object,
    kind_of,
    parsed_body,
    sticky_key,
)
from joymigrate.run.serve.gateway.events import (
    PRIMARY,
    SECOND,
    Change,
    Event,
    Gate,
    Health,
    Served,
    Tick,
)
from joymigrate.run.serve.gateway.journal import Journal
from joymigrate.run.serve.gateway.meters import Meters
from joymigrate.run.serve.gateway.pages import Pages
from joymigrate.run.serve.gateway.relay import Relay
from joymigrate.run.serve.gateway.rollout import Rollout
from joymigrate.run.serve.gateway.routing import Router
from joymigrate.run.serve.gateway.settings import Settings
from joymigrate.run.serve.gateway.shadow import Shadow
from joymigrate.run.serve.gateway.store import Store
from joymigrate.run.serve.gateway.upstreams import Upstream
from joymigrate.run.serve.monitor import service
from joymigrate.run.serve.monitor.metrics import Metrics
from joymigrate.run.serve.monitor.service import Monitor

OF_BACKENDS = frozenset(("kv", "prefix"))  # what only a backend knows about itself
TICK_SECONDS = 0.2
CUT_SECONDS = 0.2  # what a connection gets to close once the drain is over
SAVE_SECONDS = 1.0
GARBAGE_OBJECTS = 20_000  # new objects between two collections of the youngest
GATE_SECONDS = 10.0  # how often a closed gate asks the ledger again


class Gateway:
    """Two upstreams, one rollout, one address.

    `backends` replaces the HTTP backend of an upstream, by name: the seam for an engine that runs
    in this process. `talk` hears what an operator should read.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        unverified: bool = False,
        backends: Mapping[str, Backend] | None = None,
        talk: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.settings, self.unverified, self.talk = settings, unverified, talk
        self.metrics = Metrics()
        self.meters = Meters(self.metrics)
        self.rollout = Rollout(settings.plan, settings.rule)
        self.store = Store(settings.state, identity(settings))
        saved = self.store.load()
        if saved is not None:
            self.rollout.restore(saved)
        self.given = dict(backends or {})
        self.journal = Journal(settings.log) if settings.log else None
        self.pages = Pages(self).by_path()
        self.tasks: list[asyncio.Task[None]] = []
        self.dirty = False
        self.draining = self.hurry = False  # hurry: a second signal means now
        self.active = 0
        self.port = settings.port
        self.runner: web.ServerRunner | None = None
        self.router: Router
        self.relay: Relay
        self.shadow: Shadow
        self.monitor: Monitor

    # Life

    async def start(self) -> None:
        """Take the address, check the backends once, ask the ledger, listen.

        The address comes first: a second gateway started by mistake must not touch the state.
        """
        taken = address.take(self.settings.host, self.settings.port, self.settings.path)
        self.assemble()
        both = (self.router.primary, self.router.standby)
        self.ask_gate()
        await asyncio.gather(
            *(health.check_once(up, self.settings.health, lambda *_: None) for up in both)
        )
        for upstream in both:
            self.handle(Health(time.time(), upstream.role, upstream.up, "at the start"))
        server = web.Server(
            self.serve, request_factory=self.request, handler_cancellation=True, access_log=None,
            max_line_size=self.settings.limits.header_bytes,
            max_field_size=self.settings.limits.header_bytes,
        )  # fmt: skip
        self.runner = web.ServerRunner(server, shutdown_timeout=CUT_SECONDS)
        await self.runner.setup()
        await self.listen(self.runner, taken)
        self.save()
        loop = asyncio.get_running_loop()
        self.tasks = [
            loop.create_task(health.watch(up, self.settings.health, self.health_changed))
            for up in both
        ]
        self.tasks.append(loop.create_task(self.tick()))
        self.tasks.append(loop.create_task(self.monitor.run()))

    def assemble(self) -> None:
        """Build the parts that need a running loop."""
        settings = self.settings
        made = {
            up.role: Upstream(
                up,
                self.given.get(up.name) or HttpBackend(up, settings.limits),
                settings.limits,
            )
            for up in settings.upstreams
        }
        self.router = Router(made[PRIMARY], made[SECOND], self.rollout, settings.last_resort)
        types: set[str] = set()
        self.shadow = Shadow(
            settings.shadow, made[PRIMARY], made[SECOND], self.rollout, self.meters, self.report,
            self.handle, types,
        )  # fmt: skip
        self.relay = Relay(
            self.router,
            self.meters,
            {up.name: self.meters.upstream(up.name) for up in settings.upstreams},
            settings.limits,
            self.report,
            self.shadow.heard if self.shadow.wanted else None,
            self.shadow.disagreed,
            types,
        )
        gauges.add(self.metrics, self.router, self.shadow)
        self.monitor = self.watcher()

    def watcher(self) -> Monitor:
        """The monitor of this gateway."""
        wanted, folder = self.settings.monitor, self.settings.path.resolve().parent
        own = service.Own(
            "gateway", self.metrics, lambda: admin.describe(self.rollout, self.router)
        )
        backends = [
            service.Page(up.name, url + "/metrics", up.key, only=OF_BACKENDS)
            for up in self.settings.upstreams
            for url in up.urls
            if up.name not in self.given and wanted.backends
        ]
        return service.assemble(
            [own, *backends],
            history=folder / (wanted.history or f"{self.settings.path.stem}.history.sqlite"),
            retention_days=wanted.retention_days,
            interval_seconds=wanted.interval_seconds,
            alert_file=folder / wanted.alerts if wanted.alerts else None,
            read_devices=wanted.devices,
            talk=self.talk,
        )

    async def listen(self, runner: web.ServerRunner, taken: list[socket]) -> None:
        for bound in taken:
            await web.SockSite(runner, bound, backlog=1024).start()
        self.port = runner.addresses[0][1]

    async def stop(self) -> None:
        """Take no new requests, let the running ones end, write everything down.

        What still runs after `drain_seconds`, or when `hurry` is set, is cut.
        """
        self.draining = True
        if self.runner is not None:
            for site in list(self.runner.sites):
                await site.stop()
            deadline = time.monotonic() + self.settings.limits.drain_seconds
            while self.active and time.monotonic() < deadline and not self.hurry:
                await asyncio.sleep(0.02)
        for task in [*self.tasks, *self.shadow.running]:
            task.cancel()
        await asyncio.gather(*self.tasks, *self.shadow.running, return_exceptions=True)
        if self.runner is not None:
            await self.runner.cleanup()
        for upstream in (self.router.primary, self.router.standby):
            await upstream.backend.close()
        await self.monitor.close()
        self.save()
        if self.journal is not None:
            self.flush(self.journal)

    async def tick(self) -> None:
        """Let time pass for the rollout; write down what changed."""
        saved = asked = time.monotonic()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.handle(Tick(time.time()))
            now = time.monotonic()
            if not self.rollout.gate_open and now - asked >= GATE_SECONDS:
                asked = now
                self.ask_gate()
            if now - saved >= SAVE_SECONDS:
                saved = now
                await self.write_down()

    async def write_down(self) -> None:
        """Evidence and journal go to the disk without holding up requests."""
        if self.dirty:
            self.dirty = False
            await asyncio.to_thread(self.write, self.store.number(), self.rollout.snapshot())
        if self.journal is not None:
            await asyncio.to_thread(self.flush, self.journal)

    def save(self) -> None:
        """Write the state now."""
        self.write(self.store.number(), self.rollout.snapshot())

    def write(self, number: int, snapshot: dict[str, Any]) -> None:
        """A full disk is told to the operator; it is no reason to stop serving."""
        try:
            self.store.save(number, snapshot)
        except OSError as error:
            self.talk(f"cannot write the state, a restart would not know it: {error}")

    def flush(self, journal: Journal) -> None:
        try:
            journal.flush()
        except OSError as error:
            self.talk(f"cannot write the request log: {error}")

    # Events

    def handle(self, event: Event) -> list[Change]:
        """Feed the rollout; a decision is on disk before anybody hears of it."""
        changes = self.rollout.handle(event)
        if changes:
            self.save()
            for change in changes:
                self.talk(f"rollout {change.state} {change.weight:g} %: {change.text}")
        return changes

    def report(self, served: Served, details: Details) -> None:
        """A backend succeeded or failed."""
        self.dirty = True
        self.handle(served)
        if self.journal is not None:
            self.journal.add(served, details())

    def health_changed(self, upstream: Upstream, up: bool, detail: str) -> None:
        self.handle(Health(time.time(), upstream.role, up, detail))

    def ask_gate(self) -> None:
        """Ask the ledger whether the standby may take traffic."""
        settings = self.settings
        opinion = gate.ask(
            settings.of_role(SECOND), settings.path.resolve().parent, unverified=self.unverified
        )
        self.router.known_bad = opinion.bad
        self.handle(Gate(time.time(), opinion.open, opinion.reason))

    # Requests

    def request(
        self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any
    ) -> web.BaseRequest:
        """A request that may be as large as the limits say."""
        return web.BaseRequest(
            message,
            payload,
            protocol,
            writer,
            task,
            asyncio.get_running_loop(),
            client_max_size=self.settings.limits.body_bytes,
        )

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request: the gateway's own pages, everything else from a backend."""
        started = time.perf_counter()
        path, _, _ = request.raw_path.partition("?")
        page = self.pages.get((request.method, path))
        if page is not None:
            return await page(request)
        refusal = self.refusal(request, path)
        if refusal is None:
            self.active += 1
            try:
                call = await self.call(request, path, started)
                if isinstance(call, Call):
                    return await self.relay.answer(request, call)
                refusal = call
            finally:
                self.active -= 1
        self.meters.outcomes["rejected"].value += 1
        return refusal

    def refusal(self, request: web.BaseRequest, path: str) -> web.Response | None:
        """Why a request goes to no backend, or None."""
        if not path.startswith("/") or path.startswith("/admin"):
            return replies.error(404, f"nothing is here: {request.method} {path}", "not_found")
        if self.settings.keys:
            shown = admin.bearer(request).encode()
            if not any(hmac.compare_digest(shown, key.encode()) for key in self.settings.keys):
                return replies.error(401, "this key is not known here", "invalid_api_key")
        return None

    async def call(
        self, request: web.BaseRequest, path: str, started: float
    ) -> Call | web.Response:
        """Read the request within its limits."""
        limits = self.settings.limits
        try:
            if request.content.is_eof() or not request.body_exists:
                body = await request.read()
            else:
                if request.headers.get("Expect", "").lower() == "100-continue":
                    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                body = await asyncio.wait_for(request.read(), limits.body_seconds)
        except web.HTTPRequestEntityTooLarge:
            return replies.error(
                413, f"a body has at most {limits.body_bytes} bytes", "body_too_large"
            )
        except asyncio.TimeoutError:
            return replies.error(408, "the body did not arrive in time", "body_too_slow")
        kind = kind_of(path)
        parsed = parsed_body(body, kind)
        if parsed is None and kind in STRICT and request.method == "POST" and not is_object(body):
            # Many servers answer 500 to it: a broken client must not bring a backend down.
            return replies.error(400, "the body is a JSON object", "invalid_json")
        key = sticky_key(self.settings.sticky, request.headers, parsed)
        return Call(
            kind,
            request.method,
            request.raw_path,
            request.headers,
            body,
            parsed,
            started,
            point=self.router.point(key),
        )


def identity(settings: Settings) -> dict[str, Any]:
    """What a saved state belongs to. An upstream that moved to another address is the same one."""
    standby = settings.of_role(SECOND)
    return {
        "primary": settings.of_role(PRIMARY).name,
        "standby": standby.name,
        "chip": standby.chip,
        "model": standby.model,
    }


async def run(gateway: Gateway) -> None:
    """Serve until SIGINT or SIGTERM."""
    import gc
    import signal

    # What exists now stays: looking through it again and again costs a tenth of the processor time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS, 50, 100)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hear() -> None:
        gateway.hurry = ended.is_set()
        ended.set()

    for name in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(name, hear)
    await gateway.start()
    gateway.talk(f"listening on http://{gateway.settings.host}:{gateway.port}")
    try:
        await ended.wait()
        gateway.talk("stopping: running requests may end, new ones are refused")
    finally:
        await gateway.stop()
