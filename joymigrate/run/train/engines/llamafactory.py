"""LLaMA-Factory: `llamafactory-cli train FILE.yaml`, with the data described beside it.

Its keys stand in `llamafactory_keys.yaml`, with their sources.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from joymigrate.errors import JoyError
from joymigrate.run.train.engines.engine_command import (
    RenderedCommand,
    TrainerEngine,
    adapter,
    deepspeed_or_fsdp,
    training_arguments,
)
from joymigrate.run.train.job import Job
from joymigrate.run.train.llamafactory_job import table

STAGES = {
    **{"pretrain": "pt", "sft": "sft", "dpo": "dpo", "reward": "rm", "kto": "kto", "ppo": "ppo"},
    **{"orpo": "dpo", "simpo": "dpo", "image-text": "sft", "tool-selection": "sft"},
}
COLUMNS: dict[str, Any] = {
    "pt": {"columns": {"prompt": "text"}},
    "sft": {
        "formatting": "sharegpt",
        "columns": {"messages": "messages"},
        "tags": {
            **{"role_tag": "role", "content_tag": "content", "user_tag": "user"},
            **{"assistant_tag": "assistant", "system_tag": "system"},
        },
    },
    "dpo": {
        "ranking": True,
        "columns": {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"},
    },
}


def render(job: Job) -> RenderedCommand:
    """The command with its YAML and the description of the data."""
    stage = STAGES[job.task.name]
    folder = job.run_folder.resolve() / "llamafactory"
    packs = job.data.packing and stage in ("pt", "sft")
    options: dict[str, Any] = {
        "stage": stage,
        "do_train": True,
        "model_name_or_path": str(job.path(str(job.model.path)).resolve()),
        "finetuning_type": job.method.name,
        "dataset_dir": str(folder),
        "dataset": ",".join(f"{job.name}_{n}" for n in range(len(job.data.train))),
        "template": job.task.options.get("template"),  # else read from the tokenizer's
        "cutoff_len": job.data.max_length,
        "max_samples": job.data.limit,
        "val_size": job.data.holdout,
        "packing": packs,
        "neat_packing": packs and stage == "sft",  # documents of a row stay apart
        **training_arguments(job),
        **adapter(job, "lora_rank", "lora_alpha", "lora_dropout", "lora_target"),
    }
    options["disable_gradient_checkpointing"] = not options.pop("gradient_checkpointing")
    if "lora_target" in options:
        options["lora_target"] = ",".join(options["lora_target"]) or "all"
    if job.task.name in ("orpo", "simpo"):
        options["pref_loss"] = job.task.name
    if "beta" in job.task.options:
        options["pref_beta"] = job.task.options["beta"]
    if deepspeed_or_fsdp(job):
        raise JoyError(
            "its sharding wants an accelerate or DeepSpeed file that a job does not describe",
            where="layout.fsdp",
            help="use layout dp, or --engine swift",
        )
    path = folder / f"{job.name}.yaml"
    files = {
        path: yaml.safe_dump({k: v for k, v in options.items() if v is not None}, sort_keys=False),
        folder / "dataset_info.json": json.dumps(describe_data(job, stage), indent=1) + "\n",
    }
    several = {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": str(job.layout.world)}
    environment = several if job.layout.world > 1 else {}
    left: tuple[str, ...] = ()
    if stage != "pt" and options["template"] is None:
        left = ("chat template (it parses the tokenizer's; task.template names one of its own)",)
    rows = table()["read"]
    told = [f"{rows[key]['to']} is {key}" for key in options if key in rows]
    command = ("llamafactory-cli", "train", str(path))
    return RenderedCommand(command, files, environment, left, tuple(told))


def describe_data(job: Job, stage: str) -> dict[str, Any]:
    """The data files as its `dataset_info.json` has them."""
    columns: dict[str, Any] = COLUMNS.get("dpo" if stage == "rm" else stage, COLUMNS["sft"])
    return {
        f"{job.name}_{number}": {"file_name": str(Path(job.path(name)).resolve()), **columns}
        for number, name in enumerate(job.data.train)
    }


ENGINE = TrainerEngine(
    "llamafactory", STAGES, render, "llamafactory-cli", "pip install llamafactory"
)
