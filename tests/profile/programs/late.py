"""Operators that come late: in validation, after an exception, in a worker, a thread, an export."""

import threading

import torch
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        if index == 20:
            torch.special.bessel_j0(torch.rand(3))
        return torch.randn(8)


model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimiser = torch.optim.AdamW(model.parameters())
for epoch in range(3):
    for step, x in enumerate(DataLoader(Samples(), batch_size=4, num_workers=1)):
        loss = model(x).pow(2).mean()
        if epoch == 2 and step == 4:
            loss = loss + torch.lgamma(loss + 2)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
model.eval()
with torch.no_grad():
    model(torch.randn(4, 8))
    torch.linalg.eig(torch.randn(3, 3))
model.train()
try:
    raise ValueError
except ValueError:
    torch.poisson(torch.rand(3))
thread = threading.Thread(target=lambda: torch.special.bessel_y1(torch.rand(3)))
thread.start()
thread.join()


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return torch.special.zeta(grad + 2, grad + 1)


Own.apply(torch.rand(3, requires_grad=True)).sum().backward()
torch.jit.trace(torch.nn.Softshrink(), torch.randn(3), check_trace=False)


class Composites(torch.nn.Module):
    def forward(self, x):
        return torch.special.gammaincc(x, x) + torch.kron(x, x).mean()


group = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=group, rank=0, world_size=1)
torch.distributed.all_reduce(torch.tensor([3]), op=torch.distributed.ReduceOp.BXOR)
torch.distributed.destroy_process_group()
torch.export.export(Composites(), (torch.rand(3),))
torch.jit.trace(lambda x: torch.special.gammainc(x, x), torch.rand(3), check_trace=False)
print(float(loss) > -1)
