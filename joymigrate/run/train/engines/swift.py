"""ms-swift: `swift sft|pt|rlhf`, on GPUs and other accelerators.

Options as its command-line reference of release 4 has them (docs/source_en/Instruction).
"""

from __future__ import annotations

from typing import Any

from joymigrate.run.train.engines.engine_command import (
    RenderedCommand,
    TrainerEngine,
    adapter,
    deepspeed_or_fsdp,
    training_arguments,
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
    verb = "rlhf" if kind in (*RLHF, "rm") else "pt" if kind == "pt" else "sft"
    options: dict[str, Any] = {
        "model": str(job.path(str(job.model.path)).resolve()),
        "tuner_type": job.method.name,
        "dataset": [str(job.path(one).resolve()) for one in job.data.train],
        "torch_dtype": job.dtype,
        "max_length": job.data.max_length,
        "packing": job.data.packing and verb != "rlhf",
        **training_arguments(job),
        **adapter(job, "lora_rank", "lora_alpha", "lora_dropout", "target_modules"),
    }
    if "target_modules" in options:
        options["target_modules"] = list(options["target_modules"]) or ["all-linear"]
    if verb == "rlhf":
        options["rlhf_type"] = kind
    if kind in ("seq_cls", "embedding", "reranker"):
        options["task_type"] = kind
    if name == "regression":
        options |= {"problem_type": "regression", "num_labels": 1}
    if name == "classification":
        options["num_labels"] = len(job.task.options.get("labels") or ()) or 2
    if "beta" in job.task.options and verb == "rlhf":
        options["beta"] = job.task.options["beta"]
    if deepspeed_or_fsdp(job):
        options["fsdp"] = "fsdp2"
    words = ["swift", verb]
    for key, value in options.items():
        shown = value if isinstance(value, list) else [value]
        words += [f"--{key}", *(str(x).lower() if isinstance(x, bool) else str(x) for x in shown)]
    environment = {"NPROC_PER_NODE": str(job.layout.world)} if job.layout.world > 1 else {}
    return RenderedCommand(tuple(words), environment=environment)


ENGINE = TrainerEngine("swift", TYPES, render, "swift", "pip install ms-swift")
