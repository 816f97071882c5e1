"""Models of many families and settings: their tokens are those of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.families import list_verified, verify, verify_families
from joymigrate.run.serve.engine.load import load_engine
from joymigrate.run.serve.engine.models.spec import describe, families
from joymigrate.run.serve.engine.tiny_models import document, tiny
from joymigrate.run.serve.engine.types import EngineOptions
from tests.run.serve.engine.models import SMALL, drain, expected, greedy, prompts, run, save

OPTIONS = EngineOptions(block_size=4, kv_blocks=300, max_batch_tokens=50)
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
        "original_max_position_embeddings": 32}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 32}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 3.0}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32,
        "short_factor": [1.0] * 8, "long_factor": [1.5] * 8}  # fmt: skip
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    ),
    "yarn": ("llama", {"rope_parameters": YARN}),
    "llama3": ("llama", {"rope_parameters": LLAMA3}),
    "dynamic": ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 32}),
    "longrope": ("phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 32}),
    "window": ("mistral", {"sliding_window": 12}),
    "window of some layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "wide heads": ("mistral", {"head_dim": 32}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "tied": ("qwen2", {"tie_word_embeddings": True}),
    "one key head": ("llama", {"num_key_value_heads": 1}),
    "factors": (
        "granite",
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "logits_scaling": 5.0,
            "attention_multiplier": 0.2,
        },
    ),
    "softcaps": (
        "gemma2",
        {
            "head_dim": 16,
            "sliding_window": 10,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 5.0,
        },
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_the_configuration_is_computed(name: str, tmp_path: Path) -> None:
    kind, more = SETTINGS[name]
    reference = save(tmp_path, kind, **more)
    asked = prompts((3, 45, 28))  # 28 and its continuation cross the original length of 32
    engine = load_engine(tmp_path, OPTIONS).engine
    assert engine.model.path == "decoder"
    assert run(engine, asked, greedy(20)) == [expected(reference, ids, 20) for ids in asked]


def test_a_changing_base_does_not_share_prefixes_of_longer_prompts(tmp_path: Path) -> None:
    save(tmp_path, "llama", rope_parameters=DYNAMIC, max_position_embeddings=32)
    engine = load_engine(tmp_path, OPTIONS).engine
    [long] = prompts([40])
    run(engine, [long], greedy(2))
    assert run(engine, [long[:36]], greedy(2))
    assert engine.stats().prefix_hits == 0
    run(engine, [long], greedy(2))
    assert engine.stats().prefix_hits == 36


@pytest.mark.parametrize(
    "name",
    [
        "llama",
        "qwen3",
        "chatglm",
        "internlm2",
        "baichuan",
        "gpt2",
        pytest.param("mixtral", marks=pytest.mark.dear),
        pytest.param("deepseek_v3", marks=pytest.mark.dear),
        pytest.param("mamba2", marks=pytest.mark.dear),
    ],
)
def test_a_family_continues_as_transformers_does(name: str) -> None:
    [found] = verify_families([name])
    assert found.status == "pass", found.reason
    assert found.tokens > 10
    assert found.path == document()["families"][name]["path"]


@pytest.mark.slow
def test_every_listed_family_continues_as_transformers_does() -> None:
    failed = [found for found in verify_families() if found.status != "pass"]
    assert not failed


@pytest.mark.slow
def test_every_family_listed_as_refused_is() -> None:
    for name in document()["refused"]:
        assert verify(name, further=True).status == "refused", name


def test_the_list_is_long_and_says_with_what_it_was_made() -> None:
    passed = [family for family in list_verified() if family.status == "pass"]
    assert len(passed) >= 80
    assert {family.name for family in passed} >= set(families())
    assert document()["transformers"] == "5.23.0"
    assert all(family.reason for family in list_verified() if family.status == "refused")


def test_an_unknown_family_is_named() -> None:
    with pytest.raises(JoyError, match="lama"):
        next(verify_families(["lama"]))


@pytest.mark.parametrize(
    ("kind", "what"),
    [("rwkv", "keeps a state"), ("bloom", "by itself"), ("bert", "packed together differ")],
)
def test_a_model_that_cannot_be_paged_is_refused_with_the_reason(
    kind: str, what: str, tmp_path: Path
) -> None:
    tiny(kind, {}, tmp_path)
    with pytest.raises(JoyError, match=what):
        load_engine(tmp_path, OPTIONS)


def test_an_unknown_family_in_a_folder_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "nonesuch"}')
    with pytest.raises(JoyError, match="nonesuch is no model"):
        load_engine(tmp_path, OPTIONS)


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        ({"model_type": "baichuan", "hidden_size": 5120}, "ALiBi"),
        ({"model_type": "chatglm", "position_encoding_2d": True}, "older kind"),
        ({"model_type": "llama", "hidden_act": "relu"}, "activation relu"),
        ({"model_type": "gemma3_text"}, "not one of the decoder's families"),
    ],
    ids=str,
)
def test_what_the_decoder_is_not_for_it_says(raw: dict[str, Any], what: str) -> None:
    spec, reason = describe(raw)
    assert spec is None
    assert what in reason


def test_an_impossible_configuration_is_one_error() -> None:
    with pytest.raises(JoyError, match="not one of llama"):
        describe({**SMALL, "model_type": "llama", "hidden_size": "many"})


def test_baichuans_normalised_head_is_computed(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    reference = tiny("baichuan", {}, tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    spec, _ = describe({**raw, "vocab_size": 125696})
    assert spec is not None
    assert spec.normalised_head
    weights = load_file(tmp_path / "model.safetensors")
    head = torch.nn.functional.normalize(weights["lm_head.weight"])
    reference.lm_head.weight.data = head
    from joymigrate.run.serve.engine.models import decoder

    plain, _ = describe(raw)
    assert plain is not None
    import dataclasses

    made = decoder.DecoderModel(
        dataclasses.replace(plain, normalised_head=True),
        decoder.Weights(tmp_path),
        torch.float32,
        torch.device("cpu"),
    )
    engine = load_engine(tmp_path, OPTIONS).engine
    engine.model.head = made.head  # type: ignore[attr-defined]
    [ids] = prompts([9])
    assert run(engine, [ids], greedy(8))[0] == expected(reference, ids, 8)
    assert drain(engine) == {}
