"""Two ranks sum the gradients of their halves by hand; the loss is scaled for the global batch.
torchrun --nproc-per-node 2 v35_ranks.py"""
import torch, torch.distributed as dist, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

dist.init_process_group("gloo"); rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(35); B = 32
net = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 5)); opt = torch.optim.SGD(net.parameters(), 0.2, momentum=0.9)
for p in net.parameters(): dist.broadcast(p.data, 0)
g = torch.Generator().manual_seed(14); W = torch.randn(20, 5, generator=g)
for step in range(8):
    x = torch.randn(B, 20, generator=g); mine = x[rank::world]
    loss = F.cross_entropy(net(mine), (mine @ W).argmax(1), reduction="sum") / B
    opt.zero_grad(); loss.backward()
    for p in net.parameters(): dist.all_reduce(p.grad)
    opt.step()
    shown = loss.detach().clone(); dist.all_reduce(shown)
    if rank == 0: print(f"step {step} loss {shown.item():.6f}", flush=True)
dist.destroy_process_group()
