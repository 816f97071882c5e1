"""A causal language model under transformers' Trainer: a collator, a loss of its own, an average."""

import os
import tempfile

import numpy as np
import torch
import torch.nn.functional as F

from joymigrate.chips import hide_driverless

hide_driverless()

from transformers import (  # noqa: E402
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
MODE = os.environ.get("MODE", "float32")
config = LlamaConfig(
    vocab_size=48, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    attn_implementation="eager", rms_norm_eps=1e-5, pad_token_id=0,
)  # fmt: skip
model = LlamaForCausalLM(config)
if MODE == "bfloat16":
    model = model.to(torch.bfloat16)


def texts(count, seed):
    g = np.random.default_rng(seed)
    return [
        {"ids": g.integers(1, 48, g.integers(6, 13)).tolist(), "prompt": 2} for _ in range(count)
    ]


def collate(rows):
    longest = max(len(r["ids"]) for r in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    labels = torch.full((len(rows), longest), -100)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, r in enumerate(rows):
        n = len(r["ids"])
        ids[i, :n] = torch.tensor(r["ids"])
        labels[i, r["prompt"] : n] = torch.tensor(r["ids"][r["prompt"] :])
        mask[i, :n] = 1
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


class Own(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        made = model(**inputs)
        logits = made.logits[:, :-1].float()
        wanted = labels[:, 1:]
        nll = F.cross_entropy(
            logits.transpose(1, 2), wanted, ignore_index=-100, reduction="none"
        )
        weight = (wanted != -100).float()
        focal = (1 - torch.exp(-nll.detach())).clamp_min(0) ** 0.5
        loss = (focal * nll * weight).sum() / weight.sum()
        return (loss, made) if return_outputs else loss


class Average(TrainerCallback):
    def __init__(self):
        self.kept = {n: p.detach().clone().float() for n, p in model.named_parameters()}

    def on_step_end(self, args, state, control, **kwargs):
        with torch.no_grad():
            for n, p in model.named_parameters():
                self.kept[n].mul_(0.9).add_(p.float(), alpha=0.1)


def measure(found):
    logits, labels = found
    right = (logits[:, :-1].argmax(-1) == labels[:, 1:])[labels[:, 1:] != -100]
    return {"right": float(right.mean()), "margin": float(np.sort(logits, -1)[..., -1].mean())}


arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(), max_steps=10, per_device_train_batch_size=4,
    gradient_accumulation_steps=2, learning_rate=5e-3, warmup_steps=3, weight_decay=0.05,
    adam_beta2=0.98, max_grad_norm=0.8, lr_scheduler_type="cosine", eval_strategy="steps",
    eval_steps=5, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True,
    remove_unused_columns=False, seed=3, bf16=MODE == "autocast", disable_tqdm=True,
)  # fmt: skip
average = Average()
trainer = Own(
    model=model, args=arguments, train_dataset=texts(40, 1), eval_dataset=texts(8, 2),
    data_collator=collate, compute_metrics=measure, callbacks=[average],
)  # fmt: skip
trainer.train()
found = trainer.evaluate()
print("eval", f"{found['eval_loss']:.4f}", f"{found['eval_right']:.3f}")
