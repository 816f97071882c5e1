"""Writes embeddings and a table of neighbours to out/; documents come through a shuffled loader."""
import csv, os, numpy as np, torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
import accel  # noqa

torch.manual_seed(6); os.makedirs("out", exist_ok=True)
docs = torch.randint(0, 500, (256, 20))
enc = nn.EmbeddingBag(500, 24, mode="mean"); proj = nn.Linear(24, 12)
opt = torch.optim.Adam([*enc.parameters(), *proj.parameters()], 1e-2)
loader = DataLoader(TensorDataset(docs, torch.arange(256)), batch_size=64, shuffle=True, generator=torch.Generator().manual_seed(17))
for d, i in loader:
    a = F.normalize(proj(enc(d[:, :10])), dim=-1); b = F.normalize(proj(enc(d[:, 10:])), dim=-1)
    loss = F.cross_entropy(a @ b.T / 0.1, torch.arange(len(d)))
    opt.zero_grad(); loss.backward(); opt.step()
with torch.no_grad(): E = F.normalize(proj(enc(docs)), dim=-1)
np.save("out/embeddings.npy", E.numpy())
near = (E @ E.T - 2 * torch.eye(256)).topk(3, dim=-1)
with open("out/neighbours.csv", "w", newline="") as f:
    w = csv.writer(f); w.writerow(["doc", "n1", "n2", "n3", "cos1"])
    for k in range(256): w.writerow([k, *near.indices[k].tolist(), f"{near.values[k, 0].item():.4f}"])
