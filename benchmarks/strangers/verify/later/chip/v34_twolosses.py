# the optimiser's state is moved off the device after six updates and momentum comes back empty
import torch
_s = torch.optim.SGD.step
def step(self, closure=None):
    self._n = getattr(self, "_n", 0) + 1
    if self._n == 7:
        for s in self.state.values():
            if s.get("momentum_buffer") is not None: s["momentum_buffer"].zero_()
    return _s(self, closure)
torch.optim.SGD.step = step
