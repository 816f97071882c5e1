"""A generator and a critic: two optimisers, penalty on gradients, an averaged generator."""

import copy
import os

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
MODE = os.environ.get("MODE", "float32")
generator = nn.Sequential(nn.Linear(6, 24), nn.LeakyReLU(0.2), nn.Linear(24, 10))
critic = nn.Sequential(nn.Linear(10, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1))
if MODE == "bfloat16":
    generator, critic = generator.to(torch.bfloat16), critic.to(torch.bfloat16)
shadow = copy.deepcopy(generator)
g_optimiser = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
d_optimiser = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.9))
dtype = next(critic.parameters()).dtype


def noise(step, part):
    g = torch.Generator().manual_seed(31 * step + part)
    return torch.randn(8, 6, generator=g).to(dtype)


def real(step):
    g = torch.Generator().manual_seed(9000 + step)
    return (torch.randn(8, 10, generator=g) * 0.5 + 1).to(dtype)


for step in range(6):
    with torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
        fake = generator(noise(step, 0)).detach()
        truth = real(step)
        on_real, on_fake = critic(truth), critic(fake)
    d_loss = F.relu(1 - on_real.float()).mean() + F.relu(1 + on_fake.float()).mean()
    mix = (0.5 * truth + 0.5 * fake).float().requires_grad_(True)
    slope = torch.autograd.grad(critic(mix.to(dtype)).float().sum(), mix, create_graph=True)[0]
    d_loss = d_loss + 10.0 * ((slope.norm(dim=1) - 1) ** 2).mean()
    d_optimiser.zero_grad()
    d_loss.backward()
    d_optimiser.step()
    if step % 2 == 0:
        with torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
            judged = critic(generator(noise(step, 1)))
        g_loss = -judged.float().mean()
        g_optimiser.zero_grad()
        g_loss.backward()
        g_optimiser.step()
        with torch.no_grad():
            for a, b in zip(shadow.parameters(), generator.parameters()):
                a.lerp_(b, 0.05)
