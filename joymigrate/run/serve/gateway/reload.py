"""What a gateway's file may change while the gateway runs: keys, and where its upstreams are."""

from __future__ import annotations

import ssl
from dataclasses import fields, replace

from joymigrate.errors import JoyError
from joymigrate.run.serve.gateway.settings import GatewaySettings, UpstreamSettings
from joymigrate.run.serve.web import tls

ALIVE = ("keys", "admin_key", "upstreams", "cors", "tls", "rule", "allow")
ALIVE_UPSTREAM = ("urls", "key", "connections", "health", "token_ids", "tls", "forward")


def refuse_changes(old: GatewaySettings, new: GatewaySettings) -> None:
    """Raise `JoyError` for the first change that needs a new process."""
    for one in fields(GatewaySettings):
        if one.name not in ALIVE and getattr(old, one.name) != getattr(new, one.name):
            raise needs_restart(one.name, new)
    if old.rule().describe() != new.rule().describe():
        raise needs_restart("rollout.rule", new)
    if (old.tls is None) != (new.tls is None) or (old.tls and new.tls and old.tls != new.tls):
        raise needs_restart("tls (other files; the same files are read again)", new)
    if {up.name for up in old.upstreams} != {up.name for up in new.upstreams}:
        raise needs_restart("the names of the upstreams", new)
    for up in new.upstreams:
        before = next(one for one in old.upstreams if one.name == up.name)
        kept = {name: getattr(before, name) for name in ALIVE_UPSTREAM}
        if replace(up, **kept) != before:
            raise needs_restart(f"upstreams.{up.name}", new)


def needs_restart(what: str, settings: GatewaySettings) -> JoyError:
    """The refusal of a change."""
    return JoyError(
        f"{what} cannot change while the gateway runs", where=str(settings.path),
        help="restart it: the rollout's state is kept; keys, urls and cors change alive",
    )  # fmt: skip


def client_context(upstream: UpstreamSettings) -> ssl.SSLContext | None:
    """How an upstream is reached over TLS, where its settings say more than https; raises
    `JoyError` for files that cannot be used."""
    return tls.of_client(upstream.tls) if upstream.tls is not None else None
