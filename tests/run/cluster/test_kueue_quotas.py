"""Kueue's quotas add up to the inventory, so that every card can be used by somebody."""

from __future__ import annotations

from typing import Any

from joymigrate.run.cluster.kubernetes import renderers
from tests.run.cluster.cases import nodes, workload

CLUSTER = "- {name: a, kind: ascend-910b-8, count: 3}\n- {name: g, kind: gpu-8, count: 2}"


def render(queues: str, cluster: str = CLUSTER) -> renderers.RenderedObjects:
    text = f"queues: [{queues}]\njobs: [{{name: j, kind: gpu-8, cards_per_pod: 8}}]"
    return renderers.render(workload(text), nodes(cluster) if cluster else None, "kueue")


def flavors(item: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {
        flavor["name"]: flavor["resources"][0]
        for group in item["spec"].get("resourceGroups", [])
        for flavor in group["flavors"]
    }


def nominal(made: renderers.RenderedObjects) -> dict[str, float]:
    """Nominal quotas of all cohorts and queues, by kind."""
    found: dict[str, float] = {}
    for item in made.objects:
        if item["kind"] in ("ClusterQueue", "Cohort"):
            for name, quota in flavors(item).items():
                found[name] = found.get(name, 0.0) + float(quota["nominalQuota"])
    return found


def of(made: renderers.RenderedObjects, kind: str, name: str) -> dict[str, Any]:
    (one,) = [i for i in made.objects if (i["kind"], i["metadata"]["name"]) == (kind, name)]
    return one


def test_what_no_queue_is_sure_of_is_the_cohorts() -> None:
    made = render("{name: a, min: {npu: 8}}, {name: b, min: {gpu: 4}}")
    assert nominal(made) == {"ascend-910b-8": 24, "gpu-8": 16}
    root = flavors(of(made, "Cohort", "joymigrate"))
    assert root["ascend-910b-8"]["nominalQuota"] == "16"


def test_a_minimum_of_a_family_is_divided_over_its_kinds() -> None:
    cluster = "- {name: a, kind: ascend-910b-8}\n- {name: d, kind: ascend-910-8, count: 2}"
    made = render("{name: a, min: {npu: 12}}", cluster)
    found = flavors(of(made, "ClusterQueue", "a"))
    assert (found["ascend-910b-8"]["nominalQuota"], found["ascend-910-8"]["nominalQuota"]) == (
        "8", "4",
    )  # fmt: skip
    assert any("its MIN of 12 npu is 8 on ascend-910b-8" in note for note in made.notes)


def test_a_queue_with_parts_is_a_cohort_with_its_maximum() -> None:
    made = render(
        "{name: dept, min: {npu: 16}, max: {npu: 20}}, {name: team, parent: dept, min: {npu: 8}, "
        "max: {npu: 16}}"
    )
    assert nominal(made) == {"ascend-910b-8": 24, "gpu-8": 16}
    dept = of(made, "Cohort", "dept")
    assert dept["spec"]["parentName"] == "joymigrate"
    # 8 of its own, 8 of its part's: 4 more make 20.
    assert flavors(dept)["ascend-910b-8"] == {
        "name": "huawei.com/Ascend910", "nominalQuota": "8", "borrowingLimit": "4",
    }  # fmt: skip
    team = of(made, "ClusterQueue", "team")
    assert team["spec"]["cohortName"] == "dept"
    assert flavors(team)["ascend-910b-8"]["borrowingLimit"] == "8"
    assert of(made, "ClusterQueue", "dept")["spec"]["cohortName"] == "dept"


def test_more_than_there_is_is_a_note() -> None:
    made = render("{name: a, min: {gpu: 20}}")
    assert nominal(made)["gpu-8"] == 16
    assert any("4 of its MIN gpu are not there" in note for note in made.notes)


def test_without_an_inventory_it_says_what_cannot_be_used() -> None:
    made = render("{name: a, min: {gpu: 4}}", "")
    assert any("holds the MINs alone" in note for note in made.notes)
