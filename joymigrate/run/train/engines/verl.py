"""verl: `python -m verl.trainer.main_ppo KEY=VALUE …` for grpo, data and reward as it reads them.

Keys as release 0.9.1 declares them (verl/trainer/config), read on 2026-11-23. Where its default
computes something else than `train` does, the key is written.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from joymigrate.errors import JoyError
from joymigrate.run.train import records
from joymigrate.run.train.engines.engine_command import (
    RenderedCommand,
    TrainerEngine,
    deepspeed_or_fsdp,
    figures,
)
from joymigrate.run.train.job import Job, data_files
from joymigrate.run.train.reinforcement.rewards import load_reward
from joymigrate.run.train.tasks.grpo import ELSEWHERE, Grpo

FACTS = ("prompt", "completion", "record")  # verl hands no tokens to a reward
DATA, BRIDGE = "prompts.jsonl", "reward.py"
BRIDGE_TEXT = '''"""The reward of a job, called as verl calls one."""

import json
from pathlib import Path

from joymigrate.run.train.reinforcement.rewards import load_reward

REWARD = load_reward({named!r}, Path({folder!r}), {facts!r})


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **more):
    """What one completion is worth."""
    record = json.loads(ground_truth)
    return REWARD({{"prompt": record["prompt"], "completion": solution_str, "record": record}})
'''


def render(job: Job) -> RenderedCommand:
    """The command, the prompts anew, and the bridge to the reward."""
    wish, count = {**Grpo.OPTIONS, **job.task.options}, figures(job)
    folder = job.run_folder.resolve() / "verl"
    files = data_files(job)
    named, base = wish["reward"], files[0].resolve().parent
    if named is None:
        raise JoyError("grpo needs a reward", where="task", help="reward: FILE.py:NAME")
    load_reward(str(named), base, FACTS)  # one that asks for more is refused here
    if job.method.name == "lora" and job.method.dropout:
        raise JoyError(
            "verl's adapters have no dropout", where="method.dropout", help="set it to 0"
        )
    sharded = "fsdp2" if deepspeed_or_fsdp(job) else "fsdp"
    answers, low = count["micro"] * int(wish["group"]), wish["epsilon"]
    high = low if wish["epsilon_high"] is None else wish["epsilon_high"]
    data = str(folder / DATA)
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    warmup = job.schedule.warmup
    told: dict[str, Any] = {
        "algorithm.adv_estimator": "grpo",
        "algorithm.norm_adv_by_std_in_grpo": bool(wish["scale"]),
        "data.train_files": [data],
        "data.val_files": [data],  # it asks for some; they are not used
        "data.train_batch_size": job.batch.size,
        "data.max_prompt_length": job.data.max_length,
        "data.max_response_length": wish["new_tokens"],
        "data.filter_overlong_prompts": True,
        "data.shuffle": job.data.shuffle,
        "data.seed": job.seed,
        "actor_rollout_ref.model.path": str(job.path(str(job.model.path)).resolve()),
        "actor_rollout_ref.model.enable_gradient_checkpointing": job.model.recompute,
        f"{actor}.strategy": sharded,
        f"{actor}.optim.lr": job.optimiser.lr,
        f"{actor}.optim.weight_decay": job.optimiser.weight_decay,
        f"{actor}.optim.lr_warmup_steps{'_ratio' if 0 < warmup < 1 else ''}": warmup,
        f"{actor}.optim.lr_scheduler_type": "cosine"
        if job.schedule.name == "cosine"
        else "constant",
        f"{actor}.optim.min_lr_ratio": job.schedule.floor,
        f"{actor}.optim.betas": list(job.optimiser.betas),
        f"{actor}.grad_clip": job.optimiser.clip,
        f"{actor}.ppo_mini_batch_size": job.batch.size,  # all of a set of answers in a step
        f"{actor}.ppo_epochs": wish["updates"],
        f"{actor}.ppo_micro_batch_size_per_gpu": answers,
        f"{actor}.clip_ratio": low,
        f"{actor}.clip_ratio_low": low,
        f"{actor}.clip_ratio_high": high,
        f"{actor}.clip_ratio_c": 1e9,  # the paper has no third bound
        f"{actor}.loss_agg_mode": "seq-mean-token-mean",  # of an answer's tokens, then of answers
        f"{actor}.use_kl_loss": bool(wish["beta"]),
        f"{actor}.kl_loss_coef": wish["beta"],
        f"{actor}.kl_loss_type": "low_var_kl",
        "actor_rollout_ref.ref.strategy": sharded,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": answers,
        f"{rollout}.name": "vllm",
        f"{rollout}.n": wish["group"],
        f"{rollout}.temperature": wish["temperature"],
        f"{rollout}.dtype": job.dtype,
        f"{rollout}.seed": job.seed,
        f"{rollout}.tensor_model_parallel_size": 1,
        f"{rollout}.log_prob_micro_batch_size_per_gpu": answers,
        "reward.custom_reward_function.path": str(folder / BRIDGE),
        "reward.custom_reward_function.name": "compute_score",
        "trainer.n_gpus_per_node": count["processes"],
        "trainer.logger": ["console"],
        "trainer.project_name": "joymigrate",
        "trainer.experiment_name": job.name,
        "trainer.default_local_dir": str(job.run_folder.resolve()),
        "trainer.save_freq": job.checkpoint.every or -1,
        "trainer.max_actor_ckpt_to_keep": job.checkpoint.keep,
        "trainer.test_freq": -1,
        "trainer.val_before_train": False,
        "trainer.total_epochs": int(job.epochs or 1) if job.steps is None else 10**6,
        "trainer.total_training_steps": job.steps,
    }
    if job.method.name == "lora":
        told |= {
            "actor_rollout_ref.model.lora_rank": job.method.rank,
            "actor_rollout_ref.model.lora_alpha": job.method.alpha,
            "actor_rollout_ref.model.target_modules": list(job.method.targets) or "all-linear",
        }
    left = [
        "prompt (a text becomes a user's message: verl sets it in the chat template)",
        *(f"task.{key}" for key in ELSEWHERE if key in job.task.options),
    ]
    if job.schedule.name == "linear":
        left.append("schedule.name (constant behind the warmup)")
    if job.batch.micro is not None and count["accumulate"] > 1:
        left.append("the number of micro-batches (verl works it out)")
    words = (sys.executable, "-m", "verl.trainer.main_ppo", *(
        f"{key}={value_of(value)}" for key, value in told.items()))  # fmt: skip
    bridge = BRIDGE_TEXT.format(named=str(named), folder=str(base), facts=FACTS)
    made = {folder / DATA: prompts(files), folder / BRIDGE: bridge}
    return RenderedCommand(words, made, {}, tuple(left))


def value_of(value: Any) -> str:
    """As hydra's grammar of overrides reads it: texts quoted, null for None."""
    if isinstance(value, list):
        return "[" + ",".join(value_of(one) for one in value) + "]"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return json.dumps(value)


def prompts(files: list[Path]) -> str:
    """Records as lines that verl reads: messages, and the whole record for the reward."""
    lines = []
    for record, _ in records.read(files):
        prompt = record.require("prompt")
        messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
        told = json.dumps(dict(record.value), ensure_ascii=False)
        row = {
            "data_source": "joymigrate",
            "prompt": messages,
            "reward_model": {"style": "rule", "ground_truth": told},
        }
        lines.append(json.dumps(row, ensure_ascii=False))
    return "\n".join([*lines, ""])


ENGINE = TrainerEngine(
    "verl", {"grpo": "grpo"}, render, "verl", "pip install verl vllm", module=True
)
