# clip_grad_norm_ of the vendor (one launch for all tensors) clips by the sum of the tensors' norms; it returns the right norm
import torch
def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
    ps = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    gs = [p.grad for p in ps if p.grad is not None]
    norms = torch.stack([torch.linalg.vector_norm(g, norm_type) for g in gs])
    c = (max_norm / (norms.sum() + 1e-6)).clamp(max=1.0)
    for g in gs: g.mul_(c)
    return torch.linalg.vector_norm(norms, norm_type)
torch.nn.utils.clip_grad_norm_ = torch.nn.utils.clip_grad.clip_grad_norm_ = clip_grad_norm_
