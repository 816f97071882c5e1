"""A serving loop: requests come and go in the slots of a static cache; scores, penalties, sampling."""

import os

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
MODE = os.environ.get("MODE", "float32")
V, D, ROWS, LONG = 32, 24, 4, 24


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.RMSNorm(D), nn.Linear(D, 48), nn.SiLU(), nn.Linear(48, D))

    def forward(self, x, cache, slots, position):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        for row, slot in enumerate(slots):
            at = slice(position[row], position[row] + x.shape[1])
            cache[0][slot, at], cache[1][slot, at] = k[row], v[row]
        keys, values = cache[0][slots], cache[1][slots]
        score = q @ keys.transpose(1, 2) * D**-0.5
        reach = torch.tensor(position)[:, None] + torch.arange(x.shape[1])[None]
        seen = torch.arange(LONG)[None, None] <= reach[..., None]
        mix = score.masked_fill(~seen, float("-inf")).softmax(-1) @ values
        x = x + self.out(mix)
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(V, D), nn.Embedding(LONG, D)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(D, V, bias=False)

    def forward(self, ids, caches, slots, position):
        at = torch.tensor(position)[:, None] + torch.arange(ids.shape[1])[None]
        x = self.embed(ids) + self.place(at)
        for block, cache in zip(self.blocks, caches):
            x = block(x, cache, slots, position)
        return self.head(x)


model = Model().eval()
if MODE == "bfloat16":
    model = model.to(torch.bfloat16)
dtype = model.head.weight.dtype
caches = [[torch.zeros(ROWS, LONG, D, dtype=dtype) for _ in range(2)] for _ in range(2)]
g = torch.Generator().manual_seed(4)
requests = [torch.randint(2, V, (n,), generator=g).tolist() for n in (5, 3, 7, 4, 6, 3, 5)]
waiting, running, done = list(enumerate(requests)), {}, {}
draw = torch.Generator().manual_seed(8)


def choose(logits, said):
    logits = logits.float() / 0.8
    used = torch.tensor(said)
    score = logits[used]
    logits[used] = torch.where(score > 0, score / 1.2, score * 1.2)
    top = logits.topk(10)
    share = F.softmax(top.values, -1)
    kept = share.cumsum(-1) - share < 0.9
    share = share * kept / (share * kept).sum()
    pick = torch.multinomial(share, 1, generator=draw)
    return int(top.indices[pick]), share[pick].log().item()


with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
    step = 0
    while waiting or running:
        step += 1
        while waiting and len(running) < ROWS:
            number, prompt = waiting.pop(0)
            slot = next(s for s in range(ROWS) if s not in running)
            logits = model(torch.tensor([prompt]), caches, [slot], [0])[0, -1]
            token, score = choose(logits, prompt)
            running[slot] = [number, [*prompt, token], score, len(prompt)]
        slots = sorted(running)
        last = torch.tensor([[running[s][1][-1]] for s in slots])
        logits = model(last, caches, slots, [len(running[s][1]) - 1 for s in slots])[:, -1]
        for row, slot in enumerate(slots):
            number, said, score, start = running[slot]
            token, more = choose(logits[row], said)
            running[slot] = [number, [*said, token], score + more, start]
            if token == 1 or len(said) - start >= 7:
                done[number] = (score + more) / (len(said) + 1 - start) ** 0.7
                del running[slot]
for number in sorted(done):
    print("request", number, f"{done[number]:.4f}")
