"""Jobs rendered for other trainers, what `train tasks` lists, and what a run takes on disk."""

from __future__ import annotations

import importlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from joymigrate.cli import _main
from joymigrate.errors import JoyError
from joymigrate.run.train import engines, job, launch, storage
from joymigrate.run.train.engines import engine_command
from tests.run.train import jobs


def loaded(folder: Path, **changes: Any) -> job.Job:
    model = {"path": "model"}
    return job.load(jobs.write(folder, **{"model": model, "task": "sft", **changes}))


def options(command: tuple[str, ...]) -> dict[str, str]:
    """`--key value` pairs of a command."""
    pairs = itertools.pairwise(command)
    return {key: value for key, value in pairs if key.startswith("--")}


def test_swift_gets_the_job_as_options(tmp_path: Path) -> None:
    made = engine_command.render(
        engines.find("swift"),
        loaded(
            tmp_path,
            method={"name": "lora", "rank": 4},
            layout={"fsdp": 2},
            batch={"size": 16, "micro": 2},
            dtype="bfloat16",
        ),
    )
    assert made.command[:2] == ("swift", "sft")
    told = options(made.command)
    assert told["--lora_rank"] == "4"
    assert told["--tuner_type"] == "lora"
    assert told["--torch_dtype"] == "bfloat16"
    # 16 samples of a step = 2 processes x 2 of a pass x 4 passes
    assert told["--per_device_train_batch_size"] == "2"
    assert told["--gradient_accumulation_steps"] == "4"
    assert told["--max_steps"] == "20"
    assert told["--fsdp"] == "fsdp2"
    assert made.environment == {"NPROC_PER_NODE": "2"}


@pytest.mark.parametrize(
    ("task", "verb", "key", "value"),
    [
        ("pretrain", "pt", "--model", None),
        ("dpo", "rlhf", "--rlhf_type", "dpo"),
        ("grpo", "rlhf", "--rlhf_type", "grpo"),
        ("reward", "rlhf", "--rlhf_type", "rm"),
        ("embedding", "sft", "--task_type", "embedding"),
        ("regression", "sft", "--problem_type", "regression"),
    ],
)
def test_swift_knows_its_own_names_of_tasks(
    tmp_path: Path, task: str, verb: str, key: str, value: str | None
) -> None:
    made = engine_command.render(engines.find("swift"), loaded(tmp_path, task=task))
    assert made.command[1] == verb
    assert value is None or options(made.command)[key] == value


def test_llamafactory_gets_yaml_and_a_description_of_the_data(tmp_path: Path) -> None:
    made = engine_command.render(engines.find("llamafactory"), loaded(tmp_path, task="dpo"))
    assert made.command[:2] == ("llamafactory-cli", "train")
    texts = {path.name: text for path, text in made.files.items()}
    told = yaml.safe_load(texts["job.yaml"])
    assert (told["stage"], told["finetuning_type"], told["max_steps"]) == ("dpo", "full", 20)
    described = json.loads(texts["dataset_info.json"])
    (data,) = (described[name] for name in told["dataset"].split(","))
    assert data["ranking"] is True
    assert Path(data["file_name"]) == (tmp_path / "text.jsonl").resolve()


@pytest.mark.parametrize(
    ("engine", "changes", "expected"),
    [
        ("swift", {"task": "ctr"}, "swift has no task 'ctr'"),
        ("swift", {"layout": {"tp": 2}}, "does not split layers"),
        (
            "swift",
            {"model": {"from_config": {"model_type": "qwen2"}}},
            "starts from a model folder",
        ),
        ("llamafactory", {"layout": {"fsdp": 2}}, "sharding wants"),
    ],
)
def test_what_an_engine_cannot_do_is_an_error(
    tmp_path: Path, engine: str, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(JoyError, match=expected):
        engine_command.render(engines.find(engine), loaded(tmp_path, **changes))


def test_what_an_engine_is_not_told_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = {"path": "model"}
    path = jobs.write(tmp_path, model=model, task="sft", comm="int8", layout={"dp": 2})
    assert _main.run(["train", str(path), "--engine", "swift", "--render"]) == 0
    out, err = capsys.readouterr()
    assert "swift sft --model" in out
    assert "swift is not told: comm.dtype" in err


@pytest.mark.parametrize("engine", ["swift", "llamafactory", "verl", "trl"])
def test_every_key_of_a_job_is_told_or_named(tmp_path: Path, engine: str) -> None:
    """Each key is set apart from its default: what no engine asks for is named, and only that."""
    task = {"llamafactory": "sft", "swift": "sft", "trl": "dpo"}
    kept: dict[str, Any] = {"name": task.get(engine, "grpo")}
    kept |= {"reward": "reward.py:f"} if engine == "verl" else {}
    (tmp_path / "reward.py").write_text("def f(completion): return 0.0\n")
    for name in ("text.jsonl", "other.jsonl"):
        (tmp_path / name).write_text('{"text": "a", "prompt": "a", "messages": []}\n')
    texts = jobs.document()["data"]
    changes: dict[str, dict[str, Any]] = {
        "optimiser.betas": {"optimiser": {"lr": 1e-3, "betas": [0.8, 0.9]}},
        "optimiser.eps": {"optimiser": {"lr": 1e-3, "eps": 1e-6}},
        "schedule.floor": {"schedule": {"floor": 0.1}},
        "model.attention": {"model": {"path": "model", "attention": "eager"}},
        "comm.dtype": {"comm": "bf16"},
        "guard.spike": {"guard": {"spike": 3.0}},
        "logging.tensorboard": {"logging": {"tensorboard": True}},
        "seed": {"seed": 5},
        "eval.every": {"eval": 3, "data": {**texts, "eval": "other.jsonl"}},
        "data.weights": {"data": {**texts, "weights": [2]}},
    }
    plain = engine_command.render(engines.find(engine), loaded(tmp_path, task=kept))
    for key, change in changes.items():
        made = engine_command.render(engines.find(engine), loaded(tmp_path, task=kept, **change))
        told = (made.command, dict(made.files)) != (plain.command, dict(plain.files))
        assert told != (key in made.left_out), (engine, key, made.left_out)


def test_llamafactory_keeps_documents_apart_and_the_averages_decay(tmp_path: Path) -> None:
    made = engine_command.render(engines.find("llamafactory"), loaded(tmp_path))
    told = yaml.safe_load(next(t for p, t in made.files.items() if p.suffix == ".yaml"))
    assert (told["adam_beta1"], told["adam_beta2"]) == (0.9, 0.95)
    assert told["neat_packing"] is True
    assert "template" not in told, "it reads the tokenizer's own"
    assert any("chat template" in line for line in made.left_out)


def test_a_missing_engine_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    path = jobs.write(tmp_path, model={"path": "model"}, task="sft")
    assert _main.run(["train", str(path), "--engine", "swift"]) == 2
    assert "pip install ms-swift" in capsys.readouterr().err


def test_an_installed_engine_runs_with_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "llamafactory-cli"
    program.write_text(f'#!/bin/sh\ncp "$2" {tmp_path}/seen.yaml\nexit 7\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    path = jobs.write(tmp_path, model={"path": "model"}, task="sft")
    assert _main.run(["train", str(path), "--engine", "llamafactory"]) == 7
    assert yaml.safe_load((tmp_path / "seen.yaml").read_text())["stage"] == "sft"


def test_more_than_twenty_tasks_are_listed_with_who_trains_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _main.run(["train", "tasks", "--format", "json"]) == 0
    rows = {row["task"]: row for row in json.loads(capsys.readouterr().out)["tasks"]}
    assert len(rows) >= 20
    assert rows["dpo"]["own"]
    engines = ["llamafactory", "swift"]
    assert rows["ppo"] == {"task": "ppo", "own": False, "engines": engines, "record": None}
    assert all(row["own"] or row["engines"] for row in rows.values())


def test_storage_counts_equal_content_once(tmp_path: Path) -> None:
    path = jobs.write(tmp_path, steps=4, checkpoint={"every": 2, "keep": 2, "export": False})
    line = json.dumps({"text": "the same line again"}) + "\n"
    (tmp_path / "text.jsonl").write_text(line * 90 + json.dumps({"text": "another one"}) + "\n")
    assert launch.launch(job.load(path), launch.LaunchOptions(quiet=True), lambda _: None) == 0
    run = tmp_path / "runs" / "job"
    found = storage.storage(run)
    tokens, series = found["tokens"], found["checkpoints"]
    assert (tokens["samples"], tokens["unique_samples"]) == (91, 2)
    assert tokens["unique_bytes"] < tokens["cache_bytes"]
    assert tokens["source_bytes"] == (tmp_path / "text.jsonl").stat().st_size
    on_disk = sum(p.stat().st_size for p in (run / "checkpoints").glob("step-*/*"))
    assert (series["checkpoints"], series["bytes"]) == (2, on_disk)
    assert series["unique_bytes"] <= series["bytes"]
    # a copy of a checkpoint adds bytes, but nothing new
    first = run / "checkpoints" / "step-00000004"
    (first.with_name("step-00000005")).mkdir()
    for part in first.iterdir():
        (first.with_name("step-00000005") / part.name).write_bytes(part.read_bytes())
    again = storage.series_of(run / "checkpoints")
    assert again.unique_bytes == series["unique_bytes"]
    assert again.bytes > series["bytes"]


@pytest.mark.parametrize("task", ["dpo", "grpo", "reward"])
def test_trl_accepts_what_is_rendered(
    tmp_path: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl", reason="needs TRL's own parser")
    wish: dict[str, dict[str, Any]] = {
        "dpo": {"beta": 0.2, "loss": "ipo"},
        "grpo": {"reward": "worth.py:length", "group": 4, "new_tokens": 6, "scale": False},
        "reward": {},
    }
    made = engine_command.render(
        engines.find("trl"),
        loaded(
            tmp_path,
            task={"name": task, **wish[task]},
            batch={"size": 4, "micro": 2},
            method={"name": "lora", "rank": 4},
        ),
    )
    for path, text in made.files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    script = importlib.import_module(f"trl.scripts.{task}")
    # Fails on a key that its configurations do not have; `--num_processes` is accelerate's.
    _, settings, model, data = script.make_parser().parse_args_and_config(
        list(made.command[2:4]), fail_with_unknown_args=True
    )
    assert (settings.max_steps, settings.gradient_accumulation_steps) == (20, 2)
    assert (model.use_peft, model.lora_r) == (True, 4)
    assert data.datasets[0].data_files == [str((tmp_path / "text.jsonl").resolve())]
    if task == "dpo":
        assert (settings.beta, settings.loss_type) == (0.2, ["ipo"])
    if task == "grpo":
        assert settings.per_device_train_batch_size == 2 * settings.num_generations == 8
        assert (settings.scale_rewards, settings.loss_type) == ("none", "grpo")
        text = "def length(completion, record):\n    return len(completion) + record['more']\n"
        (tmp_path / "worth.py").write_text(text)
        monkeypatch.syspath_prepend(made.environment["PYTHONPATH"].split(":")[0])
        bridge = importlib.import_module("joymigrate_trl_reward")
        said = [[{"role": "assistant", "content": "abc"}], "ab"]
        assert bridge.reward(["p", "q"], said, [[1], [2]], more=[1, 2]) == [4.0, 4.0]


def verl_job(folder: Path, **changes: Any) -> Any:
    (folder / "worth.py").write_text("def length(completion, record): return len(completion)\n")
    made = loaded(
        folder,
        task={"name": "grpo", "reward": "worth.py:length", "group": 4, "beta": 0.1},
        batch={"size": 4, "micro": 2}, method={"name": "lora", "rank": 4},
        **changes,
    )  # fmt: skip
    rows = [
        {"prompt": "it's a \\ 'test'", "more": 1},
        {"prompt": [{"role": "user", "content": "q"}]},
    ]
    (folder / "text.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return engine_command.render(engines.find("verl"), made)


def test_verl_gets_prompts_and_the_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = verl_job(tmp_path)
    assert made.command[1:3] == ("-m", "verl.trainer.main_ppo")
    told = dict(one.split("=", 1) for one in made.command[3:])
    assert told["actor_rollout_ref.rollout.n"] == "4"
    assert told["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"] == "8"
    assert told["actor_rollout_ref.actor.clip_ratio_high"] == "0.2"
    assert told["trainer.total_training_steps"] == "20"
    for path, text in made.files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    rows = [json.loads(one) for one in (path.parent / "prompts.jsonl").read_text().splitlines()]
    assert [row["prompt"][0]["content"] for row in rows] == ["it's a \\ 'test'", "q"]
    spec = importlib.util.spec_from_file_location("bridge", path.parent / "reward.py")
    assert spec is not None
    assert spec.loader is not None
    bridge = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bridge)
    truth = rows[0]["reward_model"]["ground_truth"]
    assert bridge.compute_score("joymigrate", "abc", truth, extra_info={}, more=1) == 3.0
    (tmp_path / "worth.py").write_text("def length(tokens): return 1\n")
    with pytest.raises(JoyError, match="asks for 'tokens'"):
        engine_command.render(engines.find("verl"), loaded(
            tmp_path, task={"name": "grpo", "reward": "worth.py:length"}))  # fmt: skip


def test_verl_accepts_what_is_rendered(tmp_path: Path) -> None:
    hydra = pytest.importorskip("hydra", reason="needs verl's own parser")
    found = importlib.util.find_spec("verl")
    if found is None or found.origin is None:
        pytest.skip("needs verl's own configuration")
    made = verl_job(tmp_path)
    place = Path(found.origin).parent / "trainer" / "config"
    with hydra.initialize_config_dir(str(place), version_base=None):
        told = hydra.compose("ppo_trainer", list(made.command[3:]))  # an unknown key is an error
    assert told.actor_rollout_ref.actor.loss_agg_mode == "seq-mean-token-mean"
    assert told.actor_rollout_ref.model.lora_rank == 4
    assert told.reward.custom_reward_function.path.endswith("reward.py")
    assert told.data.train_files == [str(tmp_path / "runs/job/verl/prompts.jsonl")]


@pytest.mark.parametrize("engine", engines.names())
def test_jobs_over_features_are_not_rendered(tmp_path: Path, engine: str) -> None:
    task = {"verl": "grpo", "trl": "dpo"}.get(engine, "dpo")
    made = loaded(tmp_path, task=task, data={"train": "a.parquet", "schema": "features.yaml"})
    with pytest.raises(JoyError, match="schema of features"):
        engine_command.render(engines.find(engine), made)
