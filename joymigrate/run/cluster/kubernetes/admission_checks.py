"""A door into Kueue: an AdmissionCheck that is decided by our queues and placement.

Kueue reserves its quota for a Workload, then asks its AdmissionChecks before it makes pods. Ours is
ready when our scheduler starts the gang. `Retry` lets go of the quota (so that others can have it)
and, for a Workload that runs, evicts it: that is how a claim gets its cards. What can never start
is `Rejected`. The cluster is read anew for each look: a restart loses nothing. (API v1beta2,
apis/kueue/v1beta2/workload_types.go and pkg/controller/core/workload_controller.go.)
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.cluster.kubernetes import cluster_watch, gangs, live
from joymigrate.run.cluster.kubernetes.nodes import Object
from joymigrate.run.cluster.queues import Queue

CONTROLLER = "joymigrate.io/cluster"  # spec.controllerName of the checks that are ours
READY, RETRY, REJECTED, PENDING = "Ready", "Retry", "Rejected", "Pending"
AGAIN_S = 60  # after which Kueue offers a Workload again that was told to wait
FAILURES = 3  # looks in a row that fail, after which Kueue goes on by its own rules
CONFLICT, GONE = 409, 404
WORKLOADS = [one for one in live.KINDS if one[1] == "Workload"]


@dataclass(frozen=True, slots=True)
class CheckVerdict:
    """What one of our checks says of a Workload, and why."""

    workload: Object
    version: str
    check: str
    state: str
    message: str

    @property
    def name(self) -> str:
        """Namespace and name of the Workload."""
        return "/".join(gangs.pod_key(self.workload))

    def status(self, now: float) -> list[dict[str, Any]]:
        """`status.admissionChecks` with this verdict in it; the others' stay as they are."""
        mine: dict[str, Any] = {
            "name": self.check, "state": self.state, "message": self.message,
            "lastTransitionTime": stamp(now),
        }  # fmt: skip
        if self.state == RETRY:
            mine["requeueAfterSeconds"] = AGAIN_S
        return [mine if one["name"] == self.check else dict(one) for one in checks(self.workload)]


def stamp(now: float) -> str:
    """Seconds since 1970 as the API server writes times."""
    return datetime.fromtimestamp(now, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def checks(workload: Object) -> list[Mapping[str, Any]]:
    """The states of a Workload's checks."""
    return list((workload.get("status") or {}).get("admissionChecks") or ())


def read_checks(objects: live.Objects) -> list[CheckVerdict]:
    """Our checks on Workloads that Kueue holds quota for, as they stand."""
    names = {
        str(one["metadata"]["name"])
        for _, one in live.of_kind(objects, "AdmissionCheck")
        if one["spec"].get("controllerName") == CONTROLLER
    }
    return [
        CheckVerdict(item, version, one["name"], one["state"], str(one.get("message") or ""))
        for version, item in live.of_kind(objects, "Workload")
        if gangs.condition(item, "QuotaReserved")
        and not gangs.over(item)
        and not gangs.condition(item, "Evicted")
        for one in checks(item)
        if one["name"] in names
    ]


def gang_of(workload: Object) -> str:
    """The gang that a Workload stands for: namespace and name of its job."""
    space, name = gangs.pod_key(workload)
    return f"{space}/{gangs.owner(workload) or name}"


def decide(
    objects: live.Objects,
    now: float,
    queues: Sequence[Queue] = (),
    weights: Mapping[str, float] | None = None,
) -> list[CheckVerdict]:
    """The verdicts that change something. `queues` replace the ClusterQueues of their names.

    A Workload without Kueue's quota is not in our line: its turn is Kueue's to say. Nor is a gang
    of another engine: it is counted where it runs.
    """
    known = read_checks(objects)
    first = {
        gang_of(item)
        for _, item in live.of_kind(objects, "Workload")
        if gangs.condition(item, "Admitted")
    }
    first |= {gang_of(one.workload) for one in known if one.state == READY}
    mine = first | {gang_of(one.workload) for one in known}
    found = live.read(objects, now)
    found.gangs.waiting = [job for job in found.gangs.waiting if gangs.drop_rest(job.name) in mine]
    decided = live.decide(found, now, queues, weights, first)
    victims = {victim: claim for claim, all_ in decided.stops.items() for victim in all_}
    verdicts = []
    for one in known:
        name = gang_of(one.workload)
        state, message = one.state, one.message
        if name in victims:
            state, message = RETRY, f"{victims[name]} is entitled to its cards"
        elif state == PENDING and not gangs.asks_cards(gangs.pod_sets(one.workload)):
            state, message = READY, "it asks for no card"
        elif state == PENDING and name in decided.starts:
            state, message = READY, f"there is room on {', '.join(decided.pods_on(name))}"
            if name in decided.stops:
                state, message = PENDING, f"{', '.join(decided.stops[name])} must stop first"
        elif state == PENDING and (why := decided.reasons.get(name)) is not None:
            state = REJECTED if why.permanent else RETRY
            message = f"{why.reason}; what helps: {why.frees}"
        if (state, message) != (one.state, one.message):
            verdicts.append(CheckVerdict(one.workload, one.version, one.check, state, message))
    return verdicts


def let_go(objects: live.Objects, why: str) -> list[CheckVerdict]:
    """Every open check passed, so that Kueue goes on by its own rules."""
    message = f"joymigrate cannot decide, Kueue's own rules hold: {why}"
    return [
        CheckVerdict(one.workload, one.version, one.check, READY, message)
        for one in read_checks(objects)
        if one.state == PENDING
    ]


def serve(
    client: Any,
    every_s: float,
    queues: Sequence[Queue] = (),
    weights: Mapping[str, float] | None = None,
    once: bool = False,
) -> Iterator[CheckVerdict]:
    """Decide whenever a Workload changes, write the verdicts down, and yield those written.

    What cannot be decided `FAILURES` times in a row is passed, and said in events. `JoyError`
    where the API server does not answer: started again, it goes on.
    """
    failures = 0
    for _ in cluster_watch.changes(client, every_s, WORKLOADS):
        now = time.time()
        objects = cluster_watch.fetch(client)
        answer(client, objects, now)
        try:
            verdicts, failures = decide(objects, now, queues, weights), 0
        except Exception as error:  # whatever it is, Kueue must not stand still for it
            failures += 1
            if once:
                raise
            verdicts = let_go(objects, f"{error}") if failures >= FAILURES else []
        for one in verdicts:
            if write(client, one, now):
                yield one
        if once:
            return


def answer(client: Any, objects: live.Objects, now: float) -> None:
    """Say of our AdmissionChecks that somebody answers them: without it Kueue admits nothing."""
    for version, item in live.of_kind(objects, "AdmissionCheck"):
        if item["spec"].get("controllerName") != CONTROLLER or gangs.condition(item, "Active"):
            continue
        active = {
            "type": "Active", "status": "True", "reason": "Active",
            "message": "joymigrate cluster admission answers", "lastTransitionTime": stamp(now),
        }  # fmt: skip
        patch_status(client, version, "AdmissionCheck", item, {"conditions": [active]})


def api_errors() -> tuple[type[Exception], ...]:
    """What a request to the API server ends with when it is refused or not answered."""
    from kubernetes.client import ApiException
    from kubernetes.dynamic.exceptions import DynamicApiError
    from urllib3.exceptions import HTTPError

    return ApiException, DynamicApiError, HTTPError


def patch_status(
    client: Any, version: str, kind: str, item: Object, status: Mapping[str, Any]
) -> bool:
    """Change an object's status as it was read; False when it has changed or gone meanwhile."""
    meta = item["metadata"]
    body = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "status": dict(status)}
    where = {"namespace": meta["namespace"]} if meta.get("namespace") else {}
    api = client.resources.get(api_version=version, kind=kind)
    try:
        api.status.patch(
            body=body, name=meta["name"], content_type="application/merge-patch+json", **where
        )
    except api_errors() as error:
        if getattr(error, "status", 0) in (CONFLICT, GONE):
            return False
        raise JoyError(
            f"the cluster does not let the status of {kind} {meta['name']} be changed: "
            f"{str(getattr(error, 'reason', '') or error)[:200]}",
            help=f"a role with `patch` on {kind.lower()}s/status, and `create` on events",
        ) from error
    return True


def write(client: Any, verdict: CheckVerdict, now: float) -> bool:
    """Write a verdict down, and an event beside it; whether it was still wanted."""
    checks_now = {"admissionChecks": verdict.status(now)}
    if not patch_status(client, verdict.version, "Workload", verdict.workload, checks_now):
        return False
    space, name = gangs.pod_key(verdict.workload)
    event = {
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"generateName": f"{name[:50]}.", "namespace": space},
        "involvedObject": {
            "apiVersion": verdict.version, "kind": "Workload", "name": name, "namespace": space,
            "uid": verdict.workload["metadata"].get("uid", ""),
        },
        "type": "Normal" if verdict.state in (READY, PENDING) else "Warning",
        "reason": f"AdmissionCheck{verdict.state}", "message": verdict.message[:1000],
        "source": {"component": CONTROLLER}, "firstTimestamp": stamp(now), "count": 1,
        "lastTimestamp": stamp(now),
    }  # fmt: skip
    # The verdict stands; a role that may not create events loses the event alone.
    with contextlib.suppress(*api_errors()):
        client.resources.get(api_version="v1", kind="Event").create(body=event, namespace=space)
    return True
