"""Greedy and sampled generation with a small decoder and a key-value cache, written for CUDA."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Decoder(nn.Module):
    """One attention block over tokens, with a cache."""

    def __init__(self, vocabulary=64, width=32, heads=4):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, vocabulary)
        self.heads = heads

    def forward(self, tokens, cache=None):
        batch, length = tokens.shape
        q, k, v = self.qkv(self.embed(tokens)).chunk(3, dim=-1)
        split = lambda t: t.view(batch, -1, self.heads, t.shape[-1] // self.heads).transpose(1, 2)
        q, k, v = split(q), split(k), split(v)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        mask = torch.ones(length, k.shape[2], dtype=torch.bool, device=tokens.device)
        mask = mask.tril(k.shape[2] - length)
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        mixed = (weights @ v).transpose(1, 2).reshape(batch, length, -1)
        return self.out(mixed), (k, v)


@torch.inference_mode()
def generate(model, prompt, steps, device=DEVICE):
    if "cuda" not in str(prompt.device):
        raise RuntimeError(f"the prompt lies on {prompt.device}")
    tokens, cache, produced = prompt, None, []
    generator = torch.Generator(device=device).manual_seed(7)
    for step in range(steps):
        logits, cache = model(tokens, cache)
        last = F.softmax(logits[:, -1].float(), -1)
        greedy = step % 2 == 0
        tokens = last.argmax(-1, keepdim=True) if greedy else torch.multinomial(last, 1, generator=generator)
        produced.append(tokens)
    return torch.cat(produced, 1)


if __name__ == "__main__":
    torch.manual_seed(3)
    network = Decoder().to(DEVICE).eval()
    start = torch.randint(0, 64, (2, 5)).to(DEVICE)
    result = generate(network, start, 6)
    assert result.device.type == "cuda", result.device
    print("tokens", tuple(result.shape), "done")
