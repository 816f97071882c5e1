"""LoRA adapters by request: every text of a mixed batch gets what PEFT computes for it alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="pip install 'joymigrate[serve]'")

import torch

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.load import load_engine
from joymigrate.run.serve.engine.types import EngineOptions, Request

from .models import drain, expected, greedy, prompts, save, tokens

peft = pytest.importorskip("peft", reason="pip install 'joymigrate[train]'")
ATTENTION = ["q_proj", "v_proj"]
EVERYTHING = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ROOM: dict[str, Any] = {"dtype": "float32", "block_size": 4, "kv_blocks": 200, "threads": 1}


def make_adapter(model: Any, folder: Path, seed: int, **settings: Any) -> Any:
    """A random adapter, saved by PEFT; returns the model with it."""
    torch.manual_seed(seed)
    config = peft.LoraConfig(**{"r": 4, "lora_alpha": 16, **settings})
    made = peft.get_peft_model(model, config)
    for name, weight in made.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=0.2)
    made.save_pretrained(folder)
    return made.eval()


def continuations(model: Any, asked: list[list[int]], count: int) -> list[list[int]]:
    return [expected(model, ids, count) for ids in asked]


@pytest.mark.parametrize(
    ("kind", "targets", "more"),
    [
        ("qwen2", ATTENTION, {}),
        ("llama", EVERYTHING, {"use_rslora": True}),
        ("qwen3", EVERYTHING, {"rank_pattern": {"k_proj": 2}, "alpha_pattern": {"up_proj": 3}}),
        ("glm", ["q_proj", "k_proj", "gate_up_proj"], {}),  # interleaved rows, one fused linear
        ("phi3", ["qkv_proj", "o_proj"], {}),
        ("gpt_neox", ["query_key_value", "dense"], {}),  # through transformers
    ],
)
def test_a_mixed_batch_gets_what_peft_computes(
    tmp_path: Path, kind: str, targets: list[str], more: dict[str, Any]
) -> None:
    sizes = {"head_dim": 16} if kind == "glm" else {}
    base = save(tmp_path / "model", kind, **sizes)
    asked = prompts([13, 9, 17])
    asked = [asked[0][:8] + ids for ids in asked]  # a prefix that adapters must not share
    want: dict[str | None, list[list[int]]] = {None: continuations(base, asked, 8)}
    for seed, name in enumerate(("one", "two"), 1):
        fresh = type(base).from_pretrained(tmp_path / "model", dtype=torch.float32)
        changed = make_adapter(fresh, tmp_path / name, seed, target_modules=targets, **more)
        want[name] = continuations(changed, asked, 8)
    assert want[None] != want["one"] != want["two"]
    folders = tuple((name, str(tmp_path / name)) for name in ("one", "two"))
    engine = load_engine(tmp_path / "model", EngineOptions(**ROOM, adapters=folders)).engine
    for _ in range(2):  # the second time out of the prefix cache
        for name in want:
            for i, ids in enumerate(asked):
                engine.add(Request(f"{name} {i}", tuple(ids), greedy(8), adapter=name))
        found = drain(engine)
        for name, rows in want.items():
            assert [tokens(found[f"{name} {i}", 0]) for i in range(len(asked))] == rows, name
    assert engine.stats().prefix_hits > 0


def test_an_unknown_adapter_is_refused(tmp_path: Path) -> None:
    save(tmp_path)
    engine = load_engine(tmp_path, EngineOptions(**ROOM)).engine
    with pytest.raises(JoyError, match="no adapter 'nobody'"):
        engine.add(Request("1", (1, 2), greedy(2), adapter="nobody"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias: all"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"init_lora_weights": "pissa"}, "the model's own weights"),
        ({"something_new": 1}, "something_new"),
        ({"peft_type": "IA3"}, "no LoRA adapter"),
        ({"lora_alpha": "much"}, "an alpha of 'much'"),
        ({"alpha_pattern": ["q_proj"]}, "an object of numbers"),
        ({"alpha_pattern": 3}, "an object of numbers"),
        ({"alpha_pattern": {"q_proj": None}}, "an alpha of 'None'"),
        ({"alpha_pattern": {"(": 1}}, "no pattern"),
    ],
)
def test_what_is_more_than_lora_is_refused(
    tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    base = save(tmp_path / "model")
    make_adapter(base, tmp_path / "one", 1, target_modules=ATTENTION)
    path = tmp_path / "one" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    with pytest.raises(JoyError, match=said):
        load(tmp_path)


def load(folder: Path) -> Any:
    wanted = (("one", str(folder / "one")),)
    return load_engine(folder / "model", EngineOptions(**ROOM, adapters=wanted))


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    make_adapter(save(tmp_path / "other", hidden_size=32, head_dim=16), tmp_path / "one", 1,
                 target_modules=ATTENTION)  # fmt: skip
    save(tmp_path / "model")
    with pytest.raises(JoyError, match="the model's is"):
        load(tmp_path)


def test_a_part_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    make_adapter(save(tmp_path / "other", num_hidden_layers=3), tmp_path / "one", 1,
                 target_modules=ATTENTION)  # fmt: skip
    save(tmp_path / "model")
    with pytest.raises(JoyError, match=r"layers\.2\.self_attn"):
        load(tmp_path)


@pytest.mark.parametrize("kind", ["qwen2", "gpt_neox"])
def test_an_adapter_of_the_head_is_refused(tmp_path: Path, kind: str) -> None:
    base = save(tmp_path / "model", kind, tie_word_embeddings=False)
    head = next(n for n, m in base.named_modules() if m is base.get_output_embeddings())
    make_adapter(base, tmp_path / "one", 1, target_modules=[head])
    with pytest.raises(JoyError, match="lm_head"):
        load(tmp_path)
