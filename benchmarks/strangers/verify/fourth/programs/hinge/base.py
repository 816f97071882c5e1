"""A generator and a critic with hinge losses in float16 autocast, one gradient scaler, spectral norm by hand."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(103)
device = "cuda" if torch.cuda.is_available() else "cpu"
LATENT, BATCH, WIDE = 16, 8, 16


class SpectralConv(nn.Module):
    """A convolution whose weight is divided by its largest singular value, found by one power iteration a call."""

    def __init__(self, wide_in, wide_out, stride):
        super().__init__()
        self.stride = stride
        self.weight = nn.Parameter(torch.randn(wide_out, wide_in, 4, 4) * 0.15)
        self.bias = nn.Parameter(torch.zeros(wide_out))
        self.register_buffer("u", F.normalize(torch.randn(wide_out), dim=0))

    def forward(self, x):
        flat = self.weight.flatten(1)
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            v = F.normalize(flat.t() @ self.u, dim=0)
            u = F.normalize(flat @ v, dim=0)
            if self.training:
                self.u.copy_(u)
        largest = (u * (flat * v).sum(1)).sum()
        return F.conv2d(x, self.weight / largest, self.bias, stride=self.stride, padding=1)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Linear(LATENT, WIDE * 4 * 4)
        self.conv1 = nn.Conv2d(WIDE, WIDE, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(WIDE)
        self.conv2 = nn.Conv2d(WIDE, 3, 3, padding=1)

    def forward(self, z):
        x = self.start(z).view(-1, WIDE, 4, 4).contiguous(memory_format=torch.channels_last)
        x = F.interpolate(F.relu(x), scale_factor=2, mode="nearest")
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.interpolate(x, scale_factor=2, mode="nearest")
        return torch.tanh(self.conv2(x))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1 = SpectralConv(3, WIDE, 2)
        self.down2 = SpectralConv(WIDE, 2 * WIDE, 2)
        self.score = nn.Linear(2 * WIDE, 1)

    def forward(self, x):
        x = F.leaky_relu(self.down1(x), 0.2)
        x = F.leaky_relu(self.down2(x), 0.2)
        return self.score(x.mean(dim=(2, 3))).squeeze(1)


def stripes(count):
    """Coloured stripes of random width, 16 by 16."""
    grid = torch.linspace(0, 6.28, 16)
    wide, colour = torch.rand(count, 1, 1, 1) * 2 + 1, torch.rand(count, 3, 1, 1)
    return torch.sin(wide * grid[None, None, None, :]) * colour + 0.05 * torch.randn(count, 3, 16, 16)


generator = Generator().to(device).to(memory_format=torch.channels_last)
critic = Critic().to(device).to(memory_format=torch.channels_last)
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.0, 0.9))
optimizer_c = torch.optim.SGD(critic.parameters(), lr=0.2, momentum=0.5)
scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=2)

for step in range(5):
    optimizer_c.zero_grad()
    real = stripes(BATCH).to(device).contiguous(memory_format=torch.channels_last)
    with torch.autocast(device, dtype=torch.float16):
        fake = generator(torch.randn(BATCH, LATENT, device=device))
        good, bad = critic(real), critic(fake.detach())
    loss_c = F.relu(1 - good.float()).mean() + F.relu(1 + bad.float()).mean()
    scaler.scale(loss_c).backward()
    scaler.unscale_(optimizer_c)
    length = nn.utils.clip_grad_norm_(critic.parameters(), 0.5)
    scaler.step(optimizer_c)

    optimizer_g.zero_grad()
    with torch.autocast(device, dtype=torch.float16):
        score = critic(generator(torch.randn(BATCH, LATENT, device=device)))
    loss_g = -score.float().mean()
    scaler.scale(loss_g).backward()
    scaler.step(optimizer_g)
    scaler.update()
    print(f"step {step} critic {loss_c.item():.5f} generator {loss_g.item():.5f} scale {scaler.get_scale():.0f}", flush=True)
