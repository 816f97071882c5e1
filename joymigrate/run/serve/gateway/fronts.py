"""The parts of `gateway.yaml` about who comes in and over what: keys, TLS, CORS, credentials."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError, did_you_mean
from joymigrate.run.serve.gateway.checks import HELP, check_keys, checked, listed, mapping, secret
from joymigrate.run.serve.web.cors import Cors
from joymigrate.run.serve.web.keys import Key
from joymigrate.run.serve.web.tls import Tls

KEY = ("key", "name", "requests_per_minute", "concurrent")
TLS_SERVER = ("certificate", "key", "client_ca")
TLS_CLIENT = ("ca", "certificate", "key", "server_name", "verify")
FORWARD = ("authorization", "cookie")


def accepted(raw: Any, path: Path) -> tuple[Key, ...]:
    """`keys`: texts, or mappings with a `key` and its limits."""
    given = [raw] if isinstance(raw, Mapping) else listed(raw, "keys", path)
    found = tuple(key_of(item, path) for item in given)
    if len({key.secret for key in found}) < len(found):
        raise JoyError(
            "a key stands in keys twice", where=str(path), help="give each client its own"
        )
    return found


def key_of(raw: Any, path: Path) -> Key:
    """One of `keys`."""
    if not isinstance(raw, Mapping):
        return Key(secret(raw, path))
    check_keys(raw, KEY, "keys", path)
    if not raw.get("key"):
        raise JoyError("an item of keys has no key", where=str(path), help="key: env:NAME")
    rate = checked(raw.get("requests_per_minute", 0.0), float, "keys.requests_per_minute", path)
    most = checked(raw.get("concurrent", 0), int, "keys.concurrent", path)
    if rate < 0 or most < 0:
        raise JoyError("a key's limits are not negative; 0 is none", where=str(path), help=HELP)
    return Key(secret(raw["key"], path), str(raw.get("name") or ""), rate, most)


def server_tls(raw: Any, path: Path) -> Tls | None:
    """`tls`: the certificate to listen with; with `client_ca` clients need one, too."""
    if raw is None:
        return None
    table = mapping(raw, "tls", path)
    check_keys(table, TLS_SERVER, "tls", path)
    folder = path.resolve().parent
    if not table.get("certificate"):
        raise JoyError("tls has no certificate", where=str(path), help="tls: {certificate, key}")
    return Tls(
        inside(folder, table["certificate"]), inside(folder, table.get("key")),
        inside(folder, table.get("client_ca")),
    )  # fmt: skip


def upstream_tls(raw: Any, where: str, path: Path) -> Tls | None:
    """`tls` of an upstream: who signs its certificate, and ours where it asks for one."""
    if raw is None:
        return None
    table = mapping(raw, where, path)
    check_keys(table, TLS_CLIENT, where, path)
    folder = path.resolve().parent
    name = table.get("server_name")
    return Tls(
        inside(folder, table.get("certificate")), inside(folder, table.get("key")),
        inside(folder, table.get("ca")), None if name is None else str(name),
        checked(table.get("verify", True), bool, f"{where}.verify", path),
    )  # fmt: skip


def inside(folder: Path, given: Any) -> Path | None:
    """A file that is named relative to the gateway's."""
    return None if given is None else folder / str(given)


def cors_of(raw: Any, path: Path) -> Cors:
    """`cors`: the origins of the pages that a browser may let in."""
    if raw is None:
        return Cors()
    table = mapping(raw, "cors", path)
    check_keys(table, ("origins",), "cors", path)
    return Cors(tuple(str(one).rstrip("/") for one in listed(table.get("origins"), "cors", path)))


def forwarding(raw: Any, where: str, path: Path) -> tuple[str, ...]:
    """`forward`: which credentials of a client an upstream is shown."""
    found = tuple(str(one).lower() for one in listed(raw, where, path))
    for one in found:
        if one not in FORWARD:
            raise JoyError(
                f"{where} names {', '.join(FORWARD)}, got {one!r}.{did_you_mean(one, FORWARD)}",
                where=str(path), help=HELP,
            )  # fmt: skip
    return found
