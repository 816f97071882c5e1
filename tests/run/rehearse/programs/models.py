"""Small models of our own, forward, backward and generation, on the CPU and on the device.

Prints json: model → largest difference of outputs and gradients, relative to their size, and
whether the generated tokens are equal.
"""

import copy
import json
import math
import sys

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def rotate(x, places):
    half = x.shape[-1] // 2
    speed = 10000.0 ** (-torch.arange(half, device=x.device) / half)
    angle = places[:, None] * speed
    cos, sin = (torch.cat([f(angle)] * 2, -1) for f in (torch.cos, torch.sin))
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * cos + turned * sin


class Attention(nn.Module):
    def __init__(self, width, heads, kv_heads, bias):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.q = nn.Linear(width, heads * self.size, bias=bias)
        self.k = nn.Linear(width, kv_heads * self.size, bias=bias)
        self.v = nn.Linear(width, kv_heads * self.size, bias=bias)
        self.o = nn.Linear(width, width, bias=False)

    def forward(self, x, cache=None):
        B, T, _ = x.shape
        q, k, v = (
            layer(x).view(B, T, n, self.size).transpose(1, 2)
            for layer, n in ((self.q, self.heads), (self.k, self.kv_heads), (self.v, self.kv_heads))
        )
        past = cache[0].shape[2] if cache else 0
        places = torch.arange(past, past + T, device=x.device)
        q, k = rotate(q, places), rotate(k, places)
        if cache:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        cache = (k, v)
        groups = self.heads // self.kv_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=T > 1)
        return self.o(y.transpose(1, 2).reshape(B, T, -1)), cache


class Decoder(nn.Module):
    """Llama (bias off) or Qwen2 (bias on q, k and v), with grouped query attention."""

    def __init__(self, bias, vocabulary=64, width=32, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList()
        for _ in range(layers):
            self.layers.append(
                nn.ModuleDict(
                    {
                        "norm1": RMSNorm(width),
                        "attention": Attention(width, 4, 2, bias),
                        "norm2": RMSNorm(width),
                        "gate": nn.Linear(width, 64, bias=False),
                        "up": nn.Linear(width, 64, bias=False),
                        "down": nn.Linear(64, width, bias=False),
                    }
                )
            )
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids, caches=None):
        x = self.embed(ids)
        made = []
        for number, layer in enumerate(self.layers):
            y, cache = layer["attention"](layer["norm1"](x), caches[number] if caches else None)
            made.append(cache)
            x = x + y
            h = layer["norm2"](x)
            x = x + layer["down"](F.silu(layer["gate"](h)) * layer["up"](h))
        self.caches = made
        return self.head(self.norm(x))

    @torch.no_grad()
    def generate(self, ids, count):
        caches, last, out = None, ids, ids
        for _ in range(count):
            logits = self(last, caches)
            caches, last = self.caches, logits[:, -1:].argmax(-1)
            out = torch.cat([out, last], 1)
        return out


class Bert(nn.Module):
    def __init__(self, vocabulary=64, width=32):
        super().__init__()
        self.words, self.places, self.kinds = (nn.Embedding(n, width) for n in (vocabulary, 16, 2))
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.pool, self.head = nn.Linear(width, width), nn.Linear(width, vocabulary)

    def forward(self, ids):
        kinds = (torch.arange(ids.shape[1], device=ids.device) > 5).long()
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device)) + self.kinds(kinds)
        x = self.encoder(self.norm(x), src_key_padding_mask=ids == 0)
        return self.head(x) + torch.tanh(self.pool(x[:, :1])).sum()


class Residual(nn.Module):
    def __init__(self, a, b, time):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, a), nn.GroupNorm(4, b)
        self.conv1, self.conv2 = nn.Conv2d(a, b, 3, padding=1), nn.Conv2d(b, b, 3, padding=1)
        self.time, self.skip = nn.Linear(time, b), nn.Conv2d(a, b, 1)

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.skip(x)


class UNet(nn.Module):
    """Predicts the noise of a diffusion step."""

    def __init__(self, width=16):
        super().__init__()
        self.time = nn.Linear(width, width)
        self.enter, self.leave = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.down = Residual(width, 2 * width, width)
        self.shrink = nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1)
        self.middle = Residual(2 * width, 2 * width, width)
        self.mix = nn.MultiheadAttention(2 * width, 4, batch_first=True)
        self.grow = nn.ConvTranspose2d(2 * width, 2 * width, 2, stride=2)
        self.up = Residual(4 * width, width, width)
        self.width = width

    def forward(self, x, t):
        half = self.width // 2
        angle = t[:, None].float() * torch.exp(-math.log(1e4) * torch.arange(half, device=x.device) / half)
        t = self.time(torch.cat([angle.sin(), angle.cos()], -1))
        x = self.enter(x)
        a = self.down(x, t)
        b = self.middle(self.shrink(a), t)
        B, C, H, W = b.shape
        flat = b.flatten(2).transpose(1, 2)
        b = b + self.mix(flat, flat, flat, need_weights=False)[0].transpose(1, 2).reshape(B, C, H, W)
        b = F.interpolate(self.grow(b), size=a.shape[-2:], mode="nearest")
        return self.leave(F.silu(self.up(torch.cat([a, b], 1), t)))


class CTR(nn.Module):
    """Click-through rate: factorisation machine over field embeddings, bags, and an MLP."""

    def __init__(self, fields=6, rows=50, width=8):
        super().__init__()
        self.table, self.first = nn.Embedding(fields * rows, width), nn.Embedding(fields * rows, 1)
        self.history = nn.EmbeddingBag(100, width, mode="mean")
        self.mlp = nn.Sequential(
            nn.Linear(fields * width + width + 4, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1)
        )
        self.register_buffer("starts", torch.arange(fields) * rows)

    def forward(self, ids, history, offsets, dense):
        ids = ids + self.starts
        e = self.table(ids)
        cross = 0.5 * (e.sum(1).pow(2) - e.pow(2).sum(1)).sum(1, keepdim=True)
        deep = self.mlp(torch.cat([e.flatten(1), self.history(history, offsets), dense], 1))
        return (cross + deep + self.first(ids).sum(1)).squeeze(1)


def cases():
    ids = torch.randint(1, 64, (2, 12))
    yield "llama", Decoder(False), (ids,), lambda y: F.cross_entropy(y.flatten(0, 1), ids_of(y, ids))
    yield "qwen2", Decoder(True), (ids,), lambda y: F.cross_entropy(y.flatten(0, 1), ids_of(y, ids))
    padded = ids.clone()
    padded[1, 8:] = 0
    yield "bert", Bert(), (padded,), lambda y: F.cross_entropy(y.flatten(0, 1), ids_of(y, ids))
    noise = torch.randn(2, 3, 8, 8)
    yield "unet", UNet(), (noise, torch.tensor([3, 40])), lambda y: F.mse_loss(y, noise.to(y.device))
    clicks = torch.tensor([0.0, 1.0, 1.0, 0.0])
    sparse = (torch.randint(0, 50, (4, 6)), torch.randint(0, 100, (10,)), torch.tensor([0, 3, 5, 9]))
    yield "ctr", CTR(), (*sparse, torch.randn(4, 4)), lambda y: F.binary_cross_entropy_with_logits(
        y, clicks.to(y.device)
    )


def ids_of(like, ids):
    return ids.flatten().to(like.device)


def apart(ours, theirs):
    scale = max(1.0, theirs.abs().max().item())
    return (ours.detach().cpu() - theirs.detach()).abs().max().item() / scale


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    found = {}
    for name, host, inputs, loss in cases():
        device = copy.deepcopy(host).npu()
        wanted, got = host(*inputs), device(*(x.npu() for x in inputs))
        assert got.device.type == "npu"
        loss(wanted).backward()
        loss(got).backward()
        worst = max(
            apart(a.grad, b.grad) for a, b in zip(device.parameters(), host.parameters()) if b.grad is not None
        )
        found[name] = {"output": apart(got, wanted), "gradient": worst}
        if hasattr(host, "generate"):
            tokens = host.generate(inputs[0][:, :4], 12)
            found[name]["tokens_equal"] = torch.equal(device.generate(inputs[0][:, :4].npu(), 12).cpu(), tokens)
    print(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
