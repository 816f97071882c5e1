"""A share of a card as device sharers ask for it: by percent, or by a model's own sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.cluster.jobs import GangJob, PodGroup
from joymigrate.run.cluster.kinds import ServerKind


def rule(kind: ServerKind, sharer: str) -> Mapping[str, Any]:
    """What the kind's data say about this sharer: `kubernetes.shares` of topology.yaml."""
    return dict((kind.kubernetes.get("shares") or {}).get(sharer) or {})


def requests(job: GangJob, task: PodGroup, kind: ServerKind, sharer: str) -> dict[str, str]:
    """Resources for `task.milli` thousandths of one card, rounded up to what can be had."""
    known = rule(kind, sharer)
    if not known:
        raise JoyError(
            f"job {job.name}: nothing is known about shares of {kind.name} with {sharer}",
            help="ask for whole cards",
        )
    percent = str(-(-task.milli // 10))
    asks = dict.fromkeys(known.get("count", ()), "1")
    asks.update(dict.fromkeys(known.get("percent", ()), percent))
    models = known.get("models") or {}
    if models:
        asks.update(size_share(job, task, models))
    return asks


def size_share(job: GangJob, task: PodGroup, models: Mapping[str, Any]) -> dict[str, str]:
    """The smallest part of the card's memory (MiB) that holds the share."""
    model = next((name for name in task.models if name in models), None)
    if model is None:
        raise JoyError(
            f"job {job.name} asks for a share and names no model that is known to split",
            help=f"`models:` with one of {', '.join(models)}",
        )
    one = models[model]
    wanted = task.milli * one["whole"] / 1000
    size = next((size for size in one["sizes"] if size >= wanted), None)
    if size is None:
        largest = one["sizes"][-1] / one["whole"]
        raise JoyError(
            f"job {job.name}: no part of a {model} holds {task.milli / 1000:g} of it",
            help=f"at most {largest:g}, or the whole card",
        )
    return {one["count"]: "1", one["memory"]: str(size)}
