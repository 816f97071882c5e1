"""The address that a gateway listens on."""

from __future__ import annotations

import socket
from pathlib import Path

from joymigrate.errors import JoyError


def take(host: str, port: int, file: Path) -> list[socket.socket]:
    """Bind to every address that `listen` in `file` means; nobody is answered yet.

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
    except OSError as error:
        for made in taken:
            made.close()
        raise JoyError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            where=str(file),
            help="choose another `listen`",
        ) from None
    return taken
