"""A two-tower recommender with sparse embeddings and SparseAdam beside Adam."""
import torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(9)
U, I, D, B = 200, 60, 16, 128
class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(U, D, sparse=True); self.item = nn.Embedding(I, D, sparse=True)
        self.mu = nn.Linear(D, D); self.mi = nn.Linear(D, D)
    def forward(self, u, i):
        return (F.relu(self.mu(self.user(u))) * self.mi(self.item(i))).sum(-1)

m = Towers()
sparse = torch.optim.SparseAdam([m.user.weight, m.item.weight], lr=0.01)
dense = torch.optim.Adam([*m.mu.parameters(), *m.mi.parameters()], lr=0.01)
g = torch.Generator().manual_seed(1)
for step in range(8):
    u = torch.randint(0, U, (B,), generator=g)
    i = (torch.rand(B, generator=g) ** 2 * I).long()          # popular items come often
    y = ((u + i) % 3 == 0).float()
    loss = F.binary_cross_entropy_with_logits(m(u, i), y)
    sparse.zero_grad(); dense.zero_grad(); loss.backward(); sparse.step(); dense.step()
    print(step, f"{loss.item():.5f}")
print("norms", f"{m.user.weight.norm().item():.4f}", f"{m.item.weight.norm().item():.4f}")
