"""Every document has a valid schema, stands on the page, and can be printed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from joymigrate.cli import _main
from joymigrate.schema import find, json_schema, names

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", names())
def test_every_schema_is_valid_2020_12(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json_schema(find(name))
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["title"] == f"joymigrate.{name}/{find(name).version}"
    assert schema["description"].endswith(".")


def test_the_page_has_every_document(tmp_path: Path) -> None:
    made = tmp_path / "schema.md"
    assert _main.run(["schema", "--format", "md", "-o", str(made)]) == 0
    assert sorted(re.findall(r"^### (.+)$", made.read_text(), re.M)) == sorted(names())


def test_the_command_lists_prints_and_checks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _main.run(["schema"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == names()
    assert _main.run(["schema", "job"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "joymigrate.job/1"
    assert _main.run(["schema", "jop"]) == 2
    assert "Did you mean 'job'?" in capsys.readouterr().err
    job = tmp_path / "job.yaml"
    job.write_text("model: m\ndata: d.jsonl\nstepz: 3\nseed: x\n")
    assert _main.run(["schema", "job", "--check", str(job)]) == 1
    said = capsys.readouterr().err
    assert "unknown key 'stepz'. Did you mean 'steps'?" in said
    assert f"{job}:4 seed" in said


def test_an_editor_accepts_the_gateway_of_the_docs_and_marks_a_mistake() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    page = (DOCS / "how-to" / "gateway.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    whole = [data for data in map(yaml.safe_load, blocks) if "upstreams" in data]
    check = jsonschema.Draft202012Validator(json_schema(find("gateway")))
    assert whole
    for data in whole:
        assert list(check.iter_errors(data)) == []
    assert list(check.iter_errors({**whole[0], "listne": ":1"})) != []
    wrong = {**whole[0], "rollout": {"steps": ["ten"]}}
    assert list(check.iter_errors(wrong)) != []
