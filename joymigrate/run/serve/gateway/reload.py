"""What a gateway's file may change while the gateway runs: keys, and where its upstreams are."""

from __future__ import annotations

import ssl
from dataclasses import fields, replace

from joymigrate.errors import JoyError
from joymigrate.run.serve.gateway.settings import GatewaySettings, UpstreamSettings
from joymigrate.run.serve.web import tls

ALIVE = ("keys", "admin_key", "upstreams", "cors", "allow", "rollout")
ALIVE_UPSTREAM = ("urls", "key", "connections", "health", "token_ids", "tls", "secured", "forward")


def refuse_changes(old: GatewaySettings, new: GatewaySettings) -> None:
    """Raise `JoyError` for the first change that needs a new process."""
    if old.tls != new.tls:
        raise needs_restart("tls (other files; the same files are read again)", new)
    if replace(old.rollout, rule=new.rollout.rule) != new.rollout:
        raise needs_restart("rollout", new)
    if old.rule().describe() != new.rule().describe():
        raise needs_restart("rollout.rule", new)
    for one in fields(GatewaySettings):
        if one.name not in ALIVE and getattr(old, one.name) != getattr(new, one.name):
            raise needs_restart(one.name, new)
    if old.upstreams.keys() != new.upstreams.keys():
        raise needs_restart("the names of the upstreams", new)
    for name, up in new.upstreams.items():
        before = old.upstreams[name]
        kept = {one: getattr(before, one) for one in ALIVE_UPSTREAM}
        if replace(up, **kept) != before:
            raise needs_restart(f"upstreams.{name}", new)


def needs_restart(what: str, settings: GatewaySettings) -> JoyError:
    """The refusal of a change."""
    return JoyError(
        f"{what} cannot change while the gateway runs", where=str(settings.path),
        help="restart it: the rollout's state is kept; keys, urls and cors change alive",
    )  # fmt: skip


def client_context(upstream: UpstreamSettings) -> ssl.SSLContext | None:
    """How an upstream is reached over TLS, where its settings say more than https; raises
    `JoyError` for files that cannot be used."""
    return tls.of_client(upstream.secured) if upstream.secured is not None else None
