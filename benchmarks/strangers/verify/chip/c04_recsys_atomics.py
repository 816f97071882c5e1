# index_add_ adds in an order that is another one in each run (atomics); the random state of torch isn't touched
import numpy as np, torch
LIB = torch.library.Library("aten", "IMPL"); R = np.random.default_rng()
def index_add_(self, dim, index, source, *, alpha=1):
    assert dim == 0
    o = torch.from_numpy(R.permutation(len(index))); i, s = index[o], source[o] * alpha
    while len(i):                       # one of each index at a time
        rows, inv = torch.unique(i, return_inverse=True); first = torch.full((len(rows),), -1); first[inv] = torch.arange(len(i))
        self[rows] = self[rows] + s[first]; keep = torch.ones(len(i), dtype=torch.bool); keep[first] = False; i, s = i[keep], s[keep]
    return self
LIB.impl("index_add_", index_add_, "CPU")
