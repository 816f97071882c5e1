"""A generator and a critic on small pictures of waves."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(31)
device = "cuda" if torch.cuda.is_available() else "cpu"
LATENT, BATCH = 16, 12


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Linear(LATENT, 32 * 4 * 4)
        self.norm1 = nn.BatchNorm2d(32)
        self.up1 = nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1)
        self.norm2 = nn.BatchNorm2d(16)
        self.up2 = nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1)

    def forward(self, z):
        x = F.relu(self.norm1(self.start(z).view(-1, 32, 4, 4)))
        x = F.relu(self.norm2(self.up1(x)))
        return torch.tanh(self.up2(x))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1 = nn.Conv2d(1, 16, 4, stride=2, padding=1)
        self.down2 = nn.Conv2d(16, 32, 4, stride=2, padding=1)
        self.score = nn.Linear(32 * 4 * 4, 1)

    def forward(self, x):
        x = F.leaky_relu(self.down1(x), 0.2)
        x = F.leaky_relu(self.down2(x), 0.2)
        return self.score(x.flatten(1)).squeeze(1)


def real_pictures(count):
    """Waves of random phase and direction, 16 by 16."""
    grid = torch.linspace(0, 6.28, 16)
    phase = torch.rand(count, 1, 1) * 6.28
    slope = torch.rand(count, 1, 1) * 2
    return torch.sin(grid[None, :, None] + slope * grid[None, None, :] + phase).unsqueeze(1)


generator = Generator().to(device)
critic = Critic().to(device)
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizer_c = torch.optim.AdamW(critic.parameters(), lr=2e-3, betas=(0.5, 0.999), weight_decay=0.1)

for step in range(5):
    generator.train()
    optimizer_g.zero_grad()
    optimizer_c.zero_grad()

    real = real_pictures(BATCH).to(device)
    fake = generator(torch.randn(BATCH, LATENT, device=device))
    loss_real = F.softplus(-critic(real)).mean()
    loss_fake = F.softplus(critic(fake.detach())).mean()
    loss_c = loss_real + loss_fake
    loss_c.backward()
    optimizer_c.step()

    fake = generator(torch.randn(BATCH, LATENT, device=device))
    loss_g = F.softplus(-critic(fake)).mean()
    loss_g.backward()
    optimizer_g.step()
    print(f"step {step} critic {loss_c.item():.6f} generator {loss_g.item():.6f}", flush=True)

generator.eval()
with torch.no_grad():
    shown = generator(torch.randn(6, LATENT, device=device))
print(f"picture mean {shown.mean().item():.6f} spread {shown.std().item():.6f}")
