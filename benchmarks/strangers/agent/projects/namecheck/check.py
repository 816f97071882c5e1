"""Is attention in tiles the same as attention in one piece?"""
import torch

ATOL = 1e-5

def check(attention, tile, device):
    q, k, v = (torch.randn(2, 95, 32, generator=torch.Generator().manual_seed(s)).to(device) for s in (2, 3, 4))
    whole = (q @ k.transpose(1, 2) / 32 ** 0.5).softmax(-1) @ v
    worst = (attention(q, k, v, tile) - whole).abs().max().item()
    if worst > ATOL:
        raise SystemExit(f"attention differs by {worst}")
