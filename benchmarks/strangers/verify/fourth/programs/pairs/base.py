"""Two processes over gloo: pictures and sentences brought together, every process sees all features."""
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
torch.manual_seed(139)
device = "cpu"
WORDS, WIDE, BATCH = 60, 24, 8


class Gather(torch.autograd.Function):
    """Features of all processes, in their order; gradients of all of them come back to the one that made a feature."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(ranks)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad.chunk(ranks)[rank]


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 12, 3, stride=2, padding=1), nn.Conv2d(12, 24, 3, stride=2, padding=1)
        self.norm, self.out = nn.GroupNorm(4, 24), nn.Linear(24, WIDE)

    def forward(self, x):
        x = F.gelu(self.conv1(x))
        x = F.gelu(self.norm(self.conv2(x)))
        return F.normalize(self.out(x.mean(dim=(2, 3))), dim=1)


class Sentences(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 24)
        self.gru = nn.GRU(24, 24, batch_first=True)
        self.norm, self.out = nn.LayerNorm(24), nn.Linear(24, WIDE)

    def forward(self, words):
        hidden, _ = self.gru(self.words(words))
        return F.normalize(self.out(self.norm(hidden[:, -1])), dim=1)


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.pictures, self.sentences = Pictures(), Sentences()
        self.sharpness = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, picture, words):
        return self.pictures(picture), self.sentences(words), self.sharpness.exp()


labels = torch.randint(0, 8, (5 * ranks * BATCH,))
pictures = torch.randn(len(labels), 3, 12, 12) + labels[:, None, None, None] / 4
sentences = (torch.randint(0, 12, (len(labels), 7)) + labels[:, None] * 6) % WORDS
model = DistributedDataParallel(Both().to(device))
decayed = [p for p in model.parameters() if p.ndim > 1]
others = [p for p in model.parameters() if p.ndim <= 1]
optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.2}, {"params": others, "weight_decay": 0.0}], lr=4e-3)
noise = torch.Generator().manual_seed(500 + rank)

for step in range(5):
    first = (step * ranks + rank) * BATCH
    rows = slice(first, first + BATCH)
    picture = pictures[rows] + 0.3 * torch.randn(BATCH, 3, 12, 12, generator=noise)
    seen, read, sharpness = model(picture.to(device), sentences[rows].to(device))
    all_seen, all_read = Gather.apply(seen), Gather.apply(read)
    wanted = torch.arange(BATCH, device=device) + rank * BATCH
    loss = (F.cross_entropy(sharpness * seen @ all_read.t(), wanted) + F.cross_entropy(sharpness * read @ all_seen.t(), wanted)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    shown = loss.detach().clone()
    dist.all_reduce(shown)
    if rank == 0:
        print(f"step {step} loss {shown.item() / ranks:.6f} sharpness {sharpness.item():.6f}", flush=True)

dist.destroy_process_group()
