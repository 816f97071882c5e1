"""The CEL rules of the engines' own definitions, evaluated over what `render` writes.

Needs `pip install cel-python`, which no extra brings. Rules about a change (`oldSelf`) say nothing
about a new object. A server fills in defaults before it asks; so does this test.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from joymigrate.run.cluster.kubernetes import renderers
from joymigrate.run.cluster.kubernetes.validate import schemas
from tests.run.cluster.cases import nodes, workload
from tests.run.cluster.test_kubernetes import NODES, WORK

celpy = pytest.importorskip("celpy", reason="pip install cel-python")
SCHEMAS = schemas()
Rule = dict[str, str]


def defaults(schema: dict[str, Any], value: Any) -> Any:
    """The value with the schema's defaults filled in, as a server stores it."""
    if isinstance(value, dict):
        for name, inner in schema.get("properties", {}).items():
            if name not in value and "default" in inner:
                value[name] = copy.deepcopy(inner["default"])
            if name in value:
                value[name] = defaults(inner, value[name])
        other = schema.get("additionalProperties")
        if isinstance(other, dict):
            known = schema.get("properties", {})
            value |= {k: defaults(other, v) for k, v in value.items() if k not in known}
    elif isinstance(value, list):
        value = [defaults(schema.get("items", {}), one) for one in value]
    return value


def rules(
    schema: dict[str, Any], value: Any, path: str
) -> Iterator[tuple[str, Any, dict[str, str]]]:
    """Every rule that applies to a part of this object: where, the part, the rule."""
    for rule in schema.get("x-kubernetes-validations", ()):
        yield path, value, rule
    if isinstance(value, dict):
        for name, inner in schema.get("properties", {}).items():
            if name in value:
                yield from rules(inner, value[name], f"{path}.{name}")
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from rules(schema.get("items", {}), one, f"{path}[{number}]")


def broken(item: dict[str, Any]) -> tuple[list[str], int]:
    """Messages of the rules that this object breaks, and how many were evaluated."""
    group, _, version = item["apiVersion"].rpartition("/")
    versions = SCHEMAS.get((group, item["kind"]), {})
    if version not in versions:
        return [], 0
    stored = defaults(versions[version], copy.deepcopy(item))
    found, asked = [], 0
    for path, value, rule in rules(versions[version], stored, item["kind"]):
        if "oldSelf" in rule["rule"]:
            continue
        asked += 1
        environment = celpy.Environment()
        program = environment.program(environment.compile(rule["rule"]))
        if not program.evaluate({"self": celpy.json_to_cel(json.loads(json.dumps(value)))}):
            found.append(f"{path}: {rule.get('message', rule['rule'])}")
    return found, asked


@pytest.mark.parametrize("engine", ["volcano", "kueue", "mindcluster"])
def test_rendered_objects_keep_every_rule(engine: str) -> None:
    made = renderers.render(workload(WORK), nodes(NODES), engine).objects
    results = [broken(item) for item in made]
    assert [text for found, _ in results for text in found] == []
    if engine != "mindcluster":
        assert sum(asked for _, asked in results) > 0


def test_a_broken_rule_is_found() -> None:
    made = renderers.render(workload(WORK), nodes(NODES), "kueue").objects
    queue = copy.deepcopy(next(item for item in made if item["kind"] == "ClusterQueue"))
    queue["spec"]["resourceGroups"][0]["coveredResources"].append("example.com/more")
    found, _ = broken(queue)
    assert any("same number of resources" in text for text in found)
    alone = copy.deepcopy(next(item for item in made if item["kind"] == "ClusterQueue"))
    for key in ("cohort", "cohortName"):
        alone["spec"].pop(key, None)
    alone["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["borrowingLimit"] = "1"
    found, _ = broken(alone)
    assert any("borrowingLimit must be nil" in text for text in found)
