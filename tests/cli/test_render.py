"""`joymigrate render`: container files and a lock, on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.cli.joy import Joy, joy_with

LOCK = "torch==2.9.0+cu126\nnumpy==1.26.4\nflash-attn==2.6.3\n"


@pytest.fixture
def joy(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Joy:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    Path("requirements.lock").write_text(LOCK)
    return joy_with(capsys)


def test_the_files_lie_in_the_project_and_are_written_again(joy: Joy) -> None:
    told = joy("render", "image", ".", "--entry", "python train.py --steps 3")
    assert told.code == 0
    assert told.out == ""
    assert "Not built" in told.err
    folder = Path("containers/ascend")
    assert sorted(path.name for path in folder.iterdir()) == [
        "Dockerfile",
        "Dockerfile.dockerignore",
        "compose.yaml",
        "requirements.txt",
    ]
    assert '["python", "train.py", "--steps", "3"]' in (folder / "Dockerfile").read_text()
    assert joy("render", "image", ".").code == 0
    (folder / "Dockerfile").write_text("FROM scratch\n")
    refused = joy("render", "image", ".")
    assert refused.code == 2
    assert "made by somebody else" in refused.err
    assert joy("render", "image", ".", "--force").code == 0


def test_the_journeys_entry_is_the_containers(joy: Joy) -> None:
    folder = Path(".joymigrate/journey")
    folder.mkdir(parents=True)
    (folder / "journey.json").write_text(json.dumps({"entry": ["python", "go.py"]}))
    joy("render", "image", ".")
    assert 'CMD ["python", "go.py"]' in Path("containers/ascend/Dockerfile").read_text()


def test_a_model_is_served_with_a_health_check(joy: Joy, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    assert "no folder with a model" in joy("render", "image", ".", "--serve", str(model)).err
    (model / "config.json").write_text("{}")
    assert joy("render", "image", ".", "--serve", str(model), "--port", "8080").code == 0
    text = Path("containers/ascend/Dockerfile").read_text()
    assert '"serve", "/model"' in text
    assert "HEALTHCHECK" in text
    assert "joymigrate[serve]" in Path("containers/ascend/requirements.txt").read_text()
    service = yaml.safe_load(Path("containers/ascend/compose.yaml").read_text())["services"]["app"]
    assert f"{model}:/model:ro" in service["volumes"]


def test_an_image_of_ones_own_and_the_way_back(joy: Joy) -> None:
    refused = joy("render", "image", ".", "--to", "cambricon")
    assert "no container image is known" in refused.err or "no torch_mlu" in refused.err
    Path("requirements.lock").write_text(LOCK.replace("2.9.0", "2.4.0"))
    own = joy("render", "image", ".", "--to", "cambricon", "--base", "registry.example/mine:1")
    assert own.code == 0, own.err
    text = Path("containers/cambricon/Dockerfile").read_text()
    assert "FROM registry.example/mine:1" in text
    assert joy("render", "image", ".", "--to", "nvidia", "--python", "3.11").code == 0
    assert "flash-attn==2.6.3" in Path("containers/nvidia/requirements.txt").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--to", "abacus"], "abacus"),
        (["--python", "2.7"], "Python 2.7"),
        (["-o", "../elsewhere"], "inside the project"),
        (["--lock", "none.lock"], "cannot read"),
    ],
)
def test_mistakes_are_one_clear_error(joy: Joy, words: list[str], said: str) -> None:
    told = joy("render", "image", ".", *words)
    assert told.code == 2
    assert said in told.err
    assert "Traceback" not in told.err


def test_the_environment_becomes_a_lock_that_makes_an_image(joy: Joy) -> None:
    assert joy("render", "lock", "-o", "joymigrate.lock").code == 0
    assert Path("joymigrate.lock").read_text().startswith("# joymigrate.lock/1")
    assert joy("render", "image", ".").code == 0
    assert "from joymigrate.lock" in Path("containers/ascend/Dockerfile").read_text()


GATEWAY = """\
listen: 0.0.0.0:8080
upstreams:
  gpu: {url: "http://gpu:8000", role: primary}
  npu: {url: "http://npu:8000", role: standby}
limits: {drain_seconds: 7}
state: state/rollout.json
"""


def test_a_unit_serves_a_gateway_or_a_model(joy: Joy) -> None:
    Path("gateway.yaml").write_text(GATEWAY)
    told = joy("render", "unit", "gateway.yaml", "-o", "gateway.service")
    assert told.code == 0
    assert "Not installed and not run" in told.err
    text = Path("gateway.service").read_text()
    assert f"serve --config {Path('gateway.yaml').resolve()}" in text
    assert "TimeoutStopSec=22" in text
    assert str(Path("state").resolve()) in text
    Path("weights").mkdir()
    told = joy("render", "unit", "weights", "--port", "9000", "--drain", "5")
    assert f"serve {Path('weights').resolve()} --host 127.0.0.1 --port 9000 --drain 5" in told.out
    assert "TimeoutStopSec=20" in told.out


def test_a_chart_is_written_for_a_gateway_or_a_model(joy: Joy) -> None:
    Path("gateway.yaml").write_text(GATEWAY)
    told = joy("render", "chart", "gateway.yaml", "--image", "serve:1", "-o", "chart")
    assert told.code == 0
    values = yaml.safe_load(Path("chart/values.yaml").read_text())
    assert values["config"] == GATEWAY
    assert (values["port"], values["stopSeconds"]) == (8080, 22)
    again = ("render", "chart", "weights", "--image", "serve:1", "--cards", "2", "--to", "ascend",
             "-o", "chart")  # fmt: skip
    assert joy(*again).code == 0
    values = yaml.safe_load(Path("chart/values.yaml").read_text())
    assert values["resources"] == {"limits": {"huawei.com/Ascend910": 2}}
    assert values["model"]["claim"] == "weights"
    Path("chart/values.yaml").write_text("mine: 1\n")
    assert "made by somebody else" in joy(*again).err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gateway.yaml", "--replicas", "2"), "a rollout of their own"),
        (("local.yaml",), "no other pod reaches"),
        (("Weights_1",), "no name"),
        (("none.yaml",), "no such gateway file"),
    ],
)
def test_a_chart_that_could_not_work_is_refused(
    joy: Joy, words: tuple[str, ...], said: str
) -> None:
    Path("gateway.yaml").write_text(GATEWAY)
    Path("local.yaml").write_text(GATEWAY.replace("0.0.0.0", "127.0.0.1"))
    told = joy("render", "chart", *words, "--image", "serve:1", "-o", "chart")
    assert told.code == 2
    assert said in told.err
    assert not Path("chart").exists()
