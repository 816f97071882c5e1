"""The gateway's own pages: health, metrics, rollout, shadow, dashboard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from aiohttp import web

from joymigrate.errors import JoyError
from joymigrate.run.serve.evidence.events import RolloutOrder
from joymigrate.run.serve.evidence.rollout import Rollout
from joymigrate.run.serve.gateway import admin, replies
from joymigrate.run.serve.gateway.clock import tell_time
from joymigrate.run.serve.gateway.routing import Router
from joymigrate.run.serve.gateway.settings import GatewaySettings
from joymigrate.run.serve.gateway.shadow import Shadow
from joymigrate.run.serve.monitor import web as monitor_web
from joymigrate.run.serve.monitor.metrics import Metrics
from joymigrate.run.serve.monitor.service import Monitor

Page = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Shown(Protocol):
    """The gateway, as far as its pages show it and pass orders on."""

    settings: GatewaySettings
    metrics: Metrics
    rollout: Rollout
    router: Router
    shadow: Shadow
    monitor: Monitor

    @property
    def draining(self) -> bool:
        """Whether it takes no new requests."""

    def ask_gate(self) -> None:
        """Look again whether the ledger lets the rollout go on."""

    async def order(self, order: RolloutOrder) -> None:
        """Do what an operator orders; raises `JoyError`."""


class Pages:
    """Everything that is answered here and not by a backend."""

    def __init__(self, gateway: Shown) -> None:
        self.gateway = gateway

    def by_path(self) -> dict[tuple[str, str], Page]:
        """The pages by method and path."""
        return {
            ("GET", "/health"): self.show_health,
            ("GET", "/ready"): self.show_ready,
            ("GET", "/metrics"): self.show_metrics,
            ("GET", "/admin/rollout"): self.show_rollout,
            ("POST", "/admin/rollout"): self.take_order,
            ("GET", "/admin/shadow"): self.show_shadow,
            ("GET", "/dashboard"): self.show_dashboard,
            ("GET", "/monitor.json"): self.show_numbers,
        }

    async def show_health(self, request: web.BaseRequest) -> web.StreamResponse:
        ups = {up.name: up.up for up in (self.gateway.router.primary, self.gateway.router.standby)}
        ready = any(ups.values())
        status = "draining" if self.gateway.draining else "ok" if ready else "down"
        body = {"status": status, "upstreams": ups}
        return replies.data(body, 200 if ready else 503)

    async def show_ready(self, request: web.BaseRequest) -> web.StreamResponse:
        """Whether new requests should come here: a balancer asks this one."""
        if self.gateway.draining:
            return replies.data({"status": "draining"}, 503)
        return await self.show_health(request)

    async def show_metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(
            body=self.gateway.metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"}
        )

    async def show_rollout(self, request: web.BaseRequest) -> web.StreamResponse:
        refusal = admin.refuse_strangers(request, self.gateway.settings.admin_key)
        return refusal or replies.data(admin.describe(self.gateway.rollout, self.gateway.router))

    async def show_shadow(self, request: web.BaseRequest) -> web.StreamResponse:
        refusal = admin.refuse_strangers(request, self.gateway.settings.admin_key)
        return refusal or replies.data(self.gateway.shadow.summary())

    async def show_dashboard(self, request: web.BaseRequest) -> web.StreamResponse:
        refusal = admin.refuse_strangers(request, self.gateway.settings.admin_key)
        return refusal or await monitor_web.dashboard(self.gateway.monitor, request)

    async def show_numbers(self, request: web.BaseRequest) -> web.StreamResponse:
        refusal = admin.refuse_strangers(request, self.gateway.settings.admin_key)
        return refusal or await monitor_web.data(self.gateway.monitor, request)

    async def take_order(self, request: web.BaseRequest) -> web.StreamResponse:
        refusal = admin.refuse_strangers(request, self.gateway.settings.admin_key)
        if refusal is not None:
            return refusal
        try:
            order = await admin.read_order(request)
            if order in ("resume", "promote"):
                self.gateway.ask_gate()
            await self.gateway.order(RolloutOrder(tell_time(), order))
        except JoyError as error:
            status = 400 if error.where == "/admin/rollout" else 409
            body = {"error": {"message": error.what, "help": error.help, "code": "refused"}}
            return replies.data(body, status)
        return replies.data(admin.describe(self.gateway.rollout, self.gateway.router))
