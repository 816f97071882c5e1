"""What gateway.yaml's values must be beyond their types: secrets of the environment, addresses."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from joymigrate.errors import JoyError

HELP = "see docs/how-to/gateway.md for the keys of gateway.yaml"


def secret(raw: str, path: Path) -> str:
    """A key as it stands, or `env:NAME` for one from the environment."""
    if not raw.startswith("env:"):
        return raw
    value = os.environ.get(raw[4:])
    if not value:
        raise JoyError(
            f"the environment has no {raw[4:]}",
            where=str(path),
            help=f"export {raw[4:]}=… before joymigrate serve",
        )
    return value


def url_trouble(url: str) -> str | None:
    """What an upstream's url lacks, or None. A path is allowed: some servers live below one."""
    if not url.startswith(("http://", "https://")):
        return "starts with http:// or https://"
    try:
        parts = urlsplit(url)
        named, _ = parts.hostname, parts.port  # reading the port checks it
    except ValueError:
        return "has a port from 1 to 65535"
    if not named:
        return "names a host"
    return "has no '?' and no '#'" if parts.query or parts.fragment else None
