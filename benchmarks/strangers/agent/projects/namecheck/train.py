"""A small transformer; attention goes in tiles whose size was tuned per card."""
import argparse, torch, torch.nn as nn, torch.nn.functional as F
from check import check

TILES = {"A100": 64, "A10": 32, "A30": 32, "A40": 32, "A800": 64, "H100": 128, "H200": 128, "H20": 128, "H800": 128, "B200": 128,
         "V100": 32, "T4": 32, "L4": 32, "L40": 64, "RTX": 32, "P100": 32}

def tile_of(name):
    for card, tile in TILES.items():
        if card in name:
            return tile
    raise RuntimeError(f"no tile size for {name}: add it to TILES")

def attention(q, k, v, tile):
    out = []
    for a in range(0, q.shape[1], tile):
        w = q[:, a:a + tile] @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        out.append(w.softmax(-1) @ v)
    return torch.cat(out, 1)

class Net(nn.Module):
    def __init__(self, tile):
        super().__init__()
        self.tile = tile
        self.emb = nn.Embedding(64, 32)
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 64)

    def forward(self, x):
        h = self.emb(x)
        q, k, v = self.qkv(h).chunk(3, -1)
        return self.out(h + attention(q, k, v, self.tile))

def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=8)
    args = p.parse_args()
    torch.manual_seed(0)
    tile = tile_of(torch.cuda.get_device_name(0))
    net = Net(tile).cuda()
    check(attention, tile, "cuda")
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    data = torch.randint(0, 64, (64, 8, 96), generator=torch.Generator().manual_seed(1))
    for step in range(args.steps):
        x = data[step % 64].cuda()
        loss = F.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss: {loss.item():.6f}", flush=True)

if __name__ == "__main__":
    main()
