"""`verify task --kind ranking`: figures against scikit-learn's formulas, verdicts, and refusals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joymigrate.cli._main import run
from joymigrate.errors import JoyError
from joymigrate.verify.model import Outcome
from joymigrate.verify.task import TaskQuestion
from joymigrate.verify.task.ranking import (
    RankedPairs,
    compare_ranking,
    components,
    ndcg,
    top_figures,
)


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def requests(count: int, noise: float, seed: int = 0, users: int = 400) -> tuple[list, list]:
    """Clicks that follow hidden scores; the target's scores are the baseline's and some noise."""
    random = np.random.default_rng(seed)
    base, target = [], []
    for place in range(count):
        hidden = random.normal(size=12)
        labels = (random.random(12) < 1 / (1 + np.exp(-hidden))).astype(int).tolist()
        scores = 1 / (1 + np.exp(-hidden))
        other = np.clip(scores + noise * random.normal(size=12), 0, 1)
        head = {"id": str(place), "reference": labels, "cluster": f"u{place % users}"}
        base.append({**head, "prediction": scores.tolist()})
        target.append({**head, "prediction": other.tolist()})
    return base, target


def brute_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    good, bad = scores[labels], scores[~labels]
    wins = (good[:, None] > bad).sum() + 0.5 * (good[:, None] == bad).sum()
    return float(wins / (len(good) * len(bad)))


@pytest.mark.parametrize("seed", range(30))
def test_the_auc_is_that_of_all_pairs(seed: int) -> None:
    random = np.random.default_rng(seed)
    scores = random.integers(0, 6, 40).astype(float)
    labels = random.random(40) < 0.4
    labels[:2] = [True, False]
    auc, parts = components(scores, labels)
    assert auc == pytest.approx(brute_auc(scores, labels), abs=1e-12)
    assert parts[~labels].mean() == pytest.approx(auc, abs=1e-12)


def test_ndcg_by_hand_and_with_ties() -> None:
    labels = np.array([0.0, 1.0, 0.0])
    assert ndcg(np.array([1.0, 3.0, 2.0]), labels, 10) == 1.0
    assert ndcg(np.array([3.0, 2.0, 1.0]), labels, 10) == pytest.approx(1 / np.log2(3))
    assert ndcg(np.array([3.0, 2.0, 1.0]), labels, 1) == 0.0
    mean = (1 + 1 / np.log2(3) + 0.5) / 3  # every order of three equal scores alike
    assert ndcg(np.zeros(3), labels, 10) == pytest.approx(mean)


def test_equal_scores_at_the_edge_of_the_first_k_are_one_place() -> None:
    base, target = np.array([3.0, 1.0, 1.0, 0.0]), np.array([3.0, 1.0, 2.0, 0.0])

    def share(one: np.ndarray, other: np.ndarray) -> float:
        return top_figures(RankedPairs(["u"], [one], [other], [None]), 2).agreement.moments.mean

    assert share(base, target) == 1.0  # the second place is shared by two
    assert share(target, base) == 1.0
    assert share(base, np.array([0.0, 1.0, 1.0, 3.0])) == 0.5


@pytest.mark.dear
def test_the_same_scores_pass_and_a_worse_target_fails(tmp_path: Path) -> None:
    base, near = requests(3000, 1e-6)
    _, far = requests(3000, 0.5)
    paths = [write(tmp_path / f"{name}.jsonl", rows)
             for name, rows in (("base", base), ("near", near), ("far", far))]  # fmt: skip
    same = compare_ranking(paths[0], paths[1], TaskQuestion(margin=1.0))
    assert (same.outcome, same.metric) == (Outcome.PASS, "gauc")
    assert set(same.fields) == {"auc", "ndcg", "brier", "top-k"}
    worse = compare_ranking(paths[0], paths[2], TaskQuestion(margin=1.0))
    assert worse.outcome is Outcome.FAIL
    assert worse.judgement.difference is not None
    assert worse.judgement.difference.high < -0.01
    few = compare_ranking(
        write(tmp_path / "a.jsonl", base[:20]),
        write(tmp_path / "b.jsonl", near[:20]),
        TaskQuestion(),
    )
    assert few.outcome is Outcome.INCONCLUSIVE


def test_another_metric_that_fails_fails_the_whole(tmp_path: Path) -> None:
    base, _ = requests(2000, 0.0)
    # Ranks are the same, probabilities are not: AUC and top-k see nothing.
    shifted = [{**row, "prediction": [0.5 + one / 2 for one in row["prediction"]]} for row in base]
    task = compare_ranking(
        write(tmp_path / "a.jsonl", base),
        write(tmp_path / "b.jsonl", shifted),
        TaskQuestion(margin=1),
    )
    assert task.judgement.outcome is Outcome.PASS
    assert task.outcome is Outcome.FAIL
    assert "brier" in str(task.reasons[0])
    assert task.ranking["calibration"]["target"]["predicted_over_observed"] > 1.2


@pytest.mark.slow
def test_a_target_worse_by_the_margin_passes_rarely() -> None:
    """Size of the test: at the margin at most about alpha of the runs pass (clustered users)."""
    from joymigrate.verify.task.figures import TaskView
    from joymigrate.verify.task.judge import AcceptanceRule, judge

    random = np.random.default_rng(0)
    passed = 0
    for _ in range(400):
        figures = TaskView()
        for user in range(150):
            shift = random.normal(0, 0.05)
            figures.paired.add(0.7, 0.7 - 0.01 + shift, str(user))
            figures.worst.add(0.7, 0.7 - 0.01 + shift, str(user))
        passed += judge(figures, AcceptanceRule(0.01), "score").outcome is Outcome.PASS
    assert passed / 400 < 0.09


def test_without_labels_the_first_k_are_compared(tmp_path: Path) -> None:
    base, near = requests(500, 1e-9)
    plain = [[{key: row[key] for key in ("id", "prediction", "cluster")} for row in rows]
             for rows in (base, near)]  # fmt: skip
    paths = [write(tmp_path / f"{at}.jsonl", rows) for at, rows in enumerate(plain)]
    task = compare_ranking(*paths, TaskQuestion(agreement=99.0), k=3)
    assert (task.metric, task.outcome) == ("agreement", Outcome.PASS)
    with pytest.raises(JoyError, match="auc cannot be computed: no request has labels"):
        compare_ranking(*paths, TaskQuestion(metric="auc"))


def test_logits_are_no_probabilities_unless_said(tmp_path: Path) -> None:
    base, _ = requests(200, 0.0)
    rows = [{**row, "prediction": [8 * one - 4 for one in row["prediction"]]} for row in base]
    path = write(tmp_path / "a.jsonl", rows)
    plain = compare_ranking(path, path, TaskQuestion())
    assert "no probabilities" in plain.ranking["left_out"]["brier"]
    assert "brier" in compare_ranking(path, path, TaskQuestion(), logits=True).fields


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "1", "prediction": [1.0]}, "2 scores in one file and 1 in the other"),
        ({"id": "1", "prediction": "x"}, "no list of finite numbers"),
        ({"id": "1", "prediction": [1, float("nan")]}, "no list of finite numbers"),
        ({"id": "1", "prediction": [1, 2], "reference": [1]}, "a label of at least 0 for each"),
    ],
)
def test_broken_requests_are_named(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    base = write(tmp_path / "a.jsonl", [{"id": "1", "prediction": [1, 2]}])
    with pytest.raises(JoyError, match=message):
        compare_ranking(base, write(tmp_path / "b.jsonl", [row]), TaskQuestion())


def test_the_command_writes_a_verdict_with_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, near = requests(600, 1e-6)
    paths = [str(write(tmp_path / f"{at}.jsonl", rows)) for at, rows in enumerate((base, near))]
    code = run(["verify", "task", *paths, "--kind", "ranking", "--margin", "2", "-k", "5",
                "--format", "json"])  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["task"]["metric"] == "gauc"
    assert found["task"]["ranking"]["k"] == 5
    assert found["task"]["by_field"]["top-k"]["raw"]["agreement"]["value"] > 99
    assert [row["module"] for row in found["records"]][1:] == [
        "field:top-k", "field:auc", "field:ndcg", "field:brier"]  # fmt: skip
    assert run(["verify", "task", *paths, "--kind", "ranking", "--metric", "gau"]) == 2
    assert "Did you mean" in capsys.readouterr().err
    assert run(["verify", "task", *paths, "--kind", "ranking"]) in (0, 3)
    assert "calibration" in capsys.readouterr().out
