"""Pre-train a small language model with DeepSpeed; the launch scripts lie in scripts/.

    deepspeed --num_gpus 8 train.py --config configs/base.yaml
"""

from __future__ import annotations

import argparse
import os
import subprocess

import torch
import torch.nn as nn
import torch.nn.functional as F
import yaml


class LM(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = torch.full((ids.shape[1],) * 2, float("-inf"), device=ids.device).triu(1)
        logits = self.head(self.layers(self.tokens(ids), mask=mask.to(self.head.weight.dtype)))
        return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())


def free_memory_mib() -> list[int]:
    """Free memory of every card, as the driver's tool tells it."""
    command = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    return [int(line) for line in subprocess.check_output(command, text=True).splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
    parser.add_argument("--steps", type=int)
    parser.add_argument("--no-deepspeed", action="store_true", help="one process, plain torch")
    args = parser.parse_args()
    with open(args.config) as file:
        config = yaml.safe_load(file)
    steps = args.steps or config["steps"]
    model = LM(**config["model"])
    generator = torch.Generator().manual_seed(config["seed"])
    if args.no_deepspeed:
        device = torch.device(config["device"] if torch.cuda.is_available() else "cpu")
        model = model.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    else:
        import deepspeed

        if min(free_memory_mib()) < config["min_free_mib"]:
            raise SystemExit("another job holds the cards")
        deepspeed.init_distributed(dist_backend=config["backend"])
        torch.cuda.set_device(args.local_rank)
        device = torch.device("cuda", args.local_rank)
        model, optimizer, _, _ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=config["deepspeed"]
        )
    for step in range(steps):
        # Numbers that count up from a random start: learnable at once.
        start = torch.randint(50, (config["batch"], 1), generator=generator)
        ids = ((start + torch.arange(32)) % config["model"]["vocabulary"]).to(device)
        loss = model(ids)
        if args.no_deepspeed:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        else:
            model.backward(loss)
            model.step()
        print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
