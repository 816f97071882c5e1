"""A small encoder-decoder in bfloat16 with relative positions; float32 copies of the weights are updated by hand."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(107)
device = "cuda" if torch.cuda.is_available() else "cpu"
WORDS, WIDE, HEADS, BUCKETS, START = 96, 48, 4, 16, 1


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDE))

    def forward(self, x):
        size = x.float().pow(2).mean(dim=-1, keepdim=True)
        return self.weight * (x.float() * torch.rsqrt(size + 1e-6)).to(x.dtype)


class RelativeBias(nn.Module):
    """A number for each head and distance; far distances share a bucket."""

    def __init__(self, both_ways):
        super().__init__()
        self.both_ways = both_ways
        self.table = nn.Embedding(BUCKETS, HEADS)

    def bucket(self, distance, count, farthest):
        result = torch.zeros_like(distance)
        if self.both_ways:
            count //= 2
            result = result + (distance > 0) * count
            distance = distance.abs()
        else:
            distance = -distance.clamp(max=0)
        exact = count // 2
        ratio = torch.log(distance.clamp(min=1).float() / exact) / math.log(farthest / exact)
        far = (exact + ratio * (count - exact)).long().clamp(max=count - 1)
        return result + torch.where(distance < exact, distance, far)

    def forward(self, rows, columns):
        places = torch.arange(columns, device=self.table.weight.device)[None, :] - torch.arange(rows, device=self.table.weight.device)[:, None]
        return self.table(self.bucket(places, BUCKETS, farthest=24)).permute(2, 0, 1).unsqueeze(0)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(WIDE, WIDE, bias=False)
        self.key = nn.Linear(WIDE, WIDE, bias=False)
        self.value = nn.Linear(WIDE, WIDE, bias=False)
        self.out = nn.Linear(WIDE, WIDE, bias=False)

    def heads(self, x):
        return x.view(x.shape[0], x.shape[1], HEADS, -1).transpose(1, 2)

    def forward(self, x, seen, bias):
        query, key, value = self.heads(self.query(x)), self.heads(self.key(seen)), self.heads(self.value(seen))
        scores = query @ key.transpose(-2, -1)
        if bias is not None:
            scores = scores + bias
        mixed = scores.float().softmax(dim=-1).to(x.dtype) @ value
        return self.out(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, crossed):
        super().__init__()
        self.norm1, self.attend = RMSNorm(), Attention()
        if crossed:
            self.norm2, self.cross = RMSNorm(), Attention()
        self.norm3 = RMSNorm()
        self.gate, self.up, self.down = nn.Linear(WIDE, 96, bias=False), nn.Linear(WIDE, 96, bias=False), nn.Linear(96, WIDE, bias=False)
        self.crossed = crossed

    def forward(self, x, bias, seen=None):
        inner = self.norm1(x)
        x = x + self.attend(inner, inner, bias)
        if self.crossed:
            x = x + self.cross(self.norm2(x), seen, None)
        inner = self.norm3(x)
        return x + self.down(F.gelu(self.gate(inner), approximate="tanh") * self.up(inner))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDE)
        self.bias_in, self.bias_out = RelativeBias(True), RelativeBias(False)
        self.encoder = nn.ModuleList([Layer(False), Layer(False)])
        self.decoder = nn.ModuleList([Layer(True), Layer(True)])
        self.norm_in, self.norm_out = RMSNorm(), RMSNorm()

    def forward(self, source, target):
        x, bias = self.words(source), self.bias_in(source.shape[1], source.shape[1])
        for layer in self.encoder:
            x = layer(x, bias)
        seen = self.norm_in(x)
        length = target.shape[1]
        later = torch.full((length, length), float("-inf"), device=target.device, dtype=x.dtype).triu(1)
        x, bias = self.words(target), self.bias_out(length, length) + later
        for layer in self.decoder:
            x = layer(x, bias, seen)
        return F.linear(self.norm_out(x) * WIDE ** -0.5, self.words.weight)


model = Model().to(device, torch.bfloat16)
low = list(model.parameters())
master = [p.detach().clone().float() for p in low]
moving = [torch.zeros_like(m) for m in master]
source = torch.randint(2, WORDS, (40, 30))
target = (source[:, :20] * 3 + 5) % (WORDS - 2) + 2

for step in range(5):
    rows = slice(step * 8, step * 8 + 8)
    asked, wanted = source[rows].to(device), target[rows].to(device)
    given = torch.cat([torch.full_like(wanted[:, :1], START), wanted[:, :-1]], dim=1)
    scores = model(asked, given).float()
    size = torch.logsumexp(scores, dim=-1)
    loss = F.cross_entropy(scores.flatten(0, 1), wanted.flatten()) + 0.02 * size.pow(2).mean()
    for p in low:
        p.grad = None
    loss.backward()
    with torch.no_grad():
        grads = [p.grad.float() for p in low]
        torch._foreach_lerp_(moving, grads, 0.5)
        torch._foreach_add_(master, moving, alpha=-0.3)
        for p, m in zip(low, master):
            p.copy_(m)
    print(f"step {step} loss {loss.item():.5f}", flush=True)

with torch.no_grad():
    words = torch.full((2, 1), START, device=device)
    for _ in range(4):
        words = torch.cat([words, model(source[:2].to(device), words)[:, -1:].argmax(-1)], dim=1)
print("words", tuple(words.shape))
