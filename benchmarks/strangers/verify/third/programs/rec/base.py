"""Click prediction: two bags of hashed ids, sparse gradients, two optimisers."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(41)
device = "cuda" if torch.cuda.is_available() else "cpu"
USERS, ITEMS, WIDTH = 101, 257, 12


class Clicks(Dataset):
    """Ids as a logger wrote them: signed 64-bit hashes."""

    def __init__(self, count):
        self.user = torch.randint(-2**40, 2**40, (count,))
        self.history = torch.randint(-2**40, 2**40, (count, 6))
        self.dense = torch.rand(count, 4) * 100
        self.label = (torch.rand(count) < 0.3).float()

    def __len__(self):
        return len(self.label)

    def __getitem__(self, row):
        return self.user[row], self.history[row], self.dense[row], self.label[row]


def bucket(ids, size):
    """The row of a table for each hashed id."""
    return torch.remainder(ids, size)


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(USERS, WIDTH, sparse=True)
        self.items = nn.EmbeddingBag(ITEMS, WIDTH, mode="mean", sparse=True)
        self.dense = nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(3 * WIDTH + 3, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, user, history, dense):
        parts = [self.users(bucket(user, USERS)), self.items(bucket(history, ITEMS)), self.dense(torch.log1p(dense))]
        stacked = torch.stack(parts, dim=1)
        pairs = torch.bmm(stacked, stacked.transpose(1, 2))
        upper = pairs[:, [0, 0, 1], [1, 2, 2]]
        return self.top(torch.cat([*parts, upper], dim=1)).squeeze(1)


class TableAdam(torch.optim.Optimizer):
    """Adam that touches the rows of a batch alone."""

    def __init__(self, parameters, lr=0.01, betas=(0.9, 0.99), eps=1e-8):
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            first, second = group["betas"]
            for table in group["params"]:
                state = self.state[table]
                if not state:
                    state.update(step=0, m=torch.zeros_like(table), v=torch.zeros_like(table))
                state["step"] += 1
                grad = table.grad.coalesce()
                rows, values = grad.indices()[0], grad.values()
                m = state["m"][rows] * first + values * (1 - first)
                v = state["v"][rows] * second + values * values * (1 - second)
                state["m"][rows], state["v"][rows] = m, v
                size = group["lr"] * (1 - second ** state["step"]) ** 0.5 / (1 - first ** state["step"])
                table[rows] -= size * m / (v.sqrt() + group["eps"])


data = Clicks(64)
model = Ranker().to(device)
tables = [model.users.weight, model.items.weight]
others = [p for p in model.parameters() if not any(p is t for t in tables)]
optimizer_users = torch.optim.SparseAdam([model.users.weight], lr=0.01)
optimizer_items = TableAdam([model.items.weight], lr=0.01)
optimizer_dense = torch.optim.Adam(others, lr=0.005)
order = torch.Generator().manual_seed(7)

step = 0
for epoch in range(3):
    for user, history, dense, label in DataLoader(data, batch_size=32, shuffle=True, generator=order):
        score = model(user.to(device), history.to(device), dense.to(device))
        loss = F.binary_cross_entropy_with_logits(score, label.to(device))
        for optimizer in (optimizer_users, optimizer_items, optimizer_dense):
            optimizer.zero_grad()
        loss.backward()
        for optimizer in (optimizer_users, optimizer_items, optimizer_dense):
            optimizer.step()
        print(f"step {step} loss {loss.item():.6f}", flush=True)
        step += 1
