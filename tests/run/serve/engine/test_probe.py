"""Shrunk copies of a configuration, tried beyond their limits against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine import families
from joymigrate.run.serve.engine.probe import check, probe, shrink, try_beyond_limits
from joymigrate.run.serve.engine.tiny_models import document, fitting

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 4096,
    "short_factor": [1.0 + 0.01 * i for i in range(48)],
    "long_factor": [2.0 + 0.5 * i for i in range(48)],
}


def config_of(kind: str, **more: Any) -> dict[str, Any]:
    from transformers import AutoConfig

    found: dict[str, Any] = AutoConfig.for_model(kind, **more).to_dict()
    return found


def phi3() -> dict[str, Any]:
    return config_of("phi3", rope_parameters=dict(LONGROPE), max_position_embeddings=131072)


def test_a_shrunk_copy_keeps_the_switches_and_shrinks_the_limits() -> None:
    raw = config_of("gemma3_text", num_hidden_layers=26)
    made = shrink(raw, document()["small"])
    kinds = made["layer_types"]
    assert set(kinds) == set(raw["layer_types"]), "every kind of layer is there"
    assert (made["sliding_window"], made["num_hidden_layers"]) == (8, len(kinds))
    long = shrink(phi3(), document()["small"])["rope_parameters"]
    assert long["original_max_position_embeddings"] == 16
    assert len(long["long_factor"]) == 8


def test_a_long_prompt_in_pieces_is_rotated_for_its_whole_length() -> None:
    found = probe(phi3())
    assert found.passed, found.reason
    assert "rotary embedding 'longrope'" in found.covered


def test_what_the_cache_cannot_do_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    folder.mkdir()
    raw = config_of("llama4_text", num_hidden_layers=4)
    (folder / "config.json").write_text(json.dumps(raw))
    with pytest.raises(JoyError, match="would give wrong tokens"):
        try_beyond_limits(folder)
    assert check(raw).passed is False, "remembered"
    assert {f.name: f.status for f in families.list_verified()}["llama4_text"] == "refused"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen2_moe", "phimoe", "qwen2", "mixtral"])
def test_sliding_windows_are_exact_beyond_their_length(kind: str) -> None:
    config = fitting(kind, {"sliding_window": 8})
    raw = config_of(kind, **config)
    raw |= {"use_sliding_window": True, "max_window_layers": 1, "layer_types": None}
    found = probe(raw)
    assert found.passed, found.reason
