"""TRL: `trl dpo|grpo|reward --config FILE.yaml`, with a bridge to the reward function of a job.

Keys as the configurations of release 1.16 declare them (trl/trainer/*_config.py, trl/scripts), read
on 2026-11-23. Where its default computes something else than `train` does, the key is written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from joymigrate.errors import JoyError
from joymigrate.run.train.engines.engine_command import (
    RenderedCommand,
    TrainerEngine,
    adapter,
    deepspeed_or_fsdp,
    figures,
    training_arguments,
)
from joymigrate.run.train.job import Job
from joymigrate.run.train.tasks.grpo import ELSEWHERE, Grpo

VERBS = {"dpo": "dpo", "grpo": "grpo", "reward": "reward"}
BRIDGE = "joymigrate_trl_reward"
BRIDGE_TEXT = '''"""The reward of a job, called as TRL calls one: lists in, a list out."""

from pathlib import Path

from joymigrate.run.train.reinforcement.rewards import load_reward

REWARD = load_reward({named!r}, Path({folder!r}))
TRL_OWN = ("trainer_state", "log_extra", "log_metric", "environments")


def reward(prompts, completions, completion_ids, **columns):
    """A number for each completion; the other columns of the data are its record."""
    values = []
    for number, prompt in enumerate(prompts):
        record = {{k: v[number] for k, v in columns.items() if k not in TRL_OWN}}
        said = completions[number]
        values.append(
            REWARD(
                {{
                    "prompt": prompt,
                    "completion": said if isinstance(said, str) else said[-1]["content"],
                    "tokens": list(completion_ids[number]),
                    "record": {{**record, "prompt": prompt}},
                }}
            )
        )
    return values
'''


def render(job: Job) -> RenderedCommand:
    """The command, its YAML, and for grpo the bridge to the reward."""
    verb, count = VERBS[job.task.name], figures(job)
    folder = job.run_folder.resolve() / "trl"
    data = [str(job.path(one).resolve()) for one in job.data.train]
    told: dict[str, Any] = {
        "model_name_or_path": str(job.path(str(job.model.path)).resolve()),
        "dtype": job.dtype,
        "datasets": [{"path": "json", "data_files": data}],
        **training_arguments(job),
        "report_to": "none",
        **adapter(job, "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules"),
    }
    if "lora_target_modules" in told:
        modules = list(told["lora_target_modules"]) or ["all-linear"]
        told |= {"use_peft": True, "lora_target_modules": modules}
    files: dict[Path, str] = {}
    environment: dict[str, str] = {}
    left: list[str] = []
    if verb == "grpo":
        told |= group_policy(job, count["micro"])
        named, base = job.task.options.get("reward"), job.path(job.data.train[0]).resolve().parent
        if named is None:
            raise JoyError("grpo needs a reward", where="task", help="reward: FILE.py:NAME")
        files[folder / f"{BRIDGE}.py"] = BRIDGE_TEXT.format(named=str(named), folder=str(base))
        before = os.environ.get("PYTHONPATH")
        environment["PYTHONPATH"] = str(folder) + (os.pathsep + before if before else "")
        left.append("data.max_length (TRL leaves no prompt out)")
        left += [f"task.{key}" for key in ELSEWHERE if key in job.task.options]
    else:
        told["max_length"] = job.data.max_length
        left += [f"task.{key}" for key in job.task.options if verb == "reward" or key not in DPO]
    if verb == "dpo":
        told |= {DPO[key]: value for key, value in job.task.options.items() if key in DPO}
    path = folder / f"{job.name}.yaml"
    files[path] = yaml.safe_dump(told, sort_keys=False)
    words = ["trl", verb, "--config", str(path)]
    if deepspeed_or_fsdp(job):
        words += ["--accelerate_config", "fsdp2"]
    words += ["--num_processes", str(count["processes"])]
    return RenderedCommand(tuple(words), files, environment, tuple(left))


DPO = {"beta": "beta", "loss": "loss_type", "smoothing": "label_smoothing"}


def group_policy(job: Job, micro: int) -> dict[str, Any]:
    """The keys of grpo; TRL counts answers where a job counts prompts."""
    wish = {**Grpo.OPTIONS, **job.task.options}
    return {
        "per_device_train_batch_size": micro * int(wish["group"]),
        "num_generations": wish["group"],
        "max_completion_length": wish["new_tokens"],
        "temperature": wish["temperature"],
        "epsilon": wish["epsilon"],
        "epsilon_high": wish["epsilon_high"],
        "beta": wish["beta"],
        "num_iterations": wish["updates"],
        "scale_rewards": "group" if wish["scale"] else "none",
        "loss_type": "grpo",  # its default is dapo
        "use_bias_correction_kl": False,  # the paper's estimate, as ours
        "reward_funcs": [f"{BRIDGE}.reward"],
    }


ENGINE = TrainerEngine("trl", VERBS, render, "trl", "pip install trl")
