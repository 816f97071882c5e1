"""Every key of a jobs file and of an inventory changes what is read, and what is read is used.

The keys are those of the schema, so that a new one without an example here fails. An example is the
item without and with the key. That a field is used is looked for in the source: somebody other than
the reader must name it.
"""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from typing import Any

import pytest

import joymigrate
from joymigrate.run.cluster import inventory, jobs
from joymigrate.run.cluster.queues import Queue, QueueItem

CLUSTER = Path(joymigrate.__file__).parent / "run" / "cluster"
BARE: dict[str, Any] = {"name": "j"}
JOB: dict[str, tuple[dict[str, Any], Any]] = {
    "name": ({}, "k"),
    "kind": ({}, "gpu-8"), "kinds": ({}, ["gpu-8"]), "model": ({}, "m"), "models": ({}, ["m"]),
    "pods": ({}, 2), "cards_per_pod": ({}, 2), "cpu_per_pod": ({}, 2), "cpu": ({}, 2),
    "memory_gib_per_pod": ({}, 2), "memory_gib": ({}, 2), "queue": ({}, "q"), "priority": ({}, 1),
    "minutes": ({}, 5), "tasks": ({}, [{"pods": 3}]), "sp_block": ({}, 8),
    "superpod": ({}, "soft"), "leaf": ({}, "one"), "numa": ({}, "one"),
    "running": ({}, [{"node": "n", "cards": [0]}]), "ran_minutes": ({}, 3), "command": ({}, "true"),
    "image": ({}, "i"), "env": ({}, {"A": "b"}), "retries": ({}, 1),
    "min_pods": ({"pods": 4}, 2), "resize_after_minutes": ({"pods": 4, "min_pods": 2}, 1),
    "after": ({}, "afterok:k"), "time_limit_minutes": ({}, 5),
    "grace_s": ({}, 5),
}  # fmt: skip
KEPT = {"labels"}  # its help says that no decision asks for them
TRACE = {"arrival_minutes", "arrival_s"}  # of a trace: test_traces.py reads them there
QUEUE: dict[str, tuple[dict[str, Any], Any]] = {
    "name": ({}, "r"), "min": ({}, 1), "max": ({}, 1), "deserved": ({}, 1), "parent": ({}, "p"),
    "weight": ({}, 2), "priority": ({}, 1), "eviction": ({}, "never"), "min_runtime": ({}, 1),
    "min_runtime_minutes": ({}, 1), "strategy": ({}, "fifo"),
}  # fmt: skip
NODE: dict[str, tuple[dict[str, Any], Any]] = {
    "name": ({}, "m"), "kind": ({}, "gpu-4"), "cards": ({}, 2), "used": ({}, [1]),
    "unhealthy": ({}, [1]), "leaf": ({}, "l"), "spine": ({"leaf": "l"}, "s"),
    "superpod": ({}, "s"), "model": ({}, "m"), "cpu": ({}, 4), "memory_gib": ({}, 4),
    "numa": ({}, [[0, 1], [2, 3]]), "labels": ({}, {"a": "b"}), "ready": ({}, False),
    "address": ({}, "h"), "shared": ({}, {0: 500}), "reserved": ({}, "q"), "count": ({}, 3),
    "per_leaf": ({"count": 4}, 2), "leaves_per_spine": ({"count": 4, "per_leaf": 1}, 2),
    "per_superpod": ({"count": 4}, 2),
}  # fmt: skip
FILE: dict[str, tuple[dict[str, Any], Any]] = {
    "jobs": ({}, [{"name": "j"}]), "queues": ({}, [{"name": "q"}]),
    "weights": ({}, {"gpu": 2}), "priorities": ({}, {"high": 3}),
}  # fmt: skip


def read_job(item: dict[str, Any]) -> Any:
    return jobs.from_data({"jobs": [item]})


def read_queue(item: dict[str, Any]) -> Any:
    return jobs.from_data({"jobs": [], "queues": [{"name": "p"}, item]})


def read_node(item: dict[str, Any]) -> Any:
    return inventory.from_data({"nodes": [item]})


def read_file(item: dict[str, Any]) -> Any:
    return jobs.from_data({"jobs": [], **item})


FORMS = (
    (jobs.JobItem, JOB, BARE, read_job),
    (QueueItem, QUEUE, {"name": "q"}, read_queue),
    (inventory.NodeItem, NODE, {"name": "n", "kind": "gpu-8"}, read_node),
    (jobs.JobsFile, FILE, {}, read_file),
)


@pytest.mark.parametrize(("form", "table", "bare", "load"), FORMS)
def test_every_key_changes_what_is_read(form: Any, table: Any, bare: Any, load: Any) -> None:
    keys = {field.name for field in dataclasses.fields(form)} - TRACE
    assert keys == set(table), "a key without an example, or an example of no key"
    dropped = []
    for key, (beside, value) in table.items():
        item = {**bare, **beside}
        if load(item) == load({**item, key: value}):
            dropped.append(key)
    assert dropped == []


@pytest.mark.parametrize("form", [jobs.GangJob, jobs.PodGroup, Queue, inventory.Node])
def test_what_is_read_is_used(form: Any) -> None:
    named: set[str] = set()
    for path in CLUSTER.rglob("*.py"):
        if path.name not in ("jobs.py", "inventory.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            named |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert {field.name for field in dataclasses.fields(form)} - named - KEPT == set()
