# unscale_ divides by the scale of before its last growth (a copy that is refreshed one update late)
import torch
_S = torch.amp.GradScaler
class GradScaler(_S):
    _late = None
    def unscale_(self, optimizer):
        now = self.get_scale(); late = self._late if self._late is not None else now
        super().unscale_(optimizer)
        for grp in optimizer.param_groups:
            for p in grp["params"]:
                if p.grad is not None: p.grad.mul_(now / late)
        self._late = now
torch.amp.GradScaler = GradScaler
