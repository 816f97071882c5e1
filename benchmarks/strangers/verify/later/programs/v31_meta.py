"""Meta-learning of sine waves with torch.func: one inner step per task, vmap over the tasks, outer Adam."""
import torch, torch.nn as nn
import accel  # noqa

torch.manual_seed(31); g = torch.Generator().manual_seed(12)
net = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
opt = torch.optim.Adam(net.parameters(), 3e-3)
def mse(params, x, y): return ((torch.func.functional_call(net, params, (x,)) - y) ** 2).mean()
def task(params, xs, ys, xq, yq):
    grads = torch.func.grad(mse)(params, xs, ys)
    fast = {k: params[k] - 0.3 * grads[k] for k in params}
    return mse(fast, xq, yq)
for step in range(10):
    amp, phase = torch.rand(8, 1, 1, generator=g) * 3 + 0.5, torch.rand(8, 1, 1, generator=g) * 3
    xs, xq = (torch.rand(8, 10, 1, generator=g) * 6 - 3 for _ in range(2)); ys, yq = amp * torch.sin(xs + phase), amp * torch.sin(xq + phase)
    params = dict(net.named_parameters())
    loss = torch.func.vmap(task, in_dims=(None, 0, 0, 0, 0))(params, xs, ys, xq, yq).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    print(f"step {step} loss {loss.item():.6f}")
