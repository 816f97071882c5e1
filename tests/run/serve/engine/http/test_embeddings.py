"""/v1/embeddings over a socket: the official client's vectors are the states of transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.run.serve.engine.http.conftest import serving

openai = pytest.importorskip("openai", reason="pip install 'joymigrate[dev]'")
TEXTS = ["Hello world", "你好，世界。 tokens"]


@pytest.fixture(scope="module")
def embedder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server of the session's model that says that it embeds by its last token."""
    made = tmp_path_factory.mktemp("embedder") / "tiny"
    shutil.copytree(folder, made)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [{"path": path, "type": f"models.{kind}"} for path, kind in kinds.items()]
    (made / "modules.json").write_text(json.dumps(modules))
    (made / "1_Pooling").mkdir()
    (made / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}')
    with serving(made, dtype="float32") as running:
        yield running


@pytest.mark.parametrize("form", ["float", "base64"])
def test_vectors_are_those_of_transformers(embedder: Any, folder: Path, form: Any) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    with openai.OpenAI(base_url=embedder.url + "/v1", api_key="any", max_retries=0) as client:
        found = client.embeddings.create(model="tiny", input=TEXTS)
        small = client.embeddings.create(model="tiny", input=TEXTS[0], dimensions=8)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text, one in zip(TEXTS, found.data, strict=True):
        with torch.inference_mode():
            state = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, -1]
        want = torch.nn.functional.normalize(state, dim=0)
        assert torch.allclose(torch.tensor(one.embedding), want, atol=1e-5)
    assert found.usage.prompt_tokens == sum(len(tokenizer(text).input_ids) for text in TEXTS)
    assert len(small.data[0].embedding) == 8
    status, _, raw = embedder.post(
        "/v1/embeddings", {"model": "tiny", "input": TEXTS[0], "encoding_format": form}
    )
    assert status == 200
    assert isinstance(json.loads(raw)["data"][0]["embedding"], list if form == "float" else str)


@pytest.mark.parametrize("given", [[], "", [[]], [1, 99999], {"a": 1}, [""]])
def test_an_input_that_is_none_is_refused_by_its_name(embedder: Any, given: Any) -> None:
    status, error = embedder.refused("/v1/embeddings", {"model": "tiny", "input": given})
    assert status == 400
    assert error["param"] == "input"
    assert "prompt" not in error["message"]
