"""Click model with sparse EmbeddingBags; dense and sparse parameters have Adagrad each."""
import torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(12); g = torch.Generator().manual_seed(6)
class DLRM(nn.Module):
    def __init__(self):
        super().__init__(); self.tables = nn.ModuleList([nn.EmbeddingBag(n, 16, mode="mean", sparse=True) for n in (50, 90, 20)])
        self.bottom = nn.Sequential(nn.Linear(5, 16), nn.ReLU()); self.top = nn.Sequential(nn.Linear(16 + 6, 24), nn.ReLU(), nn.Linear(24, 1))
    def forward(self, d, ids):
        z = torch.stack([self.bottom(d), *[t(i) for t, i in zip(self.tables, ids)]], 1); r, c = torch.triu_indices(4, 4, 1)
        return self.top(torch.cat([z[:, 0], (z @ z.mT)[:, r, c]], 1)).squeeze(1)
m = DLRM(); dense = torch.optim.Adagrad([*m.bottom.parameters(), *m.top.parameters()], 0.03); sparse = torch.optim.Adagrad(m.tables.parameters(), 0.1)
for step in range(9):
    d = torch.rand(64, 5, generator=g); ids = [torch.randint(0, n, (64, 5), generator=g) for n in (50, 90, 20)]; y = ((ids[0] < 25).sum(1) > 2).float()
    loss = F.binary_cross_entropy_with_logits(m(d, ids), y)
    dense.zero_grad(); sparse.zero_grad(); loss.backward(); dense.step(); sparse.step()
    print(f"step {step} logloss {loss.item():.5f}")
