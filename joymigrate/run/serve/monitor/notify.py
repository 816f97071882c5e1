"""Tells people about alerts: the log, any webhook, DingTalk, Feishu, WeCom.

Formats: open.dingtalk.com/document (custom robots), open.feishu.cn/document (custom bots),
developer.work.weixin.qq.com/document (group robots).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from joymigrate.run.serve.monitor.alerts import Change, Place

SCHEMA = "joymigrate.alert/1"
TIMEOUT_SECONDS = 10.0
Send = Callable[[str, bytes], None]


def message(changes: Sequence[Change]) -> str:
    """Lines that people read."""
    return "\n".join(
        f"[{change.severity if change.firing else 'resolved'}] {change.name}: {change.text}"
        for change in changes
    )


def generic(changes: Sequence[Change], place: Place, time: float) -> tuple[str, dict[str, Any]]:
    """Our own JSON, for any receiver."""
    return place.url, {"schema": SCHEMA, "alerts": [asdict(change) for change in changes]}


def dingtalk(changes: Sequence[Change], place: Place, time: float) -> tuple[str, dict[str, Any]]:
    """A markdown message; signed in the address when the robot has a secret."""
    url = place.url
    if place.secret:
        stamp = str(int(time * 1000))
        sign = digest(place.secret, f"{stamp}\n{place.secret}")
        url += f"&timestamp={stamp}&sign={urllib.parse.quote_plus(sign)}"
    lines = "\n\n".join(message([change]) for change in changes)
    return url, {"msgtype": "markdown", "markdown": {"title": "joymigrate", "text": lines}}


def feishu(changes: Sequence[Change], place: Place, time: float) -> tuple[str, dict[str, Any]]:
    """A text message; signed in the body when the bot has a secret."""
    body: dict[str, Any] = {"msg_type": "text", "content": {"text": message(changes)}}
    if place.secret:
        stamp = str(int(time))
        # The string to sign is the key, and nothing is signed with it.
        body |= {"timestamp": stamp, "sign": digest(f"{stamp}\n{place.secret}", "")}
    return place.url, body


def wecom(changes: Sequence[Change], place: Place, time: float) -> tuple[str, dict[str, Any]]:
    """A markdown message."""
    return place.url, {"msgtype": "markdown", "markdown": {"content": message(changes)}}


def digest(key: str, text: str) -> str:
    """HMAC-SHA256 in base 64."""
    return base64.b64encode(hmac.new(key.encode(), text.encode(), hashlib.sha256).digest()).decode()


FORMS = {"webhook": generic, "dingtalk": dingtalk, "feishu": feishu, "wecom": wecom}


def tell(
    changes: Sequence[Change],
    places: Sequence[Place],
    time: float,
    log: Callable[[str], None],
    send: Send | None = None,
) -> list[str]:
    """Tell every place; returns what could not be told. Blocks: call it in a thread."""
    troubles = []
    for place in places:
        if place.kind == "log":
            log(f"alert {message(changes)}")
            continue
        url, body = FORMS[place.kind](changes, place, time)
        try:
            (send or post)(url, json.dumps(body, ensure_ascii=False).encode())
        except OSError as error:
            troubles.append(f"{place.kind}: {error}")
    return troubles


def post(url: str, body: bytes) -> None:
    """Send JSON."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS):
        pass
