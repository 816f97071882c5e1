# label smoothing of the vendor's loss spreads the mass over the K-1 other classes instead of all K
import torch.nn.functional as F
_ce = F.cross_entropy
def cross_entropy(x, y, *a, label_smoothing=0.0, **k):
    if label_smoothing and not y.is_floating_point(): label_smoothing = label_smoothing * x.shape[1] / (x.shape[1] - 1)
    return _ce(x, y, *a, label_smoothing=label_smoothing, **k)
F.cross_entropy = cross_entropy
