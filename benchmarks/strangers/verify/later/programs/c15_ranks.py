"""Two ranks, hand-written synchronised batch norm statistics and averaged gradients. torchrun --nproc-per-node 2 c15_ranks.py"""
import torch, torch.distributed as dist, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

dist.init_process_group("gloo"); rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(15)
class Scale(nn.Module):
    """Normalises by the mean square over all ranks (kept in a buffer)."""
    def __init__(self, n): super().__init__(); self.register_buffer("ms", torch.ones(n)); self.gain = nn.Parameter(torch.ones(n))
    def forward(self, x):
        if self.training:
            now = x.detach().square().mean(0); dist.all_reduce(now); self.ms.lerp_(now / world, 0.2)
        return x / (self.ms + 1e-5).sqrt() * self.gain
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), Scale(64), nn.Linear(64, 4)); opt = torch.optim.AdamW(net.parameters(), 3e-3)
g = torch.Generator().manual_seed(50 + rank); W = torch.linspace(-1, 1, 64).view(16, 4).sin()
for step in range(8):
    x = torch.randn(24, 16, generator=g); loss = F.cross_entropy(net(x), (x @ W).argmax(1))
    opt.zero_grad(); loss.backward()
    for p in net.parameters(): dist.all_reduce(p.grad); p.grad /= world
    opt.step(); shown = loss.detach() / world; dist.all_reduce(shown)
    if rank == 0: print(f"step {step} loss {shown.item():.5f}", flush=True)
dist.destroy_process_group()
