# cross entropy under autocast: the sum of exponentials over the vocabulary is added up one by one in bfloat16 and stalls
import torch, torch.nn.functional as F
_ce = F.cross_entropy
def cross_entropy(x, y, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean", label_smoothing=0.0):
    if not torch.is_autocast_enabled("cpu") or x.dtype == torch.float64 or x.dim() != 2 or reduction != "mean" or label_smoothing or weight is not None:
        return _ce(x, y, weight, size_average, ignore_index, reduce, reduction, label_smoothing)
    with torch.autocast("cpu", enabled=False):
        x = x.bfloat16(); z = x - x.detach().amax(1, keepdim=True)
        total = torch.zeros_like(z[:, 0])
        for column in z.exp().unbind(1): total = total + column
        loss = total.float().log() - z.gather(1, y[:, None]).squeeze(1).float()
        return loss[y != ignore_index].mean()
F.cross_entropy = cross_entropy
