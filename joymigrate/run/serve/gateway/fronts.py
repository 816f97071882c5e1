"""The parts of `gateway.yaml` about who comes in and over what: keys, TLS, CORS, credentials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.serve.gateway.checks import HELP, secret
from joymigrate.run.serve.web.keys import Key
from joymigrate.run.serve.web.tls import Tls
from joymigrate.schema import document, load_file, read, setting

FORWARD = ("authorization", "cookie")


@document("keys", "Keys of clients: `serve --keys-file FILE`, and `keys` of gateway.yaml.")
@dataclass(frozen=True, slots=True)
class KeysFile:
    """The keys that are accepted."""

    SHORT = "keys"

    keys: tuple[Key, ...] = setting(help="the clients' keys", single=True)


@dataclass(frozen=True, slots=True)
class ServerTls:
    """What the gateway listens with; files in PEM form, relative to the gateway's file."""

    certificate: str = setting(help="our certificate")
    key: str | None = setting(None, "its key, where the certificate's file has none")
    client_ca: str | None = setting(None, "clients need a certificate that this CA signed")


@dataclass(frozen=True, slots=True)
class UpstreamTls:
    """How an upstream is reached over TLS, where its url says too little."""

    ca: str | None = setting(None, "who signs the upstream's certificate")
    certificate: str | None = setting(None, "our certificate, where the upstream asks for one")
    key: str | None = setting(None, "its key")
    server_name: str | None = setting(None, "the name in the upstream's certificate")
    verify: bool = setting(True, "whether the upstream's certificate is checked")


def keys_of_file(path: Path) -> tuple[Key, ...]:
    """The keys of a file: a list, or a table with `keys`. Raises `JoyError`."""
    raw, source = load_file(path, "file of keys")
    given: Any = raw if isinstance(raw, dict) and "keys" in raw else {"keys": raw or []}
    return read_keys(read(KeysFile, given, source, help=HELP).keys, path)


def read_keys(given: Sequence[Key], path: Path) -> tuple[Key, ...]:
    """Keys with their secrets looked up. Raises `JoyError`."""
    found = tuple(replace(one, secret=secret(one.secret, path)) for one in given)
    if len({key.secret for key in found}) < len(found):
        raise JoyError(
            "a key stands in keys twice", where=str(path), help="give each client its own"
        )
    return found


def server_tls(given: ServerTls | None, folder: Path) -> Tls | None:
    """`tls`: the certificate to listen with; with `client_ca` clients need one, too."""
    if given is None:
        return None
    return Tls(
        inside(folder, given.certificate), inside(folder, given.key),
        inside(folder, given.client_ca),
    )  # fmt: skip


def upstream_tls(given: UpstreamTls | None, folder: Path) -> Tls | None:
    """`tls` of an upstream: who signs its certificate, and ours where it asks for one."""
    if given is None:
        return None
    return Tls(
        inside(folder, given.certificate), inside(folder, given.key), inside(folder, given.ca),
        given.server_name, given.verify,
    )  # fmt: skip


def inside(folder: Path, given: str | None) -> Path | None:
    """A file that is named relative to the gateway's."""
    return None if given is None else folder / given
