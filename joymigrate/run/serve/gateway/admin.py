"""`/admin/…`: what the rollout does, and orders to it."""

from __future__ import annotations

import hmac
from dataclasses import asdict
from typing import Any

import orjson
from aiohttp import web

from joymigrate.errors import JoyError
from joymigrate.run.serve.evidence.events import ORDERS, ROLLED_BACK
from joymigrate.run.serve.evidence.rollout import Rollout
from joymigrate.run.serve.gateway import replies
from joymigrate.run.serve.gateway.clock import tell_time
from joymigrate.run.serve.gateway.routing import Router
from joymigrate.run.serve.web import address
from joymigrate.run.serve.web.address import is_loopback
from joymigrate.run.serve.web.errors import HttpRefusal

SCHEMA = "joymigrate.rollout/1"


def describe(rollout: Rollout, router: Router) -> dict[str, Any]:
    """The rollout as `GET /admin/rollout` and `serve rollout status` show it."""
    total, now = rollout.total, tell_time()
    return {
        "schema": SCHEMA,
        "state": rollout.state,
        "weights": router.weights(),
        "evidence": {
            "requests": total.requests,
            "failures": total.failures,
            "rate": total.failures / total.requests if total.requests else None,
            "upper_bound": rollout.upper_bound,
            "confidence": rollout.plan.confidence,
            "limit": rollout.plan.limit,
            "needed": rollout.needed,
            "shadow_requests": rollout.shadow_requests,
            "kinds": dict(rollout.last_kinds),
            "rule": rollout.rule.describe(),
            "level": rollout.rule.level,
            "pairs": rollout.answers.pairs,
            "suspected": rollout.suspected or rollout.doubt is not None,
            "answers": {
                name: {"against": rollout.answers.against.get(name, 0), "judged": count}
                for name, count in rollout.answers.judged.items()
            },
        },
        "primary": {"requests": rollout.primary.requests, "failures": rollout.primary.failures},
        "step": {
            "number": rollout.step + 1,
            "of": len(rollout.plan.steps),
            "seconds": max(0.0, now - rollout.step_since) if rollout.state == "ramping" else None,
            "requests": rollout.step_requests,
            "pairs": rollout.step_pairs,
            "waits_for": rollout.missing(now) if rollout.state == "ramping" else None,
        },
        "gate": {"open": rollout.gate_open, "reason": rollout.gate_reason},
        "upstreams": {
            upstream.name: {
                "role": upstream.role,
                "up": upstream.up,
                "inflight": upstream.inflight,
                "waiting": len(upstream.waiting),
                "allowed": router.allowed(upstream),
            }
            for upstream in (router.primary, router.standby)
        },
        "events": [asdict(change) for change in rollout.changes],
        "needs_order": rollout.state in (ROLLED_BACK, "paused"),
    }


def is_operator(request: web.BaseRequest, admin_key: str | None) -> bool:
    """Whether a request shows the admin key."""
    shown = bearer(request).encode("utf-8", "surrogateescape")
    return admin_key is not None and hmac.compare_digest(shown, admin_key.encode())


def refuse_strangers(request: web.BaseRequest, admin_key: str | None) -> web.Response | None:
    """None for an operator, a refusal for everybody else.

    Without an admin key only programs of this machine are admitted: not a page that a browser here
    shows (its origin, or the name under which it reached us, is another's), and nobody behind a
    proxy.
    """
    if admin_key is not None:
        if is_operator(request, admin_key):
            return None
        refusal = HttpRefusal(401, "this needs the admin key", code="admin_key_required")
        return replies.refuse(request.path, refusal)
    if is_loopback(request.remote) and address.is_asked_here(request.headers):
        return None
    why = "only this machine may do that; set admin_key to open it"
    return replies.refuse(request.path, HttpRefusal(403, why, code="not_from_here"))


def bearer(request: web.BaseRequest) -> str:
    """The key that a request shows: `Authorization: Bearer …`, `X-Api-Key` or `?key=`."""
    shown = request.headers.get("Authorization", "")
    if shown[:7].lower() == "bearer ":
        return shown[7:].strip()
    return request.headers.get("X-Api-Key") or request.query.get("key", "")


async def read_order(request: web.BaseRequest) -> str:
    """The order of a `POST /admin/rollout`; raises `JoyError`.

    The JSON content type is required: a browser sends it only after asking, so that a foreign
    page cannot give orders in an operator's name.
    """
    if request.content_type != "application/json":
        raise JoyError("an order is JSON", where="/admin/rollout", help='{"order": "pause"}')
    try:
        order = orjson.loads(await request.read())["order"]
    except (ValueError, KeyError, TypeError):
        raise JoyError(
            "an order is an object with 'order'", where="/admin/rollout", help='{"order": "pause"}'
        ) from None
    if order not in ORDERS:
        raise JoyError(
            f"unknown order {order!r}", where="/admin/rollout", help=f"one of {', '.join(ORDERS)}"
        )
    return str(order)
