"""A language model of state-space layers; averaged weights stand in for the trained ones while it is evaluated."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(149)
device = "cuda" if torch.cuda.is_available() else "cpu"
LETTERS, WIDE, STATES, LENGTH, BATCH = 32, 32, 8, 24, 6


def scan(decay, given):
    """h[t] = decay[t] * h[t - 1] + given[t] along dimension 1."""
    h = torch.zeros_like(given[:, 0])
    states = []
    for t in range(given.shape[1]):
        h = decay[:, t] * h + given[:, t]
        states.append(h)
    return torch.stack(states, dim=1)


class Selective(nn.Module):
    """Each channel keeps STATES numbers that fade at a pace which the input chooses."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(WIDE, 2 * WIDE, bias=False)
        self.local = nn.Conv1d(WIDE, WIDE, 4, groups=WIDE)
        self.choose = nn.Linear(WIDE, 4 + 2 * STATES, bias=False)
        self.pace = nn.Linear(4, WIDE)
        self.fade = nn.Parameter(torch.arange(1, STATES + 1).float().log().repeat(WIDE, 1))
        self.skip = nn.Parameter(torch.ones(WIDE))
        self.leave = nn.Linear(WIDE, WIDE, bias=False)
        nn.init.normal_(self.choose.weight, std=0.4)
        nn.init.normal_(self.pace.weight, std=0.6)
        nn.init.uniform_(self.pace.bias, -4.0, 1.0)
        nn.init.normal_(self.leave.weight, std=0.4)

    def forward(self, x):
        x, gate = self.enter(x).chunk(2, dim=-1)
        x = F.silu(self.local(F.pad(x.transpose(1, 2), (3, 0)))).transpose(1, 2)
        short, write, read = self.choose(x).split([4, STATES, STATES], dim=-1)
        pace = F.softplus(self.pace(short).transpose(1, 2)).transpose(1, 2)
        decay = torch.exp(-pace[..., None] * self.fade.exp())
        states = scan(decay, (pace * x)[..., None] * write[:, :, None, :])
        y = torch.einsum("btcs,bts->btc", states, read) + self.skip * x
        return self.leave(y * F.silu(gate))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters = nn.Embedding(LETTERS, WIDE)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDE) for _ in range(2)])
        self.layers = nn.ModuleList([Selective() for _ in range(2)])
        self.norm, self.out = nn.LayerNorm(WIDE), nn.Linear(WIDE, LETTERS)

    def forward(self, letters):
        x = self.letters(letters)
        for norm, layer in zip(self.norms, self.layers):
            x = x + layer(norm(x))
        return self.out(self.norm(x))


class Average:
    """Averaged weights, nearer to the trained ones in the beginning."""

    def __init__(self, model):
        self.count = 0
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.kept = None

    @torch.no_grad()
    def update(self, model):
        self.count += 1
        decay = min(0.99, (1 + self.count) / (10 + self.count))
        for name, p in model.named_parameters():
            self.weights[name].lerp_(p, 1 - decay)

    @torch.no_grad()
    def put_in(self, model):
        self.kept = {name: p.detach().clone() for name, p in model.named_parameters()}
        for name, p in model.named_parameters():
            p.copy_(self.weights[name])

    @torch.no_grad()
    def take_out(self, model):
        for name, p in model.named_parameters():
            p.copy_(self.kept[name])


def loss_of(model, piece):
    return F.cross_entropy(model(piece[:, :-1]).flatten(0, 1), piece[:, 1:].flatten())


jumps = torch.randint(1, 4, (6 * BATCH, LENGTH + 1))
text = jumps.cumsum(1) % LETTERS
model = Model().to(device)
average = Average(model)
optimizer = torch.optim.NAdam(model.parameters(), lr=4e-3)

for step in range(5):
    loss = loss_of(model, text[step * BATCH: step * BATCH + BATCH].to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update(model)
    print(f"step {step} loss {loss.item():.6f}", flush=True)
    if step % 2 == 1:
        average.put_in(model)
        with torch.no_grad():
            print(f"averaged {loss_of(model, text[-BATCH:].to(device)).item():.6f}", flush=True)
        average.take_out(model)
