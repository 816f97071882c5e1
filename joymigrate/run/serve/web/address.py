"""The address that a server listens on."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from joymigrate.errors import JoyError


def take(host: str, port: int, file: str | None = None) -> list[socket.socket]:
    """Bind to every address that `host` means; nobody is answered yet. `file` named it, or None
    for a command line.

    Raises `JoyError` where the host is unknown or the port is taken.
    """
    taken: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, where in dict.fromkeys(found):
            made = socket.socket(family, kind, protocol)
            taken.append(made)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made.bind(where)
    except (OSError, OverflowError) as error:
        for made in taken:
            made.close()
        raise JoyError(
            f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}",
            where=file,
            help="choose another `listen`"
            if file
            else "choose another one with --port, or stop what uses it",
        ) from None
    return taken


def end(listener: socket.socket) -> list[socket.socket]:
    """Stop listening; who was waiting to be taken is."""
    listener.setblocking(False)
    taken: list[socket.socket] = []
    with listener, contextlib.suppress(OSError):
        while True:
            taken.append(listener.accept()[0])
    return taken


def is_loopback(host: str | None) -> bool:
    """Whether only this machine reaches an address, or is behind one."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address((host or "").split("%")[0]).is_loopback
    except ValueError:
        return False


FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via")


def is_asked_here(headers: Mapping[str, str]) -> bool:
    """Whether a request from this machine was made by a program of it: not by another's page in a
    browser (a foreign name in `Host`, a foreign `Origin`), nor by a proxy for somebody else."""
    if any(name in headers for name in FORWARDED):
        return False
    host = urlsplit(f"//{headers.get('Host', 'localhost')}").hostname
    origin = headers.get("Origin")
    return is_loopback(host) and (origin is None or is_loopback(urlsplit(origin).hostname))
