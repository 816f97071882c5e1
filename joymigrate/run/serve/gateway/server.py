"""The gateway as a running service: sockets, clock, files around the pure parts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from joymigrate.errors import JoyError
from joymigrate.extras import need
from joymigrate.run.serve.evidence.events import (
    PRIMARY,
    SECOND,
    Event,
    Health,
    LedgerGate,
    RolloutChange,
    RolloutOrder,
    RolloutTick,
    Served,
)
from joymigrate.run.serve.evidence.rollout import Rollout
from joymigrate.run.serve.gateway import admin, embedded, gate, gauges, health, replies
from joymigrate.run.serve.gateway.attempt import Details
from joymigrate.run.serve.gateway.backend import HttpBackend
from joymigrate.run.serve.gateway.calls import (
    GatewayCall,
    is_object,
    parsed_body,
    sticky_key,
)
from joymigrate.run.serve.gateway.clock import tell_time
from joymigrate.run.serve.gateway.journal import Journal
from joymigrate.run.serve.gateway.meters import GatewayMeters
from joymigrate.run.serve.gateway.pages import Pages
from joymigrate.run.serve.gateway.pulse import Pulse
from joymigrate.run.serve.gateway.redis_rollout import SharedRollout
from joymigrate.run.serve.gateway.relay import Relay
from joymigrate.run.serve.gateway.reload import client_context, refuse_changes
from joymigrate.run.serve.gateway.routing import Router
from joymigrate.run.serve.gateway.settings import GatewaySettings, load
from joymigrate.run.serve.gateway.shadow import Shadow
from joymigrate.run.serve.gateway.store import StateStore
from joymigrate.run.serve.gateway.upstreams import Upstream
from joymigrate.run.serve.monitor import service
from joymigrate.run.serve.monitor.metrics import Metrics
from joymigrate.run.serve.monitor.service import Monitor
from joymigrate.run.serve.web import access, apis, body
from joymigrate.run.serve.web.apis import ApiRoute
from joymigrate.run.serve.web.errors import HttpRefusal
from joymigrate.run.serve.web.keys import Keys
from joymigrate.run.serve.web.server import Server
from joymigrate.run.serve.web.signals import until_ended
from joymigrate.run.serve.web.site import Front, Visit, WebSite
from joymigrate.run.serve.web.telemetry import RequestSpan

if TYPE_CHECKING:
    from joymigrate.run.serve.gateway.envoy import EnvoyDoor

OF_BACKENDS = frozenset(("kv", "prefix"))  # what only a backend knows about itself
TICK_SECONDS = 0.2
SAVE_SECONDS = 1.0
GARBAGE_OBJECTS = 20_000  # new objects between two collections of the youngest
GATE_SECONDS = 10.0  # how often a closed gate asks the ledger again


class Gateway:
    """Two upstreams, one rollout, one address.

    `engines` are the servers of upstreams that run in this process, by name: they live as long as
    the gateway. `talk` hears what an operator should read.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        unverified: bool = False,
        engines: Mapping[str, Server] | None = None,
        talk: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.settings, self.unverified, self.talk = settings, unverified, talk
        self.metrics = Metrics()
        self.meters = GatewayMeters(self.metrics)
        self.rollout = Rollout(settings.plan, settings.rule)
        self.store = StateStore(settings.state_file, identity(settings))
        self.take_up()
        self.shared = self.share(settings)
        self.engines = dict(engines or {})
        self.journal = Journal(settings.log_file) if settings.log_file else None
        self.pages = Pages(self).by_path()
        self.tasks: list[asyncio.Task[None]] = []
        self.pulse = Pulse()
        self.dirty = False
        self.keys = Keys.of(settings.keys)
        self.site = WebSite(
            self.serve, settings.host, settings.port, settings.limits, self.keys,
            Front(settings.secured, settings.cors, str(settings.path)),
        )  # fmt: skip
        self.envoy: EnvoyDoor | None = None
        self.router: Router
        self.relay: Relay
        self.shadow: Shadow
        self.monitor: Monitor

    # Life

    async def start(self) -> None:
        """Take the address, check the backends once, ask the ledger, listen.

        The address comes first: a second gateway started by mistake must not touch the state.
        """
        self.site.take()
        if self.shared is None:
            self.store.hold()
            self.take_up()  # as it is now that nobody else writes it
        for engine in self.engines.values():
            await engine.start()
        self.settings = embedded.place(self.settings, self.engines)
        self.assemble()
        if self.shared is not None:
            await self.shared.start()
        both = (self.router.primary, self.router.standby)
        self.ask_gate()
        await asyncio.gather(
            *(health.check_once(up, self.settings.health, lambda *_: None) for up in both)
        )
        for upstream in both:
            self.handle(Health(tell_time(), upstream.role, upstream.up, "at the start"))
        await self.site.start()
        if self.settings.envoy is not None:
            self.envoy = await open_envoy_door(self, self.settings.envoy)
        self.save()
        loop = asyncio.get_running_loop()
        self.tasks = [
            loop.create_task(health.watch(up, self.settings.health, self.health_changed))
            for up in both
        ]
        self.tasks.append(loop.create_task(self.tick()))
        self.tasks.append(loop.create_task(self.pulse.run()))
        self.tasks.append(loop.create_task(self.monitor.run()))

    def take_up(self) -> None:
        """Go on where the saved rollout was; the time since then does not count."""
        saved = self.store.load()
        if saved is not None:
            self.rollout.restore(saved[0])
            self.rollout.postpone(tell_time() - saved[1] if saved[1] is not None else 0.0)

    def assemble(self) -> None:
        """Build the parts that need a running loop."""
        settings = self.settings
        made = {
            up.role: Upstream(
                up,
                HttpBackend(up, settings.limits, client_context(up), self.pulse),
                settings.limits,
            )
            for up in settings.upstreams.values()
        }
        self.router = Router(
            made[PRIMARY], made[SECOND], self.rollout, settings.rollout.last_resort
        )
        types: set[str] = set()
        self.shadow = Shadow(
            settings.shadow, made[PRIMARY], made[SECOND], self.rollout, self.meters, self.report,
            self.handle, types,
        )  # fmt: skip
        self.relay = Relay(
            self.router,
            self.meters,
            {up.name: self.meters.upstream(up.name) for up in settings.upstreams.values()},
            settings.limits,
            self.report,
            self.shadow.heard if self.shadow.wanted else None,
            self.shadow.disagreed,
            self.handle,
            types,
        )
        gauges.add(self.metrics, self.router, self.shadow)
        self.monitor = Monitor(
            self.watched(), settings.monitor.interval_seconds, settings.monitor.devices, self.talk
        )

    def watched(self) -> list[service.MetricSource]:
        """What the monitor reads: this gateway, and the backends' own metrics."""
        own = service.Own(
            "gateway", self.metrics, lambda: admin.describe(self.rollout, self.router)
        )
        backends = [
            service.MonitorPage(up.name, url + "/metrics", up.key, only=OF_BACKENDS)
            for up in self.settings.upstreams.values()
            for url in up.urls
            if self.settings.monitor.backends
        ]
        return [own, *backends]

    @property
    def port(self) -> int:
        """Where it listens, once it does."""
        return self.site.port

    @property
    def draining(self) -> bool:
        """Whether it takes no new requests."""
        return self.site.draining

    async def stop(self, hurried: asyncio.Event | None = None) -> None:
        """Take no new requests, let the running ones end, write everything down.

        What still runs after `drain_seconds`, or when `hurried` is set, is cut.
        """
        await self.site.drain(hurried)
        if self.envoy is not None:
            await self.envoy.server.stop(None)
        for task in [*self.tasks, *self.shadow.running]:
            task.cancel()
        await asyncio.gather(*self.tasks, *self.shadow.running, return_exceptions=True)
        await self.site.close()
        if self.shared is not None:
            await self.shared.close()
        for upstream in (self.router.primary, self.router.standby):
            await upstream.backend.close()
        for engine in self.engines.values():
            await engine.stop(hurried)
        await self.monitor.close()
        self.save()
        self.store.release()
        if self.journal is not None:
            self.flush(self.journal)

    async def tick(self) -> None:
        """Let time pass for the rollout; write down what changed."""
        saved = asked = time.monotonic()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.handle(RolloutTick(tell_time()))
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
        if self.shared is not None:
            return  # Redis has it
        try:
            self.store.save(number, snapshot)
        except (OSError, JoyError) as error:
            self.talk(f"cannot write the state, a restart would not know it: {error}")

    def flush(self, journal: Journal) -> None:
        try:
            journal.flush()
        except OSError as error:
            self.talk(f"cannot write the request log: {error}")

    def reload(self) -> None:
        """Read the gateway's file again; what cannot change while it runs, or a mistake in the
        file, is told to the operator, and everything stays as it was."""
        try:
            fresh = embedded.place(load(self.settings.path), self.engines)
            refuse_changes(self.settings, fresh)
            self.site.reload()
            contexts = {up.name: client_context(up) for up in fresh.upstreams.values()}
        except JoyError as error:
            self.talk(f"not reloaded, the old settings stay: {error}")
            return
        self.settings = fresh
        self.keys.replace(fresh.keys)
        self.site.front = Front(fresh.secured, fresh.cors, str(fresh.path))
        for upstream in (self.router.primary, self.router.standby):
            upstream.change(fresh.of_role(upstream.role), contexts)
        change = self.monitor.change(self.watched())
        self.tasks.append(asyncio.get_running_loop().create_task(change))
        self.talk(f"reloaded {fresh.path}")

    # Events

    def handle(self, event: Event) -> None:
        """Feed the rollout, or the stream that all gateways feed theirs from."""
        if self.shared is not None:
            self.shared.put(event)
        else:
            self.changed(self.rollout.handle(event))

    def changed(self, changes: list[RolloutChange]) -> None:
        """A decision is on disk before anybody hears of it."""
        if changes:
            self.save()
            for change in changes:
                self.talk(f"rollout {change.state} {change.weight:g} %: {change.text}")

    async def order(self, order: RolloutOrder) -> None:
        """Carry out an order; raises `JoyError` where it is refused."""
        if self.shared is not None:
            await self.shared.order(order)
        else:
            self.handle(order)

    def share(self, settings: GatewaySettings) -> SharedRollout | None:
        """The stream of several gateways, where `state` names one."""
        if settings.shared is None:
            return None
        url, _, name = settings.shared.partition("#")
        plan = orjson.loads(orjson.dumps(asdict(settings.plan)))  # tuples come back as lists
        whose = {**identity(settings), "plan": plan, "rule": settings.rule().describe()}
        return SharedRollout(
            url, name or settings.path.stem, self.rollout, whose, self.changed,
            lambda line: self.talk(line),
        )  # fmt: skip

    def report(self, served: Served, details: Details) -> None:
        """A backend succeeded or failed."""
        self.dirty = True
        self.handle(served)
        if self.journal is not None:
            self.journal.add(served, details())

    def health_changed(self, upstream: Upstream, up: bool, detail: str) -> None:
        self.handle(Health(tell_time(), upstream.role, up, detail))

    def ask_gate(self) -> None:
        """Ask the ledger whether the standby may take traffic."""
        settings = self.settings
        opinion = gate.ask(settings.of_role(SECOND), settings.folder, unverified=self.unverified)
        self.router.known_bad = opinion.bad
        self.handle(LedgerGate(tell_time(), opinion.open, opinion.reason))

    # Requests

    async def serve(self, visit: Visit) -> web.StreamResponse:
        """Answer one request: the gateway's own pages, everything else from a backend."""
        started = time.perf_counter()
        path, _, _ = visit.raw_path.partition("?")
        page = self.pages.get((visit.method, path))
        if page is not None:
            return await page(visit)
        reply: web.StreamResponse | None = None
        call: GatewayCall | None = None
        try:
            api = apis.find(path, self.settings.allow)
            operator = admin.is_operator(visit, self.settings.admin_key)
            if api is None or api.who != apis.ADMIN or not operator:
                self.site.enter(visit)
            api = self.admit(visit.method, path, api, operator)
            call = await self.call(visit, api, started)
            reply = await self.relay.answer(visit, call)
        except HttpRefusal as refusal:
            self.meters.outcomes["rejected"].value += 1
            reply = replies.refuse(path, refusal)
        finally:
            visit.tokens = call.tokens if call is not None else 0
            self.site.leave(visit)
            if self.settings.access_log:
                access.write(visit, path, started, reply)
        return reply

    async def call(self, visit: Visit, api: ApiRoute, started: float) -> GatewayCall:
        """Read the request within its limits; raises `HttpRefusal`."""
        if self.draining:
            raise HttpRefusal(
                503, "stopping: no new requests are taken", headers={"Retry-After": "5"}
            )
        limits = self.settings.limits
        sent = await body.read(visit, limits.body_bytes, limits.body_seconds)
        call = self.call_of(
            api, visit.method, visit.raw_path, visit.headers, sent, started, visit.id,
            visit.key_name, visit.trace,
        )  # fmt: skip
        visit.notes = {"model": (call.parsed or {}).get("model")}
        return call

    def call_of(
        self,
        api: ApiRoute,
        method: str,
        raw_path: str,
        headers: Mapping[str, str],
        sent: bytes,
        started: float,
        called: str,
        key_name: str,
        trace: RequestSpan | None = None,
    ) -> GatewayCall:
        """The request, and where it stands in the ramp; raises `HttpRefusal`."""
        parsed = None if api.form is None else parsed_body(sent)
        if parsed is None and api.speaks and method == "POST" and not is_object(sent):
            # Many servers answer 500 to it: a broken client must not bring a backend down.
            raise HttpRefusal(400, "the body is a JSON object", code="invalid_json")
        key = sticky_key(self.settings.rollout.sticky, headers, parsed)
        return GatewayCall(
            api, method, raw_path, headers, sent, parsed, started, called, trace=trace,
            who=key or key_name, share=self.rollout.weight / 100, point=self.router.point(key),
        )  # fmt: skip

    def admit(self, method: str, path: str, api: ApiRoute | None, operator: bool) -> ApiRoute:
        """The row of a path, which this client may ask for; raises `HttpRefusal`."""
        if api is None or path.startswith("/admin/"):
            raise HttpRefusal(404, f"nothing is here: {method} {path}")
        if method not in api.methods:
            names = ", ".join(api.methods)
            why = f"{path} takes {names}, not {method}"
            raise HttpRefusal(405, why, headers={"Allow": names})
        if api.who == apis.ADMIN and not operator:
            raise HttpRefusal(
                403,
                f"{path} changes the backend for everybody: it needs the admin key",
                code="admin_key_required",
            )
        return api


async def open_envoy_door(gateway: Gateway, address: str) -> EnvoyDoor:
    """Listen for Envoy's filter; raises `JoyError`."""
    need("envoy", "grpc", "envoy.service", what="`envoy:`, the door for Envoy's filter")
    from joymigrate.run.serve.gateway import envoy

    return await envoy.open_door(gateway, address)


def identity(settings: GatewaySettings) -> dict[str, Any]:
    """What a saved state belongs to. An upstream that moved to another address is the same one."""
    standby = settings.of_role(SECOND)
    return {
        "primary": settings.of_role(PRIMARY).name,
        "standby": standby.name,
        "chip": standby.chip,
        "model": standby.model,
    }


async def run(gateway: Gateway) -> None:
    """Serve until SIGINT or SIGTERM; SIGHUP reads the file again."""
    import gc

    # What exists now stays: looking through it again and again costs a tenth of the processor time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS, 50, 100)
    async with until_ended(gateway.reload) as (ended, hurried):
        await gateway.start()
        gateway.talk(f"listening on {gateway.site.url}")
        try:
            await ended.wait()
            gateway.talk("stopping: running requests may end, new ones are refused")
        finally:
            await gateway.stop(hurried)
