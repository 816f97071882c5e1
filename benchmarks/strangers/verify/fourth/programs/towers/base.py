"""Retrieval with two towers: sparse tables, bags of padded histories, items of the batch as negatives."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(131)
device = "cuda" if torch.cuda.is_available() else "cpu"
USERS, ITEMS, WIDE, BATCH, PAD = 80, 120, 16, 24, 0


class UserTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, WIDE, sparse=True)
        self.history = nn.EmbeddingBag(ITEMS, WIDE, mode="sum", sparse=True, padding_idx=PAD)
        self.mlp = nn.Sequential(nn.Linear(2 * WIDE, 32), nn.ReLU(), nn.Linear(32, WIDE))

    def forward(self, user, history):
        return F.normalize(self.mlp(torch.cat([self.user(user), self.history(history)], dim=1)), dim=1)


class ItemTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Embedding(ITEMS, WIDE, sparse=True)
        self.mlp = nn.Sequential(nn.Linear(WIDE + 3, 32), nn.ReLU(), nn.Linear(32, WIDE))

    def forward(self, item, traits):
        return F.normalize(self.mlp(torch.cat([self.item(item), traits], dim=1)), dim=1)


users, items = UserTower().to(device), ItemTower().to(device)
with torch.no_grad():
    users.history.weight[PAD] = 0.3
tables = [users.user.weight, users.history.weight, items.item.weight]
dense = [*users.mlp.parameters(), *items.mlp.parameters()]
optimizer_tables = torch.optim.Adagrad(tables, lr=0.1, initial_accumulator_value=0.01)
optimizer_dense = torch.optim.AdamW(dense, lr=5e-3, weight_decay=0.02)

chance = torch.arange(1, ITEMS, dtype=torch.float32).rsqrt()
chance = torch.cat([torch.zeros(1), chance / chance.sum()])
user = torch.randint(0, USERS, (6 * BATCH,))
item = torch.multinomial(chance, 6 * BATCH, replacement=True)
history = torch.multinomial(chance, 6 * BATCH * 8, replacement=True).view(-1, 8)
history[torch.arange(8)[None, :] >= torch.randint(1, 9, (6 * BATCH, 1))] = PAD
traits = torch.randn(ITEMS, 3)

for step in range(6):
    rows = slice(step * BATCH, step * BATCH + BATCH)
    picked = item[rows].to(device)
    left = users(user[rows].to(device), history[rows].to(device))
    right = items(picked, traits.to(device)[picked])
    scores = left @ right.t() / 0.1
    scores = scores - chance.to(device)[picked].log()
    same = (picked[:, None] == picked[None, :]) & ~torch.eye(BATCH, dtype=torch.bool, device=device)
    scores = scores.masked_fill(same, -1e4)
    loss = F.cross_entropy(scores, torch.arange(BATCH, device=device))
    optimizer_tables.zero_grad()
    optimizer_dense.zero_grad()
    loss.backward()
    optimizer_tables.step()
    optimizer_dense.step()
    print(f"step {step} loss {loss.item():.6f}", flush=True)

with torch.no_grad():
    best = (users(user[:8].to(device), history[:8].to(device)) @ items(picked, traits.to(device)[picked]).t()).amax(1)
print("best", " ".join(f"{b:.5f}" for b in best.tolist()))
