"""LoRA adapters over HTTP: a request asks for one by the model's name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from joymigrate.chips import hide_driverless

from .conftest import Running, serving

hide_driverless()
peft = pytest.importorskip("peft", reason="pip install 'joymigrate[train]'")


@pytest.fixture(scope="module")
def adapted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    import torch
    from transformers import AutoModelForCausalLM

    place = tmp_path_factory.mktemp("adapters") / "terse"
    torch.manual_seed(3)
    base = AutoModelForCausalLM.from_pretrained(folder)
    made: Any = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=32))
    for name, weight in made.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=0.5)
    made.save_pretrained(place)
    with serving(folder, adapters=(("terse", str(place)),)) as running:
        yield running


def test_models_lists_an_adapter_with_its_parent(adapted: Running) -> None:
    listed = json.loads(adapted.get("/v1/models")[2])["data"]
    assert [(card["id"], card["parent"]) for card in listed] == [
        ("tiny", None), ("alias", None), ("terse", "tiny"),
    ]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
def test_the_name_chooses_the_adapter(adapted: Running, stream: bool) -> None:
    found = {}
    for model in ("tiny", "terse", "alias"):
        talk = [{"role": "user", "content": "Hello"}]
        body = {"model": model, "max_tokens": 12, "temperature": 0, "messages": talk}
        body |= {"stream": stream, "return_token_ids": True}
        status, _, raw = adapted.post("/v1/chat/completions", body)
        assert status == 200, raw
        assert json.loads(raw.split(b"\n\n")[0].removeprefix(b"data: "))["model"] == model
        found[model] = ids_of(raw)
    assert found["tiny"] == found["alias"] != found["terse"]


def ids_of(raw: bytes) -> list[int]:
    """The token ids of an answer, whole or streamed."""
    events = [line.removeprefix(b"data: ") for line in raw.split(b"\n\n")]
    found: list[int] = []
    for event in events:
        if event.startswith(b"{"):
            for choice in json.loads(event)["choices"]:
                found += choice.get("token_ids") or []
    return found


def test_an_unknown_name_is_refused(adapted: Running) -> None:
    status, error = adapted.refused("/v1/completions", {"model": "verbose", "prompt": "Hello"})
    assert (status, error["code"]) == (404, "model_not_found")
