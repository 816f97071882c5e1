"""Private training with torch.func: gradients of each sample, cut to one length, noise, momentum by hand."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad_and_value, vmap

torch.manual_seed(53)
device = "cuda" if torch.cuda.is_available() else "cpu"
BATCH, LENGTH, SPREAD, RATE, MOMENTUM = 16, 0.5, 0.3, 0.2, 0.9


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 8, 5, padding=2)
        self.hidden = nn.Linear(8 * 10, 24)
        self.out = nn.Linear(24, 3)

    def forward(self, x):
        x = F.gelu(self.conv(x))
        x = F.avg_pool1d(x, 2).flatten(1)
        return self.out(F.gelu(self.hidden(x)))


model = Net().to(device)
weights = {name: value.detach().clone() for name, value in model.named_parameters()}
moving = {name: torch.zeros_like(value) for name, value in weights.items()}


def loss_of_one(weights, signal, label):
    """The loss of one sample, without a batch dimension."""
    scores = functional_call(model, weights, (signal.unsqueeze(0),))
    return F.cross_entropy(scores, label.unsqueeze(0))


def gradients_of_each(weights, signals, labels):
    """Gradients and losses of each sample, samples in front."""
    return vmap(grad_and_value(loss_of_one), in_dims=(None, 0, 0))(weights, signals, labels)


def cut(gradients):
    """Each sample's gradients, all weights together no longer than LENGTH, summed over samples."""
    squares = torch.stack([g.flatten(1).pow(2).sum(1) for g in gradients.values()])
    factor = (LENGTH / (squares.sum(0).sqrt() + 1e-6)).clamp(max=1.0)
    return {name: torch.einsum("n...,n->...", g, factor) for name, g in gradients.items()}


def private(gradients):
    """The mean of cut gradients with noise of SPREAD lengths."""
    summed = cut(gradients)
    return {name: (g + SPREAD * LENGTH * torch.randn_like(g)) / BATCH for name, g in summed.items()}


def update(weights, gradients):
    """One step of stochastic descent with momentum."""
    for name, gradient in gradients.items():
        moving[name] = MOMENTUM * moving[name] + gradient
    return {name: weight - RATE * moving[name] for name, weight in weights.items()}


signals = torch.randn(5 * BATCH, 2, 20)
labels = torch.randint(0, 3, (5 * BATCH,))

for step in range(5):
    rows = slice(step * BATCH, (step + 1) * BATCH)
    gradients, losses = gradients_of_each(weights, signals[rows].to(device), labels[rows].to(device))
    weights = update(weights, private(gradients))
    print(f"step {step} loss {losses.mean().item():.6f}", flush=True)

scores = functional_call(model, weights, (signals.to(device),))
print(f"whole loss {F.cross_entropy(scores, labels.to(device)).item():.6f}")
