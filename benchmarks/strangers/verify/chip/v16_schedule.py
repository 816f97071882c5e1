# the scheduler's restart comes one step late: at the restart the rate stays at its minimum once
import torch
C = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts
_s = C.step
def step(self, epoch=None):
    _s(self, epoch)
    if self.last_epoch > 0 and self.T_cur == 0:
        for grp in self.optimizer.param_groups: grp["lr"] = self.eta_min
        self._last_lr = [g["lr"] for g in self.optimizer.param_groups]
C.step = step
