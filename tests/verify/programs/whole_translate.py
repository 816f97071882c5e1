"""An encoder and a decoder: batches by length, padding, scheduled sampling, and beam search over a
cache of keys and values, with an n-gram score at the end."""

import math
import os
from collections import Counter

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(int(os.environ.get("SEED", "0")))
torch.set_num_threads(1)
MODE = os.environ.get("MODE", "float32")
DTYPE = torch.bfloat16 if MODE == "bfloat16" else torch.float32
PAD, BOS, EOS, V, D, H = 0, 1, 2, 24, 32, 4


def pairs(count, seed):
    g = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(count):
        n = int(torch.randint(3, 9, (1,), generator=g))
        source = torch.randint(3, V, (n,), generator=g)
        made.append((source.tolist(), (source.flip(0) * 5 % (V - 3) + 3).tolist()))
    return made


def padded(rows):
    wide = max(map(len, rows))
    return torch.tensor([row + [PAD] * (wide - len(row)) for row in rows])


class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(D, D), nn.Linear(D, 2 * D), nn.Linear(D, D)

    def heads(self, x):
        return x.unflatten(-1, (H, D // H)).transpose(1, 2)

    def forward(self, x, memory, mask=None, cache=None):
        k, v = self.kv(memory).chunk(2, -1)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 1), torch.cat([cache[1], v], 1)
        scores = self.heads(self.q(x)) @ self.heads(k).transpose(-1, -2) / math.sqrt(D // H)
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e4)
        made = (scores.softmax(-1) @ self.heads(v)).transpose(1, 2).flatten(2)
        return self.o(made), (k, v)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(V, D, padding_idx=PAD), nn.Embedding(16, D)
        self.attend, self.norm, self.ff = Attend(), nn.LayerNorm(D), nn.Linear(D, D)

    def forward(self, ids):
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        x = x + self.attend(x, x, (ids != PAD)[:, None, None])[0]
        return self.norm(x + F.gelu(self.ff(x)))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(V, D), nn.Embedding(16, D)
        self.own, self.cross, self.norm = Attend(), Attend(), nn.LayerNorm(D)
        self.head = nn.Linear(D, V, bias=False)

    def forward(self, ids, memory, known, start=0, cache=None):
        x = self.embed(ids) + self.place(torch.arange(start, start + ids.shape[1]))
        causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril() if cache is None else None
        made, cache = self.own(x, x, causal, cache)
        x = x + made
        x = x + self.cross(x, memory, known[:, None, None])[0]
        return self.head(self.norm(x)), cache


def ngram_score(said, wanted):
    total = 0.0
    for n in (1, 2):
        have = Counter(tuple(said[i : i + n]) for i in range(len(said) - n + 1))
        want = Counter(tuple(wanted[i : i + n]) for i in range(len(wanted) - n + 1))
        total += math.log((sum((have & want).values()) + 1) / (sum(have.values()) + 1)) / 2
    return math.exp(total + min(0.0, 1 - len(wanted) / max(len(said), 1)))


@torch.no_grad()
def beam(source, width=3, most=8, power=0.6):
    ids = torch.tensor([source])
    memory, known = encoder(ids), ids != PAD
    beams, done = [([BOS], 0.0, None)], []
    for at in range(most):
        made = []
        for said, score, cache in beams:
            logits, after = decoder(torch.tensor([said[-1:]]), memory, known, at, cache)
            logp = logits[0, -1].float().log_softmax(-1)
            logp[PAD] = -math.inf
            if at < 3:
                logp[EOS] = -math.inf
            top = logp.topk(width)
            for value, token in zip(top.values.tolist(), top.indices.tolist(), strict=True):
                made.append(([*said, token], score + value, after))
        made.sort(key=lambda one: -one[1])
        beams = []
        for said, score, cache in made[:width]:
            if said[-1] == EOS:
                done.append((said, score / len(said) ** power))
            else:
                beams.append((said, score, cache))
        if not beams:
            break
    done += [(said, score / len(said) ** power) for said, score, _ in beams]
    return max(done, key=lambda one: one[1])


encoder, decoder = Encoder().to(DTYPE), Decoder().to(DTYPE)
weights = [*encoder.parameters(), *decoder.parameters()]
optimiser = torch.optim.Adam(weights, lr=2e-3, betas=(0.9, 0.98), eps=1e-9)
corpus = sorted(pairs(48, 1), key=lambda pair: len(pair[0]))
buckets = [corpus[i : i + 8] for i in range(0, 48, 8)]
order = torch.Generator().manual_seed(4)
step = 0
for epoch in range(3):
    for bucket in torch.randperm(len(buckets), generator=order).tolist():
        step += 1
        for group in optimiser.param_groups:
            group["lr"] = 0.05 * D**-0.5 * min(step**-0.5, step * 8**-1.5)
        source = padded([s for s, _ in buckets[bucket]])
        given = padded([[BOS, *t] for _, t in buckets[bucket]])
        wanted = padded([[*t, EOS] for _, t in buckets[bucket]])
        with torch.autocast("cpu", torch.bfloat16, enabled=MODE == "autocast"):
            memory = encoder(source)
            logits, _ = decoder(given, memory, source != PAD)
            if epoch == 2:  # the model's own words in place of a quarter
                with torch.no_grad():
                    own = torch.cat([given[:, :1], logits.argmax(-1)[:, :-1]], 1)
                swap = torch.rand(given.shape, generator=order) < 0.25
                logits, _ = decoder(torch.where(swap & (given != PAD), own, given), memory, source != PAD)
        loss = F.cross_entropy(logits.float().flatten(0, 1), wanted.flatten(), ignore_index=PAD)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(weights, 0.05)
        optimiser.step()
encoder.eval(), decoder.eval()
scores = []
for source, wanted in pairs(4, 2):
    said, score = beam(source)
    scores.append(ngram_score(said[1:-1], wanted))
    print("beam", round(score, 4), len(said))
print("score", round(100 * sum(scores) / len(scores), 3))
