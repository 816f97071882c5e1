"""Training files of LLaMA-Factory as jobs: every key is used, passed over or refused by name."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from joymigrate.cli import _main
from joymigrate.errors import JoyError
from joymigrate.run.train import engines, job, llamafactory_job
from joymigrate.run.train.engines import engine_command
from tests.run.train import jobs

# As its examples write one (examples/train_lora).
FILE: dict[str, Any] = {
    "model_name_or_path": "model",
    "trust_remote_code": True,
    "stage": "sft",
    "do_train": True,
    "finetuning_type": "lora",
    "lora_rank": 4,
    "lora_target": "q_proj,v_proj",
    "dataset": "sums",
    "dataset_dir": ".",
    "template": "qwen3_nothink",
    "cutoff_len": 64,
    "max_samples": 60,
    "preprocessing_num_workers": 16,
    "output_dir": "saves/lora",
    "logging_steps": 10,
    "save_steps": 500,
    "plot_loss": True,
    "report_to": "none",
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "learning_rate": "1e-4",
    "num_train_epochs": 3.0,
    "lr_scheduler_type": "cosine",
    "warmup_ratio": 0.1,
    "bf16": True,
    "ddp_timeout": 180000000,
    "resume_from_checkpoint": None,
}
SUMS = {
    "file_name": "sums.jsonl",
    "formatting": "sharegpt",
    "columns": {"messages": "messages"},
    "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user"},
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, records and their description, which the command runs in."""
    (tmp_path / "model").mkdir()
    jobs.chats(tmp_path / "sums.jsonl")
    (tmp_path / "dataset_info.json").write_text(json.dumps({"sums": SUMS}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(here: Path, **changes: Any) -> tuple[job.Job, list[str]]:
    path, lines = here / "lora.yaml", list[str]()
    path.write_text(yaml.safe_dump({**FILE, **changes}, sort_keys=False))
    return job.load(path, (), lines.append), lines


def test_a_file_becomes_a_job(here: Path) -> None:
    made, lines = load(here)
    assert made.task.name == "sft"
    assert made.data.train == (str(here / "sums.jsonl"),)
    assert (made.data.max_length, made.data.limit, made.data.packing) == (64, 60, False)
    assert (made.method.name, made.method.rank, made.method.alpha) == ("lora", 4, 8)
    assert made.method.targets == ("q_proj", "v_proj")
    assert (made.batch.micro, made.batch.size) == (2, 8)
    assert (made.optimiser.lr, made.optimiser.betas) == (1e-4, (0.9, 0.999))
    assert (made.schedule.name, made.schedule.warmup, made.epochs) == ("cosine", 0.1, 3.0)
    assert (made.dtype, made.master, made.model.recompute) == ("bfloat16", True, True)
    assert (made.checkpoint.keep, made.seed) == (10**6, 42)
    assert made.run_folder == here / "saves/lora"
    assert "learning_rate 1e-4: optimiser.lr 1e-4" in lines
    assert "seed is not in the file: seed 42" in lines
    assert "plot_loss True: not used, it is about what is shown; metrics.jsonl and" in "".join(
        line[:72] for line in lines if line.startswith("plot_loss")
    )


def test_every_key_of_the_file_has_its_line(here: Path) -> None:
    _, lines = load(here)
    named = [line.split()[0] for line in lines]
    assert named[: len(FILE)] == list(FILE)
    assert "lora_alpha is not in the file: method.alpha 8" in lines
    told = {line.split(": ")[1].split()[0] for line in lines}
    assert {"data.packing", "checkpoint.keep", "schedule.warmup", "optimiser.betas"} <= told


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"use_galore": True}, "use_galore is True: the optimisers are AdamW and SGD"),
        ({"streaming": True, "fp8": True}, "streaming is True: .*; fp8 is True"),
        ({"val_size": 0.1, "eval_dataset": "sums"}, "data.holdout does not go with data.eval"),
        ({"val_size": -1}, "val_size -1 is nothing"),
        ({"mask_history": True, "train_on_prompt": True}, "mask_history True is nothing"),
        ({"report_to": ["wandb", "azure_ml"]}, "no tracker is called 'azure_ml'"),
        ({"lora_rnk": 4}, "unknown key 'lora_rnk'. Did you mean 'lora_rank'"),
        ({"lr_scheduler_type": "polynomial"}, "lr_scheduler_type 'polynomial' is nothing"),
        ({"stage": "kto"}, "stage 'kto' is nothing"),
        ({"per_device_train_batch_size": "two"}, "per_device_train_batch_size 'two'"),
        ({"dataset": "others"}, "no dataset 'others'"),
        ({"model_name_or_path": "Qwen/Qwen3-4B"}, "model_name_or_path 'Qwen/Qwen3-4B'"),
        ({"do_train": False}, "do_train is False"),
        ({"optim": "adafactor"}, "optim 'adafactor' is nothing"),
    ],
)
def test_what_would_compute_something_else_is_refused(
    here: Path, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(JoyError, match=expected) as seen:
        load(here, **changes)
    assert seen.value.help


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        ({"val_size": 0.1}, "data.holdout", 0.1),
        ({"val_size": 30.0}, "data.holdout", 30),
        ({"use_dora": True}, "method.dora", True),
        ({"use_rslora": True}, "method.rslora", True),
        ({"mask_history": True}, "task.options", {"learn": "last"}),
        ({"report_to": "tensorboard"}, "logging.tensorboard", True),
        ({"report_to": ["wandb", "mlflow"]}, "logging.trackers", ("wandb", "mlflow")),
        ({"report_to": "none"}, "logging.trackers", ()),
    ],
)
def test_a_key_becomes_a_key_of_the_job(
    here: Path, changes: dict[str, Any], key: str, value: Any
) -> None:
    made, _ = load(here, **changes)
    part, name = key.split(".")
    assert getattr(getattr(made, part), name) == value


def test_a_deepspeed_file_may_shard_and_no_more(here: Path) -> None:
    plan = {"train_batch_size": "auto", "bf16": {"enabled": "auto"}, "zero_optimization": {}}
    (here / "zero.json").write_text(json.dumps(plan))
    _, lines = load(here, deepspeed="zero.json")
    assert [line for line in lines if "--set layout.fsdp=N" in line and "zero.json" in line]
    (here / "zero.json").write_text(json.dumps({**plan, "optimizer": {"type": "Lion"}}))
    with pytest.raises(JoyError, match="is nothing that train does") as seen:
        load(here, deepspeed="zero.json")
    assert "its 'optimizer'" in (seen.value.help or "")


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, "x", -1, True, False, None, 0.5, ["x"]])
def test_a_value_of_any_kind_is_read_or_refused(here: Path, value: Any) -> None:
    for key in llamafactory_job.table()["read"]:
        for more in ({}, {"eval_strategy": "steps", "load_best_model_at_end": True}):
            with contextlib.suppress(JoyError):  # nothing else is raised
                load(here, **{**more, key: value})


def test_records_described_otherwise_are_refused(here: Path) -> None:
    other = {**SUMS, "columns": {"messages": "messages", "tools": "functions_of_mine"}}
    (here / "dataset_info.json").write_text(json.dumps({"sums": other}))
    with pytest.raises(JoyError, match=r"cannot be read as described: columns\.tools"):
        load(here)
    (here / "dataset_info.json").write_text(json.dumps({"sums": {**SUMS, "tags": ["role"]}}))
    with pytest.raises(JoyError, match="cannot be read as described: tags"):
        load(here)


def test_pairs_and_looks_at_held_out_data(here: Path) -> None:
    pairs = {"file_name": "sums.jsonl", "ranking": True}
    held = {"file_name": "held.jsonl", "ranking": True}
    (here / "dataset_info.json").write_text(json.dumps({"sums": pairs, "held": held}))
    made, _ = load(
        here,
        **{"stage": "dpo", "pref_loss": "ipo", "pref_beta": 0.2, "eval_dataset": "held"},
        lora_dropout=0.1,
        **{"eval_strategy": "steps", "eval_steps": 20, "load_best_model_at_end": True},
    )
    assert made.task.options == {"beta": 0.2, "loss": "ipo", "smoothing": 0.0}
    assert made.method.dropout == 0  # as there
    assert made.eval is not None
    assert (made.eval.every, made.eval.metric, made.eval.batch) == (20, "loss", 8)


def test_the_table_has_every_key_that_transformers_has() -> None:
    from joymigrate.chips import hide_driverless

    hide_driverless()
    from transformers import Seq2SeqTrainingArguments

    table = llamafactory_job.table()
    known = [*table["read"], *llamafactory_job.by_key("refused")]
    known += llamafactory_job.by_key("not used")
    assert len(known) == len({*known})
    assert {one.name for one in dataclasses.fields(Seq2SeqTrainingArguments)} <= {*known}


def test_a_rendered_file_is_read_back_as_the_job_it_came_from(here: Path) -> None:
    before, _ = load(here)
    made = engine_command.render(engines.find("llamafactory"), before)
    assert "optimiser.lr is learning_rate" in made.told
    for path, text in made.files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (path,) = (one for one in made.files if one.suffix == ".yaml")
    after = job.load(path)
    changed = {"name": before.name, "folder": before.folder}
    assert dataclasses.replace(after, **changed) == before


def test_the_command_says_what_became_of_the_keys(here: Path, capsys: Any) -> None:
    load(here)
    (here / "plain.jinja").write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    )
    sets = ("tokenizer=bytes", "data.template=plain.jinja")
    options = [word for one in sets for word in ("--set", one)]
    assert _main.run(["train", "show", "lora.yaml", *options]) == 0
    out, told = capsys.readouterr()
    assert "user: double" in out
    assert "60 records" in out
    assert "lora_rank 4: method.rank 4" in told
    assert "template qwen3_nothink: not used, the tokenizer's own chat template" in told
