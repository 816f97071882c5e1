"""Gradient accumulation over 4 micro-batches with clipping; a small convolutional regressor with SGD."""
import torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(28); g = torch.Generator().manual_seed(9)
net = nn.Sequential(nn.Conv1d(3, 16, 5, padding=2), nn.ReLU(), nn.Conv1d(16, 16, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 2))
opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9); every = 4
for micro in range(24):
    x = torch.randn(8, 3, 30, generator=g); y = torch.stack([x.square().mean((1, 2)) * 3, (x[:, 0] * x[:, 1]).mean(1) * 5], 1)
    loss = F.mse_loss(net(x), y)
    (loss / every).backward()
    if micro % every == every - 1:
        norm = nn.utils.clip_grad_norm_(net.parameters(), max_norm=0.5)
        opt.step(); opt.zero_grad()
        print(f"update {micro // every} loss {loss.item():.6f} clipped {float(norm) > 0.5}")
