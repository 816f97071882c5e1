"""`cluster watch`: read a Kubernetes cluster again whenever one of its pods or nodes changes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.cluster.kubernetes.live import KINDS, Objects, judge, read

PAGE = 500  # objects of one answer
SETTLE_S = 1.0  # after a change: changes come in crowds


def fetch(client: Any) -> Objects:
    """All objects of the kinds that are looked at; those that the cluster does not know are left
    out, and of Kueue's two versions the first that is there is taken."""
    from kubernetes.client import ApiException
    from kubernetes.dynamic.exceptions import DynamicApiError, ResourceNotFoundError
    from urllib3.exceptions import HTTPError

    found: dict[tuple[str, str], list[Any]] = {}
    names: set[tuple[str, str]] = set()
    for version, kind in KINDS:
        key = (version.partition("/")[0], kind)
        if key in names:
            continue
        try:
            api = client.resources.get(api_version=version, kind=kind)
            found[version, kind] = pages(api)
            names.add(key)
        except ResourceNotFoundError:
            continue
        except (ApiException, DynamicApiError, HTTPError) as error:
            raise JoyError(
                f"the cluster does not let {kind} of {version} be read: "
                f"{str(getattr(error, 'reason', '') or error)[:200]}",
                help="a role with `get`, `list` and `watch` on it",
            ) from error
    return found


def pages(api: Any) -> list[Any]:
    """Every object of a kind, page by page."""
    items: list[Any] = []
    token = None
    while True:
        answer = api.get(limit=PAGE, **({"_continue": token} if token else {})).to_dict()
        items += answer.get("items") or []
        token = (answer.get("metadata") or {}).get("continue")
        if not token:
            return items


def changes(
    client: Any, every_s: float, kinds: Sequence[tuple[str, str]] = (("v1", "Pod"),)
) -> Iterator[None]:
    """Once now, then after each change of an object of the first of these kinds (API version, kind)
    that the cluster knows, and after `every_s` seconds without one."""
    while True:
        # Asked before the objects are read: what changes meanwhile is not missed.
        with contextlib.suppress(Exception):  # whoever reads the objects is told what it is
            api = first_known(client, kinds)
            version = api.get(limit=1).to_dict()["metadata"]["resourceVersion"]
        yield None
        until = time.monotonic() + every_s
        try:
            for _ in api.watch(resource_version=version, timeout=max(1, int(every_s))):
                break
        except Exception:  # a broken watch, or one that is too old: read everything anew
            time.sleep(min(SETTLE_S, every_s))
        time.sleep(max(0.0, min(SETTLE_S, until - time.monotonic())))


def first_known(client: Any, kinds: Sequence[tuple[str, str]]) -> Any:
    """The API of the first of these kinds that the cluster knows; of the last one, where none."""
    from kubernetes.dynamic.exceptions import ResourceNotFoundError

    for version, kind in kinds[:-1]:
        with contextlib.suppress(ResourceNotFoundError):
            return client.resources.get(api_version=version, kind=kind)
    return client.resources.get(api_version=kinds[-1][0], kind=kinds[-1][1])


def watch(client: Any, every_s: float, once: bool = False) -> Iterator[dict[str, Any]]:
    """What is known of all waiting gangs, each time that something of it has changed."""
    last: Any = None
    for _ in changes(client, every_s):
        now = time.time()
        data = judge(read(fetch(client), now), now)
        if data != last:
            yield data
        last = data
        if once:
            return
