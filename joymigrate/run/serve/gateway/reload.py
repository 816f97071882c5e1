"""What a gateway's file may change while the gateway runs: keys, and where its upstreams are."""

from __future__ import annotations

import ssl
from collections.abc import Container
from dataclasses import astuple, fields, is_dataclass
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.serve.gateway.settings import GatewaySettings, UpstreamSettings
from joymigrate.run.serve.web import tls

ALIVE = ("keys", "admin_key", "cors", "allow")
ALIVE_UPSTREAM = ("urls", "key", "connections", "health", "token_ids", "tls", "secured", "forward")
MISSING = object()


def refuse_changes(old: GatewaySettings, new: GatewaySettings) -> None:
    """Raise `JoyError` for the first change that needs a new process."""
    before, after = fixed_values(old), fixed_values(new)
    for key in {**before, **after}:
        if before.get(key, MISSING) != after.get(key, MISSING):
            raise needs_restart(key, new)


def fixed_values(given: GatewaySettings) -> dict[str, Any]:
    """What needs a new process, by its key in the file: what each value means, however it is
    spelt."""
    meant = {
        "listen": (given.host, given.port),
        "rollout": {**by_key(given.rollout), **by_key(given.plan), "rule": given.rule().describe()},
        "state": given.shared or given.state_file,
        "log": given.log_file,
        "tls": given.secured and astuple(given.secured),
        "upstreams": {name: fixed_of(one, given.folder) for name, one in given.upstreams.items()},
    }
    return flat({**by_key(given, ALIVE), **meant})


def fixed_of(upstream: UpstreamSettings, folder: Path) -> dict[str, Any]:
    """What of an upstream needs a new process."""
    place = folder / upstream.folder if upstream.folder else None
    return {**by_key(upstream, ALIVE_UPSTREAM), "folder": place}


def by_key(settings: Any, without: Container[str] = ()) -> dict[str, Any]:
    """The values of one table of the file."""
    return {one.name: getattr(settings, one.name) for one in fields(settings)
            if one.name not in without}  # fmt: skip


def flat(table: dict[str, Any], above: str = "") -> dict[str, Any]:
    """The values of a table and of those in it, by their whole key."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        key = f"{above}{name}"
        inner = by_key(value) if is_dataclass(value) else value
        found |= flat(inner, f"{key}.") if isinstance(inner, dict) else {key: inner}
    return found


def needs_restart(what: str, settings: GatewaySettings) -> JoyError:
    """The refusal of a change."""
    return JoyError(
        f"{what} cannot change while the gateway runs", where=str(settings.path),
        help="restart it: the rollout's state is kept; keys, urls, cors and what is in the "
        "certificates change alive",
    )  # fmt: skip


def client_context(upstream: UpstreamSettings) -> ssl.SSLContext | None:
    """How an upstream is reached over TLS, where its settings say more than https; raises
    `JoyError` for files that cannot be used."""
    return tls.of_client(upstream.secured) if upstream.secured is not None else None
