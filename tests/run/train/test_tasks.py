"""What pre-training and fine-tuning learn from a record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from joymigrate.errors import JoyError
from joymigrate.run.train import build, tokenizer
from joymigrate.run.train.models import ModelSource
from joymigrate.run.train.records import TrainingRecord
from joymigrate.run.train.tasks import TaskContext, find, names
from joymigrate.run.train.tokens import open_cache
from tests.run.train import jobs


def task(name: str, **changes: Any) -> Any:
    made = {"max_length": 128, **changes}
    return find(name)(TaskContext(tokenizer=tokenizer.byte_level(), **made))


def learned(name: str, value: dict[str, Any], **changes: Any) -> str:
    """The text of a record's targets."""
    made = task(name, **changes)
    (sample,) = made.encode(TrainingRecord(value, "test:1"))
    tokens = sample["tokens"].tolist()
    wanted = [t for a, b in sample["spans"] for t in tokens[max(a, 1) : b]]
    assert len(wanted) == sample["weight"][0]
    return str(made.tokenizer.decode(wanted))


def test_every_file_is_a_task() -> None:
    assert {"pretrain", "sft"} <= set(names())
    with pytest.raises(JoyError, match=r"unknown task 'stf'\. Did you mean 'sft'"):
        find("stf")


def test_only_the_answers_of_a_conversation_are_learned() -> None:
    messages = [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "3+3?"},
        {"role": "assistant", "content": "6"},
    ]
    assert learned("sft", {"messages": messages}) == "4<|im_end|>6<|im_end|>"


def test_only_the_completion_of_a_prompt_is_learned() -> None:
    found = learned("sft", {"prompt": "Capital of Peru: ", "completion": "Lima"})
    assert found == "Lima<|endoftext|>"


CITY = {"text": "Oslo is", "entities": [{"start": 0, "end": 4, "label": "city"}]}
QUERY = {"query": "q", "documents": ["a", "b"], "relevance": [1, 0]}


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("ranking", {**QUERY, "documents": "ab"}, "'documents' is a text, expected a list"),
        ("ranking", {**QUERY, "documents": [{"text": "a"}, "b"]}, "'documents' is an object"),
        ("ranking", {**QUERY, "relevance": ["high", "low"]}, "'relevance' is 'high', expected"),
        ("regression", {"text": "a", "score": True}, "'score' is True, expected a number"),
        (
            "token-classification",
            {"text": "Oslo", "entities": [{"start": "0", "end": "4", "label": "city"}]},
            "start and end are whole numbers",
        ),
        ("token-classification", {"words": ["a"], "tags": [1]}, "a tag is O, B-NAME"),
        ("grpo", {"prompt": {"a": 1}}, "'prompt' is an object, expected a text"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_its_key(
    name: str, value: dict[str, Any], what: str
) -> None:
    options = {"labels": ["city"]} if name == "token-classification" else {}
    with pytest.raises(JoyError, match=what):
        task(name, options=options).encode(TrainingRecord(value, "test:1"))


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("ranking", {**QUERY, "relevance": [0, 0]}, "no document is relevant"),
        ("embedding", {"anchor": "a", "positive": ""}, "a text without a word"),
        ("seq2seq", {"source": "a", "target": " "}, "a text without a word"),
        ("masked-lm", {"text": ""}, "a text without a word"),
    ],
)
def test_a_record_that_teaches_nothing_is_left_out_with_the_reason(
    name: str, value: dict[str, Any], reason: str
) -> None:
    record = TrainingRecord(value, "test:1")
    assert task(name).encode(record) == []
    assert record.fate.dropped == reason


def test_entities_that_overlap_and_odd_labels_are_noted() -> None:
    both = {**CITY, "entities": [*CITY["entities"], {"start": 2, "end": 7, "label": "city"}]}
    record = TrainingRecord(both, "test:1")
    task("token-classification", options={"labels": ["city"]}).encode(record)
    assert record.fate.notes == {"entities overlap, and the later one is learned there"}
    record = TrainingRecord({"text": "", "label": 0.5}, "test:1")
    task("classification", options={"labels": ["0.5", "1"]}).encode(record)
    assert len(record.fate.notes) == 2


def test_other_forms_of_conversations_are_read() -> None:
    shared = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]
    assert learned("sft", {"conversations": shared}) == "hello<|im_end|>"
    asked = {"instruction": "add", "input": "1 2", "output": "3"}
    assert learned("sft", asked) == "3<|im_end|>"


def test_everything_is_learned_on_request_and_in_pretraining() -> None:
    value = {"prompt": "ab", "completion": "cd"}
    assert learned("sft", value, options={"learn": "all"}) == "bcd<|endoftext|>"
    assert learned("pretrain", {"text": "abcd"}) == "bcd<|endoftext|>"


def test_the_last_answer_alone_is_learned_on_request() -> None:
    said = [{"from": "human" if n % 2 else "gpt", "value": f"t{n}"} for n in range(1, 5)]
    assert learned("sft", {"conversations": said}) == "t2<|im_end|>t4<|im_end|>"
    assert learned("sft", {"conversations": said}, options={"learn": "last"}) == "t4<|im_end|>"


def test_what_is_cut_off_is_not_learned() -> None:
    value = {"prompt": "x" * 20, "completion": "y" * 20}
    assert learned("sft", value, max_length=25) == "yyyyy"
    assert task("sft", max_length=20).encode(TrainingRecord(value, "t:1")) == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"txt": "a"}, "the record has no 'prompt'"),
        ({"messages": "hello"}, "'messages' is a list of objects"),
        ({"messages": [{"role": "user"}]}, "'content' is empty, expected a text"),
        ({"messages": [{"content": "a"}]}, "a message needs a role"),
    ],
)
def test_a_record_that_is_none_of_these_is_named(value: dict[str, Any], expected: str) -> None:
    with pytest.raises(JoyError, match=expected) as caught:
        task("sft").encode(TrainingRecord(value, "data.jsonl:7"))
    assert caught.value.where == "data.jsonl:7"


def test_an_unknown_option_of_a_task_is_an_error() -> None:
    with pytest.raises(JoyError, match=r"unknown key 'lern'\. Did you mean 'learn'"):
        task("sft", options={"lern": "all"})


@pytest.mark.parametrize("name", ["sft", "pretrain"])
def test_packed_documents_lose_what_they_lose_alone(tmp_path: Path, name: str) -> None:
    """Neighbours in a row are not attended to: the sum of losses is that of single documents."""
    made = tokenizer.byte_level()
    model = ModelSource(None, jobs.TINY, tokens=len(made)).transformers("AutoModelForCausalLM")
    path = (jobs.chats if name == "sft" else jobs.texts)(tmp_path / "d.jsonl", 12)
    sums = []
    for packing in (True, False):
        one = task(name, packing=packing, max_length=4096 if name == "pretrain" else 256)
        recipe = build.Recipe((path,), one.fields(), one.identity(), one.encode)
        rows = one.samples(open_cache(tmp_path / "cache", recipe))
        batch = one.collate([rows[index] for index in range(len(rows))])
        weight = sum(rows.weight(index) for index in range(len(rows)))
        with torch.no_grad():
            sums.append((float(one.loss(model, batch)), weight, len(rows)))
    (packed, weight, few), (alone, same, many) = sums
    assert few < many
    assert weight == same
    assert packed == pytest.approx(alone, rel=1e-5)  # float32 sums in another order


def test_the_built_in_tokenizer_gives_every_text_back() -> None:
    made = tokenizer.byte_level()
    for text in ("hello  world\n", "地址解析", "🙂 naïve"):
        assert made.decode(made(text)["input_ids"]) == text
    assert len(made) == 261


def test_a_tokenizer_is_known_by_all_that_changes_its_tokens(tmp_path: Path) -> None:
    made = tokenizer.byte_level()
    made.save_pretrained(tmp_path)
    again = tokenizer.from_folder(tmp_path)
    assert tokenizer.digest(again) == tokenizer.digest(made)
    again.add_tokens(["<new>"])
    assert tokenizer.digest(again) != tokenizer.digest(made)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"model_type": "qwen22"}, "unknown model_type 'qwen22'. Did you mean 'qwen2'"),
        (
            {"model_type": "qwen2", "hiden_size": 3},
            "no setting 'hiden_size'. Did you mean 'hidden_",
        ),
        ({**jobs.TINY, "vocab_size": 100}, "the tokenizer has 261 tokens, the model only 100"),
    ],
)
def test_a_wrong_configuration_is_named(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(JoyError, match=expected):
        ModelSource(None, settings, tokens=261).transformers("AutoModelForCausalLM")
