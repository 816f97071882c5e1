"""`serve models` on the command line."""

from __future__ import annotations

import json

import pytest

from joymigrate.cli._main import run
from joymigrate.errors import Exit


def test_the_list_names_families_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "models"]) == Exit.OK
    out = capsys.readouterr().out
    assert any(line.split() == ["qwen3", "decoder"] for line in out.splitlines())
    assert any(
        line.startswith("rwkv ") and "refused: rwkv keeps" in line for line in out.splitlines()
    )
    assert "families continue as transformers" in out.splitlines()[-1]


def test_json_carries_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "models", "--format", "json"]) == Exit.OK
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "joymigrate.served/1"
    statuses = {model["family"]: model["status"] for model in found["models"]}
    assert statuses["qwen2_vl"] == "pass"
    assert statuses["bloom"] == "refused"


def test_a_family_is_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "models", "--verify", "mistral", "--format", "json"]) == Exit.OK
    [model] = json.loads(capsys.readouterr().out)["models"]
    assert model == {"family": "mistral", "status": "pass", "path": "decoder", "reason": None}


def test_an_unknown_family_is_one_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "models", "--verify", "mistrall"]) == Exit.ERROR
    assert "Did you mean 'mistral'?" in capsys.readouterr().err
