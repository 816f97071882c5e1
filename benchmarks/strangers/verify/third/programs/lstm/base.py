"""A character model: an LSTM over a long text in pieces, gradients cut, a schedule of the rate."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(83)
device = "cuda" if torch.cuda.is_available() else "cpu"
LETTERS, WIDE, PIECE, ROWS = 30, 40, 16, 8


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(LETTERS, 24)
        self.lstm = nn.LSTM(24, WIDE, num_layers=2, batch_first=True)
        self.norm = nn.LayerNorm(WIDE)
        self.out = nn.Linear(WIDE, LETTERS)

    def forward(self, letters, memory):
        hidden, memory = self.lstm(self.embed(letters), memory)
        return self.out(self.norm(hidden)), memory


def pieces(text):
    """The text in ROWS rows, PIECE letters at a time, with the next letters."""
    rows = text[: len(text) // ROWS * ROWS].view(ROWS, -1)
    for start in range(0, rows.shape[1] - PIECE, PIECE):
        yield rows[:, start: start + PIECE], rows[:, start + 1: start + PIECE + 1]


def shorten(parameters, limit):
    """Cuts the gradients of all parameters together to a length of limit."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    length = torch.stack([g.norm() for g in gradients]).norm()
    factor = (limit / (length + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)
    return length


model = Reader().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-2, total_steps=10, pct_start=0.3)
steps = torch.randint(1, 4, (ROWS * (5 * PIECE + 1),))
text = torch.cumsum(steps, 0) % LETTERS

memory = None
for step, (letters, following) in enumerate(pieces(text)):
    scores, memory = model(letters.to(device), memory)
    memory = tuple(part.detach() for part in memory)
    loss = F.cross_entropy(scores.flatten(0, 1), following.flatten().to(device))
    optimizer.zero_grad()
    loss.backward()
    length = shorten(list(model.parameters()), 0.25)
    optimizer.step()
    schedule.step()
    print(f"step {step} loss {loss.item():.6f} length {length.item():.6f}", flush=True)
