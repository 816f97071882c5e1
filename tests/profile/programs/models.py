"""Training steps of five kinds of model, small: python models.py gpt|cnn|dlrm|qwen2|unet."""

import os
import sys

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
        self.gate, self.up = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x, cos, sin):
        b, t, d = x.shape
        parts = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(b, t, d)))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class GPT(nn.Module):
    def __init__(self, width=128, heads=4, layers=4, words=256, length=64):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        size = width // heads
        angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, size, 2) / size)
        angle = torch.cat((angle, angle), -1)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, x):
        h = self.embed(x)
        for block in self.blocks:
            h = block(h, self.cos, self.sin)
        return self.head(self.norm(h))


def gpt():
    def batch():
        x = torch.randint(0, 256, (4, 65))
        return x[:, :-1], x[:, 1:]

    return GPT(), batch, lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten()), "adamw"


class Residual(nn.Module):
    def __init__(self, width, out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.skip = None
        if stride != 1 or width != out:
            self.skip = nn.Sequential(
                nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += x if self.skip is None else self.skip(x)
        return F.relu(y, inplace=True)


def cnn():
    model = nn.Sequential(
        nn.Conv2d(3, 16, 7, 2, 3, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        Residual(16, 16, 1),
        Residual(16, 32, 2),
        Residual(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    return model, lambda: (torch.randn(4, 3, 64, 64), torch.randint(0, 10, (4,))), criterion, "sgd"


class DLRM(nn.Module):
    def __init__(self, tables=4, rows=100, width=16):
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables)
        )
        self.bottom = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, width), nn.ReLU())
        n = tables + 1
        self.top = nn.Sequential(nn.Linear(width + n * (n - 1) // 2, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, batch):
        dense, indices, offsets = batch
        x = self.bottom(dense)
        ly = [table(indices[i], offsets[i]) for i, table in enumerate(self.tables)]
        z = torch.cat([x, *ly], 1).view(x.shape[0], -1, x.shape[1])
        zz = torch.bmm(z, z.transpose(1, 2))
        n = z.shape[1]
        li = torch.tensor([i for i in range(n) for j in range(i)], device=x.device)
        lj = torch.tensor([j for i in range(n) for j in range(i)], device=x.device)
        return torch.sigmoid(self.top(torch.cat([x, zz[:, li, lj]], 1))).squeeze(1)


def dlrm():
    def batch():
        indices = torch.randint(0, 100, (4, 48))
        offsets = torch.arange(0, 48, 3).repeat(4, 1)
        return (torch.randn(16, 13), indices, offsets), torch.randint(0, 2, (16,)).float()

    return DLRM(), batch, F.binary_cross_entropy, "adagrad"


def qwen2():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    model = Qwen2ForCausalLM(config)

    def batch():
        x = torch.randint(0, 256, (2, 48))
        return x, x

    return model, batch, lambda out, t: model.loss_function(out.logits, t, 256), "adamw"


class UNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(width, width * 4), nn.SiLU(), nn.Linear(width * 4, width))
        self.inp = nn.Conv2d(4, width, 3, padding=1)
        self.norm1, self.norm2 = nn.GroupNorm(4, width), nn.GroupNorm(4, width * 2)
        self.down = nn.Conv2d(width, width * 2, 3, stride=2, padding=1)
        self.attn_norm = nn.LayerNorm(width * 2)
        self.q, self.k, self.v = (nn.Linear(width * 2, width * 2) for _ in range(3))
        self.geglu = nn.Linear(width * 2, width * 4)
        self.up = nn.Conv2d(width * 2, width, 3, padding=1)
        self.out = nn.Conv2d(width * 2, 4, 3, padding=1)

    def forward(self, batch):
        x, t = batch
        half = torch.arange(8, device=x.device)
        angle = t[:, None] * torch.exp(-half / 8.0)
        emb = self.time(torch.cat((angle.sin(), angle.cos()), -1))
        h = self.inp(x)
        h = h + emb[:, :, None, None]
        skip = F.silu(self.norm1(h))
        d = F.silu(self.norm2(self.down(skip)))
        b, c, height, width = d.shape
        s = self.attn_norm(d.flatten(2).transpose(1, 2))
        heads = [f(s).view(b, -1, 4, c // 4).transpose(1, 2) for f in (self.q, self.k, self.v)]
        a = F.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(b, -1, c)
        g, u = self.geglu(a).chunk(2, -1)
        d = d + (F.gelu(g) * u).transpose(1, 2).reshape(b, c, height, width)
        u = self.up(F.interpolate(d, scale_factor=2, mode="nearest"))
        return self.out(torch.cat((u, skip), 1))


def unet():
    def batch():
        noise = torch.randn(2, 4, 16, 16)
        return (noise, torch.rand(2) * 1000), noise

    return UNet(), batch, F.mse_loss, "adamw"


OPTIMISERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-4),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}
MODELS = {"gpt": gpt, "cnn": cnn, "dlrm": dlrm, "qwen2": qwen2, "unet": unet}


def to(value, device):
    if isinstance(value, tuple):
        return tuple(to(part, device) for part in value)
    return value.to(device)


def train(name, device, steps):
    """Train, and return the losses."""
    model, batch, criterion, optimiser = MODELS[name]()
    model = model.to(device)
    optimiser = OPTIMISERS[optimiser](model.parameters())
    losses = []
    for _ in range(steps):
        x, y = to(batch(), device)
        loss = criterion(model(x), y)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    for loss in train(sys.argv[1], os.environ.get("DEVICE", "cpu"), int(os.environ.get("STEPS", "6"))):
        print(loss.hex())
