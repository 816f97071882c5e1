"""Container files from a lock: packages, base image, devices, Dockerfile, compose file."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from joymigrate import chips
from joymigrate.cli._chip_files import problems
from joymigrate.errors import JoyError
from joymigrate.run.render import ContainerSpec, choose, image_name, read, render, translate
from joymigrate.run.render.base import builds_of, data_of

LOCK = """\
# python 3.11
torch==2.9.0+cu126
torchvision==0.24.0+cu126
numpy==1.26.4
nvidia-cublas-cu12==12.6.4.1
flash-attn==2.6.3
apex==0.1
bitsandbytes==0.45.0
triton==3.5.0
deepspeed==0.15.0
transformers==4.55.0
"""
INSTRUCTIONS = {"FROM", "ARG", "ENV", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "HEALTHCHECK",
                "CMD"}  # fmt: skip


def lines(tmp_path: Path, chip: str, text: str = LOCK) -> dict[str, tuple[str, str, str]]:
    """(kind, requirement, reason) by the name that the lock, or the image, gives a package."""
    path = tmp_path / "requirements.lock"
    path.write_text(text)
    found = translate(read(path), chips.get(chip))
    return {
        re.split(r"[ =@\[]", one.was or one.requirement)[0]: (one.kind, one.requirement, one.reason)
        for one in found
    }


def test_packages_of_the_origin_are_left_out_with_the_reason(tmp_path: Path) -> None:
    found = lines(tmp_path, "ascend")
    for name in ("nvidia-cublas-cu12", "flash-attn", "apex", "bitsandbytes", "triton"):
        kind, requirement, reason = found[name]
        assert (kind, requirement) == ("left out", ""), name
        assert reason, name
    assert "flash-attn-npu" in found["flash-attn"][2]
    assert found["numpy"][:2] == ("kept", "numpy==1.26.4")
    assert found["transformers"][0] == "kept"
    assert found["deepspeed"][:2] == ("kept", "deepspeed==0.15.0")  # from 0.12.6 on


def test_torch_loses_its_build_and_the_chips_package_joins(tmp_path: Path) -> None:
    found = lines(tmp_path, "ascend")
    assert found["torch"][1] == "torch==2.9.0"
    assert found["torchvision"][1] == "torchvision==0.24.0"
    kind, requirement, _ = found["torch-npu"]
    assert kind == "added"
    # Not the newest release: the newest whose own SDK has an image.
    assert requirement == "torch-npu==2.9.0.post6"
    pinned = lines(tmp_path, "ascend", "torch==2.9.0\ntorch-npu==2.9.0.post2\n")
    assert pinned["torch-npu"][:2] == ("kept", "torch-npu==2.9.0.post2")


def test_the_way_back_drops_what_belongs_to_other_chips(tmp_path: Path) -> None:
    text = "torch==2.9.0+cpu\ntorch-npu==2.9.0.post2\ntriton-ascend==3.2.0\npandas==2.0\n"
    found = lines(tmp_path, "nvidia", text)
    assert found["torch-npu"][0] == "left out"
    assert found["triton-ascend"][0] == "left out"
    assert found["torch"][:2] == ("changed", "torch==2.9.0")
    assert found["pandas"][0] == "kept"
    whole = lines(tmp_path, "nvidia")
    assert whole["flash-attn"][0] == whole["nvidia-cublas-cu12"][0] == "kept"


@pytest.mark.parametrize(
    ("text", "said"), [("numpy==1.0\n", "no torch"), ("torch==1.2.0\n", "no torch-npu for torch")]
)
def test_a_lock_that_no_image_can_hold_is_an_error(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(JoyError, match=said):
        lines(tmp_path, "ascend", text)


@pytest.mark.parametrize(
    ("torch", "python", "sku", "tag"),
    [
        ("2.9.0", "3.11", None, "9.1.0-910b-ubuntu22.04-py3.11"),
        ("2.8.0", "3.10", "910B3", "9.0.0-910b-ubuntu22.04-py3.10"),
        ("2.8.0", None, "Ascend910_9391", "9.0.0-a3-ubuntu22.04-py3.12"),
        ("2.5.1", None, "310P3", "8.2.rc1-310p-ubuntu22.04-py3.11"),
        ("2.13.0", None, None, "9.1.0-910b-ubuntu22.04-py3.12"),
    ],
)
def test_the_base_image_fits_torch_python_and_model(
    torch: str, python: str | None, sku: str | None, tag: str
) -> None:
    assert choose(chips.get("ascend"), torch, python, sku).image == f"quay.io/ascend/cann:{tag}"


@pytest.mark.parametrize(
    ("torch", "python", "sku", "said"),
    [
        ("2.9.0", "3.9", None, "no image with Python 3.9"),
        ("2.1.0", None, "H100", "no image is known for 'H100'"),
        ("2.2.0", None, None, "no image with 8.0.rc2"),
    ],
)
def test_an_image_that_nobody_saw_is_an_error(
    torch: str, python: str | None, sku: str | None, said: str
) -> None:
    with pytest.raises(JoyError, match=said):
        choose(chips.get("ascend"), torch, python, sku)


def test_a_chip_without_a_known_image_says_so() -> None:
    with pytest.raises(JoyError, match="no container image is known"):
        choose(chips.get("musa"), "2.9.0", None)


@pytest.mark.parametrize("name", ["ascend", "nvidia"])
def test_every_fact_of_an_image_has_its_source(name: str) -> None:
    data = data_of(chips.get(name))
    assert all(build.source and build.pythons for build in builds_of(chips.get(name), data))
    assert data["devices"]["source"]
    assert data["runtime"]["source"]
    skus = {sku.name for sku in chips.get(name).skus}
    assert {sku for listed in (data.get("models") or {}).values() for sku in listed} <= skus


def test_a_mistake_in_image_yaml_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "chip"
    shutil.copytree(chips.get("ascend").folder, folder)
    assert [p for p in problems(folder) if p.path.endswith("image.yaml")] == []
    (folder / "image.yaml").write_text("schema: joymigrate.image/1\nbse: x\n")
    (found,) = [p for p in problems(folder) if p.path.endswith("image.yaml")]
    assert "unknown key 'bse'" in found.what


def files(tmp_path: Path, chip: str, **wanted: Any) -> dict[str, str]:
    path = tmp_path / "requirements.lock"
    path.write_text(LOCK)
    lock, found = read(path), chips.get(chip)
    base = choose(found, "2.9.0", lock.python)
    asked = ContainerSpec("project:x", f"containers/{chip}", **wanted)
    return render(lock, translate(lock, found), found, base, asked)


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile; a line that is none fails."""
    found = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if line.strip() and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            assert word in INSTRUCTIONS, line
            assert rest.strip(), line
            found.append((word, rest.strip()))
    return found


@pytest.mark.parametrize("chip", ["ascend", "nvidia"])
def test_the_dockerfile_is_one(chip: str, tmp_path: Path) -> None:
    text = files(tmp_path, chip, command=("python", "train.py", "--name", 'a "b"'))["Dockerfile"]
    found = instructions(text)
    assert found[0][0] == "FROM"
    assert ":" in found[0][1]  # a tag
    assert ("USER", "$UID:$GID") in found
    after = [word for word, _ in found[found.index(("USER", "$UID:$GID")) :]]
    assert "RUN" not in after  # nothing is done as root behind it
    assert json.loads(dict(found)["CMD"]) == ["python", "train.py", "--name", 'a "b"']
    assert "Not built and not run" in text
    for word, rest in found:
        if word == "RUN":
            assert shlex.split(rest)


def test_a_server_is_watched(tmp_path: Path) -> None:
    text = files(tmp_path, "ascend", port=8123)["Dockerfile"]
    found = dict(instructions(text))
    assert found["EXPOSE"] == "8123"
    program = json.loads(found["HEALTHCHECK"].partition("CMD ")[2])
    compile(program[2], "healthcheck", "exec")
    assert "127.0.0.1:8123/health" in program[2]


def test_the_compose_file_hands_over_cards_and_driver(tmp_path: Path) -> None:
    text = files(tmp_path, "ascend", cards=2, port=8000, model="/data/m")["compose.yaml"]
    service = yaml.safe_load(text)["services"]["app"]
    assert service["devices"][:2] == ["/dev/davinci0:/dev/davinci0", "/dev/davinci1:/dev/davinci1"]
    assert "/dev/davinci_manager:/dev/davinci_manager" in service["devices"]
    assert all(volume.endswith(":ro") for volume in service["volumes"])
    assert "/data/m:/model:ro" in service["volumes"]
    assert service["ports"] == ["127.0.0.1:8000:8000"]
    assert service["build"] == {"context": "../..", "dockerfile": "containers/ascend/Dockerfile"}
    vendor = files(tmp_path, "ascend", cards=2, vendor_runtime=True)["compose.yaml"]
    service = yaml.safe_load(vendor)["services"]["app"]
    assert (service["runtime"], service["environment"]) == (
        "ascend",
        {"ASCEND_VISIBLE_DEVICES": "0,1"},
    )
    assert "devices" not in service
    back = yaml.safe_load(files(tmp_path, "nvidia", cards=4)["compose.yaml"])["services"]["app"]
    assert back["deploy"]["resources"]["reservations"]["devices"] == [
        {"driver": "nvidia", "capabilities": ["gpu"], "count": 4}
    ]


def test_requirements_say_why_and_install_nothing_of_the_origin(tmp_path: Path) -> None:
    text = files(tmp_path, "ascend")["requirements.txt"]
    installed = [line for line in text.splitlines() if not line.startswith("#")]
    assert not [line for line in installed if "nvidia" in line or "+cu" in line]
    assert "# left out: flash-attn==2.6.3:" in text


def test_secrets_and_weights_stay_out_of_the_context(tmp_path: Path) -> None:
    ignored = files(tmp_path, "ascend")["Dockerfile.dockerignore"].splitlines()
    assert {".git", ".env", "**/*.pem", "**/*.safetensors"} <= set(ignored)


@pytest.mark.parametrize(
    ("folder", "name"), [("My Project", "my-project"), ("a__b.c", "a-b-c"), ("项目", "project")]
)
def test_an_image_has_a_name_that_a_registry_takes(folder: str, name: str) -> None:
    assert image_name(folder) == name
