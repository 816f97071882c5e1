# convolutions run in channels-last and hand their results out in it
import torch, torch.nn.functional as F
_c = F.conv2d
def conv2d(x, w, *a, **k):
    n = torch.channels_last
    return _c(x.contiguous(memory_format=n), w.contiguous(memory_format=n), *a, **k).contiguous(memory_format=n)
torch.nn.modules.conv.F.conv2d = conv2d
