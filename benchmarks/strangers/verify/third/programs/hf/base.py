"""A tiny Llama trained by the Trainer on padded sentences, then a few greedy words."""
import os
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

os.environ["WANDB_DISABLED"] = "true"
set_seed(61)
WORDS, PAD, LENGTH = 60, 0, 18

config = LlamaConfig(
    vocab_size=WORDS,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    rope_theta=10000.0,
    attn_implementation="sdpa",
    pad_token_id=PAD,
    bos_token_id=1,
    eos_token_id=2,
)
model = LlamaForCausalLM(config)


class Sentences(Dataset):
    """Sentences of 8 to 18 words, filled up with PAD on the right."""

    def __init__(self, count):
        self.words = torch.randint(3, WORDS, (count, LENGTH))
        self.sizes = torch.randint(8, LENGTH + 1, (count,))

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, row):
        there = torch.arange(LENGTH) < self.sizes[row]
        words = torch.where(there, self.words[row], PAD)
        labels = torch.where(there, words, -100)
        return {"input_ids": words, "attention_mask": there.long(), "labels": labels}


arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=6,
    max_steps=4,
    learning_rate=5e-3,
    weight_decay=0.01,
    lr_scheduler_type="linear",
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    seed=61,
)
trainer = Trainer(model=model, args=arguments, train_dataset=Sentences(36))
trainer.train()
for entry in trainer.state.log_history:
    if "loss" in entry:
        print(f"step {entry['step']} loss {float(entry['loss']):.6f}", flush=True)

model.eval()
start = torch.tensor([[1, 7, 9, 12]], device=model.device)
words = model.generate(start, attention_mask=torch.ones_like(start), max_new_tokens=6, do_sample=False)
print("words", words[0].tolist())
