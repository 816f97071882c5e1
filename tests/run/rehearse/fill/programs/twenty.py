"""A program whose operators the chip would send to the CPU; prints sums of results and gradients."""

import json
import sys

import torch
import torch.nn.functional as F

device = sys.argv[1]
if device.startswith("npu"):
    import torch_npu  # noqa: F401


def make(*shape, seed=0):
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return values.to(device).requires_grad_()


x, y, matrix = make(4, 6), make(4, 6, seed=1), make(4, 4, seed=2)
spd = matrix @ matrix.mT + 4 * torch.eye(4, device=device)
labels = torch.tensor([0, 5, 2, 3], device=device)
bags, offsets = torch.tensor([0, 3, 3, 1], device=device), torch.tensor([0, 2], device=device)
table = make(5, 6, seed=3)
norm = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(6, 3))
with torch.no_grad():
    for number, parameter in enumerate(norm.parameters()):
        parameter.copy_(make(*parameter.shape, seed=9 + number).detach().cpu())
norm = norm.to(device)
adam = torch.nn.Parameter(make(3, 2, seed=8).detach())
optimiser = torch.optim.Adagrad([adam], lr=0.1, fused=device == "cpu")
(adam * adam).sum().backward()
optimiser.step()
results = {
    "lgamma": torch.lgamma(x.abs() + 0.5),
    "digamma": torch.digamma(x.abs() + 0.5),
    "polygamma": torch.polygamma(1, x.abs() + 0.5),
    "fmax": torch.fmax(x, y),
    "fmin": torch.fmin(x, y),
    "copysign": torch.copysign(x, y),
    "hypot": torch.hypot(x, y),
    "i0": torch.i0(x),
    "i1e": torch.special.i1e(x),
    "erfcx": torch.special.erfcx(x),
    "log_ndtr": torch.special.log_ndtr(x * 3),
    "ndtri": torch.special.ndtri(torch.sigmoid(x)),
    "entr": torch.special.entr(x.abs()),
    "xlog1py": torch.special.xlog1py(x, y.abs()),
    "huber": F.huber_loss(x * 3, y),
    "margin": F.multi_margin_loss(x, labels),
    "multilabel": F.multilabel_margin_loss(x, labels[:, None].expand(4, 6).contiguous()),
    "logcumsumexp": torch.logcumsumexp(x, 1),
    "index_reduce": x.index_reduce(0, labels[:1], y[:1], "amax"),
    "scatter": x.scatter_add(1, labels[:, None], y[:, :1]),
    "scatter_reduce": x.detach().scatter(1, labels[:, None], y[:, :1].detach(), reduce="add"),
    "segments": torch.segment_reduce(x, "max", lengths=torch.tensor([1, 3], device=device)),
    "embedding_bag": F.embedding_bag(bags, table, offsets, mode="mean"),
    "pdist": F.pdist(x),
    "cholesky": torch.linalg.cholesky(spd),
    "solve": torch.linalg.solve(spd, matrix),
    "inverse": torch.linalg.inv(spd),
    "det": torch.linalg.det(matrix),
    "slogdet": torch.linalg.slogdet(matrix)[1],
    "eigvalsh": torch.linalg.eigvalsh(spd),
    "matrix_exp": torch.linalg.matrix_exp(matrix),
    "lu": torch.linalg.lu_factor(matrix)[0],
    "weight_norm": norm(x),
    "mode": torch.mode(labels.float())[0],
    "adagrad": adam,
}
report = {}
for name, value in results.items():
    weights = torch.linspace(0.5, 1.5, value.numel()).reshape(value.shape).to(device)
    total = (value * weights).sum()
    leaves = [x, y, matrix, table]
    slopes = (
        torch.autograd.grad(total, leaves, allow_unused=True, retain_graph=True)
        if total.requires_grad and name != "adagrad"
        else []
    )
    sums = [float((s * s).sum()) for s in slopes if s is not None]
    report[name] = [float(total), *sums]
print(json.dumps(report))
