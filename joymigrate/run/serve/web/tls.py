"""TLS contexts: a server's certificate, its clients' certificates, and ours for a server."""

from __future__ import annotations

import logging
import ssl
import time
from dataclasses import dataclass
from pathlib import Path

from joymigrate.errors import JoyError

log = logging.getLogger("joymigrate.serve")
SOON_SECONDS = 14 * 86_400  # a certificate that ends so soon is told about at each start


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM form. `ca` signs the other side's certificate; on a server it asks for one."""

    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    server_name: str | None = None  # of an upstream whose certificate names another host
    verify: bool = True


def of_server(tls: Tls) -> ssl.SSLContext:
    """The context to listen with; raises `JoyError` for files that cannot be used."""
    if tls.certificate is None:
        raise JoyError("TLS needs a certificate", help="the certificate's file, and its key's")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load(context, tls)
    if said := expiry(tls.certificate, time.time()):
        log.warning("%s: clients refuse it", said)
    if tls.ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def of_client(tls: Tls) -> ssl.SSLContext:
    """The context to reach a server with; raises `JoyError`."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load(context, tls)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def load(context: ssl.SSLContext, tls: Tls) -> None:
    """Read the files (again): new connections use them. Raises `JoyError`."""
    for path in (tls.certificate, tls.key, tls.ca):
        if path is not None and not path.is_file():
            raise JoyError("there is no such file", where=str(path), help="a file in PEM form")
    try:
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.key)
        if tls.ca is not None:
            context.load_verify_locations(tls.ca)
    except (ssl.SSLError, OSError) as error:
        place = ", ".join(str(path) for path in (tls.certificate, tls.key, tls.ca) if path)
        raise JoyError(
            f"this certificate, key or CA cannot be used: {error}", where=place,
            help="PEM files; the key has no passphrase and belongs to the certificate",
        ) from None  # fmt: skip


def expiry(certificate: Path, now: float) -> str | None:
    """That a certificate is not valid now, or will not be for long; `now` in seconds since 1970."""
    decode = getattr(ssl, "_ssl", None) and getattr(ssl._ssl, "_test_decode_cert", None)  # type: ignore[attr-defined]
    if decode is None:  # a Python without it: clients find out
        return None
    try:
        found = decode(str(certificate))
        first, last = (ssl.cert_time_to_seconds(found[name]) for name in ("notBefore", "notAfter"))
    except (ValueError, KeyError, ssl.SSLError, OSError):
        return None
    if now > last:
        return f"the certificate {certificate} expired on {found['notAfter']}"
    if now < first:
        return f"the certificate {certificate} is valid from {found['notBefore']} on"
    if last - now < SOON_SECONDS:
        return f"the certificate {certificate} expires on {found['notAfter']}, then"
    return None
