"""Video patches: a clip is cut into blocks of time, height, width and channel groups, one token each."""
import argparse, torch, torch.nn as nn

B, T, PT, H, PH, W, PW, G, C = 2, 3, 2, 4, 2, 4, 2, 2, 3

def patchify(clip):
    # (b, t*pt, h*ph, w*pw, g*c) -> (b, tokens, pt*ph*pw*c)
    x = clip.reshape(B, T, PT, H, PH, W, PW, G, C)
    x = x.permute(0, 1, 3, 5, 7, 2, 4, 6, 8)
    return x.reshape(B, T * H * W * G, PT * PH * PW * C)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(PT * PH * PW * C, 48)
        self.mix = nn.Linear(T * H * W * G, T * H * W * G)
        self.out = nn.Linear(48, 5)

    def forward(self, clip):
        h = self.inp(patchify(clip)).relu()
        h = h + self.mix(h.transpose(1, 2)).transpose(1, 2)
        return self.out(h.mean(1))

def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=8)
    args = p.parse_args()
    torch.manual_seed(0)
    net = Net().cuda()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    g = torch.Generator().manual_seed(1)
    for step in range(args.steps):
        clip = torch.randn(B, T * PT, H * PH, W * PW, G * C, generator=g) + torch.arange(W * PW).view(1, 1, 1, -1, 1) / 4
        y = torch.randint(0, 5, (B,), generator=g)
        loss = nn.functional.cross_entropy(net(clip.cuda()), y.cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss: {loss.item():.6f}", flush=True)

if __name__ == "__main__":
    main()
