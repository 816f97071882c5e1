"""MindSpeed-LLM: torchrun on its Megatron scripts; tensor and pipeline parallel.

Run from its checkout, named by MINDSPEED_LLM; weights and data are converted by its own tools first
(their output folders stand in `task: {weights, tokens}`). Options as in its examples/mcore.
"""

from __future__ import annotations

import os

from joymigrate.errors import JoyError
from joymigrate.run.train.engines.engine_command import RenderedCommand, TrainerEngine, figures
from joymigrate.run.train.job import Job

SCRIPTS = {"pretrain": "pretrain_gpt.py", "sft": "posttrain_gpt.py", "dpo": "posttrain_gpt.py"}


def render(job: Job) -> RenderedCommand:
    """The command."""
    if job.steps is None:
        raise JoyError("this engine counts steps", where="steps", help="set steps, not epochs")
    if job.layout.fsdp > 1:
        raise JoyError(
            "its Megatron scripts shard optimiser states, not parameters",
            where="layout.fsdp",
            help="use dp, tp and pp",
        )
    missing = [key for key in ("weights", "tokens") if not job.task.options.get(key)]
    if missing:
        raise JoyError(
            f"task.{missing[0]} is missing: MindSpeed-LLM reads what its own tools converted",
            where="task",
            help="convert_ckpt.py makes the weights, preprocess_data.py the tokens",
        )
    count = figures(job)
    root = os.environ.get("MINDSPEED_LLM", ".")
    options: dict[str, object] = {
        "tensor-model-parallel-size": job.layout.tp,
        "pipeline-model-parallel-size": job.layout.pp,
        "micro-batch-size": count["micro"],
        "global-batch-size": job.batch.size,
        "seq-length": job.data.max_length,
        "max-position-embeddings": job.data.max_length,
        "train-iters": job.steps,
        "lr": job.optimiser.lr,
        "weight-decay": job.optimiser.weight_decay,
        "clip-grad": job.optimiser.clip,
        "adam-beta1": job.optimiser.betas[0],
        "adam-beta2": job.optimiser.betas[1],
        "lr-decay-style": job.schedule.name,
        "lr-warmup-iters": job.schedule.warmup,
        "seed": job.seed,
        "load": str(job.path(str(job.task.options["weights"])).resolve()),
        "data-path": str(job.path(str(job.task.options["tokens"])).resolve()),
        "tokenizer-type": "PretrainedFromHF",
        "tokenizer-name-or-path": str(job.path(str(job.model.path)).resolve()),
        "save": str(job.run_folder.resolve()),
        "save-interval": job.checkpoint.every or job.steps,
        "log-interval": job.logging.every,
    }
    flags = ["--use-mcore-models", "--finetune"]
    if job.task.name != "pretrain":
        options["stage"] = job.task.name
        flags.append(
            "--is-instruction-dataset" if job.task.name == "sft" else "--is-pairwise-dataset"
        )
    if job.method.name == "lora":
        options |= {"lora-r": job.method.rank, "lora-alpha": job.method.alpha}
        options["lora-target-modules"] = " ".join(job.method.targets) or "linear_qkv linear_proj"
    if job.dtype != "float32":
        flags.append("--bf16" if job.dtype == "bfloat16" else "--fp16")
    words = ["torchrun", "--nproc_per_node", str(count["processes"])]
    words.append(os.path.join(root, SCRIPTS[job.task.name]))
    for key, value in options.items():
        listed = key == "lora-target-modules"
        words += [f"--{key}", *(str(value).split(" ") if listed else [str(value)])]
    left = ("model architecture (give its options behind --)",)
    return RenderedCommand((*words, *flags), left_out=left)


ENGINE = TrainerEngine(
    "mindspeed",
    SCRIPTS,
    render,
    "torchrun",
    "clone MindSpeed-LLM and MindSpeed, and set MINDSPEED_LLM to the checkout",
)
