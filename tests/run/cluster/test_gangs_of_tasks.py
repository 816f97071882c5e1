"""Gangs of several tasks start wherever they fit, and their reasons speak of every kind."""

from __future__ import annotations

from typing import Any

import yaml

from joymigrate.run.cluster import inventory, jobs, policies
from joymigrate.run.cluster.plan import plan


def planned(cluster: str, work: str) -> dict[str, Any]:
    data = yaml.safe_load(work)
    return plan(
        inventory.from_data({"nodes": yaml.safe_load(cluster)}),
        jobs.from_data(data),
        policies.get("topology"),
    )


TWO_KINDS = "[{name: g, kind: gpu-8}, {name: b, kind: ascend-910b-8}]"


def test_a_task_makes_way_for_one_that_has_fewer_places() -> None:
    work = """
    jobs:
    - name: rl
      tasks: [{name: actor, kind: [gpu-8, ascend-910b-8], cards_per_pod: 4},
              {name: learner, kind: gpu-8, cards_per_pod: 8}]
    """
    (placed,) = planned(TWO_KINDS, work)["placements"]
    assert [pod["node"] for pod in placed["pods"]] == ["b", "g"]


def test_a_combination_of_kinds_inside_the_maximum_is_found() -> None:
    work = """
    queues: [{name: q, max: {gpu: 4}}]
    jobs:
    - name: rl
      queue: q
      tasks: [{name: x, kind: [gpu-8, ascend-910b-8], cards_per_pod: 4},
              {name: y, kind: [gpu-8, ascend-910b-8], cards_per_pod: 4}]
    """
    (placed,) = planned(TWO_KINDS, work)["placements"]
    assert sorted(pod["node"] for pod in placed["pods"]) in (["b", "b"], ["b", "g"])


def test_the_reason_speaks_of_every_kind() -> None:
    work = """
    queues: [{name: q, max: {npu: 2}}]
    jobs:
    - {name: full, kind: gpu-8, cards_per_pod: 8,
       running: [{node: g, cards: [0, 1, 2, 3, 4, 5, 6, 7]}]}
    - {name: one, kind: ascend-910b-8, cards_per_pod: 2, queue: q,
       running: [{node: b, cards: [0, 1]}]}
    - {name: either, kind: [gpu-8, ascend-910b-8], cards_per_pod: 2, queue: q}
    """
    (waits,) = planned(TWO_KINDS, work)["waiting"]
    assert "needs 2 cards of gpu-8" in waits["reason"]
    assert "MAX 2 (cards of npu)" in waits["reason"]
    assert "; or " in waits["frees"]


def test_what_no_empty_node_can_hold_is_refused_for_good() -> None:
    work = "jobs: [{name: hungry, kind: gpu-8, cards_per_pod: 1, cpu_per_pod: 24}]"
    (waits,) = planned("[{name: n, kind: gpu-8, cpu: 16}]", work)["waiting"]
    assert waits["permanent"]
    assert "24 CPU cores for 0 of 1 pods" in waits["reason"]


def test_a_job_that_asks_for_no_cpu_is_not_behind_one_that_lacks_it() -> None:
    work = """
    jobs:
    - {name: base, kind: gpu-8, cards_per_pod: 1, cpu_per_pod: 12,
       running: [{node: n, cards: [0]}]}
    - {name: large, kind: gpu-8, cards_per_pod: 1, cpu_per_pod: 8}
    - {name: light, kind: gpu-8, cards_per_pod: 1}
    """
    found = planned("[{name: n, kind: gpu-8, cpu: 16}]", work)
    assert [one["job"] for one in found["placements"]] == ["light"]
