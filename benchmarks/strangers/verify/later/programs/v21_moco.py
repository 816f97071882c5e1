"""Contrastive learning with a momentum encoder and a queue of keys in a buffer."""
import copy, torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(21)
class MoCo(nn.Module):
    def __init__(self, dim=16, size=40, m=0.95, T=0.2):
        super().__init__(); self.m, self.T, self.size = m, T, size
        self.q = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, dim)); self.k = copy.deepcopy(self.q).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(dim, size), dim=0)); self.register_buffer("ptr", torch.zeros((), dtype=torch.long))
    @torch.no_grad()
    def enqueue(self, keys):
        at = (self.ptr + torch.arange(len(keys))) % self.size
        self.queue.index_copy_(1, at, keys.t())
        self.ptr.copy_((self.ptr + len(keys)) % self.size)
    def forward(self, a, b):
        q = F.normalize(self.q(a), dim=1)
        with torch.no_grad():
            for p, s in zip(self.k.parameters(), self.q.parameters()): p.mul_(self.m).add_(s, alpha=1 - self.m)
            k = F.normalize(self.k(b), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone()], 1) / self.T
        self.enqueue(k)
        return logits

net = MoCo(); opt = torch.optim.SGD(net.q.parameters(), 0.2, momentum=0.9); g = torch.Generator().manual_seed(1)
for step in range(10):
    x = torch.randn(16, 24, generator=g); a, b = (x + 0.3 * torch.randn(16, 24, generator=g) for _ in range(2))
    logits = net(a, b); loss = F.cross_entropy(logits, torch.zeros(16, dtype=torch.long))
    opt.zero_grad(); loss.backward(); opt.step()
    print(f"step {step} loss {loss.item():.6f} top1 {(logits.argmax(1) == 0).float().mean().item():.3f}")
