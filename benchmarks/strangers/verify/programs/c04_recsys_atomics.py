"""DLRM-like click model with EmbeddingBag; click rates per item are gathered with index_add_."""
import torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(5)
class Model(nn.Module):
    def __init__(self):
        super().__init__(); self.bags = nn.ModuleList([nn.EmbeddingBag(80, 12, mode="sum") for _ in range(3)]); self.bot = nn.Linear(4, 12); self.top = nn.Sequential(nn.Linear(12 + 6, 32), nn.ReLU(), nn.Linear(32, 1))
    def forward(self, dense, ids):
        z = torch.stack([F.relu(self.bot(dense))] + [b(i) for b, i in zip(self.bags, ids)], 1)
        pair = z @ z.transpose(1, 2); r, c = torch.tril_indices(4, 4, -1)
        return self.top(torch.cat([z[:, 0], pair[:, r, c]], 1)).squeeze(1)
m = Model(); opt = torch.optim.Adagrad(m.parameters(), 0.05); g = torch.Generator().manual_seed(1)
rate = torch.zeros(80); seen = torch.zeros(80)
for step in range(8):
    d = torch.rand(96, 4, generator=g); ids = [torch.randint(0, 80, (96, 3), generator=g) for _ in range(3)]; y = (ids[0][:, 0] % 2).float()
    out = m(d, ids); loss = F.binary_cross_entropy_with_logits(out, y)
    opt.zero_grad(); loss.backward(); opt.step()
    with torch.no_grad(): rate.index_add_(0, ids[0].flatten(), out.sigmoid().repeat_interleave(3)); seen.index_add_(0, ids[0].flatten(), torch.ones(288))
    print(step, f"{loss.item():.5f}", f"{(rate / seen.clamp_min(1)).mean().item():.5f}")
