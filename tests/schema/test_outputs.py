"""What real commands write is what the published schemas say, and says nothing undeclared.

A new key in a document fails here until it stands in the `documents.yaml` of its package.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import joymigrate
from joymigrate.cli import _main
from joymigrate.schema import find, json_schema, names

ROOT = Path(__file__).parents[2]
PROGRAM = """\
import torch

model = torch.nn.Linear(4, 4).cuda()
with torch.cuda.stream(torch.cuda.Stream()):
    print(model(torch.ones(2, 4, device="cuda")))
stats = torch.cuda.memory_stats_as_nested_dict()
"""
# Documents that carry a `schema` key and are declared nowhere yet. The list only gets shorter.
UNDECLARED = {"chip-rules", "families", "metrics", "recommender", "serve"}


def undeclared(data: Any, schema: dict[str, Any], at: str = "") -> Iterator[str]:
    """Keys of a document that its schema does not name."""
    options = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
    schema = options[0] if len(options) == 1 else {}
    if isinstance(data, dict) and "properties" in schema:
        for key, value in data.items():
            if key not in schema["properties"]:
                yield f"{at}.{key}"
            else:
                yield from undeclared(value, schema["properties"][key], f"{at}.{key}")
    elif isinstance(data, dict) and isinstance(schema.get("additionalProperties"), dict):
        for key, value in data.items():
            yield from undeclared(value, schema["additionalProperties"], f"{at}.{key}")
    elif isinstance(data, list) and "items" in schema:
        for value in data:
            yield from undeclared(value, schema["items"], f"{at}[]")


def check(document: dict[str, Any]) -> str:
    """Hold one document against its schema; its name."""
    jsonschema = pytest.importorskip("jsonschema")
    schema = json_schema(find(document["schema"]))
    jsonschema.Draft202012Validator(schema).validate(document)
    assert sorted(set(undeclared(document, schema))) == [], f"{document['schema']}: declare them"
    return find(document["schema"]).name


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small project for CUDA, an inventory, jobs and two loss curves; the tests stand in it."""
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "inv.yaml").write_text("nodes: [{name: n, kind: ascend-910b-8, count: 2}]\n")
    jobs = [{"name": "a", "kind": "ascend-910b-8", "cards_per_pod": 8, "minutes": 5, "pods": 2}]
    jobs += [{"name": "b", "kind": "ascend-910b-8", "cards_per_pod": 8, "minutes": 5}]
    (tmp_path / "jobs.yaml").write_text(yaml.safe_dump({"jobs": jobs}))
    (tmp_path / "repos.yaml").write_text("- path: .\n")
    for name in ("a.csv", "b.csv"):
        rows = "".join(f"{step},{2 / (step + 1):.6f}\n" for step in range(200))
        (tmp_path / name).write_text(f"step,loss\n{rows}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


COMMANDS = [
    ("scan", "scan train.py"),
    ("rewrite", "rewrite train.py"),
    ("portfolio", "scan --portfolio repos.yaml"),
    ("rule", "explain JM101"),
    ("rules", "explain --list"),
    ("chips", "chips list"),
    ("chip-facts", "chips show ascend"),
    ("chip-facts", "chips show cambricon"),
    ("oplist", "oplist show --to ascend"),
    ("doctor", "doctor"),
    ("status", "status"),
    ("plan", "cluster plan --inventory inv.yaml --jobs jobs.yaml"),
    (
        "simulation",
        "cluster simulate --inventory inv.yaml --trace jobs.yaml --trace-format jobs",
    ),
    ("verdict", "verify loss a.csv b.csv"),
]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        pytest.param(*one, id=one[1], marks=[pytest.mark.dear] if one[0] == "doctor" else [])
        for one in COMMANDS
    ],
)
def test_what_a_command_writes_is_what_its_schema_says(
    name: str, line: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _main.run([*line.split(), "--format", "json"]) in (0, 1, 3), capsys.readouterr().err
    assert check(json.loads(capsys.readouterr().out)) == name


def test_the_ledger_s_lines_are_steps(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _main.run(["rewrite", "train.py"]) == 0
    assert _main.run(["rollback"]) == 0
    lines = (project / ".joymigrate" / "ledger.jsonl").read_text().splitlines()
    assert [check(json.loads(line)) for line in lines] == ["step", "step"]
    assert "edits" in {check(one) for one in documents(project / ".joymigrate")}


def documents(folder: Path) -> Iterator[dict[str, Any]]:
    """Every document of a folder that says its schema."""
    for path in folder.rglob("*.json"):
        data = json.loads(path.read_text())
        if isinstance(data, dict) and str(data.get("schema")).startswith("joymigrate."):
            yield data


@pytest.mark.compiler
@pytest.mark.slow
def test_a_rehearsal_and_a_journey_write_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program on the simulated chip, and the whole journey of it."""
    example = shutil.copytree(ROOT / "examples" / "classifier", tmp_path / "classifier")
    monkeypatch.chdir(example)
    line = "rehearse --migrate --format json -o r.json -- python train.py"
    _main.run(line.split())
    assert check(json.loads((example / "r.json").read_text())) == "rehearsal"
    _main.run(["migrate", ".", "--entry", "python train.py --steps 3 --batch-size 4"])
    assert "journey" in {check(one) for one in documents(example / ".joymigrate")}


def test_every_document_of_the_source_is_declared() -> None:
    """A `joymigrate.NAME/1` that no schema describes fails; so does one that is listed in vain."""
    said: set[str] = set()
    for path in Path(joymigrate.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        said |= set(re.findall(r'"joymigrate\.([a-z-]+)/\d+"', text))
    assert said - set(names()) - UNDECLARED == set(), "declare them in documents.yaml"
    assert UNDECLARED & set(names()) == set(), "take them out of UNDECLARED"
