"""Units are verified by systemd itself; charts are filled in by a small reader of templates, and
checked against the schemas of Kubernetes. helm was not to be had: nothing here is `helm lint`."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from joymigrate.run.render.serving import Chart, SystemdUnit, chart, quote_word, unit

START = ("/usr/bin/env", "python3", "-m", "joymigrate", "serve", "--config")
UNIT = SystemdUnit(
    "gate", (*START, "/srv/my gate's 100% $x.yaml"), "root", "/srv", ("/var/lib/joy migrate",), 20.0
)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is absent")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    path = tmp_path / "gate.service"
    path.write_text(unit(UNIT))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", str(path)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    about = [line for line in done.stderr.splitlines() if "gate.service" in line]
    assert done.returncode == 0, done.stderr
    assert about == []
    path.write_text(unit(UNIT).replace("KillMode=mixed", "KillMode=gently"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", str(path)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "gate.service" in done.stderr, "a mistake would be seen"


def test_a_word_of_a_unit_stands_for_itself() -> None:
    text = unit(UNIT)
    start = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    assert '"/srv/my gate\'s 100%% $$x.yaml"' in start
    assert quote_word("plain/word-1") == "plain/word-1"
    assert quote_word('a "b"') == '"a \\"b\\""'
    assert "TimeoutStopSec=35" in text
    assert 'ReadWritePaths="/var/lib/joy migrate"' in text


# Charts

STEP = re.compile(r"\{\{(-?)\s*(.*?)\s*(-?)\}\}", re.S)


class Template:
    """Fills in the part of Go's templates that our charts use; anything else is an error."""

    def __init__(self, known: dict[str, Any]) -> None:
        self.known = known

    def fill(self, text: str) -> str:
        made, shown, end = "", [True], 0
        for match in STEP.finditer(text):
            before = text[end : match.start()]
            before = before.rstrip() if match[1] else before
            made += before if all(shown) else ""
            end = match.end()
            if match[3]:
                end += len(text[end:]) - len(text[end:].lstrip())
            said = match[2]
            if said.startswith("/*"):
                continue
            if said.startswith("if "):
                shown.append(bool(self.value(said[3:])))
            elif said == "end":
                shown.pop()
            elif all(shown):
                made += self.text(said)
        assert shown == [True]
        return made + text[end:]

    def text(self, said: str) -> str:
        first, *steps = said.split(" | ")
        value = self.value(first)
        for step in steps:
            name, *arguments = step.split()
            if name == "nindent":
                pad = " " * int(arguments[0])
                lines = str(value).splitlines()
                value = "\n" + "\n".join(pad + line if line else line for line in lines)
            elif name == "quote":
                value = json.dumps(value)
            elif name == "sha256sum":
                value = hashlib.sha256(value.encode()).hexdigest()
            else:
                raise AssertionError(step)
        return str(value)

    def value(self, said: str) -> Any:
        words = said.split()
        if words[0] == "toYaml":
            return yaml.safe_dump(self.value(words[1]), sort_keys=False).rstrip("\n")
        if words[0] == "div":
            return self.value(words[1]) // int(words[2])
        assert len(words) == 1, said
        assert words[0].startswith("."), said
        found: Any = self.known
        for name in words[0][1:].split("."):
            found = found[name]
        return found


GATEWAY = """\
listen: 0.0.0.0:8080
upstreams:
  gpu: {url: "http://gpu:8000", role: primary}
  npu: {url: "http://npu:8000", role: standby}
"""
CHARTS = [
    Chart("gate", "registry:5000/joy/serve:1.2", 8080, config=GATEWAY, secret="keys"),
    Chart("model", "serve", 8000, claim="weights", resource="huawei.com/Ascend910", cards=2),
]


def rendered(wanted: Chart) -> list[dict[str, Any]]:
    """Every object of a chart, its templates filled in with its values."""
    files = chart(wanted)
    known = {
        "Values": yaml.safe_load(files["values.yaml"]),
        "Chart": {"Name": wanted.name},
        "Release": {"Name": "rel", "Namespace": "ns"},
    }
    made = []
    for name, text in files.items():
        filled = Template(known).fill(text) if name.startswith("templates/") else ""
        if name.endswith(".yaml"):
            made += [one for one in yaml.safe_load_all(filled) if one]
    return made


@pytest.mark.parametrize("wanted", CHARTS, ids=["gateway", "model"])
def test_the_objects_fit_kubernetes(wanted: Chart) -> None:
    pytest.importorskip("kubernetes_validate", reason="pip install 'joymigrate[cluster]'")
    from joymigrate.run.cluster.kubernetes import validate

    objects = rendered(wanted)
    kinds = ["Deployment", "Service", *(["ConfigMap"] if wanted.config else [])]
    assert [one["kind"] for one in objects] == kinds
    checked = validate.check([validate.ManifestObject("chart", one) for one in objects], {})
    assert checked.problems == ()
    broken = json.loads(json.dumps(objects))
    broken[0]["spec"]["template"]["spec"]["containers"][0]["ports"] = 8000
    assert validate.check([validate.ManifestObject("chart", one) for one in broken], {}).problems


def test_the_gateways_file_arrives_as_it_was() -> None:
    objects = {one["kind"]: one for one in rendered(CHARTS[0])}
    assert yaml.safe_load(objects["ConfigMap"]["data"]["gateway.yaml"]) == yaml.safe_load(GATEWAY)
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == "registry:5000/joy/serve:1.2"
    assert container["args"][:3] == ["serve", "--config", "/etc/joymigrate/gateway.yaml"]
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert pod["terminationGracePeriodSeconds"] == 45


def test_a_model_gets_its_cards_and_its_volume() -> None:
    pod = rendered(CHARTS[1])[0]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == "serve:latest"
    assert container["resources"] == {"limits": {"huawei.com/Ascend910": 2}}
    claims = [v["persistentVolumeClaim"] for v in pod["volumes"] if "persistentVolumeClaim" in v]
    assert claims == [{"claimName": "weights", "readOnly": True}]


@pytest.mark.parametrize("wanted", CHARTS, ids=["gateway", "model"])
def test_the_values_fit_their_own_schema(wanted: Chart) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    files = chart(wanted)
    schema = json.loads(files["values.schema.json"])
    values = yaml.safe_load(files["values.yaml"])
    jsonschema.validate(values, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**values, "replica": 2}, schema)


def test_the_options_of_a_chart_are_those_of_serve() -> None:
    """A typo in the arguments would only show in a cluster."""
    import typer

    from joymigrate.cli import serve

    group: Any = typer.main.get_command(serve.app)
    known = {option for one in group.commands["default"].params for option in one.opts}
    for wanted in CHARTS:
        pod = rendered(wanted)[0]["spec"]["template"]["spec"]
        words = pod["containers"][0]["args"]
        assert {word for word in words if word.startswith("--")} <= known
