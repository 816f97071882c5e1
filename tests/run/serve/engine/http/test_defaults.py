"""Sampling of requests that do not say: generation_config.json, and what the operator sets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from joymigrate.errors import JoyError
from joymigrate.run.serve.engine.http.defaults import NEUTRAL, Defaults, load
from joymigrate.run.serve.engine.http.service_start import open_service
from joymigrate.run.serve.engine.tokens import NumberTokens, end_ids
from joymigrate.run.serve.engine.types import EngineOptions

from .conftest import Running, serving

# As Qwen2.5-Instruct's file has it.
QWEN = {
    "bos_token_id": 0,
    "do_sample": True,
    "eos_token_id": [3, 1],
    "pad_token_id": 1,
    "repetition_penalty": 1.05,
    "temperature": 0.7,
    "top_p": 0.8,
    "top_k": 20,
    "max_new_tokens": 23,
    "transformers_version": "4.37.0",
}
SAID = {"repetition_penalty": 1.05, "temperature": 0.7, "top_p": 0.8, "top_k": 20}
ASKED = {"prompt": "Hello world", "seed": 5, "max_tokens": 20, "ignore_eos": True}


@pytest.fixture(scope="module")
def qwen(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("defaults") / "qwen"
    shutil.copytree(folder, made)
    (made / "generation_config.json").write_text(json.dumps(QWEN))
    return made


@pytest.fixture(scope="module")
def told(qwen: Path) -> Iterator[Running]:
    """A server of a folder that says how to sample."""
    with serving(qwen, dtype="float32") as running:
        running.service.defaults = load(qwen)  # as `open_service` does; see below
        yield running


def text(server: Running, **more: Any) -> str:
    status, _, raw = server.post("/v1/completions", {**ASKED, **more})
    assert status == 200, raw
    return str(json.loads(raw)["choices"][0]["text"])


def test_what_a_request_leaves_out_comes_from_the_folder(told: Running, server: Running) -> None:
    assert text(told) == text(server, **SAID)
    assert text(told) != text(server)


@pytest.mark.parametrize(
    "own",
    [
        {"temperature": 1.0},
        {"top_k": 0},
        {"top_k": -1, "top_p": 1},
        {"repetition_penalty": 1.0},
        {"temperature": 0},
        {"temperature": None},
    ],
    ids=str,
)
def test_what_a_request_says_wins(told: Running, server: Running, own: dict[str, Any]) -> None:
    merged = {**SAID, **{name: value for name, value in own.items() if value is not None}}
    assert text(told, **own) == text(server, **merged)


def test_triton_and_chats_get_the_same_defaults(told: Running, server: Running) -> None:
    asked = {"text_input": "Hello world", "seed": 5, "ignore_eos": True}
    outputs = [
        json.loads(one.post("/v2/models/tiny/generate", body)[2])["text_output"]
        for one, body in ((told, asked), (server, {**asked, **SAID}), (server, asked))
    ]
    assert outputs[0] == outputs[1] != outputs[2]
    chat = {"messages": [{"role": "user", "content": "Hi"}], "seed": 5, "ignore_eos": True}
    answers = [
        json.loads(one.post("/v1/chat/completions", body)[2])
        for one, body in ((told, chat), (server, {**chat, **SAID, "max_tokens": 23}))
    ]
    assert answers[0]["usage"]["completion_tokens"] == 23, "max_new_tokens where none is asked"
    assert answers[0]["choices"] == answers[1]["choices"]
    longer = told.post("/v1/chat/completions", {**chat, "max_tokens": 30})[2]
    assert json.loads(longer)["usage"]["completion_tokens"] == 30


def test_greedy_tokens_are_those_of_transformers_with_the_folders_penalty(
    told: Running, qwen: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(qwen)
    assert model.generation_config.repetition_penalty == 1.05
    ids = AutoTokenizer.from_pretrained(qwen)("Hello world", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        made = model.generate(ids, do_sample=False, max_new_tokens=40)[0, ids.shape[1] :].tolist()
    body = {"prompt": "Hello world", "temperature": 0, "max_tokens": 40, "return_token_ids": True}
    answer = json.loads(told.post("/v1/completions", body)[2])
    assert answer["choices"][0]["token_ids"] == made


def test_the_start_reads_the_folder(qwen: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="joymigrate.serve")
    service = open_service(qwen, EngineOptions(threads=1, kv_blocks=10))
    service.engine.stop()
    assert service.defaults == load(qwen) != NEUTRAL
    assert "temperature 0.7, top_k 20, top_p 0.8, repetition_penalty 1.05" in caplog.text


def test_the_operator_chooses_whose_file_counts(folder: Path, qwen: Path) -> None:
    assert load(folder) == NEUTRAL
    assert load(qwen) == Defaults(0.7, 20, 0.8, repetition_penalty=1.05, max_tokens=23)
    assert load(qwen, "none") == load(qwen, "vllm") == NEUTRAL
    assert load(folder, str(qwen)) == Defaults(
        0.7, 20, 0.8, repetition_penalty=1.05, max_tokens=23, most=23, ends=(3, 1)
    )
    assert load(qwen, "auto", '{"temperature": 0.5}').temperature == 0.5
    assert load(qwen, "auto", '{"temperature": 0.5}').top_k == 20
    assert load(qwen, "none", '{"top_p": 0.5, "max_new_tokens": 9}') == Defaults(
        top_p=0.5, max_tokens=9, most=9
    )


def test_what_the_operator_limits_no_request_exceeds(told: Running, qwen: Path) -> None:
    before = told.service.defaults
    told.service.defaults = load(qwen, "none", '{"max_new_tokens": 9}')
    try:
        made = told.post("/v1/completions", {**ASKED, "max_tokens": 20})[2]
        assert json.loads(made)["usage"]["completion_tokens"] == 9
        made = told.post("/v1/completions", {**ASKED, "max_tokens": 5})[2]
        assert json.loads(made)["usage"]["completion_tokens"] == 5
    finally:
        told.service.defaults = before


def test_another_folders_ends_count_unless_they_are_ignored(told: Running, folder: Path) -> None:
    ids = json.loads(told.post("/v1/completions", {**ASKED, "return_token_ids": True})[2])
    third = ids["choices"][0]["token_ids"][2]
    before = told.service.defaults
    told.service.defaults = Defaults(**SAID, ends=(third,))
    try:
        asked = {**ASKED, "ignore_eos": False}
        cut = json.loads(told.post("/v1/completions", asked)[2])
        assert cut["usage"]["completion_tokens"] <= 3
        assert cut["choices"][0]["finish_reason"] == "stop"
        whole = json.loads(told.post("/v1/completions", ASKED)[2])
        assert whole["usage"]["completion_tokens"] == 20
    finally:
        told.service.defaults = before


@pytest.mark.parametrize(
    ("source", "override", "said"),
    [
        ("/nowhere", "", "there is no generation_config.json in '/nowhere'"),
        ("auto", "{", "not JSON"),
        ("auto", "[1]", "not a JSON object"),
        ("auto", '{"temperatur": 1}', "Did you mean 'temperature'"),
        ("auto", '{"temperature": "hot"}', "must be a number"),
        ("auto", '{"top_p": 2}', r"must be in \(0, 1\]"),
        ("auto", '{"max_new_tokens": 0}', "whole number"),
    ],
)
def test_mistakes_are_named(qwen: Path, source: str, override: str, said: str) -> None:
    with pytest.raises(JoyError, match=said):
        load(qwen, source, override)


@pytest.mark.parametrize("broken", [b"{", b"[]", b'{"temperature": -1}', b'{"a": "\xff"}'])
def test_a_broken_file_is_found_before_the_weights_load(tmp_path: Path, broken: bytes) -> None:
    from joymigrate.run.serve.engine.check import sampling

    (tmp_path / "generation_config.json").write_bytes(broken)
    found = sampling(tmp_path, "auto", "")
    assert found.status == "fail"
    assert "generation_config.json" in found.found
    assert sampling(tmp_path, "none", "").status == "ok"


@pytest.mark.parametrize("given", ["x", [1, "x"], [None], {"a": 1}, 1.5])
def test_an_end_that_is_no_token_is_one_clear_error(tmp_path: Path, given: Any) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": given}))
    with pytest.raises(JoyError, match=r"eos_token_id is .*, but must be a token id"):
        end_ids(tmp_path, None, NumberTokens())
