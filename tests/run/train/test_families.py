"""`train models`: what is said of a family was done, and what could not be done has its reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from joymigrate.cli import _main
from joymigrate.run.train import (
    families,
    family_kinds,
    family_layouts,
    family_step,
    recommendation,
    shrink,
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.dear
def test_all_kinds_of_families_are_listed() -> None:
    found = families.list_families()
    kinds = {one.task for one in found}
    assert kinds == {*family_kinds.ALL_KINDS}
    assert len({one.family for one in found}) > 200
    assert not any(one.meta or one.step == "pass" or one.layouts for one in found)


@pytest.mark.dear
def test_families_of_every_kind_take_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("qwen2", "llama", "deepseek_v3", "mamba", "qwen2_vl", "bert", "t5", "vit")
    arguments = [part for name in names for part in ("--family", name)]
    assert _main.run(["train", "models", "--format", "json", *arguments]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "joymigrate.models/1"
    stepped = {(one["family"], one["step"]) for one in told["models"]}
    assert {(name, "pass") for name in names} <= stepped
    for one in told["models"]:
        assert one["meta"] or one["reason"]
        assert one["layouts"] == []  # nothing ran on two processes
        assert one["parameters"] is None or one["parameters"] < families.LARGE


def test_recommendation_models_take_a_step() -> None:
    found = families.survey(kinds=[family_kinds.RECOMMENDATION])
    assert len(found) == len(recommendation.names()) == 12
    assert [(one.family, one.step, one.reason) for one in found if one.step != "pass"] == []
    assert {one.trained_by for one in found} == {"ctr", "multitask", "sequence", "generative"}


def test_what_was_verified_is_remembered_by_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = families.survey(["gpt2"])
    monkeypatch.setattr(family_step, "step", lambda *_: pytest.fail("verified again"))
    (again,) = families.survey(["gpt2"])
    assert again == first
    before = families.place()
    monkeypatch.setattr(families, "versions", lambda: {"torch": "other"})
    assert families.place() != before


def test_a_family_that_breaks_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(kind: str, family: str) -> str:
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(family_step, "step", broken)
    (one,) = families.survey(["gpt2"])
    assert (one.meta, one.step) == (True, "fail")
    assert one.reason == "step: RuntimeError: shapes differ"


def test_a_family_without_gradients_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    real = family_step.build

    def frozen(kind: str, family: str) -> object:
        model = real(kind, family)
        for number, parameter in enumerate(model.parameters()):
            parameter.requires_grad_(number == 0)
        for parameter in model.parameters():
            parameter.register_hook(lambda g: g * 0) if parameter.requires_grad else None
        return model

    monkeypatch.setattr(family_step, "build", frozen)
    with pytest.raises(ValueError, match="no parameter got a gradient"):
        family_step.step("llm", "gpt2")


def test_an_unknown_family_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert _main.run(["train", "models", "--family", "qwen22"]) == 2
    assert "Did you mean 'qwen2" in capsys.readouterr().err


def test_special_tokens_fit_the_small_vocabulary() -> None:
    config = shrink.tiny("qwen2_vl")
    size = config.text_config.vocab_size
    assert size == 512
    numbers = (config.image_token_id, config.vision_start_token_id, config.video_token_id)
    assert len(set(numbers)) == 3
    assert all(0 <= number < size for number in numbers)


@pytest.mark.slow
def test_layouts_are_those_that_two_processes_ran() -> None:
    (one,) = family_layouts.survey(families.survey(["qwen2"]), lambda line: None)
    assert one.layouts == ["ddp", "fsdp", "tp", "pp"], one.reason
    (gpt2,) = family_layouts.survey(families.survey(["gpt2"]), lambda line: None)
    assert "pp" not in gpt2.layouts
    assert "pp: " in (gpt2.reason or "")
