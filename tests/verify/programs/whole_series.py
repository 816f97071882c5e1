"""A forecaster over long series in parts: a hidden state that is carried on, statistics in numpy, a
rate that falls at a plateau, early stopping, and metrics in the data's own unit."""

import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
MODE = os.environ.get("MODE", "float32")
DTYPE = torch.bfloat16 if MODE == "bfloat16" else torch.float32
ROWS, LONG, PART = 6, 96, 12


class Cell(nn.Module):
    def __init__(self, given, width):
        super().__init__()
        self.gates, self.back = nn.Linear(given, 3 * width), nn.Linear(width, 3 * width)

    def forward(self, x, h):
        a, b, c = self.gates(x).chunk(3, -1)
        d, e, f = self.back(h).chunk(3, -1)
        update, reset = torch.sigmoid(a + d), torch.sigmoid(b + e)
        return (1 - update) * torch.tanh(c + reset * f) + update * h


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.mean, self.spread = Cell(3, 16), nn.Linear(16, 1), nn.Linear(16, 1)

    def forward(self, x, h):
        made = []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            made.append(h)
        x = torch.stack(made, 1)
        return self.mean(x)[..., 0], F.softplus(self.spread(x))[..., 0] + 1e-3, h


def series(seed):
    rng = np.random.default_rng(seed)
    t = np.arange(LONG + 1)
    phase = rng.uniform(0, 6, (ROWS, 1))
    level = rng.uniform(20, 60, (ROWS, 1))
    return level + 8 * np.sin(2 * np.pi * t / 12 + phase) + rng.normal(0, 1.0, (ROWS, LONG + 1))


def rows_of(values):
    t = np.arange(LONG + 1)
    clock = np.stack([np.sin(2 * np.pi * t / 12), np.cos(2 * np.pi * t / 12)], -1)
    scaled = (values - centre) / width
    x = np.concatenate([scaled[..., None], np.broadcast_to(clock, (ROWS, LONG + 1, 2))], -1)
    return torch.from_numpy(x[:, :-1].astype(np.float32)), torch.from_numpy(scaled[:, 1:].astype(np.float32))


train, held = series(1), series(2)
centre, width = train[:, :72].mean(), train[:, :72].std(ddof=1)
x, y = rows_of(train)
hx, hy = rows_of(held)
net = Net().to(DTYPE)
optimiser = torch.optim.RMSprop(net.parameters(), lr=4e-3, alpha=0.95, momentum=0.5, centered=True)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimiser, factor=0.3, patience=0, threshold=0.2)
best, waited = float("inf"), 0
for epoch in range(4):
    h = torch.zeros(ROWS, 16, dtype=DTYPE)
    net.train()
    for at in range(0, LONG, PART):
        with torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
            mean, spread, h = net(x[:, at : at + PART].to(DTYPE), h.detach().to(DTYPE))
        mean, spread, want = mean.float(), spread.float(), y[:, at : at + PART]
        age = 0.98 ** torch.arange(PART - 1, -1, -1)
        nll = 0.5 * ((want - mean) / spread) ** 2 + spread.log()
        over = torch.where(want > mean, 0.7 * (want - mean), 0.3 * (mean - want))
        loss = (age * (nll + 0.5 * over)).sum() / (age.sum() * ROWS)
        optimiser.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5, norm_type=float("inf"))
        optimiser.step()
    net.eval()
    with torch.no_grad():
        h = torch.zeros(ROWS, 16, dtype=DTYPE)
        _, _, h = net(hx[:, :48].to(DTYPE), h)
        mean, spread, _ = net(hx[:, 48:].to(DTYPE), h)
    guess = mean.float().numpy() * width + centre
    truth = hy[:, 48:].numpy() * width + centre
    rmse = float(np.sqrt(((guess - truth) ** 2).mean()))
    smape = float((2 * np.abs(guess - truth) / (np.abs(guess) + np.abs(truth))).mean())
    cover = float((np.abs(guess - truth) < 1.645 * spread.float().numpy() * width).mean())
    plateau.step(rmse)
    print(f"epoch {epoch} rmse {rmse:.4f} smape {100 * smape:.4f} cover {cover:.3f} lr {optimiser.param_groups[0]['lr']:.2g}")
    if rmse < best - 0.01:
        best, waited = rmse, 0
    else:
        waited += 1
        if waited > 1:
            break
