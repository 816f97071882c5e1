"""Asks every server of every upstream whether it is well; tells the rollout when that changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from joymigrate.run.serve.evidence.failures import BackendFailure
from joymigrate.run.serve.gateway.settings import HealthSettings
from joymigrate.run.serve.gateway.upstreams import Instance, Upstream

log = logging.getLogger("joymigrate.serve")
UNKNOWN = None
REASON = 100  # characters of a trouble that make it another one
DEFAULT_PATHS = ("/health", "/v1/models", "/v2/health/ready")


async def watch(
    upstream: Upstream, settings: HealthSettings, tell: Callable[[Upstream, bool, str], None]
) -> None:
    """Check for ever; `tell` hears when the upstream as a whole goes up or down."""
    while True:
        await check_once(upstream, settings, tell)
        await asyncio.sleep(settings.interval_seconds)


async def check_once(
    upstream: Upstream, settings: HealthSettings, tell: Callable[[Upstream, bool, str], None]
) -> None:
    """Check each server once, all at the same time."""
    paths = (upstream.settings.health,) if upstream.settings.health else DEFAULT_PATHS
    instances = list(upstream.instances)
    troubles = await asyncio.gather(
        *(ask(upstream, instance, paths, settings.timeout_seconds) for instance in instances)
    )
    before = upstream.up
    for instance, trouble in zip(instances, troubles, strict=True):
        if trouble is not UNKNOWN:
            note(instance, not trouble, settings)
            tell_trouble(upstream, instance, trouble)
    if upstream.up != before:
        detail = "; ".join(trouble for trouble in troubles if trouble)
        tell(upstream, upstream.up, detail)


async def ask(
    upstream: Upstream, instance: Instance, paths: tuple[str, ...], timeout_seconds: float
) -> str | None:
    """What is wrong with a server; empty where nothing is, `UNKNOWN` where we could not ask."""
    try:
        return await upstream.backend.check(instance.url, paths, timeout_seconds) or ""
    except BackendFailure:
        return UNKNOWN


def tell_trouble(upstream: Upstream, instance: Instance, trouble: str) -> None:
    """Say in the log what is wrong with a server, once for each reason: a certificate, a refused
    connection, a path that it does not know."""
    if trouble[:REASON] == instance.trouble:
        return
    instance.trouble = trouble[:REASON]
    if trouble:
        log.warning("%s at %s fails its health check: %s", upstream.name, instance.url, trouble)
    else:
        log.info("%s at %s passes its health check again", upstream.name, instance.url)


def note(instance: Instance, well: bool, settings: HealthSettings) -> None:
    """Change the opinion of one server after enough answers in a row that contradict it."""
    if well == instance.up:
        instance.streak = 0
        return
    instance.streak += 1
    if instance.streak >= (settings.up_after if well else settings.down_after):
        instance.up, instance.streak = well, 0
