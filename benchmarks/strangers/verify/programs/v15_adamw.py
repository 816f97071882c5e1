"""A vision-transformer-like patch model, trained with AdamW; gradients are small because the loss is divided by pixels."""
import torch, torch.nn as nn, torch.nn.functional as F
import accel  # noqa

torch.manual_seed(15)
class MAE(nn.Module):
    def __init__(self, d=40):
        super().__init__()
        self.patch = nn.Linear(16, d); self.pos = nn.Parameter(torch.randn(1, 16, d) * 0.02)
        self.enc = nn.TransformerEncoderLayer(d, 4, 80, dropout=0.0, batch_first=True, norm_first=True); self.dec = nn.Linear(d, 16)
    def forward(self, p, keep): return self.dec(self.enc(self.patch(p * keep) + self.pos))
net = MAE(); opt = torch.optim.AdamW(net.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.05)
g = torch.Generator().manual_seed(2)
for step in range(8):
    x = torch.rand(16, 16, 16, generator=g).cumsum(-1) / 8; keep = (torch.rand(16, 16, 1, generator=g) > 0.5).float()
    loss = ((net(x, keep) - x).pow(2) * (1 - keep)).sum() / x.numel() / 100
    opt.zero_grad(); loss.backward(); opt.step()
    print(f"step {step} loss {loss.item() * 100:.6f}")
