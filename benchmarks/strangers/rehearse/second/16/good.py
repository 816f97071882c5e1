"""The sampler of a server: most requests ask for no top-k, which is written as k = size of the vocabulary."""
import time

import torch
import torch_npu

ROWS, VOCABULARY = 8, 152064


def restrict(logits, p, k):
    """k is the whole vocabulary, so only p restricts: one sort, one running sum."""
    values, places = logits.sort(dim=-1, descending=True)
    chances = values.softmax(-1)
    before = chances.cumsum(-1) - chances
    values = values.masked_fill(before > p[:, None], float("-inf"))
    return torch.empty_like(logits).scatter_(-1, places, values)


torch.manual_seed(0)
logits = torch.randn(ROWS, VOCABULARY, dtype=torch.float32).npu()
p = torch.full((ROWS,), 0.9, dtype=torch.float32).npu()
k = torch.full((ROWS,), VOCABULARY, dtype=torch.int32).npu()
for _ in range(3):
    torch.npu.synchronize()
    start = time.perf_counter()
    kept = restrict(logits, p, k)
    tokens = kept.softmax(-1).argmax(-1)
    torch.npu.synchronize()
    print(f"{1000 * (time.perf_counter() - start):.2f} ms", tuple(tokens.shape))
