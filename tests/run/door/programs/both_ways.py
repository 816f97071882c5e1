"""Kinds of training that run on a card where there is one, and else on the CPU: every number that
they print is printed to its last bit."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def say(kind, tensor):
    print(kind, *(float(one).hex() for one in tensor.detach().reshape(-1)[:4].tolist()))


def batches(shape, classes, seed, workers=0):
    g = torch.Generator().manual_seed(seed)
    data = TensorDataset(
        torch.randn(24, *shape, generator=g), torch.randint(classes, (24,), generator=g)
    )
    return DataLoader(data, batch_size=8, shuffle=True, num_workers=workers, pin_memory=True)


def train(kind, model, loader, optimizer, clip=None):
    model.train()
    for x, y in loader:
        x, y = x.to(DEVICE, non_blocking=True), y.to(DEVICE)
        assert next(model.parameters()).device == x.device
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if clip:
            say(kind + " norm", nn.utils.clip_grad_norm_(model.parameters(), clip))
        optimizer.step()
        say(kind, loss)
    say(kind + " weight", next(model.parameters()))


def pictures():
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * 36, 5)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    train("pictures", model, batches((3, 8, 8), 5, 1, workers=1), optimizer)
    model.eval()
    with torch.no_grad():
        say("pictures eval", model(torch.ones(1, 3, 8, 8, device=DEVICE)))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(6, 8, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(8, 4)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x):
        lengths = torch.arange(x.shape[0]) % 3 + 2
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        out, _ = self.rnn(packed)
        out, sizes = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        rows = torch.arange(x.size(0), device=x.device)
        return self.head(out[rows, sizes.to(x.device) - 1] * self.scale)


def sequences():
    model = Reader().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, amsgrad=True)
    train("sequences", model, batches((5, 6), 4, 2), optimizer, clip=0.5)
    again = Reader().to(DEVICE)
    again.load_state_dict(copy.deepcopy(model.state_dict()))
    resumed = torch.optim.Adam(again.parameters(), lr=1e-2, amsgrad=True)
    resumed.load_state_dict(optimizer.state_dict())
    assert all(
        v.device == DEVICE or v.device.index == 0
        for s in resumed.state.values()
        for k, v in s.items()
        if k != "step"
    )
    train("resumed", again, batches((5, 6), 4, 3), resumed)


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.place = nn.Embedding(5, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        x = x + self.place(torch.arange(x.shape[1], device=x.device))
        return self.head(self.body(x, mask=mask, is_causal=True).mean(1))


def attention():
    model = nn.DataParallel(Attending()).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train("attention", model, batches((5, 8), 3, 4), optimizer)


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.ones(x.shape, device=grad.device)


def functions():
    x = torch.linspace(-2, 2, 8, device=DEVICE, requires_grad=True)
    x.register_hook(lambda grad: grad * torch.full_like(grad, 2.0).to(x.device))
    noise = torch.randn(8, generator=torch.Generator(device=DEVICE).manual_seed(5), device=DEVICE)
    (Rounded.apply(x) * noise).sum().backward()
    say("functions", x.grad)
    grad = torch.autograd.grad((x**3).sum(), x, create_graph=True)[0]
    say("functions twice", torch.autograd.grad(grad.sum(), x)[0])
    jac = torch.func.vmap(torch.func.grad(lambda v: (v * noise).sin().sum()))(x.detach()[:, None])
    say("functions vmap", jac)
    table = {"rows": x.detach(), "more": [noise, noise.cpu()]}
    torch.save(table, "table.pt")
    back = torch.load("table.pt", map_location=DEVICE)
    say("functions file", back["rows"] + back["more"][0])


for kind in (pictures, sequences, attention, functions):
    torch.manual_seed(0)
    torch.cuda.manual_seed_all(0)
    kind()
