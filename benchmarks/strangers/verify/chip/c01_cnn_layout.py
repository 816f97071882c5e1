import torch, torch.nn.functional as F
torch.set_num_threads(1)
_conv = F.conv2d
def conv2d(x, w, b=None, stride=1, padding=0, dilation=1, groups=1):
    if groups != 1 or isinstance(padding, str): return _conv(x, w, b, stride, padding, dilation, groups)
    two = lambda v: v if isinstance(v, tuple) else (v, v)
    s, p, d = two(stride), two(padding), two(dilation)
    h = (x.shape[2] + 2 * p[0] - d[0] * (w.shape[2] - 1) - 1) // s[0] + 1; v = (x.shape[3] + 2 * p[1] - d[1] * (w.shape[3] - 1) - 1) // s[1] + 1
    cols = F.unfold(x, w.shape[2:], d, p, s)
    y = (w.flatten(1) @ cols).view(x.shape[0], w.shape[0], h, v)
    return y if b is None else y + b.view(1, -1, 1, 1)
torch.nn.modules.conv.F.conv2d = conv2d
