"""`train evaluate` and `train predict` on real runs, and Label Studio's JSON in and out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from joymigrate.cli import _main
from joymigrate.errors import JoyError
from joymigrate.run.train import job as jobs_
from joymigrate.run.train import labelstudio, launch
from tests.run.train import jobs, learnable


def trained(folder: Path, task: str, model: dict[str, Any], **changes: Any) -> Path:
    """A finished run of a task on its learnable data."""
    learnable.write(task, folder, "train.jsonl", 128, seed=1)
    learnable.write(task, folder, "eval.jsonl", 16, seed=2)
    made = {
        "model": {"from_config": model},
        "data": {"train": "train.jsonl", "eval": "eval.jsonl", "max_length": 64},
        "task": task,
        "steps": 150,
        "batch": {"size": 16},
        "optimiser": {"lr": 3e-3},
        "schedule": "constant",
        "checkpoint": {"every": 0},
        "device": "cpu",
        **changes,
    }
    path = folder / "job.yaml"
    made["schedule"] = {"name": "constant"}
    path.write_text(yaml.safe_dump(made))
    code = launch.launch(jobs_.load(path), launch.LaunchOptions(quiet=True), lambda line: None)
    assert code == 0
    return folder / "runs" / "job"


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("c"), "classification", learnable.BERT)


def samples(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert _main.run([str(a) for a in arguments]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.dear
def test_a_run_and_its_exported_model_give_the_same_samples(
    classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = classifier.parents[1]
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    found = told(capsys, "train", "evaluate", classifier, "--format", "json", "-o", one)
    assert found["schema"] == "joymigrate.evaluation/1"
    assert found["samples"] == 16
    assert found["metrics"]["accuracy"] > 0.8
    more = ("--job", root / "job.yaml", "--data", root / "eval.jsonl", "--format", "json")
    again = told(capsys, "train", "evaluate", classifier / "model", *more, "-o", two)
    assert again["metrics"] == found["metrics"]
    rows = samples(one)
    assert [row["id"] for row in rows] == [str(number) for number in range(16)]
    assert {"id", "prediction", "reference", "score", "task"} <= rows[0].keys()
    assert [r["prediction"] for r in rows] == [r["prediction"] for r in samples(two)]


@pytest.mark.dear
def test_the_classes_of_a_trained_model_outlive_its_data(
    classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "new.jsonl"
    data.write_text('{"id": "x", "text": "xyzxyzb"}\n')
    kept = classifier.parents[1] / "train.jsonl"
    moved = kept.rename(kept.with_suffix(".away"))
    try:
        out = tmp_path / "out.jsonl"
        assert (
            _main.run(["train", "predict", str(classifier), "--data", str(data), "-o", str(out)])
            == 0
        )
    finally:
        moved.rename(kept)
    (row,) = samples(out)
    assert (row["id"], row["prediction"]) == ("x", "is-b")
    assert "reference" not in row


def test_a_language_model_writes_behind_a_prompt(tmp_path: Path) -> None:
    path = jobs.write(
        tmp_path,
        task="sft",
        data={"train": "chat.jsonl", "max_length": 64},
        steps=2,
        checkpoint={"every": 0, "export": False},
    )
    assert launch.launch(jobs_.load(path), launch.LaunchOptions(quiet=True), lambda line: None) == 0
    asked = tmp_path / "asked.jsonl"
    message = {"role": "user", "content": "double 4"}
    asked.write_text(json.dumps({"messages": [message]}) + "\n" + '{"prompt": "hello"}\n')
    out = tmp_path / "out.jsonl"
    call = ["train", "predict", str(tmp_path / "runs/job"), "--data", str(asked), "-o", str(out)]
    assert _main.run([*call, "--max-new-tokens", "5"]) == 0
    rows = samples(out)
    assert len(rows) == 2
    assert all(isinstance(row["prediction"], str) and len(row["tokens"]) <= 5 for row in rows)


def test_a_model_folder_needs_its_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = jobs.texts(tmp_path / "d.jsonl", 2)
    assert _main.run(["train", "evaluate", str(tmp_path), "--data", str(data)]) == 2
    assert "name the job with --job" in capsys.readouterr().err


def test_label_studio_exports_become_records_and_predictions_its_tasks(tmp_path: Path) -> None:
    export = tmp_path / "export.json"
    span = {"start": 0, "end": 3, "text": "北京市", "labels": ["city"]}
    result = {"type": "labels", "from_name": "label", "to_name": "text", "value": span}
    box = {"type": "rectanglelabels", "to_name": "image", "value": {"x": 1}}
    tasks = [
        {"id": 7, "data": {"text": "北京市中山路"}, "annotations": [{"result": [result, box]}]},
        {"id": 8, "data": {"text": "无"}, "annotations": [{"result": []}]},
        {"id": 9, "data": {"text": "later"}, "annotations": []},
        {
            "id": 10,
            "data": {"image": "a.png"},
            "annotations": [
                {"result": [], "was_cancelled": True},
                {"result": [{"type": "choices", "value": {"choices": ["cat"]}}]},
            ],
        },
    ]
    export.write_text(json.dumps(tasks))
    made, left = labelstudio.records_of(export)
    entity = {"start": 0, "end": 3, "label": "city"}
    assert made == [
        {"id": "7", "text": "北京市中山路", "entities": [entity]},
        {"id": "8", "text": "无", "entities": []},
        {"id": "10", "image": "a.png", "label": "cat"},
    ]
    assert any("rectanglelabels" in line for line in left)
    assert any("task 9: not annotated" in line for line in left)
    data, rows = tmp_path / "data.jsonl", tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(one) + "\n" for one in made[:1]))
    rows.write_text(json.dumps({"id": "7", "prediction": [entity], "score": 0.5}) + "\n")
    (task,) = labelstudio.tasks_of(rows, data, "v1")
    assert task["data"]["text"] == "北京市中山路"
    (prediction,) = task["predictions"]
    assert prediction["score"] == 0.5
    assert prediction["result"][0]["value"] == {"start": 0, "end": 3, "labels": ["city"]}
    # and back again: what goes out can be read in
    out = {"id": 7, "data": task["data"], "annotations": [prediction]}
    export.write_text(json.dumps([out]))
    again, _ = labelstudio.records_of(export)
    assert again[0]["entities"] == [entity]


def test_samples_without_a_record_are_named(tmp_path: Path) -> None:
    data, rows = tmp_path / "data.jsonl", tmp_path / "rows.jsonl"
    data.write_text('{"id": "a", "text": "x"}\n')
    rows.write_text('{"id": "b", "prediction": "y"}\n')
    with pytest.raises(JoyError, match="no record 'b'"):
        labelstudio.tasks_of(rows, data, "v1")


@pytest.mark.parametrize(
    ("template", "end"),
    [
        ("{% for m in messages %}[{{ m.role }}]{{ m.content }}<turn>{% endfor %}", "<turn>"),
        ("{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}", None),
        (None, None),
    ],
)
def test_an_answer_ends_where_its_template_ends_a_turn(
    template: str | None, end: str | None
) -> None:
    from joymigrate.run.train import tokenizer as tokenizers
    from joymigrate.run.train.tasks import _language

    made = tokenizers.byte_level()
    made.add_special_tokens({"additional_special_tokens": ["<turn>"]})
    made.chat_template = template
    expected = [made.eos_token_id]
    if end is not None:
        expected.append(made.convert_tokens_to_ids(end))
    assert _language.stops(made) == expected
