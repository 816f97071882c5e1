"""Talks to the admin page of a running gateway, for `serve rollout`."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from joymigrate.errors import JoyError

TIMEOUT_SECONDS = 10.0


def ask(url: str, order: str | None = None, key: str | None = None) -> dict[str, Any]:
    """The rollout's state, after `order` where one is given; a refusal is a `JoyError`."""
    where = url.rstrip("/") + "/admin/rollout"
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    data = json.dumps({"order": order}).encode() if order else None
    request = urllib.request.Request(where, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as reply:
            found: dict[str, Any] = json.loads(reply.read())
            return found
    except urllib.error.HTTPError as error:
        raise refusal(error, where) from None
    except (OSError, ValueError) as error:
        raise JoyError(
            f"no gateway answers: {getattr(error, 'reason', error)}",
            where=where,
            help="name it with --url, or its file with --config",
        ) from None


def refusal(error: urllib.error.HTTPError, where: str) -> JoyError:
    """What the gateway said, as our error."""
    try:
        said = json.loads(error.read())["error"]
    except (ValueError, KeyError, TypeError):
        said = {"message": f"status {error.code}"}
    help = said.get("help") or (
        "give the admin key with --key"
        if error.code in (401, 403)
        else "see docs/how-to/gateway.md"
    )
    return JoyError(str(said["message"]), where=where, help=str(help))
