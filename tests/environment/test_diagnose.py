"""Recorded machines: the cause that comes first, silence where nothing is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from joymigrate.chips import get
from joymigrate.cli._main import run
from joymigrate.environment import diagnose
from joymigrate.environment.rules import rules_of
from joymigrate.schema import read_yaml

FOLDER = Path(__file__).parents[1] / "samples" / "environments"
CHIP = get("ascend")


def cases(name: str) -> list[Any]:
    return [pytest.param(row, id=row["thread"][-50:]) for row in read_yaml(FOLDER / f"{name}.yaml")]


UNNAMED = ("vllm-ascend/issues/672", "PaddleCustomDevice/issues/1214")  # their words say too little


def named_later() -> list[Any]:
    """The threads that were collected last and whose words name a cause."""
    return [one for one in cases("later") if not one.values[0]["thread"].endswith(UNNAMED)]


NAMED = [
    *cases("known"), *cases("held"), *named_later(), *cases("fresh"), *cases("newest"),
    *cases("further"),
]  # fmt: skip


@pytest.mark.parametrize("row", NAMED)
def test_a_public_failure_has_its_cause_first(row: dict[str, Any]) -> None:
    said = diagnose(row["environment"], CHIP)
    assert said.next is not None
    assert said.next.cause in row["expect"], said
    assert said.next.fix


def test_an_error_that_nobody_knows_is_never_ok() -> None:
    for row in (one.values[0] for one in cases("later")):
        if row["thread"].endswith(UNNAMED):
            said = diagnose(row["environment"], CHIP)
            assert said.broken
            assert said.next is not None
            assert said.next.cause in ("unrecognised", "error-code")
    doubtful = {"torch": "2.9.0", "torch-npu": "2.9.0"}
    said = diagnose(
        {"packages": doubtful, "sdk": {"found": True, "version": "7.0"}, "errors": ["odd"]}, CHIP
    )
    assert [one.cause for one in said.findings] == ["sdk-mismatch", "unrecognised"]


def test_what_the_table_does_not_list_is_never_ok() -> None:
    packages = {**healthy()["packages"], "torch": "2.5.1", "torch-npu": "2.5.1.dev20250320"}
    said = diagnose({**healthy(), "packages": {**packages, "vllm-ascend": "9.9.0"}}, CHIP)
    assert [one.cause for one in said.findings] == ["unlisted-version"]
    assert not said.broken
    driver = {**healthy()["driver"], "firmware": "1.2.3"}
    said = diagnose({**healthy(), "driver": driver}, CHIP)
    assert any(one.startswith("firmware 1.2.3") for one in said.missing)


def test_parts_of_one_release_have_one_number() -> None:
    sdk = {**healthy()["sdk"], "addons": {"nnal": "8.0.0"}}
    said = diagnose({**healthy(), "sdk": sdk}, CHIP)
    assert [one.cause for one in said.findings] == ["nnal-mismatch"]
    packages = {"vllm-ascend": "0.18.0", "vllm": "0.17.0", "triton-ascend": "3.2.1"}
    said = diagnose({"packages": {"torch": "2.9.0", **packages}}, CHIP)
    assert "vllm 0.18.0, not 0.17.0" in str(said)


@pytest.mark.parametrize("row", cases("healthy"))
def test_a_working_machine_is_left_in_peace(row: dict[str, Any]) -> None:
    said = diagnose(row["environment"], CHIP)
    assert said.findings == ()
    assert all("no line in the table" in one for one in said.missing)


def healthy() -> dict[str, Any]:
    environment: dict[str, Any] = read_yaml(FOLDER / "healthy.yaml")[0]["environment"]
    return environment


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"devices": {}}, "no-device"),
        ({"driver": {"version": "26.1.0", "libraries": False}}, "driver-missing"),
        ({"driver": {"version": "21.0", "libraries": True}}, None),  # 9.2: no line, nothing said
        ({"sdk": {"found": True, "sourced": False, "kernels": ["a"]}}, "sdk-not-loaded"),
        ({"sdk": {"found": True, "sourced": True, "home": "/x", "kernels": []}}, "kernels-missing"),
        ({"packages": {"torch": "2.13.0", "torch-npu": "2.14.0"}}, "torch-mismatch"),
        ({"packages": {"torch": "2.13.0", "torch-npu": None}}, "package-missing"),
        ({"variables": {"ASCEND_RT_VISIBLE_DEVICES": "0,8"}}, "visible-devices"),
        ({"variables": {"ASCEND_RT_VISIBLE_DEVICES": "npu0"}}, "visible-devices"),
        ({"memory": {"shm_bytes": 64 << 20}}, "shared-memory"),
        ({"smi": {"exit_code": 0, "cards": [{"id": 3, "health": "Alarm"}]}}, "card-unhealthy"),
        ({"network": {"0": {"address": "10.0.0.1"}, "1": {"address": None}}}, "card-network"),
        ({"network": {"0": {"link": "UP"}, "1": {"link": "DOWN"}}}, "card-network"),
        ({"driver": {"version": "25.2.0", "firmware": "7.5.0.2.220"}}, "firmware-mismatch"),
        ({"errors": ["nobody has seen this"]}, "unrecognised"),
        ({"smi": {"exit_code": 3, "output": "what?"}}, "unrecognised"),
    ],
)  # fmt: skip
def test_one_change_of_a_working_machine_is_named(
    change: dict[str, Any], cause: str | None
) -> None:
    said = diagnose({**healthy(), **change}, CHIP)
    assert (said.next.cause if said.next else None) == cause


def test_what_a_record_lacks_is_not_good() -> None:
    said = diagnose({"packages": {"torch": "2.9.0", "torch-npu": "2.9.0"}}, CHIP)
    assert said.findings == ()
    assert "device files" in said.missing
    assert "the driver's version" in said.missing


@pytest.mark.parametrize(("said", "cause"), [
    ("HCCL_BUFFSIZE is too SMALL, NEEDED_HCCL_BUFFSIZE = 1024MB", "hccl-buffer"),
    ("error code is 207008 Insufficient_Stream_Resources(EL0009)", "no-streams"),
    ("Expected one of cpu, cuda device type at start of device string: npu", "not-imported"),
    ("E40021: Failed to compile Op [Conv3D1_to_Conv3dv2]", "compile-failed"),
    ("expert count is: 128 [FILE:moe_gating_top_k_tiling.cpp]", "refused"),
    ("ValueError: FlexAttention is only supported on CUDA, CPU", "flex-attention"),
    ("ModuleNotFoundError: No module named 'vllm.lora.lora_model'", "vllm-modules"),
    ("ModuleNotFoundError: No module named 'vllm.a'; 'vllm' is not a package", "unrecognised"),
    ("ModuleNotFoundError: No module named 'vllm.vllm_flash_attn'", "unrecognised"),
    ("RuntimeError: DataLoader worker (pid 1207008) exited unexpectedly", "unrecognised"),
    ("!!!!!!! Segfault encountered !!!!!!!", "unrecognised"),
    ("begin capture stream failed, runtime result = 207008[FUNC:x]", "no-streams"),
])  # fmt: skip
def test_what_public_threads_say_is_known(said: str, cause: str) -> None:
    assert diagnose({"errors": [said]}, CHIP).findings[0].cause == cause


def test_a_release_with_a_known_fault_is_in_doubt_and_the_next_one_is_not() -> None:
    def told(version: str) -> dict[str, str]:
        packages = {"torch": "2.8.0", "torch-npu": version, "deepspeed": "0.14.1"}
        said = diagnose({"packages": packages}, CHIP)
        assert not said.broken
        return {one.cause: one.fix for one in said.findings}

    assert told("2.8.0")["leak-of-2.8.0"] == "install torch-npu 2.8.0.post1 or later"
    assert told("2.8.0").keys() - told("2.8.0.post2").keys() == {"leak-of-2.8.0"}
    assert "deepspeed-nan" in told("2.8.0")


@pytest.mark.parametrize(("triton", "cause"), [("3.6.0", set()), ("3.5.0", {"triton-beside"})])
def test_triton_stands_beside_what_adds_to_it(triton: str, cause: set[str]) -> None:
    said = diagnose({"packages": {"triton-ascend": "3.6.0", "triton": triton}}, CHIP)
    assert {one.cause for one in said.findings} == cause


def test_packages_that_are_here_in_other_versions_explain_no_error() -> None:
    said = {"errors": ["ImportError: the package flash_attn seems to be not installed"]}
    new = diagnose({**said, "packages": {"transformers": "4.57.1"}}, CHIP)
    assert [one.cause for one in new.findings] == ["unrecognised"]


def test_every_sign_has_a_cause_and_a_fix() -> None:
    rules = rules_of(CHIP)
    assert rules is not None
    assert {sign.fact for sign in rules.signs} - {""} == rules.facts.keys()
    for sign in rules.signs:
        assert sign.cause in rules.causes, sign
        assert sign.source


def test_a_record_is_diagnosed_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "machine.json"
    document = {"schema": "joymigrate.environment/1", **healthy()}
    path.write_text(json.dumps(document))
    assert run(["doctor", "--env", str(path)]) == 0
    assert "nothing that is known stands in the way" in capsys.readouterr().out
    document["packages"]["torch"] = "2.12.0"
    path.write_text(json.dumps(document))
    assert run(["doctor", "--env", str(path), "--format", "json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["next"] == "torch-mismatch"
    assert said["findings"][0]["grade"] == "documented"
    path.write_text("{}")
    assert run(["doctor", "--env", str(path)]) == 2
    assert "not a recorded environment" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        ("Only a single TORCH_LIBRARY can be used to register the namespace _C; please put all",
         "registered-twice"),
        ("ValueError: we now require users to upgrade torch to at least v2.6 in order to use",
         "companion-mismatch"),
    ],
)  # fmt: skip
def test_what_other_packages_say_of_two_builds_or_an_old_torch_is_known(
    error: str, wanted: str
) -> None:
    assert [one.cause for one in diagnose({"errors": [error]}, CHIP).findings] == [wanted]


def test_cards_must_be_named_in_ascending_order() -> None:
    smi = {"exit_code": 0, "cards": [{"id": n, "health": "OK"} for n in range(2)]}
    for order, causes in (("1,0", ["visible-devices"]), ("0,1", [])):
        told = {"variables": {"ASCEND_RT_VISIBLE_DEVICES": order}, "smi": smi}
        assert [one.cause for one in diagnose(told, CHIP).findings] == causes


def test_a_torch_that_pip_refuses_is_in_doubt() -> None:
    for torch, causes in (("2.9.0", ["pip-conflict"]), ("2.9.0+cpu", [])):
        told = {"machine": {"arch": "x86_64"}, "packages": {"torch": torch, "torch-npu": "2.9.0"}}
        assert [one.cause for one in diagnose(told, CHIP).findings] == causes
