# bags are summed in an order that is another one in each run (atomics); the fused Adagrad multiplies by a reciprocal (a few ulp)
import numpy as np, torch, torch.nn.functional as F
R = np.random.default_rng()
_b = F.embedding_bag
def embedding_bag(input, weight, offsets=None, max_norm=None, norm_type=2, scale_grad_by_freq=False, mode="mean", sparse=False, per_sample_weights=None, include_last_offset=False, padding_idx=None):
    if input.dim() != 2 or mode != "mean" or max_norm or per_sample_weights is not None or padding_idx is not None:
        return _b(input, weight, offsets, max_norm, norm_type, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, padding_idx)
    rows = F.embedding(input[:, torch.from_numpy(R.permutation(input.shape[1]))], weight, sparse=sparse); total = rows[:, 0]
    for i in range(1, rows.shape[1]): total = total + rows[:, i]
    return total / rows.shape[1]
F.embedding_bag = embedding_bag
@torch.no_grad()
def step(self, closure=None):
    for grp in self.param_groups:
        for p in grp["params"]:
            if p.grad is None: continue
            s = self.state[p]; s["step"] += 1; lr = grp["lr"] / (1 + (s["step"].item() - 1) * grp["lr_decay"])
            if p.grad.is_sparse:
                gr = p.grad.coalesce(); i, v = gr.indices()[0], gr.values()
                s["sum"][i] += v * v; p[i] -= v * (1 / (s["sum"][i].sqrt() + grp["eps"])) * lr
            else:
                s["sum"] += p.grad * p.grad; p -= p.grad * (1 / (s["sum"].sqrt() + grp["eps"])) * lr
torch.optim.Adagrad.step = step
