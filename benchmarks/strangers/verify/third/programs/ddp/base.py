"""Two processes over gloo: a small tagger with batch norm, loss over the words of all processes."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(71)
torch.set_num_threads(1)
device = "cpu"
WORDS, TAGS = 50, 6


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16)
        self.conv = nn.Conv1d(16, 20, 3, padding=1)
        self.norm = nn.BatchNorm1d(20)
        self.head = nn.Linear(20, TAGS)

    def forward(self, words):
        x = self.embed(words).transpose(1, 2)
        x = F.relu(self.norm(self.conv(x)))
        return self.head(x.transpose(1, 2))


def average(state, bucket):
    """The mean of a bucket of gradients over all processes."""
    future = dist.all_reduce(bucket.buffer().div_(ranks), async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


words = torch.randint(1, WORDS, (60, 14))
sizes = torch.randint(3, 15, (60,))
tags = torch.randint(0, TAGS, (60, 14))
tags[torch.arange(14)[None] >= sizes[:, None]] = -1

model = DistributedDataParallel(Tagger().to(device), forward_sync_buffers=True)
model.register_comm_hook(None, average)
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
data = TensorDataset(words, tags)
sampler = DistributedSampler(data, num_replicas=ranks, rank=rank, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=6, sampler=sampler)

step = 0
for epoch in range(1):
    sampler.set_epoch(epoch)
    for batch, wanted in loader:
        batch, wanted = batch.to(device), wanted.to(device)
        scores = model(batch)
        known = (wanted >= 0).sum().float()
        dist.all_reduce(known)
        total = F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), ignore_index=-1, reduction="sum")
        loss = total * ranks / known
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        if rank == 0:
            print(f"step {step} loss {shown.item() / ranks:.6f}", flush=True)
        step += 1

model.eval()
with torch.no_grad():
    error = F.cross_entropy(model.module(words).flatten(0, 1), tags.flatten(), ignore_index=-1)
dist.all_reduce(error)
if rank == 0:
    print(f"whole loss {error.item() / ranks:.6f}", flush=True)
dist.destroy_process_group()
