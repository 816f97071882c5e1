"""A gated linear recurrence, computed in chunks whose length depends on the card's compute capability."""
import argparse, torch, torch.nn as nn

def chunk_of(cap):
    major, minor = cap
    return 32 if (major, minor) >= (8, 0) else 16

def recurrence(a, x, chunk):
    """h[t] = a[t] * h[t-1] + x[t]"""
    h = torch.zeros_like(x[:, 0])
    out = []
    for s in range(0, x.shape[1], chunk):
        for t in range(s, min(s + chunk, x.shape[1])):
            h = a[:, t] * h + x[:, t]
            out.append(h)
    return torch.stack(out, 1)

class Net(nn.Module):
    def __init__(self, chunk):
        super().__init__()
        self.chunk = chunk
        self.gate = nn.Linear(6, 24)
        self.val = nn.Linear(6, 24)
        self.out = nn.Linear(24, 1)

    def forward(self, x):
        h = recurrence(self.gate(x).sigmoid(), self.val(x), self.chunk)
        return self.out(h[:, -1]).squeeze(-1)

def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=8)
    args = p.parse_args()
    torch.manual_seed(0)
    net = Net(chunk_of(torch.cuda.get_device_capability(0))).cuda()
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    g = torch.Generator().manual_seed(1)
    for step in range(args.steps):
        x = torch.randn(32, 40, 6, generator=g)
        y = x[:, -5:, 0].sum(1)
        loss = (net(x.cuda()) - y.cuda()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss: {loss.item():.6f}", flush=True)

if __name__ == "__main__":
    main()
