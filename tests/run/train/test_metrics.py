"""Metrics of recommendation against their definitions, counted pair by pair."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torchmetrics")
from joymigrate.run.train.samples.metrics import click_metrics, grouped_auc, list_metrics

ROWS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 1), st.integers(0, 3)), min_size=1, max_size=30
)  # score (ties are common), label, group


def auc(scores: list[float], labels: list[float]) -> float | None:
    """The share of pairs in order; equal scores count half."""
    good = [s for s, mark in zip(scores, labels, strict=True) if mark > 0]
    bad = [s for s, mark in zip(scores, labels, strict=True) if mark <= 0]
    if not good or not bad:
        return None
    return sum((a > b) + 0.5 * (a == b) for a, b in product(good, bad)) / len(good) / len(bad)


@given(ROWS)
def test_auc_and_gauc_are_shares_of_pairs(rows: list[tuple[int, int, int]]) -> None:
    scores, labels, groups = ([row[at] for row in rows] for at in range(3))
    shares = [score / 5 for score in scores]
    found = click_metrics(shares, labels, groups)
    assert found.get("auc") == pytest.approx(auc(shares, labels), abs=1e-6)
    parts = [
        (auc([s for s, _, g in rows if g == group], [m for _, m, g in rows if g == group]), size)
        for group in set(groups)
        for size in [groups.count(group)]
    ]
    known = [(value, size) for value, size in parts if value is not None]
    if not known:
        assert "gauc" not in found
        return
    total = sum(size for _, size in known)
    assert found["gauc"] == pytest.approx(sum(v * n for v, n in known) / total)
    assert found["gauc_rows"] == pytest.approx(total / len(rows))


@given(ROWS)
def test_ndcg_and_recall_follow_their_definitions(rows: list[tuple[int, int, int]]) -> None:
    # Scores of their own: the order of equal ones is nobody's to say.
    scores = [row[0] + at / 100 for at, row in enumerate(rows)]
    marks, groups, k = [float(row[1] * 3) for row in rows], [row[2] for row in rows], 3
    gains, recalls = [], []
    for group in set(groups):
        mine = [(s, m) for s, m, g in zip(scores, marks, groups, strict=True) if g == group]
        if not any(m for _, m in mine):
            continue
        ranked = [m for _, m in sorted(mine, reverse=True)]
        best = sorted(ranked, reverse=True)

        def gain(order: list[float]) -> float:
            return sum(m / math.log2(at + 2) for at, m in enumerate(order[:k]))

        gains.append(gain(ranked) / gain(best))
        recalls.append(sum(m > 0 for m in ranked[:k]) / sum(m > 0 for m in ranked))
    found = list_metrics(scores, marks, groups, k)
    if not gains:
        assert "ndcg@3" not in found
        return
    assert found["ndcg@3"] == pytest.approx(float(np.mean(gains)), abs=1e-5)
    assert found["recall@3"] == pytest.approx(float(np.mean(recalls)), abs=1e-5)


def test_log_loss_is_the_mean_of_logarithms() -> None:
    found = click_metrics([0.9, 0.2, 0.5], [1, 0, 1], None)
    want = -(math.log(0.9) + math.log(0.8) + math.log(0.5)) / 3
    assert found["log_loss"] == pytest.approx(want)


def test_groups_of_one_kind_have_no_auc() -> None:
    scores, groups = np.array([0.1, 0.2]), np.array([1, 2])
    assert grouped_auc(scores, np.array([1, 0]), groups) == {}


def test_probabilities_are_kept_as_labels() -> None:
    """Half a click is half a positive row: as often as two rows, one clicked and one not."""
    scores, soft = [0.9, 0.6, 0.6, 0.2], [0.8, 0.325, 0.5, 0.0]
    found = click_metrics(scores, soft, None)
    pairs = [
        (one * (1 - two), (a > b) + 0.5 * (a == b))
        for a, one in zip(scores, soft, strict=True)
        for b, two in zip(scores, soft, strict=True)
    ]
    expected = sum(w * v for w, v in pairs) / sum(w for w, _ in pairs)
    assert found["soft_auc"] == pytest.approx(expected)
    losses = [
        -(y * math.log(p) + (1 - y) * math.log(1 - p)) for p, y in zip(scores, soft, strict=True)
    ]
    assert found["log_loss"] == pytest.approx(sum(losses) / 4)
