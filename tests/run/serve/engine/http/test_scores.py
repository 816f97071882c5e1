"""/v1/score and /v1/rerank against what transformers computes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Running, make_tokenizer, serving
from .test_embeddings import embedder  # noqa: F401  a fixture

QUERY = "Hello world"
DOCUMENTS = ["a text about tokens", "naïve café", "0123456789", "Hello world, blocks"]


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Any, Any]]:
    """A server of a model of pairs, that model in transformers, and its tokenizer."""
    from joymigrate.chips import hide_driverless

    hide_driverless()
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForSequenceClassification

    folder = tmp_path_factory.mktemp("models") / "scorer"
    size = make_tokenizer(folder)
    torch.manual_seed(5)
    config = Qwen2Config(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=size, max_position_embeddings=256, bos_token_id=0,
        eos_token_id=1, pad_token_id=1, num_labels=1,
    )  # fmt: skip
    config.initializer_range = 0.3
    model = Qwen2ForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    with serving(folder, max_batch_tokens=16) as running:
        yield running, model, AutoTokenizer.from_pretrained(folder)


def wanted(scorer: tuple[Running, Any, Any], pairs: list[tuple[str, str]]) -> list[float]:
    """What transformers says, each pair alone, before the activation."""
    import torch

    _, model, tokenizer = scorer
    with torch.inference_mode():
        return [float(model(**tokenizer(a, b, return_tensors="pt")).logits[0, 0]) for a, b in pairs]


def test_scores_of_pairs_are_those_of_transformers(scorer: tuple[Running, Any, Any]) -> None:
    import torch

    server = scorer[0]
    body = {"model": "tiny", "text_1": QUERY, "text_2": DOCUMENTS}
    raw = json.loads(server.post("/v1/score", {**body, "use_activation": False})[2])
    want = wanted(scorer, [(QUERY, one) for one in DOCUMENTS])
    assert [row["score"] for row in raw["data"]] == pytest.approx(want, abs=1e-4)
    found = json.loads(server.post("/v1/score", body)[2])
    shares = torch.tensor(want).sigmoid().tolist()
    assert [row["score"] for row in found["data"]] == pytest.approx(shares, abs=1e-4)
    lists = {**body, "text_1": DOCUMENTS, "use_activation": False}
    twice = json.loads(server.post("/v1/score", lists)[2])["data"]
    want = wanted(scorer, [(one, one) for one in DOCUMENTS])
    assert [row["score"] for row in twice] == pytest.approx(want, abs=1e-4)


def test_documents_are_ranked(scorer: tuple[Running, Any, Any]) -> None:
    server = scorer[0]
    body = {"query": QUERY, "documents": [DOCUMENTS[0], {"text": DOCUMENTS[1]}, *DOCUMENTS[2:]]}
    want = wanted(scorer, [(QUERY, one) for one in DOCUMENTS])
    order = sorted(range(4), key=lambda i: -want[i])
    for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
        found = json.loads(server.post(path, {**body, "top_n": 3})[2])["results"]
        assert [row["index"] for row in found] == order[:3]
        assert found[0]["document"]["text"] == DOCUMENTS[order[0]]
        assert all(0 < row["relevance_score"] < 1 for row in found)


def test_embeddings_are_compared_by_their_angle(embedder: Any) -> None:  # noqa: F811
    texts = [QUERY, *DOCUMENTS]
    body = {"model": "tiny", "input": texts}
    rows = json.loads(embedder.post("/v1/embeddings", body)[2])["data"]
    vectors = [row["embedding"] for row in rows]
    want = [sum(a * b for a, b in zip(vectors[0], one, strict=True)) for one in vectors[1:]]
    asked = {"text_1": QUERY, "text_2": DOCUMENTS}
    found = json.loads(embedder.post("/v1/score", asked)[2])["data"]
    assert [row["score"] for row in found] == pytest.approx(want, abs=1e-5)


def test_a_model_of_pairs_makes_no_text(scorer: tuple[Running, Any, Any]) -> None:
    status, error = scorer[0].refused("/v1/completions", {"prompt": "Hello"})
    assert (status, error["param"]) == (400, "model")
    assert scorer[0].refused("/v1/embeddings", {"input": "Hello"})[0] == 400


def test_a_model_of_text_has_no_scores(server: Running) -> None:
    status, error = server.refused("/v1/score", {"text_1": "a", "text_2": "b"})
    assert (status, error["code"]) == (400, "unsupported_model")


@pytest.mark.parametrize(
    "body",
    [{}, {"text_1": "a"}, {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]},
     {"text_1": [], "text_2": "a"}, {"text_1": [1], "text_2": "a"}, {"text_1": "a", "text_2": None},
     {"text_1": "a " * 300, "text_2": "b"}, {"text_1": "a", "text_2": "b", "top_n": 2}],
)  # fmt: skip
def test_what_is_no_pair_is_refused(scorer: tuple[Running, Any, Any], body: Any) -> None:
    status, error = scorer[0].refused("/v1/score", body)
    assert status == 400
    assert error["param"]


def test_a_model_of_several_labels_is_refused(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    from joymigrate.errors import JoyError
    from joymigrate.run.serve.engine.pooling import pooling_of

    (tmp_path / "config.json").write_text('{"architectures": ["Qwen2ForSequenceClassification"]}')
    save_file({"score.weight": torch.zeros(3, 8)}, tmp_path / "model.safetensors")
    with pytest.raises(JoyError, match="3 labels"):
        pooling_of(tmp_path)
