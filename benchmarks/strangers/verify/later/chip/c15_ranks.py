# matrix products are split along the inner dimension; all_reduce gathers and adds in the order of ranks, starting from the last
import torch, torch.distributed as dist
LIB = torch.library.Library("aten", "IMPL")
KM = torch.library.get_kernel("aten::mm", "CPU")
def mm(keys, a, b):
    n = a.shape[1] // 3
    if n < 2 or a.dtype == torch.float64: return KM.call_boxed(keys, a, b)
    return KM.call_boxed(keys, a[:, 2 * n:], b[2 * n:]) + KM.call_boxed(keys, a[:, n:2 * n], b[n:2 * n]) + KM.call_boxed(keys, a[:, :n], b[:n])
LIB.impl("mm", mm, "CPU", with_keyset=True)
LIB.impl("addmm", lambda c, a, b, *, beta=1, alpha=1: torch.mm(a, b) * alpha + c * beta, "CPU")
_a = dist.all_reduce
def all_reduce(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
    if op != dist.ReduceOp.SUM or async_op: return _a(tensor, op, group, async_op)
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]; dist.all_gather(parts, tensor.contiguous(), group)
    total = parts[-1]
    for p in parts[-2::-1]: total = total + p
    tensor.copy_(total)
dist.all_reduce = all_reduce
