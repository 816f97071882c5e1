"""Every key of a conversation's record is used, refused by its name, or named as unused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from joymigrate.cli._main import run
from joymigrate.errors import JoyError
from joymigrate.run.train import chats, records, tokenizer
from joymigrate.run.train.records import TrainingRecord
from joymigrate.run.train.tasks import TaskContext, find

TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] or '' }}"
    "{% for c in m['tool_calls'] or [] %}{{ c['function'] | tojson }}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ASKED = {"role": "user", "content": "weather in Oslo?"}
SAID = {"role": "assistant", "content": "rainy"}
TOOL = {"type": "function", "function": {"name": "look_outside", "parameters": {}}}
CALL = {"type": "function", "function": {"name": "look_outside", "arguments": '{"town": "Oslo"}'}}
SHARED = [{"from": "human", "value": "weather in Oslo?"}, {"from": "gpt", "value": "rainy"}]
ALPACA = {"instruction": "weather in Oslo?", "input": "", "output": "rainy"}
SAILOR = "speak in riddles"


def seen(value: dict[str, Any], template: str = TEMPLATE) -> tuple[str, str]:
    """The whole text of a record, and what of it is learned."""
    words = tokenizer.byte_level()
    words.chat_template = template
    task = find("sft")(TaskContext(tokenizer=words, max_length=1024))
    (sample,) = task.encode(TrainingRecord(value, "d.jsonl:1"))
    tokens = sample["tokens"].tolist()
    parts = [words.decode(tokens[a:b]) for a, b in sample["spans"].reshape(-1, 2)]
    return words.decode(tokens), "|".join(part.removesuffix("<|im_end|>") for part in parts)


@pytest.mark.parametrize(
    ("value", "inside", "learned"),
    [
        ({"messages": [ASKED, SAID], "tools": [TOOL]}, "look_outside", "rainy"),
        ({"messages": [ASKED, SAID], "functions": [TOOL["function"]]}, "look_outside", "rainy"),
        ({"messages": [ASKED, SAID], "system": SAILOR}, SAILOR, "rainy"),
        ({"conversations": SHARED, "system": SAILOR}, SAILOR, "rainy"),
        ({"conversations": SHARED, "tools": json.dumps([TOOL])}, "look_outside", "rainy"),
        ({**ALPACA, "system": SAILOR}, SAILOR, "rainy"),
        ({**ALPACA, "history": [["who?", "a sailor"]]}, "who?", "a sailor|rainy"),
        ({"prompt": [ASKED], "completion": [SAID]}, "Oslo", "rainy"),
        ({"messages": [{**ASKED, "cache": None}, SAID]}, "Oslo", "rainy"),
        ({"prompt": [ASKED, SAID, ASKED], "completion": [SAID]}, "rainy", "rainy"),
        (
            {"messages": [ASKED, {**SAID, "content": "unlearned", "weight": 0}, ASKED, SAID]},
            "unlearned",
            "rainy",
        ),
        (
            {"messages": [ASKED, {**SAID, "content": [{"type": "text", "text": "rainy"}]}]},
            "Oslo",
            "rainy",
        ),
    ],
)
def test_what_stands_beside_the_turns_is_read(
    value: dict[str, Any], inside: str, learned: str
) -> None:
    whole, told = seen(value)
    assert inside in whole
    assert told == learned


def test_a_call_of_a_function_is_learned() -> None:
    answer = {"role": "tool", "tool_call_id": "c1", "content": "wet"}
    turns = [ASKED, {"role": "assistant", "content": None, "tool_calls": [CALL]}, answer, SAID]
    whole, learned = seen({"messages": turns, "tools": [TOOL]})
    assert '"town": "Oslo"' in learned.split("|")[0]
    assert learned.endswith("|rainy")
    assert "wet" in whole
    assert "wet" not in learned
    call = {"from": "function_call", "value": json.dumps(CALL["function"])}
    shared = [SHARED[0], call, {"from": "observation", "value": "wet"}, SHARED[1]]
    assert seen({"conversations": shared})[1] == learned
    both = {"from": "function_call", "value": json.dumps([CALL["function"]] * 2)}
    twice = seen({"conversations": [SHARED[0], both, *shared[2:]]})[1]
    assert twice.count('"town": "Oslo"') == 2
    plain = [SHARED[0], {"from": "function_call", "value": "look Oslo"}, SHARED[1]]
    assert seen({"conversations": plain})[1] == "look Oslo|rainy"


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"messages": [ASKED, SAID], "images": ["a.png"]}, "'images' cannot be used"),
        ({"messages": [ASKED, SAID], "videos": ["a.mp4"]}, "'videos' cannot be used"),
        ({"prompt": "a", "completion": "b", "rejected": "c"}, "'rejected' cannot be used"),
        ({"prompt": "a", "completion": "b", "system": "c"}, "'system' cannot be used beside"),
        ({"messages": [{**ASKED, "cache": 1}, SAID]}, "a message's 'cache'"),
        ({"messages": [{**ASKED, "weight": 1}, SAID]}, "'weight' is 1 in a message of the user"),
        ({"messages": [ASKED, {**SAID, "weight": 0.5}]}, "'weight' is 0 or 1, got 0.5"),
        ({"messages": [ASKED, {**SAID, "content": None}]}, "'content' is empty"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}, SAID]},
            "parts of type image_url",
        ),
        ({"messages": [{"role": "system", "content": "a"}], "system": "b"}, "two system messages"),
        ({"conversations": [{"from": "narrator", "value": "a"}]}, "nobody is called 'narrator'"),
        ({**ALPACA, "history": ["a"]}, "'history' is a list of"),
        ({"messages": [ASKED, SAID], "tools": "[not json"}, "'tools' is a text that is no JSON"),
        ({"prompt": [ASKED]}, "the record has no 'completion'"),
        ({"prompt": ["a"], "completion": ["b"]}, "'prompt' is a list of objects, got a list"),
        ({"messages": "[]"}, "'messages' is a list of objects, got a text"),
    ],
)
def test_what_cannot_be_learned_is_refused_by_its_name(value: dict[str, Any], named: str) -> None:
    with pytest.raises(JoyError, match=named) as caught:
        seen(value)
    assert caught.value.where == "d.jsonl:1"


def test_a_template_that_passes_over_tools_or_calls_is_refused() -> None:
    plain = TEMPLATE.partition("{% if tools %}")[2].partition("{% endif %}")[2]
    with pytest.raises(JoyError, match="does not write 'tools'"):
        seen({"messages": [ASKED, SAID], "tools": [TOOL]}, plain)
    deaf = plain.replace(
        "{% for c in m['tool_calls'] or [] %}{{ c['function'] | tojson }}{% endfor %}", ""
    )
    turns = [ASKED, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
    with pytest.raises(JoyError, match="does not write 'tool_calls', the call of look_outside"):
        seen({"messages": turns}, deaf)


def test_keys_that_nobody_reads_are_named() -> None:
    record = TrainingRecord(
        {"messages": [ASKED, SAID], "id": 7, "source": "web", "tools": None}, "d:1"
    )
    assert chats.read(record) is not None
    assert record.unused == ["id", "source"]


OTHER = {**SAID, "content": "dry"}
WHOLE = {"chosen": [ASKED, SAID], "rejected": [ASKED, {**SAID, "content": "wet"}]}


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        ({"prompt": "q", "chosen": "good", "rejected": "bad"}, "qgood"),
        ({"prompt": "q", "chosen": [SAID], "rejected": [ASKED, SAID]}, "rainy"),
        ({"prompt": [ASKED, SAID, ASKED], "chosen": "good", "rejected": "bad"}, "good"),
        ({"chosen": [ASKED, SAID], "rejected": [ASKED, {**SAID, "content": "wet"}]}, "rainy"),
        ({"prompt": ASKED["content"], **WHOLE}, "rainy"),
        ({"prompt": ASKED["content"], "system": SAILOR, **WHOLE}, "rainy"),
        ({key: [ASKED, OTHER, *turns] for key, turns in WHOLE.items()}, "rainy"),
        ({"instruction": "a", "input": "b", "chosen": "good", "rejected": "bad"}, "good"),
        (
            {
                "conversations": SHARED[:1],
                "chosen": {"from": "gpt", "value": "good"},
                "rejected": {"from": "gpt", "value": "bad"},
                "system": SAILOR,
            },
            "good",
        ),
    ],
)
def test_a_pair_has_its_prompt_in_any_form(value: dict[str, Any], chosen: str) -> None:
    words = tokenizer.byte_level()
    words.chat_template = TEMPLATE
    task = find("dpo")(TaskContext(tokenizer=words, max_length=1024))
    record = TrainingRecord({**value, "score": 1}, "d:1")
    row = task.shown(task.encode(record)[0])["chosen"]
    learned = words.decode(row["tokens"][row["targets"]], skip_special_tokens=True)
    assert learned == chosen.removeprefix("q")
    assert record.unused == ["score"]
    if value["chosen"] == WHOLE["chosen"]:  # the prompt is not asked twice
        assert words.decode(row["tokens"]).count(ASKED["content"]) == 1
    assert SAILOR not in str(value) or SAILOR in words.decode(row["tokens"])


def test_a_system_text_beside_a_pair_of_texts_is_refused() -> None:
    task = find("dpo")(TaskContext(tokenizer=tokenizer.byte_level(), max_length=64))
    value = {"prompt": "q", "chosen": "a", "rejected": "b", "system": SAILOR}
    with pytest.raises(JoyError, match="'system' cannot be used beside"):
        task.encode(TrainingRecord(value, "d:1"))


def test_two_equal_answers_and_an_empty_one_teach_nothing() -> None:
    words = tokenizer.byte_level()
    words.chat_template = TEMPLATE
    task = find("dpo")(TaskContext(tokenizer=words, max_length=1024))
    same = TrainingRecord({"prompt": [ASKED], "chosen": [SAID], "rejected": [SAID]}, "d:1")
    assert task.encode(same) == []
    assert same.fate.dropped == "both answers are the same"
    empty = TrainingRecord({"prompt": "q", "chosen": "", "rejected": "a"}, "d:1")
    assert task.encode(empty) == []
    sft = find("sft")(TaskContext(tokenizer=words, max_length=1024))
    silent = TrainingRecord({"messages": [ASKED, {**SAID, "content": ""}]}, "d:1")
    assert sft.encode(silent) == []
    assert silent.fate.notes == {"an empty answer is not learned"}
    nobody = TrainingRecord({"messages": [ASKED, {**SAID, "role": "Assistant"}]}, "d:1")
    assert sft.encode(nobody) == []
    assert nobody.fate.dropped.endswith("the roles are Assistant, user")
    blank = TrainingRecord({"text": " \n"}, "d:1")
    assert find("pretrain")(TaskContext(tokenizer=words, max_length=9)).encode(blank) == []
    assert blank.fate.dropped == "a text without a word"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"text": "a", "text": "b"}', "the key 'text' stands twice"),
        ('{"text": "lone \\ud83d half"}', "half of a surrogate pair"),
    ],
)
def test_a_line_that_is_no_sound_record_is_refused_with_its_place(
    tmp_path: Path, line: str, what: str
) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text('{"text": "\\ud83d\\ude00"}\n' + line + "\n")
    with pytest.raises(JoyError, match=what) as caught:
        list(records.read([path]))
    assert caught.value.where == f"{path}:2"


def test_a_byte_order_mark_is_no_part_of_the_data(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"text": "a"}\r\n\r\n')
    assert [record.value for record, _ in records.read([path])] == [{"text": "a"}]


MARKED = TEMPLATE.replace(
    "{{ m['content'] or '' }}",
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}{% endgeneration %}"
    "{% else %}{{ m['content'] or '' }}{% endif %}",
)


def test_generation_blocks_of_a_template_say_what_is_learned() -> None:
    unlearned = {**SAID, "content": "unlearned", "weight": 0}
    assert seen({"messages": [ASKED, unlearned, ASKED, SAID]}, MARKED)[1] == "rainy"


def test_reasoning_that_the_template_passes_over_is_refused() -> None:
    said = {**SAID, "reasoning_content": "clouds"}
    with pytest.raises(JoyError, match="does not write 'reasoning_content'"):
        seen({"messages": [ASKED, said]})


def test_the_command_shows_each_record_and_counts_what_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = {"messages": [ASKED, {**SAID, "content": "rainy 雨"}], "id": 7}
    late = {"messages": [{**ASKED, "content": "x" * 90}, SAID]}
    bad = {"messages": [ASKED, SAID], "images": ["a.png"]}
    lines = [json.dumps(one) + "\n" for one in (turns, late, bad)]
    (tmp_path / "d.jsonl").write_text("".join(lines))
    job = "model: {from_config: {model_type: qwen2}}\ndata: {train: d.jsonl, max_length: 64}\n"
    (tmp_path / "job.yaml").write_text(job)
    asked = ["train", "show", str(tmp_path / "job.yaml"), "--first", "1", "--record", "2"]
    assert run([*asked, "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    (row,) = found["records"][0]["rows"]
    assert [(one["text"], one["learned"]) for one in row["runs"]][1:2] == [
        ("rainy 雨<|im_end|>", True)
    ]
    assert found["records"][1]["dropped"] == "what is learned begins behind data.max_length"
    assert found["lost"]["unused"] == {"id": 1}
    assert found["refused"] == {"'images' cannot be used here": 1}
    assert run(asked) == 1
    said = capsys.readouterr().out
    assert "  learned rainy 雨<|im_end|>\n" in said
    assert "1 left out: what is learned begins behind data.max_length" in said


@pytest.mark.parametrize(("value", "what"), [(["a", 1], "a list"), ({"a": 1}, "an object"),
                                             (True, "true or false")])  # fmt: skip
def test_nothing_but_texts_is_learned_as_text(value: Any, what: str) -> None:
    task = find("pretrain")(TaskContext(tokenizer=tokenizer.byte_level(), max_length=64))
    with pytest.raises(JoyError, match=f"'text' is {what}, expected a text"):
        task.encode(TrainingRecord({"text": value}, "d:1"))


def test_an_array_of_records_is_read_from_any_mark(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    path.write_text(json.dumps([{"n": number} for number in range(4)], indent=1))
    found = list(records.read([path]))
    assert [record.value["n"] for record, _ in found] == [0, 1, 2, 3]
    assert found[2][0].where == f"{path} record 3"
    rest = records.read([path], start=found[1][1])
    assert [record.value["n"] for record, _ in rest] == [2, 3]


@pytest.mark.parametrize(("loss", "tokens"), [("sigmoid", 2), ("ipo", 1)])
def test_ipo_takes_the_mean_of_an_answers_tokens(loss: str, tokens: int) -> None:
    import torch

    options = {"loss": loss}
    task = find("dpo")(TaskContext(tokenizer=tokenizer.byte_level(), max_length=9, options=options))
    batch = {"input_ids": torch.zeros(2, 4), "labels": torch.tensor([[-100, -100, 1, 2]] * 2)}
    logits = torch.zeros(2, 4, 8)  # every token has a probability of 1/8
    found = task.answers(lambda **_: SimpleNamespace(logits=logits), batch)
    assert found.tolist() == pytest.approx([-tokens * math.log(8)] * 2)
