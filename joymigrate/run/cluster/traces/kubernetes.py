"""Objects of Kueue or Volcano as `kubectl get … -A -o json` prints them, with what became of them.

    kubectl get nodes,clusterqueues,localqueues,workloads -A -o json > record.json
    kubectl get nodes,queues.scheduling.volcano.sh,jobs.batch.volcano.sh -A -o json > record.json

The conditions of a Workload or a vcjob say when it started and ended. Events say less: no sizes,
and the API server forgets them after an hour. Every object is read as `cluster watch` would have
read it before anything had happened to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.cluster.events import Cancelled
from joymigrate.run.cluster.kubernetes import live
from joymigrate.run.cluster.kubernetes.gangs import condition, seconds_of
from joymigrate.run.cluster.kubernetes.nodes import Object
from joymigrate.run.cluster.traces import Arrival, JobTrace
from joymigrate.schema import parse_json

HELP = "kubectl get nodes,clusterqueues,localqueues,workloads -A -o json"
LEFT_OUT = ("Pod", "Job")  # pods of the record hold nothing in the replay, nor do plain Jobs
RUNNING = "Running"  # the state of a vcjob whose pods have started
AGAIN = ("Restarting", "Aborting", "Aborted")  # states after which a vcjob may start once more


def read(path: Path) -> JobTrace:
    """Jobs by creation, the nodes, and the queues as they are now."""
    raw = parse_json(path.read_text("utf-8-sig"), str(path))
    items = raw.get("items") if isinstance(raw, Mapping) else None
    if not isinstance(items, list):
        raise JoyError("not a list of objects", where=str(path), help=HELP)
    objects: dict[tuple[str, str], list[Object]] = {}
    asked: dict[str, Object] = {}
    for item in items:
        key = str(item.get("apiVersion")), str(item.get("kind"))
        if "podSets" in (item.get("spec") or {}) or key[0].startswith("batch.volcano.sh"):
            meta = item["metadata"]
            asked[f"{meta.get('namespace', 'default')}/{meta['name']}"] = item
            item = as_created(item)
        elif key[1] in LEFT_OUT:
            continue
        objects.setdefault(key, []).append(item)
    if ("v1", "Node") not in objects:
        raise JoyError("the record has no nodes", where=str(path), help=HELP)
    cluster = live.read(objects, now=0.0)
    arrivals, gone = [], []
    for job in cluster.gangs.waiting:
        item = asked[job.name]
        at = seconds_of(item["metadata"]["creationTimestamp"])
        start, end, again = (times_of_workload if "podSets" in item["spec"] else times_of_vcjob)(
            item
        )
        seconds = float("inf") if start is None or end is None else max(0.0, end - start)
        waited = None if start is None or again else max(0.0, start - at)
        arrivals.append(Arrival(job, at, seconds, waited))
        if start is None and end is not None:
            gone.append(Cancelled(job.name, end))
    notes = [*cluster.inventory.warnings, *cluster.gangs.notes]
    return JobTrace(
        tuple(sorted(arrivals, key=lambda arrival: arrival.at)),
        cluster.queues,
        inventory=cluster.inventory,
        events=tuple(sorted(gone, key=lambda event: event.at)),
        notes=tuple(notes),
    )


def as_created(item: Object) -> dict[str, Any]:
    """An object as it was before anything happened to it, under its own name."""
    spec = {key: value for key, value in item["spec"].items() if key != "active"}
    return {
        **item,
        "metadata": {**item["metadata"], "ownerReferences": []},
        "spec": spec,
        "status": {},
    }


def times_of_workload(item: Object) -> tuple[float | None, float | None, bool]:
    """When Kueue admitted a Workload, when it was over, and whether it had been admitted before."""
    found = {
        kind: condition(item, kind).get("lastTransitionTime") for kind in ("Admitted", "Finished")
    }
    start, end = (None if text is None else seconds_of(str(text)) for text in found.values())
    stopped = [
        one
        for one in (item.get("status") or {}).get("conditions") or ()
        if one["type"] == "Evicted"
    ]
    if item["spec"].get("active") is False and end is None and stopped:
        end = seconds_of(str(stopped[0]["lastTransitionTime"]))
    return start, end, bool(stopped)


def times_of_vcjob(item: Object) -> tuple[float | None, float | None, bool]:
    """When a vcjob last began to run, when it was over, and whether it had run before."""
    states = [
        (str(one.get("status")), seconds_of(str(one["lastTransitionTime"])))
        for one in (item.get("status") or {}).get("conditions") or ()
        if one.get("lastTransitionTime")
    ]
    states.sort(key=lambda state: state[1])
    starts = [number for number, (state, _) in enumerate(states) if state == RUNNING]
    again = any(state in AGAIN for state, _ in states)
    if not starts:
        over = [at for state, at in states if state not in ("Pending", *AGAIN)]
        return None, over[-1] if over else None, again
    after = states[starts[-1] + 1 :]
    return states[starts[-1]][1], after[0][1] if after else None, again
