"""Three networks learn a heat equation at once: torch.func for derivatives, vmap over points and over networks."""
import copy
import math

import torch
import torch.nn as nn
from torch.func import functional_call, hessian, jacfwd, stack_module_state, vmap

torch.manual_seed(137)
device = "cuda" if torch.cuda.is_available() else "cpu"
NETS, POINTS, RATE = 3, 40, 0.05


class Waves(nn.Module):
    """Sines of the place in several rates."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rates", torch.tensor([1.0, 3.0, 9.0, 27.0]))

    def forward(self, point):
        angles = (point[:, None] * self.rates[None, :] * math.pi).flatten()
        return torch.cat([point, torch.sin(angles) / self.rates.repeat(2)])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.waves = Waves()
        self.enter, self.inner, self.leave = nn.Linear(10, 24), nn.Linear(24, 24), nn.Linear(24, 1)

    def forward(self, point):
        x = torch.tanh(self.enter(self.waves(point)))
        x = torch.tanh(self.inner(x))
        return self.leave(x).squeeze(-1)


nets = [Net().to(device) for _ in range(NETS)]
weights, buffers = stack_module_state(nets)
frame = copy.deepcopy(nets[0])


def height(weights, buffers, point):
    """The height that one network gives at one place and time."""
    return functional_call(frame, (weights, buffers), (point,))


def wrong(weights, buffers, point):
    """By how much the equation u_t = RATE * u_xx does not hold at a point (x, t)."""
    slope = jacfwd(height, argnums=2)(weights, buffers, point)
    bend = hessian(height, argnums=2)(weights, buffers, point)
    return slope[1] - RATE * bend[0, 0]


def loss_of_net(weights, buffers, points, starts):
    """Equation inside, a sine at the beginning, nothing at both ends."""
    inside = vmap(wrong, in_dims=(None, None, 0))(weights, buffers, points)
    begun = vmap(height, in_dims=(None, None, 0))(weights, buffers, starts)
    first = begun - torch.sin(math.pi * starts[:, 0])
    return inside.pow(2).mean() + 10 * first.pow(2).mean()


optimizer = torch.optim.Adam(list(weights.values()), lr=5e-3)
engine = torch.quasirandom.SobolEngine(2, scramble=True, seed=9)
for step in range(5):
    points = engine.draw(POINTS).to(device)
    starts = torch.cat([torch.rand(16, 1, device=device), torch.zeros(16, 1, device=device)], dim=1)
    losses = vmap(loss_of_net, in_dims=(0, 0, None, None))(weights, buffers, points, starts)
    loss = losses.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} losses", " ".join(f"{value:.6f}" for value in losses.tolist()), flush=True)

grid = torch.stack(torch.meshgrid(torch.linspace(0, 1, 5), torch.linspace(0, 1, 5), indexing="ij"), dim=-1).view(-1, 2).to(device)
with torch.no_grad():
    heights = vmap(vmap(height, in_dims=(None, None, 0)), in_dims=(0, 0, None))(weights, buffers, grid)
print(f"heights {heights.mean().item():.6f} apart {heights.std(0).mean().item():.6f}")
