"""A regression whose device comes from an enumeration, as the command line and the services of this house use it."""
import argparse, enum, torch, torch.nn as nn

class Backend(enum.Enum):
    CPU = 0
    CUDA = 1

def device_of(backend):
    return torch.device(backend.name.lower())

def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--backend", default="1")
    args = p.parse_args()
    torch.manual_seed(0)
    device = device_of(Backend(int(args.backend)))
    net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(1)
    for step in range(args.steps):
        x = torch.randn(128, 16, generator=g)
        y = (x[:, :3].sum(1, keepdim=True)).sin()
        loss = (net(x.to(device)) - y.to(device)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss: {loss.item():.6f}", flush=True)
    torch.cuda.synchronize()
    print("peak", torch.cuda.max_memory_allocated() > 0)

if __name__ == "__main__":
    main()
