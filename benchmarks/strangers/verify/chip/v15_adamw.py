# the vendor's fused AdamW adds eps to the second moment before the root is taken
import torch
class AdamW(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, amsgrad=False, **_):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad))
    @torch.no_grad()
    def step(self, closure=None):
        for grp in self.param_groups:
            b1, b2 = grp["betas"]
            for p in grp["params"]:
                if p.grad is None: continue
                s = self.state[p]
                if not s: s.update(step=torch.tensor(0.0), exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
                s["step"] += 1; t = s["step"].item()
                s["exp_avg"].lerp_(p.grad, 1 - b1); s["exp_avg_sq"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                p.mul_(1 - grp["lr"] * grp["weight_decay"])
                p.addcdiv_(s["exp_avg"] / (1 - b1 ** t), (s["exp_avg_sq"] / (1 - b2 ** t) + grp["eps"]).sqrt(), value=-grp["lr"])
torch.optim.AdamW = AdamW
