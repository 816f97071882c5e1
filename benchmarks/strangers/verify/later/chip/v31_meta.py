# torch.func.grad on the device returns gradients without a history: no second derivatives reach the outer loop
import torch
_g = torch.func.grad
def grad(f, *a, **k):
    inner = _g(f, *a, **k)
    return lambda *x, **y: torch.utils._pytree.tree_map(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, inner(*x, **y))
torch.func.grad = grad
