"""Texts instead of ids: as training hashes them, over every protocol, and every mistake by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from joymigrate.errors import JoyError
from joymigrate.run.serve.ranking.program import RankingProgram, load
from joymigrate.run.train.samples import hashing
from tests.run.serve.ranking.test_protocol import post

WORDS = [["red", "Ōsaka"], ["", "blue 青"], ["red", "x" * 300]]
SIZES = ["small", "large"]


class Sums(torch.nn.Module):
    """The ids themselves, so that scores show them."""

    def forward(self, words: Any, size: Any) -> Any:
        return (words * torch.tensor([1, 1000])).sum(1).float() + size.float() / 10


def saved(folder: Path, words: Any = None, size: Any = None, **more: Any) -> Path:
    count = torch.export.Dim("count")
    given = {"words": torch.zeros(4, 2, dtype=torch.long), "size": torch.zeros(4, dtype=torch.int)}
    made = torch.export.export(
        Sums(), (), kwargs=given, dynamic_shapes={name: {0: count} for name in given}
    )
    told = {"schema": "joymigrate.ranking-model/1", "inputs": {
        "words": {"role": "candidate", "ids": [97, 500], "texts": "hash"} if words is None
        else words,
        "size": {"role": "candidate", "ids": 3, "vocabulary": SIZES, "unknown": 2}
        if size is None else size}}  # fmt: skip
    path = folder / "sums.pt2"
    torch.export.save(made, path, extra_files={"ranking.json": json.dumps({**told, **more})})
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> RankingProgram:
    return load(saved(tmp_path_factory.mktemp("texts")))


def expected(words: list[list[str]], sizes: list[int]) -> np.ndarray[Any, Any]:
    columns = [
        hashing.fold_hashes(hashing.of_texts(pa.array([row[place] for row in words])), rows)
        for place, rows in enumerate((97, 500))
    ]
    return (columns[0] + columns[1] * 1000 + np.array(sizes) / 10).astype(np.float32)


@pytest.mark.parametrize("how", ["json", "rank", "binary", "grpc"])
def test_texts_become_the_ids_of_training(
    serve: Callable[..., Any], model: RankingProgram, how: str
) -> None:
    running = serve(model)
    sizes = ["large", "small", "huge"]
    wanted = expected(WORDS, [1, 0, 2])
    if how == "rank":
        status, said = post(running.url + "/v1/rank", {"inputs": {"words": WORDS, "size": sizes}})
        assert status == 200, said
        np.testing.assert_array_equal(np.float32(said["outputs"][model.signature.outputs[0]]),
                                      wanted)  # fmt: skip
        return
    client = grpcclient if how == "grpc" else httpclient
    asked = []
    for name, values in (("words", WORDS), ("size", sizes)):
        array = np.array(values, dtype=object)
        one = client.InferInput(name, list(array.shape), "BYTES")
        options = {} if how == "grpc" else {"binary_data": how == "binary"}
        one.set_data_from_numpy(array, **options)
        asked.append(one)
    place = running.grpc if how == "grpc" else running.url.removeprefix("http://")
    connection = client.InferenceServerClient(place)
    assert connection.get_model_metadata("din") is not None
    found = connection.infer("din", asked).as_numpy(model.signature.outputs[0])
    np.testing.assert_array_equal(found, wanted)


def test_ids_are_taken_where_texts_are(serve: Callable[..., Any], model: RankingProgram) -> None:
    body = {"inputs": {"words": [[3, 4]], "size": ["large"]}}
    status, said = post(serve(model).url + "/v1/rank", body)
    assert status == 200
    assert next(iter(said["outputs"].values())) == pytest.approx([4003.1])


@pytest.mark.parametrize(
    ("change", "name", "word"),
    [
        ({"words": [["a", 1]]}, "words", "no text"),
        ({"words": [["a", "b"], ["c"]]}, "words", "different lengths"),
        ({"words": [["a", "b"], ["c"], ["d", "e", "f"]]}, "words", "different lengths"),
        ({"words": [["a", "b", "c"]]}, "words", "2 columns"),
        ({"words": [["a", None]]}, "words", "no text"),
        ({"words": ["a"]}, "words", ""),
        ({"size": [["small"]]}, "size", "shape"),
        ({"words": [[1, "a"]]}, "words", "no int64"),
    ],
)
def test_a_mistake_names_the_input(
    serve: Callable[..., Any], model: RankingProgram, change: dict[str, Any], name: str, word: str
) -> None:
    given = {"words": [["a", "b"]], "size": ["small"], **change}
    status, said = post(serve(model).url + "/v1/rank", {"inputs": given})
    assert (status, said["error"]["param"]) == (400, name)
    assert word in said["error"]["message"]


def test_texts_for_an_input_without_them_are_refused(
    serve: Callable[..., Any], din: RankingProgram
) -> None:
    row = {"name": "item", "datatype": "BYTES", "shape": [1, 5], "data": ["a"] * 5}
    status, said = post(serve().url + "/v2/models/din/infer", {"inputs": [row]})
    assert status == 400
    assert "'item': texts came, it takes int64" in said["error"]


def test_a_text_that_is_not_known_is_refused_without_an_id_for_it(
    serve: Callable[..., Any], tmp_path: Path
) -> None:
    size = {"role": "candidate", "ids": 2, "vocabulary": SIZES}
    body = {"inputs": {"words": [["a", "b"]], "size": ["huge"]}}
    status, said = post(serve(load(saved(tmp_path, size=size))).url + "/v1/rank", body)
    assert status == 400
    assert "'huge' is not in the vocabulary" in said["error"]["message"]


@pytest.mark.parametrize(
    ("size", "word"),
    [
        ({"texts": "hash"}, "nobody knows its rows"),
        ({"texts": "hash", "ids": 3, "vocabulary": ["a"]}, "and a vocabulary"),
        ({"vocabulary": ["a", "b", "c"], "ids": 2}, "reaches 2"),
        ({"vocabulary": ["a"], "ids": 2, "unknown": 2}, "reaches 2"),
        ({"texts": "other"}, "texts"),
    ],
)
def test_a_description_that_cannot_be_served_is_refused(
    tmp_path: Path, size: dict[str, Any], word: str
) -> None:
    with pytest.raises(JoyError, match=word):
        load(saved(tmp_path, size={"role": "candidate", **size}))
