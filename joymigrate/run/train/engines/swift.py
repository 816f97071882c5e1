"""ms-swift: `swift sft|pt|rlhf`, on GPUs and other accelerators.

Options as its command-line reference of release 4 has them (docs/source_en/Instruction).
"""

from __future__ import annotations

from joymigrate.run.train.engines.engine_command import (
    RenderedCommand,
    TrainerEngine,
    adam,
    deepspeed_or_fsdp,
    figures,
)
from joymigrate.run.train.job import Job

RLHF = ("dpo", "orpo", "simpo", "kto", "cpo", "ppo", "grpo", "gkd")
TYPES = {
    **{"pretrain": "pt", "sft": "sft", "tool-selection": "sft", "image-text": "sft"},
    **{"asr": "sft", "audio-text": "sft", "video-text": "sft"},
    **{"classification": "seq_cls", "regression": "seq_cls"},
    **{"embedding": "embedding", "ranking": "reranker", "reward": "rm"},
    **{name: name for name in RLHF},
}


def render(job: Job) -> RenderedCommand:
    """The command."""
    name, kind = job.task.name, TYPES[job.task.name]
    count = figures(job)
    verb = "rlhf" if kind in (*RLHF, "rm") else "pt" if kind == "pt" else "sft"
    options: dict[str, object] = {
        "model": str(job.path(str(job.model.path)).resolve()),
        "tuner_type": job.method.name,
        "dataset": " ".join(str(job.path(one).resolve()) for one in job.data.train),
        "torch_dtype": job.dtype,
        "max_length": job.data.max_length,
        "packing": str(job.data.packing and verb != "rlhf").lower(),
        "per_device_train_batch_size": count["micro"],
        "gradient_accumulation_steps": count["accumulate"],
        "learning_rate": job.optimiser.lr,
        **adam(job),
        "weight_decay": job.optimiser.weight_decay,
        "max_grad_norm": job.optimiser.clip,
        "lr_scheduler_type": job.schedule.name,
        "warmup_steps": job.schedule.warmup,
        "save_steps": job.checkpoint.every or 10**9,
        "save_total_limit": job.checkpoint.keep,
        "logging_steps": job.logging.every,
        "seed": job.seed,
        "output_dir": str(job.run_folder.resolve()),
        "gradient_checkpointing": str(job.model.recompute).lower(),
    }
    if verb == "rlhf":
        options["rlhf_type"] = kind
    if kind in ("seq_cls", "embedding", "reranker"):
        options["task_type"] = kind
    if name == "regression":
        options |= {"problem_type": "regression", "num_labels": 1}
    if name == "classification":
        options["num_labels"] = len(job.task.options.get("labels") or ()) or 2
    if job.method.name == "lora":
        options |= {
            "lora_rank": job.method.rank,
            "lora_alpha": job.method.alpha,
            "target_modules": " ".join(job.method.targets) or "all-linear",
        }
    if "beta" in job.task.options and verb == "rlhf":
        options["beta"] = job.task.options["beta"]
    options["max_steps" if job.steps else "num_train_epochs"] = job.steps or job.epochs or 1
    if deepspeed_or_fsdp(job):
        options["fsdp"] = "fsdp2"
    words = ["swift", verb]
    for key, value in options.items():
        listed = key in ("dataset", "target_modules")
        words += [f"--{key}", *(str(value).split(" ") if listed else [str(value)])]
    environment = {"NPROC_PER_NODE": str(count["processes"])} if count["processes"] > 1 else {}
    return RenderedCommand(tuple(words), environment=environment)


ENGINE = TrainerEngine("swift", TYPES, render, "swift", "pip install ms-swift")
