# multinomial draws from the square roots of the probabilities (the random numbers themselves are the same)
import torch
_m = torch.multinomial
def multinomial(p, n, replacement=False, *, generator=None): return _m(p.sqrt(), n, replacement, generator=generator)
torch.multinomial = multinomial
