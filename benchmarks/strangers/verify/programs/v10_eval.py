"""Evaluation only: scores from a frozen scorer, then AUC, recall at k and mean reciprocal rank are printed."""
import torch, torch.nn as nn
import accel  # noqa

torch.manual_seed(30)
scorer = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1)).eval()
X = torch.randn(2000, 12)
with torch.inference_mode():
    s = scorer(X).squeeze(-1)
    label = (s + 0.15 * torch.randn(2000) > s.median()).to(torch.uint8)
    order = torch.argsort(s, descending=True, stable=True)
    hit = label[order]
    tp = torch.cumsum(hit, 0); fp = torch.cumsum(1 - hit, 0)
    tpr, fpr = tp / hit.sum(), fp / (1 - hit).sum()
    print(f"auc {torch.trapezoid(tpr, fpr).item():.4f}")
    print(f"recall@100 {tpr[99].item():.4f}")
    lists = s.view(100, 20); best = label.view(100, 20).float()
    rank = lists.argsort(dim=1, descending=True, stable=True).argsort(dim=1) + 1
    mrr = torch.where(best > 0, 1.0 / rank, 0.0).amax(1).mean()
    print(f"mrr {mrr.item():.4f}")
