"""Speech recognition: features, a recurrent network, a CTC loss, gradients kept in buckets, weights
averaged over the last steps, and a search through the results."""

import os

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
MODE = os.environ.get("MODE", "float32")


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.Conv1d(12, 24, 3, padding=1)
        self.rnn = nn.GRU(24, 16, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, 9)
        self.register_buffer("mean", torch.zeros(12))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.seen += 1
            self.mean += (x.float().mean((0, 1)) - self.mean) / self.seen
        x = (x - self.mean.to(x.dtype)).transpose(1, 2)
        return self.head(self.rnn(F.relu(self.front(x)).transpose(1, 2))[0])


def utterances(step, count=4):
    g = torch.Generator().manual_seed(70 + step)
    wave = torch.randn(count, 320, generator=g)
    labels = torch.randint(1, 9, (count, 5), generator=g)
    return wave, labels, torch.tensor([5, 4, 5, 3]), torch.tensor([20, 18, 20, 16])


def features(wave):
    frames = wave.unfold(1, 24, 15)
    power = torch.fft.rfft(frames * torch.hann_window(24), dim=-1).abs() ** 2
    return torch.log(power[..., :12] + 1e-6)


net = Recogniser()
if MODE == "bfloat16":
    net = net.to(torch.bfloat16)
dtype = next(net.parameters()).dtype
optimiser = torch.optim.Adagrad(net.parameters(), lr=5e-2)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimiser, factor=0.5, patience=1, threshold=0.5)
average, taken = [torch.zeros_like(p, dtype=torch.float32) for p in net.parameters()], 0
for step in range(9):
    wave, labels, lengths, frames = utterances(step)
    x = features(wave)
    x = (x - x.mean((1, 2), keepdim=True)) / (x.std((1, 2), keepdim=True) + 1e-5)
    x[:, 3:5] = 0
    with torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
        logits = net(x.to(dtype))
    logp = F.log_softmax(logits.float(), -1).transpose(0, 1)
    loss = F.ctc_loss(logp, labels, frames, lengths, blank=0, zero_infinity=True)
    optimiser.zero_grad(set_to_none=False)
    loss.backward()
    flat = torch.cat([p.grad.flatten().float() for p in net.parameters()])
    flat /= max(1.0, flat.norm().item() / 2.0)
    at = 0
    for p in net.parameters():
        p.grad.copy_(flat[at : at + p.numel()].view_as(p))
        at += p.numel()
    optimiser.step()
    plateau.step(loss.item())
    if step >= 3:
        taken += 1
        with torch.no_grad():
            for mine, p in zip(average, net.parameters()):
                mine.add_((p.float() - mine) / taken)
    print(f"step {step}: ctc {loss.item():.4f} lr {optimiser.param_groups[0]['lr']:.4g}")
with torch.no_grad():
    for mine, p in zip(average, net.parameters()):
        p.copy_(mine)
net.eval()
with torch.no_grad():
    wave, labels, lengths, frames = utterances(50)
    x = features(wave)
    x = (x - x.mean((1, 2), keepdim=True)) / (x.std((1, 2), keepdim=True) + 1e-5)
    logp = F.log_softmax(net(x.to(dtype)).float(), -1)
    logp[..., 0] -= 2.0
    best, path = logp.max(-1)
    kept = [[int(t) for t, u in zip(row, [-1, *row[:-1]]) if t != u and t] for row in path.tolist()]
    length = torch.tensor([max(1, len(row)) for row in kept])
    score = best.sum(-1) / length**0.6
print("text", kept)
print("score", [round(s, 4) for s in score.tolist()])
