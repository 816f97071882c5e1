"""Two ranks train a tagger on sequences of uneven length; the loss is divided by the tokens of all ranks.
torchrun --nproc-per-node 2 v12_ddp.py"""
import torch, torch.distributed as dist, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

dist.init_process_group("gloo"); rank = dist.get_rank(); world = dist.get_world_size()
torch.manual_seed(4)
class Tagger(nn.Module):
    def __init__(self):
        super().__init__(); self.emb = nn.Embedding(100, 32); self.rnn = nn.GRU(32, 32, batch_first=True); self.out = nn.Linear(32, 5)
    def forward(self, x): return self.out(self.rnn(self.emb(x))[0])
net = Tagger(); opt = torch.optim.AdamW(net.parameters(), 3e-3)
g = torch.Generator().manual_seed(100 + rank)
for step in range(8):
    x = torch.randint(1, 100, (8, 24), generator=g); n = torch.randint(3, 25 if rank else 9, (8,), generator=g)
    mask = torch.arange(24)[None] < n[:, None]; y = (x % 5).masked_fill(~mask, -100)
    tokens = mask.sum()                              # an integer
    dist.all_reduce(tokens)
    loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten(), ignore_index=-100, reduction="sum") / tokens
    opt.zero_grad(); loss.backward()
    for p in net.parameters(): dist.all_reduce(p.grad)
    opt.step()
    shown = loss.detach().clone(); dist.all_reduce(shown)
    if rank == 0: print(f"step {step} loss {shown.item():.5f} tokens {int(tokens)}", flush=True)
dist.destroy_process_group()
