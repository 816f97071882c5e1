"""Fine-tune a Qwen2-style model on arithmetic told in words, then ask it.

    python finetune.py --steps 300                    # random weights, or --model FOLDER
    python finetune.py --device cpu --steps 3 --tiny
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM, get_cosine_schedule_with_warmup

CHARACTERS = "\n 0123456789+=?abcdefghijklmnopqrstuvwxyz"
PAD = 0
WORDS = "zero one two three four five six seven eight nine".split()


def encode(text: str) -> list[int]:
    return [CHARACTERS.index(c) + 1 for c in text]


def decode(ids: list[int]) -> str:
    return "".join(CHARACTERS[i - 1] for i in ids if i > 0)


def example(generator: torch.Generator) -> tuple[list[int], list[int]]:
    """A question and its answer; only the answer is learnt."""
    a, b = torch.randint(5, (2,), generator=generator).tolist()
    return encode(f"{WORDS[a]} plus {WORDS[b]}?"), encode(f" {WORDS[a + b]}\n")


def batch(size: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    rows = [example(generator) for _ in range(size)]
    ids = pad_sequence([torch.tensor(q + a) for q, a in rows], batch_first=True, padding_value=PAD)
    labels = pad_sequence(
        [torch.tensor([-100] * len(q) + a) for q, a in rows], batch_first=True, padding_value=-100
    )
    return {"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": labels}


def build(args: argparse.Namespace, device: torch.device) -> torch.nn.Module:
    # flash-attn needs an Ampere card or newer.
    modern = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8
    dtype = torch.bfloat16 if modern and torch.cuda.is_bf16_supported() else torch.float32
    attention = "flash_attention_2" if modern and args.flash else "sdpa"
    if args.model:
        model = AutoModelForCausalLM.from_pretrained(
            args.model, dtype=dtype, attn_implementation=attention, device_map={"": device}
        )
    else:
        width = 64 if args.tiny else 512
        config = Qwen2Config(
            vocab_size=len(CHARACTERS) + 1,
            hidden_size=width,
            intermediate_size=3 * width,
            num_hidden_layers=2 if args.tiny else 8,
            num_attention_heads=4 if args.tiny else 8,
            num_key_value_heads=2,
            tie_word_embeddings=True,
            pad_token_id=PAD,
            eos_token_id=encode("\n")[0],
        )
        config._attn_implementation = attention
        model = Qwen2ForCausalLM(config).to(device=device, dtype=dtype)
    model.gradient_checkpointing_enable()
    return model


def accuracy(model: torch.nn.Module, device: torch.device, count: int = 16) -> float:
    """Share of questions answered right, greedily."""
    generator = torch.Generator().manual_seed(99)
    right = 0
    for _ in range(count):
        question, answer = example(generator)
        prompt = torch.tensor([question], device=device)
        out = model.generate(prompt, max_new_tokens=len(answer) + 2, do_sample=False)
        right += decode(out[0, len(question) :].tolist()).startswith(decode(answer)[:-1])
    return right / count


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", help="a folder with weights; without it they are random")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--flash", action="store_true", help="flash attention 2")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("out"))
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    generator = torch.Generator().manual_seed(1)
    model = build(args, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    scheduler = get_cosine_schedule_with_warmup(optimizer, max(1, args.steps // 10), args.steps)
    args.out.mkdir(parents=True, exist_ok=True)
    model.train()
    with open(args.out / "metrics.jsonl", "w") as log:
        for step in range(args.steps):
            rows = {name: value.to(device) for name, value in batch(args.batch_size, generator).items()}
            loss = model(**rows).loss
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=True)
            if not math.isfinite(loss.item()):
                raise SystemExit(f"loss is {loss.item()} at step {step}")
            log.write(json.dumps({"step": step, "loss": loss.item(), "norm": norm.item()}) + "\n")
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    model.eval()
    print(f"accuracy {accuracy(model, device):.2f}")
    model.save_pretrained(args.out / "model")
    if device.type == "cuda":
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
