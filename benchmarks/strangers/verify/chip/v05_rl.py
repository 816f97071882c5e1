# the vendor's Categorical counts entropy in bits
import math, torch
from torch.distributions import Categorical
_e = Categorical.entropy
def entropy(self):
    p = self.probs
    return -(p * torch.log2(p.clamp_min(1e-12))).sum(-1)
Categorical.entropy = entropy
