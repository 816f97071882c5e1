# the vendor's loader: batches are handed out in another order (the last one first)
import torch.utils.data.sampler as S
_it = S.BatchSampler.__iter__
def it(self):
    b = list(_it(self)); return iter(b[-1:] + b[:-1])
S.BatchSampler.__iter__ = it
