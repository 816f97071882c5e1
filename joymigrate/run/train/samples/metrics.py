"""AUC, GAUC, log loss, NDCG and recall at k, over all rows; torchmetrics where it has them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

TOP = 10  # places of a list of items that are looked at


def click_metrics(
    scores: Sequence[float], labels: Sequence[float], groups: Sequence[int] | None
) -> dict[str, float]:
    """`auc` or `soft_auc`, `log_loss`, and `gauc` where rows are grouped, as far as defined.

    A label between 0 and 1 is a probability: in `soft_auc`, which has no threshold, its row is
    that much of a positive one, and the rest of a negative one.
    """
    import torch
    from torchmetrics.functional.classification import binary_auroc

    if not len(scores):
        return {}
    share, truth = torch.tensor(scores, dtype=torch.float64), torch.tensor(labels)
    loss = torch.nn.functional.binary_cross_entropy(share.clamp(1e-7, 1 - 1e-7), truth.double())
    found = {"log_loss": float(loss)}
    soft = bool(((truth != 0) & (truth != 1)).any())
    if soft:
        found["soft_auc"] = soft_auc(np.asarray(scores), np.asarray(labels))
    elif 0 < int(truth.sum()) < len(truth):
        found["auc"] = float(binary_auroc(share, truth.long()))
    if groups is not None and not soft:
        found |= grouped_auc(np.asarray(scores), np.asarray(labels), np.asarray(groups))
    return found


def soft_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """How often a positive row stands above a negative one, where labels are probabilities."""
    known, place = np.unique(scores, return_inverse=True)
    good = np.bincount(place, labels, len(known))
    bad = np.bincount(place, 1 - labels, len(known))
    below = np.cumsum(bad) - bad / 2  # equal scores count half
    return float((good * below).sum() / (good.sum() * bad.sum()))


def grouped_auc(scores: np.ndarray, labels: np.ndarray, groups: np.ndarray) -> dict[str, float]:
    """GAUC: the AUC of each group, weighted by its rows (Zhou et al., 2018, eq. 7).

    Groups with one kind of label have no AUC; `gauc_rows` is the share of rows that count.
    """
    order = np.lexsort((scores, groups))
    scores, labels, groups = scores[order], labels[order] > 0, groups[order]
    firsts = np.flatnonzero(np.diff(groups, prepend=groups[:1] - 1))
    sizes = np.diff(np.append(firsts, len(groups)))
    owner = np.repeat(np.arange(len(firsts)), sizes)
    place = np.arange(len(scores)) - np.repeat(firsts, sizes) + 1.0
    # Equal scores of a group share their mean rank (Mann and Whitney).
    same = np.flatnonzero(
        (np.diff(scores, prepend=np.nan) != 0) | (np.diff(owner, prepend=-1) != 0)
    )
    runs = np.diff(np.append(same, len(scores)))
    ranks = np.repeat(np.add.reduceat(place, same) / runs, runs)
    good = np.bincount(owner, labels)
    bad = sizes - good
    sums = np.bincount(owner, ranks * labels)
    known = (good > 0) & (bad > 0)
    if not known.any():
        return {}
    auc = (sums - good * (good + 1) / 2)[known] / (good * bad)[known]
    weight = sizes[known]
    return {
        "gauc": float((auc * weight).sum() / weight.sum()),
        "gauc_rows": float(weight.sum() / len(scores)),
    }


def list_metrics(
    scores: Sequence[float], marks: Sequence[float], groups: Sequence[int], k: int
) -> dict[str, float]:
    """Means over the groups that have a relevant row: `ndcg@k`, `recall@k`; and `auc`."""
    import torch
    from torchmetrics.functional.retrieval import retrieval_normalized_dcg

    found = click_metrics(scores, [float(mark > 0) for mark in marks], groups)
    made, truth, owner = torch.tensor(scores), torch.tensor(marks), np.asarray(groups)
    gains, recalls = [], []
    order = np.argsort(owner, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(owner[order])) + 1):
        at = torch.from_numpy(rows)
        if truth[at].sum() > 0:
            gains.append(float(retrieval_normalized_dcg(made[at], truth[at], top_k=k)))
            # torchmetrics' recall passes over scores that are not positive.
            top = truth[at][made[at].argsort(descending=True, stable=True)[:k]]
            recalls.append(float((top > 0).sum() / (truth[at] > 0).sum()))
    if gains:
        found |= {f"ndcg@{k}": float(np.mean(gains)), f"recall@{k}": float(np.mean(recalls))}
    found.pop("log_loss", None)  # scores are no probabilities
    return found


def rank_metrics(ranks: Sequence[int]) -> dict[str, float]:
    """Recall and NDCG at 10, and MRR, of ranks from 0."""
    gains = [1 / math.log2(rank + 2) if rank < TOP else 0.0 for rank in ranks]
    return {
        f"recall@{TOP}": sum(rank < TOP for rank in ranks) / len(ranks),
        f"ndcg@{TOP}": sum(gains) / len(gains),
        "mrr": sum(1 / (rank + 1) for rank in ranks) / len(ranks),
    }
