"""Engines inside the gateway's own process: each on a loopback address whose key only the gateway
knows, so that they are backends like all others."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from joymigrate.run.serve.gateway.settings import GatewaySettings, UpstreamSettings
from joymigrate.run.serve.web.limits import HttpLimits

if TYPE_CHECKING:
    from joymigrate.run.serve.engine.http.app import Endpoint
    from joymigrate.run.serve.web.server import Server


def open_engines(
    settings: GatewaySettings, talk: Callable[[str], None] = lambda line: None
) -> dict[str, Server]:
    """The servers of the upstreams that name a folder instead of a url; they do not listen yet.
    Raises `JoyError`."""
    from joymigrate.run.serve.web.server import Server

    made = {}
    limits = HttpLimits(body_bytes=settings.limits.body_bytes)
    for upstream in settings.upstreams.values():
        if upstream.folder is None:
            continue
        talk(f"{upstream.name}: loading {upstream.folder}")
        service = open_engine(upstream, settings.folder, limits)
        info = service.info
        talk(f"{upstream.name}: {info.family} as {info.dtype} on {info.device}")
        made[upstream.name] = Server(service, port=0)
    return made


def open_engine(upstream: UpstreamSettings, folder: Path, limits: HttpLimits) -> Endpoint:
    """The engine of one upstream; relative folders are relative to the gateway's file."""
    from joymigrate.run.serve.engine.http.service_start import open_service
    from joymigrate.run.serve.engine.types import EngineOptions

    assert upstream.folder is not None
    path = folder / upstream.folder
    options = EngineOptions(dtype=upstream.dtype, device=upstream.device, probe=True)
    names = (upstream.serves,) if upstream.serves else ()
    return open_service(path, options, names=names, keys=(secrets.token_urlsafe(),), limits=limits)


def place(settings: GatewaySettings, engines: Mapping[str, Server]) -> GatewaySettings:
    """The settings with the addresses and keys of engines that listen."""
    return replace(
        settings,
        upstreams={
            name: replace(up, urls=(engine.url,), key=engine.service.keys.keys[0].secret)
            if (engine := engines.get(name)) is not None
            else up
            for name, up in settings.upstreams.items()
        },
    )
